"""The gate: every reason to refuse an arrival, and what a refusal leaves behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acefl import Arrival
from acefl.admission import REASONS, Gate, is_finite

VERSION = 5
GOOD = Arrival(client=1, update=torch.ones(3), trained_on=3, version=VERSION, task=7)

BAD: dict[str, list[Callable[[Arrival], Arrival]]] = {
    "unknown-client": [lambda a: replace(a, client=4), lambda a: replace(a, client=-1)],
    "wrong-shape": [
        lambda a: replace(a, update=torch.ones(4)),
        lambda a: replace(a, update=torch.ones(3, 1)),
        lambda a: replace(a, update=torch.ones(())),
    ],
    "wrong-dtype": [
        lambda a: replace(a, update=torch.ones(3, dtype=torch.float64)),
        lambda a: replace(a, update=torch.ones(3, dtype=torch.int64)),
    ],
    "future-version": [
        lambda a: replace(a, trained_on=VERSION + 1),
        lambda a: replace(a, trained_on=-1),
        lambda a: replace(a, version=VERSION + 1, trained_on=VERSION + 1),
        lambda a: replace(a, version=VERSION - 1),
    ],
    "non-finite": [
        lambda a: replace(a, update=torch.tensor([1.0, math.nan, 1.0])),
        lambda a: replace(a, update=torch.tensor([1.0, math.inf, 1.0])),
        lambda a: replace(a, update=torch.tensor([-math.inf, math.inf, 1.0])),
    ],
}


def gate() -> Gate:
    return Gate(4, torch.zeros(3))


def test_a_good_arrival_passes_once() -> None:
    door = gate()
    assert door.refusal(GOOD, VERSION) == ""
    assert door.refusal(GOOD, VERSION) == "duplicate"


@pytest.mark.parametrize(("reason", "spoil"), [(reason, spoil) for reason, ways in BAD.items() for spoil in ways])
def test_each_reason(reason: str, spoil: Callable[[Arrival], Arrival]) -> None:
    door = gate()
    assert door.refusal(spoil(GOOD), VERSION) == reason
    assert door.refusal(GOOD, VERSION) == "", "a refused arrival does not count as the answer to its task"


def test_every_reason_is_tested() -> None:
    assert {*BAD, "duplicate"} == set(REASONS)


def test_an_older_task_of_the_same_client_is_a_duplicate_and_that_of_another_is_not() -> None:
    door = gate()
    assert door.refusal(GOOD, VERSION) == ""
    assert door.refusal(replace(GOOD, task=3), VERSION) == "duplicate"
    assert door.refusal(replace(GOOD, task=3, client=2), VERSION) == ""
    assert door.refusal(replace(GOOD, task=8), VERSION) == ""


def test_answered_tasks_survive_a_checkpoint() -> None:
    door, resumed = gate(), gate()
    door.refusal(GOOD, VERSION)
    resumed.load_state_dict(door.state_dict())
    assert resumed.refusal(GOOD, VERSION) == "duplicate"
    assert resumed.refusal(replace(GOOD, client=0, task=0), VERSION) == ""


def test_numbers_are_not_looked_at_when_told_so() -> None:
    door = Gate(4, torch.zeros(3), finite=False)
    assert door.refusal(replace(GOOD, update=torch.full((3,), math.nan)), VERSION) == ""


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_is_finite_means_every_entry_is(numbers: list[float]) -> None:
    assert is_finite(torch.tensor(numbers)) is all(map(math.isfinite, numbers))


def test_a_sum_that_overflows_is_no_reason_to_refuse() -> None:
    assert is_finite(torch.full((8,), 3e38))
