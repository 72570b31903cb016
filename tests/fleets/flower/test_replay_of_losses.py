"""A record says all that decided its model: replayed, it gives the same bits, whatever was lost, refused or killed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given, settings
from tests.fleets.flower.fake_grid import AtOnce, FakeGrid, ticking
from tests.fleets.flower.test_bad_answers import BAD, LR, START, client_app, work

from acefl import (
    ACE,
    ACED,
    AREA,
    CA2FL,
    FADAS,
    MIFA,
    DelayAdaptiveASGD,
    FedBuff,
    FedStaleWeight,
    MaleniaSGD,
    RingleaderASGD,
    RingmasterASGD,
    Run,
    Stop,
    load,
)
from acefl.core.rule import Method
from acefl.core.types import State, Vector
from acefl.fleets.flower.fleet import FlowerFleet
from acefl.fleets.flower.records import ModelLayout
from acefl.fleets.flower.roster import EverybodyFails
from acefl.runs.replay import replay
from acefl.runs.training import Training
from acefl.tasks.base import Evaluation

CLIENTS, MOST = 3, 5
METHODS: list[Method] = [
    *(ACED(tau=2, warmup="seen"), ACED(tau=3), ACED(tau=2, freshness="model"), ACE(), ACE(warmup="seen")),
    *(RingmasterASGD(threshold=2), RingleaderASGD(), MaleniaSGD(), FedStaleWeight(buffer=2), DelayAdaptiveASGD()),
    *(FedBuff(buffer=2), CA2FL(buffer=2), AREA(buffer=2), MIFA(buffer=2), FADAS(buffer=2, threshold=2)),
]
GOOD, JOIN, KILL = "good", "somebody joins", "the server is killed"


class SameWork:
    """What the clients of these tests compute, as a task."""

    objective = "distance"
    batch_limit = 64

    def __init__(self, clients: int) -> None:
        self.clients, self.samples = clients, [1] * clients

    def describe(self) -> dict[str, Any]:
        return {"name": "same-work", "clients": self.clients}

    def initial(self) -> Vector:
        return START.clone()

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        return torch.stack([work(client, 0, model) for client, model in zip(clients, models, strict=True)])

    def evaluate(self, model: Vector) -> Evaluation:
        return Evaluation({"distance": float(model.norm())})


class Life:
    """A federation in which things happen one after another; its server can be killed and started again."""

    def __init__(self, rule: Method) -> None:
        self._rule = rule
        self._nodes, self._away = CLIENTS, set[int]()
        self._start(None)

    def _start(self, state: State | None) -> None:
        self._script: list[list[tuple[int, Any]]] = []
        self.grid = FakeGrid(client_app, self._nodes, iter(lambda: self._script.pop(0) if self._script else [], None))
        self.grid.away = self._away
        layout = ModelLayout.of(ArrayRecord({"w": Array(START.numpy())}))
        fleet = FlowerFleet(self.grid, layout, pool=AtOnce(), clock=ticking(), least=0.0)
        fleet.wait_for(1)
        config = {"seed": 0, "task": {"name": "flower"}, "scenario": {"clock": "wall"}}
        self.training = Training(self._rule, fleet, model=START, lr=LR, stop=Stop(arrivals=10_000), config=config)
        if state is not None:
            self.training.load_state_dict(state)
        self._turns = self.training.advance()

    def happens(self, what: str | dict[int, str] | tuple[str, int]) -> None:
        """One turn, or more where it takes more for the answers to be fetched."""
        if what == JOIN and self._nodes < MOST:
            self.grid.contexts[self._nodes] = self.grid.fresh_context(self._nodes)
            self._nodes += 1
        elif what == KILL:
            self._start(self.training.state_dict())
        elif isinstance(what, tuple):
            self._away ^= {what[1] % self._nodes} - {0}  # somebody is always there
        answers = what if isinstance(what, dict) else {}
        self._script[:] = [[(c, None if how == GOOD else BAD[how][0]) for c, how in answers.items() if c < self._nodes]]
        for _ in range(3):
            next(self._turns)


histories = st.lists(
    st.one_of(
        st.dictionaries(st.integers(0, MOST - 1), st.sampled_from([GOOD, GOOD, GOOD, *BAD]), min_size=1),
        st.sampled_from([JOIN, KILL]),
        st.tuples(st.just("comes or goes"), st.integers(0, MOST - 1)),
    ),
    min_size=4,
    max_size=16,
)
History = Sequence[str | dict[int, str] | tuple[str, int]]


def lived(rule: Method, history: History) -> Run | None:
    """The record of such a life; None if nothing came of it."""
    life = Life(rule)
    logging.disable(logging.WARNING)
    try:
        for what in history:
            life.happens(what)
    except EverybodyFails:
        return None
    finally:
        logging.disable(logging.NOTSET)
    return life.training.result() if life.training.server.accepted else None


@pytest.mark.parametrize("rule", METHODS, ids=repr)
@settings(max_examples=5)
@given(history=histories)
def test_the_replay_of_any_life_gives_its_model(rule: Method, history: History) -> None:
    made = lived(rule, [{client: GOOD for client in range(CLIENTS)}, *history])
    if made is not None:
        again = replay(made, rule, task=SameWork(len(made.participation)))
        assert torch.equal(again.model, made.model)
        assert (again.steps, again.participation) == (made.steps, made.participation)


LOSSES: History = [
    {0: GOOD, 1: GOOD, 2: GOOD},
    *({0: GOOD}, {1: "that expired"}, {0: GOOD}, {1: "not a number"}, {0: GOOD}, {2: "of a ClientApp that raised"}),
    *(JOIN, {3: GOOD}, ("goes", 2), {0: GOOD}, {3: "without an update"}, {0: GOOD}, KILL, {1: GOOD}, {0: GOOD}),
]


@pytest.mark.parametrize("rule", METHODS, ids=repr)
def test_a_saved_record_is_replayed_and_so_is_the_replay(rule: Method, tmp_path: Path) -> None:
    made = lived(rule, LOSSES)
    assert made is not None
    made.save(tmp_path / "run")
    task = SameWork(len(made.participation))
    again = replay(load(tmp_path / "run"), rule, task=task, out=tmp_path / "again")
    assert torch.equal(again.model, made.model)
    assert torch.equal(replay(load(tmp_path / "again"), rule, task=task).model, made.model)


def test_without_the_journal_aced_would_not_be_told_of_what_was_lost(tmp_path: Path) -> None:
    """Records of earlier versions have none, and load; this is what it is for."""
    rule = ACED(tau=2, warmup="seen")
    made = lived(rule, LOSSES)
    assert made is not None
    assert made.journal is not None
    sent = made.journal[made.journal["kind"] == "sent"]
    assert len(sent) > made.arrivals + 4, "nothing was lost: this shows nothing"
    made.save(tmp_path / "run")
    (tmp_path / "run" / "journal.parquet").unlink()
    old = load(tmp_path / "run")
    assert old.journal is None
    assert not torch.equal(replay(old, rule, task=SameWork(len(made.participation))).model, made.model)


def test_a_checkpoint_of_an_earlier_version_is_resumed_without_a_journal() -> None:
    life = Life(ACE(warmup="seen"))
    life.happens({0: GOOD})
    state = life.training.state_dict()
    del state["journal"]
    life._start(state)
    life.happens({1: GOOD})
    assert life.training.result().journal is None
    assert life.training.server.accepted == 2
