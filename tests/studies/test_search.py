"""The learning-rate search: one rule for everybody, and the best rate wherever it lies."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acefl.core.errors import InvalidInput
from acefl.studies.search import COARSE, FINE, MOST_EXTENSIONS, LearningRateSearch


def searched(score: Callable[[float], float], centre: float = 0.25) -> LearningRateSearch:
    search = LearningRateSearch(centre)
    for _ in range(100):
        for rate in search.ask():
            assert rate not in search.scores
            search.tell(rate, score(rate))
    assert search.done
    return search


def valley(at: float, left: float = 1.0, right: float = 1.0, power: float = 1.0) -> Callable[[float], float]:
    """Convex in log lr, steeper on one side, smallest at `at`."""

    def score(rate: float) -> float:
        away = math.log(rate / at)
        return abs(away * (left if away < 0 else right)) ** power

    return score


slopes = st.floats(0.1, 10.0)


@given(st.floats(-9.0, 6.0), slopes, slopes, st.sampled_from([1.0, 2.0, 4.0]))
def test_the_minimum_of_a_convex_function_is_found_to_a_factor_of_two(
    log_at: float, left: float, right: float, power: float
) -> None:
    at = math.exp(log_at)
    search = searched(valley(at, left, right, power))
    assert at / FINE * 0.999 <= search.best <= at * FINE * 1.001
    assert search.scores[search.best] == min(search.scores.values())


@given(st.floats(math.log(1 / 16), math.log(1)))
def test_methods_whose_best_rate_is_inside_the_grid_get_the_same_effort(log_at: float) -> None:
    search = searched(valley(math.exp(log_at)))
    assert len(search.scores) == 5 + 2


@given(st.floats(-20.0, 20.0))
def test_effort_beyond_the_grid_is_one_rate_per_extension_and_bounded(log_at: float) -> None:
    search = searched(valley(math.exp(log_at)))
    assert 7 <= len(search.scores) <= 7 + MOST_EXTENSIONS
    rates = sorted(search.scores)
    steps = {round(b / a, 6) for a, b in pairwise(rates)}
    assert steps <= {COARSE, FINE}


def test_the_search_goes_on_beyond_either_edge() -> None:
    low, high = searched(valley(1e-4)), searched(valley(200.0))
    assert min(low.scores) < 0.25 / COARSE**2
    assert max(high.scores) > 0.25 * COARSE**2


def test_where_everything_diverges_smaller_rates_are_tried() -> None:
    search = searched(lambda rate: math.inf)
    assert search.best == min(search.scores)
    assert len(search.scores) == 7 + MOST_EXTENSIONS
    assert max(search.scores) == 4.0  # never larger than the grid


def test_a_rate_that_diverges_never_wins() -> None:
    search = searched(lambda rate: math.nan if rate > 0.1 else -rate)
    assert math.isfinite(search.scores[search.best])
    assert search.best <= 0.1
    assert {score for rate, score in search.scores.items() if rate > 0.1} == {math.inf}


def test_of_equals_the_smaller_rate_wins() -> None:
    search = LearningRateSearch(1.0)
    for rate in search.ask():
        search.tell(rate, 0.0 if rate in (1.0, 4.0) else 1.0)
    assert search.best == 1.0


@given(st.permutations(range(5)))
def test_answers_may_come_in_any_order(order: list[int]) -> None:
    search, score = LearningRateSearch(), valley(0.3)
    rates = search.ask()
    for position in order:
        assert search.ask() == []  # others are still out
        assert search.ahead == 2
        search.tell(rates[position], score(rates[position]))
    assert sorted(search.ask()) == [0.125, 0.5]
    assert not search.done


@pytest.mark.parametrize("centre", [0.0, -1.0, math.inf, math.nan])
def test_a_bad_centre_is_refused(centre: float) -> None:
    with pytest.raises(InvalidInput, match=f"lr_centre is {centre}; allowed: a finite number above 0"):
        LearningRateSearch(centre)
