"""ACED against its algorithm, with A(t) and the sum over it formed anew at every step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rules.oracles import ACEDOracle
from tests.rules.schedules import Come, Event, History, Join, Leave, histories, long_history, turns_of, walk

from acefl import ACED, Arrival, InvalidInput, Server
from acefl.rules.aced import FRESHNESS
from acefl.rules.settings import ENCODINGS, WARMUPS, WEIGHTS


def against_oracle(history: History, method: ACED) -> int:
    samples = [3 + 5 * client for client in range(history.clients)]
    weights = [1.0] * history.clients if method.weights == "uniform" else [float(s) for s in samples]
    wait = method.warmup == "wait"
    oracle = ACEDOracle(weights, history.dim, tau=method.tau, freshness=method.freshness, wait=wait)
    return walk(history, lambda: method.build(history.clients, torch.zeros(history.dim), samples), oracle)


methods = st.builds(
    ACED,
    tau=st.sampled_from((1, 1, 2, 3, 5, 8, 10**9)),
    freshness=st.sampled_from(FRESHNESS),
    table=st.sampled_from(ENCODINGS),
    weights=st.sampled_from(WEIGHTS),
    warmup=st.sampled_from(WARMUPS),
)


@settings(max_examples=90)
@given(histories(), methods)
def test_every_step_is_the_mean_over_the_active_set(history: History, method: ACED) -> None:
    against_oracle(history, method)


@settings(max_examples=70)
@given(histories(elastic=True), methods)
def test_the_mean_is_over_those_that_count_when_clients_join_and_leave(history: History, method: ACED) -> None:
    against_oracle(history, method)


@pytest.mark.parametrize("table", ENCODINGS)
@pytest.mark.parametrize("freshness", FRESHNESS)
def test_a_large_model(table: str, freshness: str) -> None:
    method = ACED(tau=2, table=table, freshness=freshness)
    assert against_oracle(long_history(Leave(1), Join(2.5), [Come(3, None)]), method) == 9


def first_round(clients: int) -> list[Event]:
    return [[Come(client, None)] for client in range(clients)]


@pytest.mark.parametrize("freshness", FRESHNESS)
def test_a_long_silence_and_a_rejoin(freshness: str) -> None:
    """Client 2 is silent for 30 steps, then comes back as slow as it was, then keeps up."""
    alone: list[Event] = [[Come(step % 2, None)] for step in range(30)]
    back: list[Event] = [[Come(2, None)], [Come(0, None)], [Come(1, None)], [Come(2, None)], [Come(2, 0)]]
    history = History(3, 1, first_round(3) + alone + back)
    assert against_oracle(history, ACED(tau=4, freshness=freshness)) == 36


class Run:
    """A server over one number per client, so that a direction says who was in it."""

    def __init__(self, method: ACED, clients: int) -> None:
        self.rule: Any = method.build(clients, torch.zeros(clients))
        self.server = Server(torch.zeros(clients), self.rule, lr=1.0, clients=clients)
        self.task = 0

    def come(self, client: int, trained_on: int) -> bool:
        """Whether the version advanced; client i sends the i-th unit vector."""
        self.task += 1
        update = torch.zeros_like(self.server.model)
        update[client] = 1.0
        return self.server.handle([Arrival(client, update, trained_on, self.server.version, self.task)])

    def counted(self) -> list[int]:
        return [client for client, share in enumerate(self.rule.direction().tolist()) if share]


def test_a_client_slower_than_tau_is_left_out_of_its_own_step_and_counts_from_the_next() -> None:
    run = Run(ACED(tau=2), clients=3)
    for client in range(3):
        run.come(client, trained_on=0)
    assert run.counted() == [0, 1, 2]
    for version in (1, 2, 3):  # everybody was sent version 1, and 1 + tau = 3
        run.come(0, trained_on=version)
        assert run.counted() == [0, 1, 2]
    run.come(1, trained_on=1)  # at version 4, 3 steps after it was sent version 1: late, and so is client 2
    assert run.counted() == [0]
    run.come(0, trained_on=4)
    assert run.counted() == [0, 1]


def test_under_the_model_reading_a_client_slower_than_tau_never_counts() -> None:
    run = Run(ACED(tau=2, freshness="model"), clients=2)
    run.come(0, trained_on=0)
    run.come(1, trained_on=0)
    sent = 1
    for version in range(1, 20):
        if version % 4 == 0:
            run.come(1, trained_on=sent)
            sent = version + 1
        else:
            run.come(0, trained_on=version)
        assert version <= 2 or run.counted() == [0]


@pytest.mark.parametrize("freshness", FRESHNESS)
def test_with_nobody_fresh_the_model_stays_and_the_version_advances(freshness: str) -> None:
    run = Run(ACED(tau=1, freshness=freshness, warmup="seen"), clients=2)
    for version in range(4):
        run.come(0, trained_on=version)
    for _ in range({"model": 1, "dispatch": 2}[freshness]):  # client 0 was sent version 4, its row is of version 3
        run.come(1, trained_on=0)
        assert run.counted() == [0]
    model, version = run.server.model.clone(), run.server.version
    assert run.come(1, trained_on=0)
    assert run.counted() == []
    assert torch.equal(run.server.model, model)
    assert run.server.version == version + 1
    run.come(0, trained_on=version + 1)
    assert 0 in run.counted()


def test_tau_one_with_one_client_at_a_time_is_a_step_on_the_newest_updates() -> None:
    """Alternating clients under tau = 1: each was sent its model at most one step before, so both count."""
    run = Run(ACED(tau=1, warmup="seen"), clients=2)
    run.come(0, trained_on=0)
    run.come(1, trained_on=0)
    for version in range(2, 8):
        run.come(version % 2, trained_on=version - 1)
        assert run.counted() == [0, 1]


@pytest.mark.parametrize("freshness", FRESHNESS)
def test_what_the_rule_remembers_does_not_grow_with_the_length_of_a_run(freshness: str) -> None:
    """A huge tau keeps everybody active for ever; the queue of who expires next must still not outgrow the clients."""
    rule: Any = ACED(tau=10**6, freshness=freshness, warmup="seen").build(3, torch.zeros(1))
    for version in range(3_000):
        rule.absorb(Arrival(version % 3, torch.ones(1), max(0, version - 2), version, version))
    numbers = sum(len(value) for value in rule.state_dict().values() if isinstance(value, list))
    assert numbers < 50
    assert len(rule._queue) < 200


@pytest.mark.parametrize("wrong", [{"tau": 0}, {"tau": -3}, {"tau": 2.5}, {"tau": True}, {"freshness": "time"}])
def test_wrong_settings_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        ACED(**wrong)


@settings(max_examples=30)
@given(histories(), methods, st.booleans())
def test_one_pass_over_a_long_model_is_absorbing_and_then_stepping(history: History, method: ACED, told: bool) -> None:
    """Within rounding, with the same clients in A(t), whether or not the loop says who is sent a model."""
    dim, lr = 65_537, 0.1
    one, two = (method.build(history.clients, torch.zeros(dim), [1] * history.clients) for _ in range(2))
    moved, expected, version, largest = torch.zeros(dim), torch.zeros(dim), 0, 0.0
    for turn in turns_of(history):
        for client, age, numbers, task in turn:
            long = numbers.repeat(-(-dim // len(numbers)))[:dim]
            largest = max(largest, float(long.abs().max()))
            arrival = Arrival(client, long, max(0, version - age), version, task)
            stepped, due = one.advance(arrival, moved, lr), two.absorb(arrival)
            assert stepped is due
            assert one.active == two.active
            if due:
                expected.sub_(two.direction(), alpha=lr)
                torch.testing.assert_close(one.direction(), two.direction(), rtol=0, atol=1e-5 * largest)
                version += 1
            if told:
                for rule in (one, two):
                    rule.dispatched((client,), version)
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5 * lr * largest * (version + 1))
