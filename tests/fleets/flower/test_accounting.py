"""Every update that left a client is paid for, whatever became of it; where nobody can tell, it is too."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Array, ArrayRecord, Message
from tests.fleets.flower.fake_grid import AtOnce, FakeGrid, Spoil, ticking
from tests.fleets.flower.test_bad_answers import BAD, START, Federated, client_app, error
from tests.fleets.flower.test_run_async import ARRAYS, CLIENTS, LIMIT, ReadyGrid
from tests.fleets.flower.test_run_async import client_app as trains_and_evaluates

from acefl import ACE, Stop, load
from acefl.fleets.flower.fleet import FlowerFleet
from acefl.fleets.flower.records import ModelLayout
from acefl.flower import run_async
from acefl.runs.training import Training
from acefl.tasks.privacy import epsilon, epsilon_per_client

SEEN = ACE(warmup="seen")
pytest.importorskip("opacus")


def uploads(federated: Federated) -> list[int]:
    return [int(row["uploads"]) for row in federated.federation.clients()]


def test_an_answer_that_comes_when_the_run_is_over_is_paid_for(tmp_path: Path) -> None:
    """One arrival ends the run: the other nodes upload all the same, and their answers are drained."""
    grid = ReadyGrid(trains_and_evaluates)
    run_async(grid, SEEN, ARRAYS, lr=0.1, stop=Stop(arrivals=1), nodes=CLIENTS, out=tmp_path / "run", drain=LIMIT)
    made = load(tmp_path / "run")
    assert len(grid.answered) == CLIENTS, "somebody was not drained: this shows nothing"
    one = epsilon(1, noise_multiplier=2.0)
    assert one == pytest.approx(2.187, abs=1e-3)
    assert epsilon_per_client(made, noise_multiplier=2.0) == [one] * CLIENTS


def never(question: Message, good: Message) -> Message | None:
    return None


CASES: dict[str, tuple[Spoil | None, int]] = {
    "is accepted": (None, 1),
    "is refused": (BAD["not a number"][0], 1),
    "is no answer": (BAD["without an update"][0], 1),
    "expires": (error(3), 1),
    "expires on its way back": (error(4), 1),
    "is lost with its node": (error(5), 1),
    "is lost with its ClientApp": (error(8), 1),
    "never comes": (never, 1),
    "is an error raised by the ClientApp": (error(2), 0),
    "is an error in loading the ClientApp": (error(1), 0),
}


@pytest.mark.parametrize("what", CASES)
def test_a_task_counts_unless_it_is_certain_that_nothing_left(what: str) -> None:
    spoil, counts = CASES[what]
    federated = Federated(SEEN, [[(0, spoil), (1, None)]], clients=2)
    advance = federated.federation.advance()
    next(advance)
    later = [task.node.client for task in federated.fleet._post.out() if task.order.task >= 2]
    assert uploads(federated) == [counts + later.count(0), 1 + later.count(1)]


def test_a_message_that_the_superlink_did_not_take_costs_nothing() -> None:
    class Full(FakeGrid):
        def push_messages(self, messages: object) -> list[str]:
            return [None]  # type: ignore[list-item]

    layout = ModelLayout.of(ArrayRecord({"w": Array(START.numpy())}))
    fleet = FlowerFleet(Full(client_app, 1, ()), layout, pool=AtOnce(), clock=ticking(), least=0.0)
    fleet.wait_for(1)
    federation = Training(SEEN, fleet, model=START, lr=0.1, stop=Stop(arrivals=1), config={})
    fleet.dispatch(START, 0, newcomers_only=False)
    assert [row["uploads"] for row in federation.clients()] == [1], "under way, it may be there already"
    fleet.next()
    assert [row["uploads"] for row in federation.clients()] == [0]
