"""The server: what it lets in, when it steps, who counts, and that a checkpoint loses nothing."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acefl import (
    ACE,
    ACED,
    ASGD,
    CA2FL,
    Arrival,
    DelayAdaptiveASGD,
    FedBuff,
    InvalidInput,
    Left,
    Lost,
    MaleniaSGD,
    Server,
)
from acefl.core.rule import Audience, Method
from acefl.core.types import State
from acefl.rules import label
from acefl.rules.ace import IncrementalACE
from acefl.table import Table
from acefl.testing import _equal

CLIENTS, DIM, LR = 4, 6, 0.3
METHODS: list[Method] = [
    ACE(),
    ACE(table="int8", warmup="seen"),
    ACE(variant="direct"),
    ACED(tau=2),
    CA2FL(buffer=2),
    FedBuff(buffer=2),
    ASGD(),
    DelayAdaptiveASGD(threshold=1),
]
every_method = pytest.mark.parametrize("method", METHODS, ids=label)
random_turns = st.lists(st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=3, unique=True), max_size=25)


def server_of(method: Method, clients: int = CLIENTS, **more: Any) -> Server:
    start = torch.linspace(-1, 1, DIM)
    return Server(start, method.build(clients, start), LR, clients, **more)


class Feeder:
    """Gives a server arrivals whose updates depend on client and task alone."""

    def __init__(self, server: Server) -> None:
        self.server, self.task = server, 0

    def arrival(self, client: int, age: int = 0) -> Arrival:
        self.task += 1
        update = torch.sin(torch.arange(DIM) * (1.0 + client) + self.task)
        version = self.server.version
        return Arrival(client, update, max(0, version - age), version, self.task)

    def come(self, *clients: int) -> bool:
        return self.server.handle([self.arrival(client, client) for client in clients])


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    return bool(one == two)


def without(state: State, *keys: str) -> State:
    return {key: value for key, value in state.items() if key not in keys}


def spoilt(good: Arrival, how: int) -> Arrival:
    return [
        replace(good, client=CLIENTS),
        replace(good, client=-1),
        replace(good, update=torch.ones(DIM + 1)),
        replace(good, update=good.update.double()),
        replace(good, trained_on=good.version + 1),
        replace(good, version=good.version + 1),
        replace(good, update=torch.full((DIM,), math.nan)),
        replace(good, update=good.update / 0.0),
        replace(good, update=good.update * 2.0, task=0),  # an answer to a task long answered
    ][how % 9]


@settings(max_examples=40)
@given(st.sampled_from(METHODS), random_turns, st.lists(st.integers(0, 99), min_size=1, max_size=30))
def test_refused_arrivals_touch_nothing(method: Method, turns: list[list[int]], bad: list[int]) -> None:
    """A run with bad arrivals before, between and beside the good ones is the run without them, bit for bit."""
    clean, dirty = Feeder(server_of(method)), Feeder(server_of(method))
    for feeder in (clean, dirty):  # so that every client has an answered task, and its repetition is a duplicate
        feeder.come(*range(CLIENTS))
    number = 0
    for turn in turns:
        good = [clean.arrival(client, client) for client in turn]
        clean.server.handle(good)
        events = []
        for arrival in good:
            number += 1
            wrong = spoilt(arrival, bad[number % len(bad)])
            events += [wrong, arrival] if number % 2 else [arrival, wrong]
        if number % 3 == 0:
            assert not dirty.server.handle([spoilt(good[0], number)])
        dirty.server.handle(events)
    assert equal(without(dirty.server.state_dict(), "refused"), without(clean.server.state_dict(), "refused"))
    assert sum(clean.server.refused.values()) == 0
    assert sum(dirty.server.refused.values()) >= number


@every_method
def test_whatever_is_delivered_twice_counts_once(method: Method) -> None:
    once, twice = Feeder(server_of(method)), server_of(method)
    for turn in ([0], [1], [2], [3], [0, 1], [2], [3, 2, 1], [0]):
        events = [once.arrival(client) for client in turn]
        assert once.server.handle(events) == twice.handle(events)
        again = [replace(event, version=twice.version) for event in events]
        assert not twice.handle(again)
    assert equal(without(twice.state_dict(), "refused"), without(once.server.state_dict(), "refused"))
    assert twice.refused == {"duplicate": 11}


def test_every_arrival_is_heard_of_with_the_reason_it_was_refused_for() -> None:
    heard: list[tuple[int, str]] = []
    feeder = Feeder(server_of(ASGD(), on_arrival=lambda arrival, reason: heard.append((arrival.client, reason))))
    feeder.come(1)
    feeder.server.handle([spoilt(feeder.arrival(2), 6), Lost(0, 99), feeder.arrival(3)])
    assert heard == [(1, ""), (2, "non-finite"), (3, "")]
    assert feeder.server.participation == [0, 1, 0, 1]
    assert feeder.server.accepted == 2
    assert feeder.server.refused == {"non-finite": 1}


@every_method
def test_a_drained_batch_steps_once_on_everything_in_it(method: Method) -> None:
    feeder = Feeder(server_of(method))
    rule = method.build(CLIENTS, torch.zeros(DIM))
    for turn in (range(CLIENTS), [0, 2], range(CLIENTS)):
        events = [feeder.arrival(client) for client in turn]
        model, version = feeder.server.model.clone(), feeder.server.version
        assert any([rule.absorb(event) for event in events])
        assert feeder.server.handle(events)
        assert feeder.server.version == version + 1
        assert torch.equal(feeder.server.model, model.sub_(rule.direction(), alpha=LR))
        rule.clear()


@settings(max_examples=30)
@given(st.sampled_from(("wait", "seen")), st.sampled_from(("fp32", "bf16", "int8")), random_turns)
def test_the_fused_step_is_absorb_and_direction(warmup: str, table: str, turns: list[list[int]]) -> None:
    """ACE moves the model in the same pass that updates its table; without that method the server takes two calls."""
    method = ACE(table=table, warmup=warmup)

    class TwoCalls(IncrementalACE):
        def advance(self, arrival: Arrival, model: torch.Tensor, lr: float) -> None:
            return None

    like = torch.zeros(DIM)
    two_calls = TwoCalls([1.0] * CLIENTS, like, Table(CLIENTS, like, encoding=table), wait=warmup == "wait")
    fused, plain = server_of(method), Server(torch.linspace(-1, 1, DIM), two_calls, LR, CLIENTS)
    feeder = Feeder(fused)
    for turn in turns:
        events = [feeder.arrival(client, 1) for client in turn]
        assert fused.handle(events) == plain.handle(events)
        assert fused.audience is plain.audience
        torch.testing.assert_close(fused.model, plain.model, rtol=0, atol=1e-5)


@every_method
def test_a_checkpoint_at_any_moment_changes_nothing(method: Method) -> None:
    straight, saved = Feeder(server_of(method)), server_of(method)
    for turn in ([0], [1], [2], [3], [0, 1], [2], [3, 2, 1], [0], [1], [1]):
        events = [straight.arrival(client, 1) for client in turn]
        straight.server.handle(events)
        state = copy.deepcopy(saved.state_dict())
        saved = server_of(method)
        saved.load_state_dict(state)
        saved.handle(events)
        assert sum(saved.refused.values()) == 0
    assert equal(saved.state_dict(), straight.server.state_dict())
    assert saved.handle(events) is False, "what was answered before the checkpoint is a duplicate after it"


@every_method
def test_a_taken_state_stays_as_it_was(method: Method) -> None:
    feeder = Feeder(server_of(method))
    feeder.come(0, 1, 2, 3)
    state = feeder.server.state_dict()
    kept = copy.deepcopy(state)
    feeder.come(1, 2)
    assert equal(state, kept)
    other = Feeder(server_of(method))
    other.task = 50
    other.server.load_state_dict(state)
    other.come(1, 2)
    assert equal(state, kept)


def test_the_model_handed_in_stays_as_it_was() -> None:
    start = torch.ones(DIM)
    server = Server(start, ASGD().build(CLIENTS, start), LR, CLIENTS)
    Feeder(server).come(0)
    assert torch.equal(start, torch.ones(DIM))
    assert not torch.equal(server.model, start)


@pytest.mark.parametrize("method", [ACE(), ACE("direct"), ACE("client-held"), ACED(tau=3)], ids=label)
def test_the_first_round_does_not_wait_for_a_client_that_was_lost(method: Method) -> None:
    feeder = Feeder(server_of(method))
    assert not feeder.come(0, 1, 2)
    assert feeder.server.audience is Audience.NEWCOMERS
    assert not feeder.server.handle([Lost(3, 99)])
    assert feeder.server.audience is Audience.EVERYBODY
    assert feeder.come(0)
    assert feeder.come(3), "who was lost counts once it reports"


@pytest.mark.parametrize("method", [ACE(), ASGD(), MaleniaSGD()], ids=label)
@pytest.mark.parametrize("event", [Lost(99, 1), Lost(-1, 1), Left(99)], ids=repr)
def test_what_is_said_of_a_client_nobody_knows_is_ignored(method: Method, event: Lost | Left) -> None:
    feeder = Feeder(server_of(method))
    feeder.come(0)
    before = feeder.server.state_dict()
    assert not feeder.server.handle([event])
    assert feeder.server.refused == {"unknown-client": 1}
    assert _equal({**feeder.server.state_dict(), "refused": before["refused"]}, before)


def test_a_client_lost_after_its_first_update_still_counts() -> None:
    one, two = Feeder(server_of(ACE())), Feeder(server_of(ACE()))
    for feeder in (one, two):
        feeder.come(0, 1, 2)
    one.server.handle([Lost(0, 99)])
    one.come(3)
    two.come(3)
    one.server.handle([Lost(0, 99)])
    assert torch.equal(one.server.model, two.server.model)
    assert one.server.version == two.server.version == 1


@pytest.mark.parametrize("method", [ACE(), ACE("direct"), ACED(tau=5), CA2FL(buffer=1)], ids=label)
def test_a_client_that_left_for_good_is_out_of_the_mean(method: Method) -> None:
    """Its update does not matter any more: a server that had another one from it goes the same way."""
    one, two = Feeder(server_of(method)), Feeder(server_of(method))
    one.come(0, 1, 2, 3)
    events = [two.arrival(client, client) for client in range(CLIENTS)]
    events[2] = replace(events[2], update=torch.full((DIM,), 1000.0))
    two.server.handle(events)
    one.come(0)
    two.come(0)
    for feeder in (one, two):
        feeder.server.leave(2)
    steps = []
    for feeder in (one, two):
        before = feeder.server.model.clone()
        feeder.come(1)
        steps.append(feeder.server.model - before)
    torch.testing.assert_close(steps[0], steps[1], rtol=0, atol=1e-3)


@every_method
def test_newcomers_are_strangers_until_they_are_admitted(method: Method) -> None:
    feeder = Feeder(server_of(method))
    feeder.come(0, 1, 2, 3)
    assert not feeder.come(4)
    assert feeder.server.refused == {"unknown-client": 1}
    feeder.server.join(6, weight=2.0)
    feeder.come(4, 5)
    assert feeder.server.participation == [1, 1, 1, 1, 1, 1]
    resumed = server_of(method)
    resumed.load_state_dict(feeder.server.state_dict())
    event = [feeder.arrival(5), feeder.arrival(0)]
    assert feeder.server.handle(event) == resumed.handle(event)
    assert equal(resumed.state_dict(), feeder.server.state_dict())
    assert resumed.participation[5] == 2, "a server from a checkpoint knows the newcomers too"


def test_a_newcomer_counts_by_its_weight_and_is_not_waited_for() -> None:
    server = Server(torch.zeros(1), ACE().build(2, torch.zeros(1)), 1.0, 2)
    server.join(3, weight=2.0)
    assert not server.handle([Arrival(0, torch.tensor([4.0]), 0, 0, 0)])
    assert server.handle([Arrival(1, torch.tensor([8.0]), 0, 0, 1)])
    assert server.model.tolist() == [-6.0]
    assert server.handle([Arrival(2, torch.tensor([16.0]), 0, 1, 2)])
    assert server.model.tolist() == [-6.0 - (4.0 + 8.0 + 2 * 16.0) / 4]


def test_a_federation_does_not_shrink_and_strangers_are_not_forgotten() -> None:
    server = server_of(ACE())
    with pytest.raises(InvalidInput, match="clients is 3; allowed: at least the 4 known already"):
        server.join(3)
    for stranger in (-1, 4):
        with pytest.raises(InvalidInput, match=f"client is {stranger}; allowed: one of the 4 known, 0 to 3"):
            server.leave(stranger)
    assert server.participation == [0] * CLIENTS


def test_giving_up_ends_the_first_round_without_the_missing() -> None:
    feeder = Feeder(server_of(ACE()))
    feeder.come(0, 1)
    feeder.server.give_up()
    assert feeder.server.audience is Audience.EVERYBODY
    assert feeder.come(0)
    assert feeder.come(3)
    assert set(feeder.server.rule.state_dict()["seen"]) == {0, 1, 3}


@pytest.mark.parametrize("lr", [0.0, -1.0, math.nan, math.inf])
def test_a_learning_rate_is_a_finite_number_above_zero(lr: float) -> None:
    with pytest.raises(InvalidInput, match="lr is"):
        Server(torch.zeros(1), ASGD().build(1, torch.zeros(1)), lr, 1)


@every_method
@given(st.sampled_from([-(10**9), -CLIENTS, -1, CLIENTS, 99, 2**70]), random_turns)
def test_a_loss_of_nobodys_is_refused_and_leaves_no_trace(
    method: Method, stranger: int, turns: list[list[int]]
) -> None:
    feeder, alone = Feeder(server_of(method)), Feeder(server_of(method))
    for turn in turns:
        arrivals = [feeder.arrival(client) for client in turn]
        feeder.server.handle([Lost(stranger, 7), *arrivals, Lost(stranger, 7)])
        alone.server.handle([alone.arrival(client) for client in turn])
    assert torch.equal(feeder.server.model, alone.server.model)
    assert equal(feeder.server.rule.state_dict(), alone.server.rule.state_dict())
    assert feeder.server.refused == ({"unknown-client": 2 * len(turns)} if turns else {})
    assert set(feeder.server.refused_by_client) == ({-1} if turns else set())


@given(st.sampled_from(["wait", "seen"]), st.sets(st.integers(0, CLIENTS - 1)), st.sets(st.integers(0, CLIENTS - 1)))
def test_a_sum_that_was_started_anew_waits_for_whom_it_has_not(warmup: str, back: set[int], lost: set[int]) -> None:
    """The rule says whom it waits for; how often a client came before the restart does not matter."""
    feeder = Feeder(server_of(ACE(variant="client-held", warmup=warmup)))
    feeder.come(*range(CLIENTS))
    rule: Any = feeder.server.rule
    rule.restart()
    feeder.come(*sorted(back))
    feeder.server.handle([Lost(client, 10_000) for client in sorted(lost)])
    waits = warmup == "wait" and back | lost != set(range(CLIENTS))
    assert (feeder.server.audience is Audience.NEWCOMERS) == waits
    feeder.server.give_up()
    assert feeder.server.audience is Audience.EVERYBODY
