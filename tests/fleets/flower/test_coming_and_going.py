"""Nodes that join, leave and return; and clients that forget."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from flwr.app import Message
from hypothesis import given, settings
from tests.fleets.flower.fake_grid import FIRST_NODE, FakeGrid, Spoil
from tests.fleets.flower.test_bad_answers import CLIENTS, OPTIMA, START, Federated, error

from acefl import ACE, ACED, ASGD, FedBuff
from acefl.core.errors import NothingInFlight
from acefl.core.rule import Method
from acefl.fleets.flower.fleet import Wires
from acefl.fleets.flower.held import Held

EVERYBODY: list[tuple[int, Spoil | None]] = [(client, None) for client in range(CLIENTS)]
HELD = ACE(variant="client-held", warmup="seen")


def test_a_node_that_joins_in_mid_run_is_taken_in() -> None:
    federated = Federated(ACE(), [EVERYBODY, [(0, None)], [(4, None)], [(1, None)], [(4, None)]])
    steps = federated.federation.advance()
    next(steps)
    federated.grid.contexts[4] = federated.grid.fresh_context(4)
    for _ in steps:
        if federated.grid.over:
            break
    assert federated.server.participation == [2, 2, 1, 1, 2]
    assert federated.federation.events.frame()["trained_on"].iloc[-1] > 0


def test_a_node_that_leaves_is_lost_at_once_and_counts_again_when_it_returns() -> None:
    quiet = [[(client, None)] for _ in range(6) for client in (0, 1)]
    federated = Federated(ACED(tau=4), [EVERYBODY, *quiet, [(2, None)], [(2, None)]])
    grid, server = federated.grid, federated.server
    for _ in federated.federation.advance():
        if server.accepted == CLIENTS:
            grid.away = {2, 3}
        if server.accepted == CLIENTS + len(quiet):
            assert server.rule.active == {0, 1}, "ACED still counts who has been gone for long"
            grid.away = {3}
        if grid.over:
            break
    assert server.participation == [7, 7, 3, 1]
    assert 2 in server.rule.active


def test_the_server_is_told_which_nodes_were_sent_which_model() -> None:
    federated = Federated(ACED(tau=4), [EVERYBODY, [(0, None)], [(1, None), (2, None)], [(0, None)]])
    server, before = federated.server, [0] * CLIENTS
    for _ in federated.federation.advance():
        if federated.grid.over:
            break
        came = [client for client in range(CLIENTS) if server.participation[client] > before[client]]
        assert [server.last_sent[client] for client in came] == [server.version] * len(came)
        before = list(server.participation)
    assert server.last_sent[3] == 1


def test_nobody_waits_for_a_node_that_dies_before_its_first_answer() -> None:
    federated = Federated(ACE(warmup="wait"), [[(0, None)], [(1, None)], [(2, None)], [(0, None)]])
    for _ in federated.federation.advance():
        if federated.server.accepted == 2:
            federated.grid.away = {3}
        if federated.grid.over:
            break
    assert federated.server.participation == [2, 1, 1, 0]
    assert federated.server.version >= 1


@pytest.mark.parametrize("rule", [ACE(warmup="seen"), ACED(tau=4, warmup="seen"), ASGD(), FedBuff(buffer=2)], ids=repr)
def test_a_node_that_stays_silent_holds_up_nobody(rule: Method) -> None:
    """It is connected and never answers: every answer of the others is taken in when it comes, and answered at once."""
    turns: list[list[tuple[int, Spoil | None]]] = [[(turn % 3, None)] for turn in range(30)]
    federated = Federated(rule, turns)
    for number, _ in enumerate(federated.federation.advance()):
        if federated.grid.over:
            break
        assert federated.server.accepted == number + 1
        assert {message.metadata.dst_node_id for message in federated.grid.waiting.values()} == {
            FIRST_NODE + client for client in range(CLIENTS)
        }, "somebody has no work"
    assert federated.server.participation == [10, 10, 10, 0]


def test_a_federation_that_everybody_has_left_ends() -> None:
    federated = Federated(ACE(), [EVERYBODY, *([[(0, None)]] * 500)])
    federated.fleet.wires = Wires(patience=50.0)
    for _ in federated.federation.advance():
        federated.grid.away = set(range(CLIENTS))
    assert "no node has been connected for 50 s" in federated.federation.config["ended"]
    with pytest.raises(NothingInFlight, match="0 of 2 nodes"):
        federated.fleet.wait_for(2)


def lose(question: Message, good: Message) -> Message:
    """The answer is computed and kept in the client's memory, but never arrives."""
    return error(3)(question, good)  # type: ignore[return-value]


