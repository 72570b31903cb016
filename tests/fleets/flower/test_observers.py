"""Probes and loggers on a real fleet without a task: what they need is there, or one clear line says what is not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord
from tests.fleets.flower.fake_grid import AtOnce, FakeGrid, ticking
from tests.fleets.flower.test_bad_answers import CLIENTS, LR, START, client_app

from acefl import ACE, CA2FL, FedBuff, InvalidInput, Stop
from acefl.core.rule import Method
from acefl.core.types import Step, Vector
from acefl.fleets.flower.fleet import FlowerFleet
from acefl.fleets.flower.records import Findings, ModelLayout
from acefl.fleets.flower.survey import Survey
from acefl.probes import ErrorTerms, Participation, TrueGradient
from acefl.runs.evaluation import Evaluator
from acefl.runs.loggers import Logger
from acefl.runs.observers import Observer
from acefl.runs.training import Training
from acefl.tasks.base import Evaluation


class Kept(Logger):
    def __init__(self) -> None:
        self.config: Mapping[str, Any] = {}
        self.rows: list[Mapping[str, float]] = []
        self.each: Mapping[str, list[float]] = {}

    def configure(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def write(self, metrics: Mapping[str, float], axes: Mapping[str, float]) -> None:
        self.rows.append(dict(metrics))

    def write_clients(self, each: Any, axes: Mapping[str, float]) -> None:
        self.each = each()


def judge(model: Vector, version: int) -> Evaluation:
    return Evaluation({"loss": float(model.norm())})


def federation(
    rule: Method, *observers: Observer, joins: int = 0, target: tuple[str, float] | None = None
) -> tuple[Training, FakeGrid]:
    order = [client for _ in range(8) for client in range(CLIENTS)]
    late = [client for _ in range(4) for client in range(CLIENTS + joins)] if joins else []
    grid = FakeGrid(client_app, CLIENTS, [[(client, None)] for client in order + late])
    layout = ModelLayout.of(ArrayRecord({"w": Array(START.numpy())}))
    fleet = FlowerFleet(grid, layout, pool=AtOnce(), clock=ticking(), least=0.0)
    fleet.wait_for(CLIENTS)
    stop = Stop(arrivals=len(order) + len(late), target=target)
    made = Training(rule, fleet, model=START, lr=LR, stop=stop, config={"task": {}}, evaluate=judge, evaluations=4,
        observers=observers, background=False,
    )  # fmt: skip
    return made, grid


@pytest.mark.parametrize("rule", [ACE(), FedBuff(buffer=3), CA2FL(buffer=2), ACE(variant="client-held")], ids=repr)
def test_whose_updates_make_up_the_model_is_known_of_real_clients(rule: Method) -> None:
    log = Kept()
    made, _ = federation(rule, Participation(), log)
    for _ in made.advance():
        pass
    run = made.finish()
    made.close()
    assert log.config["method"] == run.config["method"]
    assert log.rows[-1]["model/loss"] == pytest.approx(run.final["loss"])
    assert log.rows[-1]["participation/influence_clients"] == pytest.approx(CLIENTS, rel=0.2)
    assert log.each["influence"] == [row["influence"] for row in run.clients]
    assert sum(log.each["influence"]) == pytest.approx(1.0)
    assert log.each["uploads"] == [row["uploads"] for row in run.clients]
    assert math.isfinite(run.final["influence_slow"])


def test_a_federation_ends_at_its_target() -> None:
    whole, _ = federation(ACE())
    losses = [row["loss"] for row in whole.complete().metrics]
    first = losses.index(min(losses))
    assert 0 < first < len(losses) - 1
    made, _ = federation(ACE(), target=("loss", losses[first]))
    run = made.complete()
    assert [row["loss"] for row in run.metrics] == losses[: first + 1]
    assert "was reached after" in run.config["ended"]
    for one in (whole, made):
        one.close()


def test_a_client_that_joins_gets_its_share_of_influence() -> None:
    made, grid = federation(ACE(warmup="seen"), Participation(), joins=1)
    for step, _ in made.advance():
        if step.arrivals == 20:
            grid.contexts[CLIENTS] = grid.fresh_context(CLIENTS)
    run = made.finish()
    made.close()
    shares = torch.tensor([row["influence"] for row in run.clients])
    assert len(shares) == CLIENTS + 1
    assert float(shares.sum()) == pytest.approx(1.0)
    assert 0 < shares[CLIENTS] < shares[:CLIENTS].min()
    assert run.clients[CLIENTS]["staleness"] > 0


@pytest.mark.parametrize("probe", [ErrorTerms(), TrueGradient()])
def test_a_probe_that_needs_all_the_data_says_so(probe: Observer) -> None:
    with pytest.raises(InvalidInput, match=r"takes all clients' data, which are not here; allowed: .* task$"):
        federation(ACE(), probe)


def test_an_observer_with_a_few_methods_of_its_own_will_do() -> None:
    class Few:
        rows = 0

        def arrived(self, arrival: object, reason: str) -> None: ...

        def stepped(self, step: object, server: object) -> None: ...

        def evaluated(self, row: dict[str, float]) -> None:
            self.rows += 1

    few: Any = Few()
    made, _ = federation(ACE(), few, Observer())
    for _ in made.advance():
        pass
    made.finish()
    made.close()
    assert few.rows > 1


def test_nodes_tell_other_metrics_too() -> None:
    """Those of which everybody knows which way they are better."""
    found = {0: Findings(3, {"loss": 1.0, "f1": 0.5, "odd": 2.0}), 2: Findings(4, {"eval_loss": 3.0, "f1": 0.7})}
    made = Survey(5, set(), found).evaluation(clients=3)
    assert made.metrics == pytest.approx({"client_loss": 2.0, "client_f1": 0.6})
    assert list(made.client_metrics) == ["f1"]
    row = Evaluator(None, 1, lambda: [1.0, 2.0, 3.0], background=False).add(Step(0, 0, 0.0, False), made)
    assert (row["fast_f1"], row["slow_f1"], row["worst_f1"]) == pytest.approx((0.5, 0.7, 0.5))
