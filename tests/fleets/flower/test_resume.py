"""A ServerApp that died and is started again goes on from its last checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from tests.fleets.flower.fake_grid import FIRST_NODE, AtOnce, FakeGrid, Spoil, ticking
from tests.fleets.flower.test_bad_answers import CLIENTS, LR, START, client_app, from_script
from tests.fleets.flower.test_coming_and_going import HELD

from acefl import ACE, ACED, Every, FedBuff, InvalidInput, Stop
from acefl.core.gate import NormLimit
from acefl.core.rule import Method, Upload
from acefl.core.types import Arrival, State, Step
from acefl.fleets.flower.fleet import FlowerFleet
from acefl.fleets.flower.records import ModelLayout
from acefl.probes import Participation
from acefl.rules import FedAvg
from acefl.runs.observers import Observer
from acefl.runs.record import Run, load
from acefl.runs.saving import run_to_end
from acefl.runs.training import Training


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


def start(
    rule: Method,
    out: Path,
    kill_at: int = -1,
    nodes: int = CLIENTS,
    grid: FakeGrid | None = None,
    observers: Sequence[Observer] = (),
    norm_limit: NormLimit | None = None,
    arrivals: int = 40,
    evaluations: int = 50,
) -> Run:
    """One life of a ServerApp: nodes answer in turn, and at `kill_at` arrivals its process dies."""
    turns: list[list[tuple[int, Spoil | None]]] = [[(client % nodes, None)] for client in range(500)]
    grid = grid or FakeGrid(client_app, nodes, turns)
    layout = ModelLayout.of(ArrayRecord({"w": Array(START.numpy())}))
    differences = rule.uploads is Upload.CHANGE
    fleet = FlowerFleet(grid, layout, differences=differences, pool=AtOnce(), clock=ticking(), least=0.0)
    fleet.wait_for(nodes)
    federation = Training(
        rule,
        fleet,
        model=START,
        lr=LR,
        stop=Stop(arrivals=arrivals),
        config={"task": {"name": "test"}, "scenario": {}},
        observers=observers,
        norm_limit=norm_limit,
        evaluations=evaluations,
    )

    def after_turn(step: Step, spent: float) -> None:
        if step.arrivals == kill_at:
            raise Killed

    return run_to_end(federation, after_turn=after_turn, out=out, checkpoint=Every(arrivals=5))


@pytest.mark.parametrize("rule", [ACE(), ACE(table="int8"), ACED(tau=6), FedBuff(buffer=3)], ids=repr)
def test_what_a_run_records_makes_its_model_however_often_it_was_killed(rule: Method, tmp_path: Path) -> None:
    for kill_at in (12, 23, 24, 37):
        with pytest.raises(Killed):
            start(rule, tmp_path / "run", kill_at)
    made = start(rule, tmp_path / "run")
    assert made.arrivals == 40
    assert sum(made.participation) == 40
    assert min(made.participation) > 0
    turns = [list(zip(t["client"], t["trained_on"], strict=True)) for _, t in made.events.groupby("time", sort=True)]
    alone = from_script(rule, turns)
    assert torch.equal(made.model, alone.model)
    assert torch.equal(load(tmp_path / "run").model, made.model)
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_nodes_keep_their_numbers_and_newcomers_come_after_them(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        start(ACE(), tmp_path / "run", 12)
    made = start(ACE(), tmp_path / "run", nodes=CLIENTS + 1)
    assert len(made.participation) == CLIENTS + 1
    assert made.participation[CLIENTS] > 0
    assert sum(made.participation) == made.arrivals == 40


@pytest.mark.parametrize(("arrivals", "evaluations"), [(120, 20), (40, 4), (40, 40)])
def test_a_run_that_goes_on_to_another_budget_is_evaluated_at_even_shares_of_that(
    arrivals: int, evaluations: int, tmp_path: Path
) -> None:
    """Otherwise its curve has a gap, and a target is looked for too late."""
    with pytest.raises(Killed):
        start(ACE(warmup="seen"), tmp_path / "run", 37, evaluations=20)
    made = start(ACE(warmup="seen"), tmp_path / "run", arrivals=arrivals, evaluations=evaluations)
    every = arrivals // evaluations
    evaluated = [row["arrival"] for row in made.metrics if row["arrival"] > 35]
    assert evaluated == [at for at in range(0, arrivals + 1, every) if at > 35]


def test_a_round_that_was_interrupted_goes_on_with_the_nodes_that_were_at_work(tmp_path: Path) -> None:
    class OneByOne(FakeGrid):
        """Whoever was asked first answers first, one node each time somebody looks who is connected."""

        def get_node_ids(self) -> Iterable[int]:
            if self.waiting:
                first = next(iter(self.waiting.values()))
                self._turn = {first.metadata.dst_node_id - FIRST_NODE: None}
            return [FIRST_NODE + client for client in self.contexts]

    for kill_at in (6, 11):  # of rounds that had one and two answers at the last checkpoint
        with pytest.raises(Killed):
            start(FedAvg(), tmp_path / "run", kill_at, grid=OneByOne(client_app, CLIENTS, ()))
    made = start(FedAvg(), tmp_path / "run", grid=OneByOne(client_app, CLIENTS, ()))
    for version, one in made.events.groupby("version"):
        assert sorted(one["client"]) == list(range(CLIENTS)), f"the step from version {version}"


def test_held_gradients_are_sent_anew_after_a_restart(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        start(HELD, tmp_path / "run", 17)
    made = start(HELD, tmp_path / "run")
    whole = start(ACE(warmup="seen"), tmp_path / "other")
    assert made.arrivals == 40
    assert torch.allclose(made.model, whole.model, atol=0.3), "the sum still holds what was sent before the restart"


def test_held_gradients_survive_a_restart_after_which_somebody_leaves(tmp_path: Path) -> None:
    """With the paper's first round: the resumed server waits for everybody again, and one client never answers."""
    rule = ACE(variant="client-held", warmup="wait")
    with pytest.raises(Killed):
        start(rule, tmp_path / "run", 17)

    class OneLeaves(FakeGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            if any(message.metadata.dst_node_id == FIRST_NODE + 3 for message in messages):
                self.away.add(3)
            return super().push_messages(messages)

    made = start(rule, tmp_path / "run", grid=OneLeaves(client_app, CLIENTS, [[(c % 3, None)] for c in range(500)]))
    assert made.arrivals == 40
    assert "ended" not in made.config


def test_every_task_that_was_sent_counts_as_an_upload_however_often_the_server_was_killed(tmp_path: Path) -> None:
    """Also those sent after the last checkpoint, of which the resumed server knows by its log alone."""
    sent = Counter[int]()

    class Counting(FakeGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            sent.update(message.metadata.dst_node_id - FIRST_NODE for message in messages)
            return super().push_messages(messages)

    def grid() -> FakeGrid:
        return Counting(client_app, CLIENTS, [[(client % CLIENTS, None)] for client in range(500)])

    for kill_at in (4, 14, 23):
        with pytest.raises(Killed):
            start(ACE(), tmp_path / "run", kill_at, grid=grid())
    made = start(ACE(), tmp_path / "run", grid=grid())
    assert [row["uploads"] for row in made.clients] == [sent[client] for client in range(CLIENTS)]
    assert sum(sent.values()) > made.arrivals + 3 * 4, "nothing was sent after a checkpoint: this shows nothing"
    assert [row["uploads"] for row in load(tmp_path / "run").clients] == [row["uploads"] for row in made.clients]


class Remembering(Observer):
    def __init__(self) -> None:
        self.arrivals = 0

    def arrived(self, arrival: Arrival, reason: str) -> None:
        self.arrivals += 1

    def per_client(self) -> dict[str, list[float]]:
        return {"heard": [float(self.arrivals)] * CLIENTS}

    def state_dict(self) -> State:
        return {"arrivals": self.arrivals}

    def load_state_dict(self, state: State) -> None:
        self.arrivals = int(state["arrivals"])


def test_observers_go_on_where_they_were(tmp_path: Path) -> None:
    for kill_at in (12, 23):
        with pytest.raises(Killed):
            start(ACED(tau=6), tmp_path / "run", kill_at, observers=[Remembering(), Participation()])
    with pytest.raises(InvalidInput, match=r"observers are \['Remembering'\]; the run's were .*'Participation'"):
        start(ACED(tau=6), tmp_path / "run", observers=[Remembering()])
    made = start(ACED(tau=6), tmp_path / "run", observers=[Remembering(), Participation()])
    whole = start(ACED(tau=6), tmp_path / "whole", observers=[Remembering(), Participation()])
    assert {row["heard"] for row in made.clients} == {40.0}
    assert sum(row["influence"] for row in made.clients) == pytest.approx(1.0)
    for row, other in zip(made.clients, whole.clients, strict=True):
        assert row["influence"] == pytest.approx(other["influence"], abs=0.1)
        assert row["staleness"] > 0


def test_a_norm_limit_is_recorded_and_cannot_change_in_mid_run(tmp_path: Path) -> None:
    limit = NormLimit(factor=50.0)
    with pytest.raises(Killed):
        start(ACE(), tmp_path / "run", 12, norm_limit=limit)
    with pytest.raises(InvalidInput, match="norm_limit is None; that of the run"):
        start(ACE(), tmp_path / "run")
    made = start(ACE(), tmp_path / "run", norm_limit=limit)
    assert made.config["norm_limit"] == {"factor": 50.0, "action": "refuse", "history": 10}


def test_another_method_does_not_go_on_where_this_one_was(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        start(ACE(), tmp_path / "run", 12)
    with pytest.raises(InvalidInput, match="method is ACED"):
        start(ACED(), tmp_path / "run")
