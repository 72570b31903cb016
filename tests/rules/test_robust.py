"""RobustACE: exact centres, and what hostile rows cannot do to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acefl import ACE, Arrival, InvalidInput, RobustACE
from acefl.core.rule import Method
from acefl.core.types import Vector

DIM = 4
number = st.floats(-100, 100, width=32)
table = st.lists(st.lists(number, min_size=DIM, max_size=DIM), min_size=1, max_size=9)


def centre(method: Method, rows: list[list[float]], clients: int | None = None) -> Vector:
    rule = method.build(clients or len(rows), torch.zeros(DIM))
    for client, row in enumerate(rows):
        stepped = rule.absorb(Arrival(client, torch.tensor(row), 0, 0, client))
    assert stepped
    return rule.direction()


@given(table)
def test_the_median_is_numpys(rows: list[list[float]]) -> None:
    expected = torch.tensor(np.median(np.array(rows, dtype=np.float64), axis=0), dtype=torch.float32)
    torch.testing.assert_close(centre(RobustACE(), rows), expected)


@given(table, st.floats(0.0, 0.49))
def test_the_trimmed_mean_is_scipys(rows: list[list[float]], trim: float) -> None:
    from scipy.stats import trim_mean

    expected = torch.tensor(trim_mean(np.array(rows, dtype=np.float64), trim, axis=0), dtype=torch.float32)
    found = centre(RobustACE(aggregate="trimmed", trim=trim), rows)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@given(table)
def test_nothing_trimmed_is_ace(rows: list[list[float]]) -> None:
    found = centre(RobustACE(aggregate="trimmed", trim=0.0), rows)
    torch.testing.assert_close(found, centre(ACE(variant="direct"), rows), rtol=1e-5, atol=1e-4)


@given(
    st.lists(st.lists(st.floats(-1, 1, width=32), min_size=DIM, max_size=DIM), min_size=6, max_size=6),
    st.lists(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=DIM, max_size=DIM), min_size=4, max_size=4),
)
@pytest.mark.parametrize("method", [RobustACE(), RobustACE(aggregate="trimmed", trim=0.4)])
def test_four_of_ten_cannot_leave_the_range_of_the_honest(
    method: RobustACE, honest: list[list[float]], hostile: list[list[float]]
) -> None:
    found = centre(method, [*honest, *hostile])
    good = torch.tensor(honest)
    assert bool((found >= good.min(0).values - 1e-6).all() and (found <= good.max(0).values + 1e-6).all())


def test_only_those_heard_of_count_and_those_who_left_do_not() -> None:
    rows = [[0.0] * DIM, [10.0] * DIM, [20.0] * DIM]
    method = RobustACE(warmup="seen")
    assert centre(method, rows, clients=50).tolist() == [10.0] * DIM
    rule = method.build(50, torch.zeros(DIM))
    for client, row in enumerate(rows):
        rule.absorb(Arrival(client, torch.tensor(row), 0, 0, client))
    rule.leave(0)
    assert rule.direction().tolist() == [15.0] * DIM


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"aggregate": "krum"}, {"trim": 0.5}, {"trim": float("nan")}, {"warmup": "never"}):
        name = next(iter(wrong))
        with pytest.raises(InvalidInput, match=f"^{name} is .*; allowed: "):
            RobustACE(**wrong)  # type: ignore[arg-type]
