"""Random histories of a federation, and the walk that holds a rule against its oracle at every step of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from tests.rules.oracles import Numbers, Oracle

from acefl.core.rule import Audience
from acefl.core.types import Arrival
from acefl.rules.ace import ClientMemory

DIM = 5
OLDEST = 9  # versions: the age of the oldest model anybody works on
WEIGHTS = (1.0, 0.3, 2.5, 40.0)


@dataclass(frozen=True)
class Come:
    """A client's update arrives. `age` is in versions; None: it worked all the time since it was last sent a model."""

    client: int
    age: int | None


@dataclass(frozen=True)
class Leave:
    client: int


@dataclass(frozen=True)
class Join:
    weight: float


Event = list[Come] | Leave | Join


@dataclass(frozen=True)
class History:
    clients: int
    seed: int
    events: list[Event]
    dim: int = DIM


@st.composite
def histories(draw: st.DrawFn, *, elastic: bool = False, most_clients: int = 5) -> History:
    """Stretches in which only some clients are heard of (the others are silent, and may rejoin in a later one).

    Arrivals come one by one or several per step, after work without a break or (limited concurrency, the sampled clock)
    on a model of any age. `elastic`: now and then a client leaves for good, or one joins.
    """
    clients = draw(st.integers(1, most_clients))
    events: list[Event] = []
    if draw(st.booleans()):
        events += [[Come(client, None)] for client in draw(st.permutations(range(clients)))]
    anybody = st.integers(0, clients + 1 if elastic else clients - 1)
    for _ in range(draw(st.integers(1, 4))):
        heard = draw(st.lists(anybody, min_size=1, max_size=3))
        come = st.builds(Come, st.sampled_from(heard), st.sampled_from((None, None, 0, 1, 2, 5, OLDEST)))
        turn = st.lists(come, min_size=1, max_size=3)
        some = turn if not elastic else turn | turn | turn | anybody.map(Leave) | st.sampled_from(WEIGHTS).map(Join)
        events += draw(st.lists(some, min_size=1, max_size=12))
    return History(clients, draw(st.integers(0, 1000)), events)


def turns_of(history: History) -> Iterator[list[tuple[int, int, torch.Tensor, int]]]:
    """The arrivals of a history in which nobody joins or leaves: turns of (client, age, update, task)."""
    task = 0
    for event in history.events:
        assert isinstance(event, list)
        turn = []
        for come in event:
            task += 1
            turn.append((come.client, come.age or 0, update(history.seed, task), task))
        yield turn


def walk(history: History, build: Callable[[], Any], oracle: Oracle, *, differences: bool = False) -> int:
    """Lead both through the history; they must agree on when to step and on every direction. Returns the steps made.

    A rule with a lossy table is held against the oracle of what it stored, so that agreement does not depend on the
    encoding. A client that is not (yet) there is one that is: its number is taken modulo the clients. Now and then a
    new rule goes on from the state of the old one.
    """
    rule = build()
    table = getattr(rule, "table", None)
    memory = ClientMemory() if differences else None
    clients, version, task, largest = history.clients, 0, 0, 0.0
    sent = [0] * clients
    for number, event in enumerate(history.events):
        if number % 5 == 4:
            rule, old = build(), rule
            rule.load_state_dict(old.state_dict())
            table = getattr(rule, "table", None)
        if isinstance(event, Leave):
            rule.leave(event.client % clients)
            oracle.forget(event.client % clients)
        elif isinstance(event, Join):
            clients += 1
            sent.append(version)
            rule.join(clients, event.weight)
            oracle.grow(clients, event.weight)
        else:
            due = False
            for come in event:
                client, task = come.client % clients, task + 1
                trained_on = sent[client] if come.age is None else max(0, version - come.age)
                gradient = update(history.seed, task, history.dim)
                sends = gradient if memory is None else memory.difference(client, gradient)
                step_now = rule.absorb(Arrival(client, sends, trained_on, version, task))
                kept = gradient if table is None else table.row(client)
                assert step_now is oracle.absorb(client, kept.double().numpy(), trained_on, version)
                due |= step_now
                largest = max(largest, float(gradient.abs().max()))
                if hasattr(oracle, "active"):
                    assert rule.active == set(oracle.active(version))
            if hasattr(oracle, "awaited"):
                assert (rule.audience is not Audience.EVERYBODY) is bool(oracle.awaited)
            if due:
                close(rule.direction(), oracle.step(version), largest)
                rule.clear()
                version += 1
            for come in event:
                sent[come.client % clients] = version
    return version


def close(direction: torch.Tensor, expected: Numbers, largest: float) -> None:
    """Equal up to float32 rounding of numbers as large as the largest update."""
    np.testing.assert_allclose(direction.double().numpy(), expected, rtol=0, atol=1e-5 * largest)


def update(seed: int, task: int, dim: int = DIM) -> torch.Tensor:
    random = np.random.default_rng([seed, task])
    return torch.from_numpy(random.normal(size=dim, scale=10.0 ** random.integers(-1, 2))).float()


def long_history(*more: Event) -> History:
    """A model so large that the table works on it in parts and keeps its sums in another way."""
    everybody: list[Event] = [[Come(client, None)] for client in range(3)]
    some: list[Event] = [[Come(1, None)], [Come(0, 0), Come(1, 2)], [Come(1, 1)], [Come(1, None)], [Come(2, None)]]
    return History(3, 5, [*everybody, *some, *more, [Come(0, None)], [Come(2, 0)]], dim=70_001)
