"""A ServerApp that died and is started again goes on from its last checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord
from tests.flower.fake_grid import AtOnce, FakeGrid, Spoil, ticking
from tests.flower.test_bad_answers import CLIENTS, LR, START, client_app, from_script
from tests.flower.test_coming_and_going import HELD

from acefl import ACE, ACED, Every, FedBuff, InvalidInput, Stop
from acefl.core.rule import Method, Upload
from acefl.federation import Federation, go
from acefl.fleets.flower.fleet import FlowerFleet
from acefl.fleets.flower.records import ModelLayout
from acefl.record import Run, load
from acefl.types import Step


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


def start(rule: Method, out: Path, kill_at: int = -1, nodes: int = CLIENTS) -> Run:
    """One life of a ServerApp: nodes answer in turn, and at `kill_at` arrivals its process dies."""
    turns: list[list[tuple[int, Spoil | None]]] = [[(client % nodes, None)] for client in range(500)]
    grid = FakeGrid(client_app, nodes, turns)
    layout = ModelLayout.of(ArrayRecord({"w": Array(START.numpy())}))
    differences = rule.uploads is Upload.CHANGE
    fleet = FlowerFleet(grid, layout, differences=differences, pool=AtOnce(), clock=ticking(), least=0.0)
    fleet.wait_for(nodes)
    federation = Federation(
        START, rule, fleet, lr=LR, stop=Stop(arrivals=40), config={"task": {"name": "test"}, "scenario": {}}
    )

    def after_turn(step: Step, spent: float) -> None:
        if step.arrivals == kill_at:
            raise Killed

    return go(federation, after_turn, out=out, checkpoint=Every(arrivals=5))


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


def test_held_gradients_are_sent_anew_after_a_restart(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        start(HELD, tmp_path / "run", 17)
    made = start(HELD, tmp_path / "run")
    whole = start(ACE(warmup="seen"), tmp_path / "other")
    assert made.arrivals == 40
    assert torch.allclose(made.model, whole.model, atol=0.3), "the sum still holds what was sent before the restart"


def test_another_method_does_not_go_on_where_this_one_was(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        start(ACE(), tmp_path / "run", 12)
    with pytest.raises(InvalidInput, match="method is ACED"):
        start(ACED(), tmp_path / "run")