class Forgets:
    """The client has just lost its memory when it gets to work."""

    instead = True

    def __init__(self) -> None:
        self.grid: FakeGrid | None = None

    def __call__(self, question: Message, good: Message) -> Message | None:
        assert self.grid is not None
        client = question.metadata.dst_node_id - FIRST_NODE
        self.grid.contexts[client] = self.grid.fresh_context(client)
        return self.grid._answer(question, client, None)


forgets = Forgets()
HOW: dict[str, Spoil | None] = {"good": None, "lost": lose, "forgets": forgets}
whats = st.sampled_from(["good", "good", "lost", "forgets"])
several = st.lists(st.dictionaries(st.integers(0, CLIENTS - 1), whats, min_size=1), max_size=15)


@settings(max_examples=40)
@given(history=several, uplink=st.sampled_from(["fp32", "bf16", "int8"]), copies=st.sampled_from([1, 2]))
def test_the_sum_of_held_gradients_never_drifts(history: list[dict[int, str]], uplink: str, copies: int) -> None:
    """Whatever is lost or comes twice, and whoever forgets: the server's sum is what its clients think it is."""
    script = [EVERYBODY, *([(client, HOW[what]) for client, what in turn.items()] for turn in history)]
    federated = Federated(HELD, script)
    federated.fleet.wires = Wires(uplink=uplink)
    federated.grid.copies, forgets.grid = copies, federated.grid
    for _ in federated.federation.advance():
        if federated.grid.over:
            break
        _check_sum(federated)
    assert federated.server.accepted >= CLIENTS


def _check_sum(federated: Federated) -> None:
    total = torch.zeros(START.numel(), dtype=torch.float64)
    for client in sorted(federated.server.rule._seen):
        base = federated.fleet._base[client]
        held = Held(federated.grid.contexts[client].state, federated.fleet._run)
        known, gradient = held.before(base, START.numel())
        if known != base:
            return  # it has forgotten and its whole gradient was lost on the way: the server hears of it with the next
        total += gradient
    torch.testing.assert_close(federated.server.rule._total, total, rtol=0, atol=1e-12)


def test_a_lost_memory_makes_the_other_changes_of_its_turn_outdated() -> None:
    """Whichever of the three answers first in that turn, the two changes must not go into the new sum."""
    for forgetful in range(3):
        federated = Federated(HELD, [EVERYBODY[:3], [(c, forgets if c == forgetful else None) for c in range(3)]], 3)
        forgets.grid = federated.grid
        federated.play()
        assert federated.server.refused == {"outdated-difference": 2}
        assert federated.server.rule._seen == {forgetful}
        _check_sum(federated)


def test_after_a_lost_memory_one_departure_does_not_end_the_run() -> None:
    """The rule waits again for clients that have reported before, and one of them leaves."""
    rule = ACE(variant="client-held", warmup="wait")
    later = [[(client, None)] for _ in range(10) for client in (0, 1)]
    federated = Federated(rule, [EVERYBODY, [(0, forgets)], [(1, None), (2, None)], [(1, None)], *later])
    forgets.grid = federated.grid
    for _ in federated.federation.advance():
        if federated.server.refused["outdated-difference"]:
            federated.grid.away = {2, 3}
        if federated.grid.over:
            break
    assert "ended" not in federated.federation.config
    assert federated.server.participation[0] > 5, "the run stands still"
    _check_sum(federated)


def test_a_client_that_forgot_makes_everybody_start_anew_and_training_reaches_the_same_optimum() -> None:
    rounds = [[(client, None)] for _ in range(60) for client in range(CLIENTS)]
    federated = Federated(HELD, [EVERYBODY, *rounds])
    for _ in federated.federation.advance():
        if federated.server.accepted == 40:
            federated.grid.contexts[1] = federated.grid.fresh_context(1)
        if federated.grid.over:
            break
    assert federated.server.refused["outdated-difference"] == CLIENTS - 1, "what was under way was not refused"
    assert torch.allclose(federated.server.model, OPTIMA[:CLIENTS].mean(0), atol=1e-4)
