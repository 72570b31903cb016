"""Arrivals that are worked out beforehand come as a heap gives them: the same clients at the same times, to the bit."""

from __future__ import annotations

import heapq
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acefl import Scenario
from acefl.core import rng as keyed
from acefl.fleets.in_flight import InFlight
from acefl.fleets.scenario import LAWS, Durations
from acefl.fleets.timetable import Task, Timetable

SCENARIOS = {
    "exponential": Scenario(spread=30.0),
    "fixed part": Scenario(spread=4.0, fixed=1.0, slow="random"),
    "all alike": Scenario(law="constant"),
    "multiples": Scenario(law="constant", delay=0.5, spread=4.0),
    "two speeds": Scenario(law="two-speed"),
    "whole seconds": Scenario(durations=[[1.0, 2.0, 1.0], 2.0, [3.0], [1.0, 1.0, 4.0], 1.0]),
}
CLIENTS = 5


def prepared(scenario: Scenario, seed: int) -> tuple[Durations, list[int]]:
    return Durations(scenario, CLIENTS, seed), [keyed.key(seed, client) for client in range(CLIENTS)]


def by_heap(tasks: list[Task], visits: list[int], first: int, durations: Durations, keys: list[int], count: int):  # type: ignore[no-untyped-def]
    """What arrives, in the plainest way: client, time, id, when it is back, and the key of its next task."""
    heap, visits, found = sorted(tasks), list(visits), []
    for number in range(first, first + count):
        when, task_id, client, _ = heapq.heappop(heap)
        due = when + durations.of(client, visits[client])
        found.append((client, when, task_id, due, keyed.extend(keys[client], visits[client])))
        visits[client] += 1
        heapq.heappush(heap, (due, number, client, 0))
    return found


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(SCENARIOS)),
    seed=st.integers(0, 10**6),
    visits=st.lists(st.integers(1, 50), min_size=CLIENTS, max_size=CLIENTS),
    order=st.permutations(range(CLIENTS)),
    tied=st.booleans(),
    count=st.integers(1, 200),
)
def test_it_is_the_order_of_a_heap(
    name: str, seed: int, visits: list[int], order: list[int], tied: bool, count: int
) -> None:
    durations, keys = prepared(SCENARIOS[name], seed)
    tasks = [
        (3.0 + (0.0 if tied else durations.of(client, 0)), 40 + place, client, 7) for place, client in enumerate(order)
    ]
    table = Timetable(tasks, visits, 50, durations, np.array(keys, np.uint64), count)
    assert len(table) > 0
    own = zip(table.clients, table.times, table.ids, table.dues, table.keys, strict=True)
    assert list(own) == by_heap(tasks, visits, 50, durations, keys, len(table))


@pytest.mark.parametrize("name", SCENARIOS)
def test_it_goes_about_as_far_as_asked(name: str) -> None:
    durations, keys = prepared(SCENARIOS[name], 3)
    tasks = [(durations.of(client, 0), client, client, 0) for client in range(CLIENTS)]
    table = Timetable(tasks, [1] * CLIENTS, CLIENTS, durations, np.array(keys, np.uint64), 1_000)
    assert 500 < len(table) < 3_000


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(SCENARIOS)), data=st.data())
def test_tasks_in_flight_are_a_heap_whatever_was_foreseen(name: str, data: st.DataObject) -> None:
    """Turns may be taken from the timetable, or tasks come and go one by one, in any order."""
    durations, keys = prepared(SCENARIOS[name], 1)
    own, heap, visits, number = InFlight(durations, keys), list[Task](), [1] * CLIENTS, CLIENTS
    for client in range(CLIENTS):
        own.push((durations.of(client, 0), client, client, 0))
        heapq.heappush(heap, (durations.of(client, 0), client, client, 0))
    resting: list[Task] = []

    def next_of(task: Task) -> Task:
        nonlocal number
        number += 1
        visits[task[2]] += 1
        return task[0] + durations.of(task[2], visits[task[2]] - 1), number - 1, task[2], number

    for action in data.draw(st.lists(st.sampled_from(["turns", "one", "pop", "push", "look"]), max_size=40)):
        table = own.table(visits, number) if action == "turns" else None
        if table is not None:
            for _ in range(data.draw(st.integers(0, min(6, len(table))))):
                task = heapq.heappop(heap)
                assert (table.clients[table.place], table.ids[table.place], table.times[table.place]) == (
                    task[2],
                    task[1],
                    task[0],
                )
                task = next_of(task)
                table.advance([task[3]])
                assert table.tasks[task[2]] == task
                heapq.heappush(heap, task)
        elif action in ("one", "pop") and heap:
            assert own.soonest == heap[0][0]
            task = heapq.heappop(heap)
            assert own.pop() == task
            if action == "one":
                task = next_of(task)
                own.push(task)
                heapq.heappush(heap, task)
            else:
                resting.append(task)
        elif action == "push" and resting:
            task = next_of(resting.pop())
            own.push(task)
            heapq.heappush(heap, task)
        assert len(own) == len(heap)
        if action == "look":
            assert sorted(own.tasks) == sorted(heap)
    assert [own.pop() for _ in range(len(own))] == sorted(heap)


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=5))
def test_keys_of_many_are_the_keys_of_each(prefix: int, parts: list[int]) -> None:
    found = keyed.extend_each(np.full(len(parts), prefix, np.uint64), np.array(parts))
    assert found.tolist() == [keyed.extend(prefix, part) for part in parts]
    assert keyed.uniforms(found) == [keyed.uniform(key) for key in found.tolist()]


@pytest.mark.parametrize("law", LAWS)
def test_durations_of_many_are_those_of_each(law: str, tmp_path: Path) -> None:
    durations = Durations(Scenario(law=law, delay=0.7, spread=9.0, fixed=0.3), CLIENTS, 5)
    clients, visits = np.arange(200) % CLIENTS, np.arange(200) % 37
    expected = [durations.of(client, visit) for client, visit in zip(clients.tolist(), visits.tolist(), strict=True)]
    assert durations.each(clients, visits).tolist() == expected
