"""Randomness by key: a pure function, the same in plain Python and in torch, and as random as the simulator needs.

Statistical laws use fixed keys, so they pass or fail for good; their tolerance is 5 standard errors, which an honest
generator misses once in about 1.7 million numbers tested.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acefl.core import rng as keyed

SIGMAS = 5.0
integers = st.integers(-(2**70), 2**70)
keys = st.integers(0, 2**64 - 1)


@given(keys, st.integers(1, 5))
def test_torch_and_plain_python_give_the_same_bits(key: int, count: int) -> None:
    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    in_python = [keyed.key((key + position * golden) & mask) & (mask >> 1) for position in range(count)]
    assert keyed.bits([key], count).tolist() == [in_python]


def test_key_is_splitmix64() -> None:
    """The first outputs of SplitMix64 from seed 1234567, as published with its reference implementation."""
    golden = 0x9E3779B97F4A7C15
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [keyed.key((1234567 + i * golden) % 2**64) for i in range(4)] == published


@given(st.lists(integers, min_size=1, max_size=4), st.data())
def test_every_part_of_a_key_counts(parts: list[int], data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(parts) - 1))
    other = list(parts)
    other[position] = data.draw(integers.filter(lambda part: (part - parts[position]) % 2**64 != 0))
    assert keyed.key(*parts) == keyed.key(*parts)
    assert keyed.key(*other) != keyed.key(*parts)  # each part goes through a bijection


def test_the_order_and_number_of_parts_count() -> None:
    assert (
        len({keyed.key(1, 2), keyed.key(2, 1), keyed.key(1), keyed.key(2), keyed.key(1, 2, 0), keyed.key(0, 1, 2)}) == 6
    )


def test_numpy_integers_are_integers_and_floats_are_not() -> None:
    assert keyed.key(np.int64(-7), np.uint64(2**64 - 1)) == keyed.key(-7, 2**64 - 1)
    with pytest.raises(TypeError):
        keyed.key(0.5)  # type: ignore[arg-type]


@given(keys)
def test_uniform_lies_in_the_open_interval(key: int) -> None:
    assert 0.0 < keyed.uniform(key) < 1.0


@pytest.mark.parametrize("key", [0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
def test_uniform_lies_in_the_open_interval_at_its_ends(key: int) -> None:
    assert 0.0 < keyed.uniform(key) < 1.0


def test_uniform_is_uniform_over_consecutive_clients_and_visits() -> None:
    """Chi-square over 64 cells: 63 degrees of freedom, tolerance 5 standard deviations of its normal approximation."""
    draws = [keyed.uniform(keyed.key(0, 2, client, visit)) for client in range(100) for visit in range(100)]
    counts = np.histogram(draws, bins=64, range=(0, 1))[0]
    expected = len(draws) / 64
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - 63) < SIGMAS * math.sqrt(2 * 63)


def test_neighbouring_keys_are_independent() -> None:
    """Correlation between what neighbours draw, over 20,000 pairs: standard error 1 / sqrt(20,000)."""
    n = 20_000
    mine = np.array([keyed.uniform(keyed.key(5, 11, i, 3)) for i in range(n)])
    for what, others in {
        "next client": [keyed.uniform(keyed.key(5, 11, i + 1, 3)) for i in range(n)],
        "next visit": [keyed.uniform(keyed.key(5, 11, i, 4)) for i in range(n)],
        "next stream": [keyed.uniform(keyed.key(5, 12, i, 3)) for i in range(n)],
        "next seed": [keyed.uniform(keyed.key(6, 11, i, 3)) for i in range(n)],
    }.items():
        assert abs(np.corrcoef(mine, others)[0, 1]) < SIGMAS / math.sqrt(n), what


def test_normal_has_the_moments_of_a_normal() -> None:
    draws = keyed.normal([keyed.key(1, i) for i in range(2_000)], 101).double().flatten()
    n = len(draws)
    for power, moment, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs(float((draws**power).mean()) - moment) < SIGMAS * math.sqrt(variance / n), f"moment {power}"


def test_normal_coordinates_are_uncorrelated() -> None:
    """Box and Muller pairs share a radius, so squares are looked at too. 45 correlations of 20,000 draws, twice."""
    draws = keyed.normal([keyed.key(2, i) for i in range(20_000)], 10).double()
    for values in (draws, draws**2):
        correlations = torch.corrcoef(values.T) - torch.eye(10)
        assert float(correlations.abs().max()) < SIGMAS / math.sqrt(len(draws))


@given(st.lists(keys, min_size=1, max_size=9), st.integers(1, 33), st.data())
def test_a_key_draws_the_same_alone_and_among_others(together: list[int], count: int, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(together) - 1))
    sizes = torch.arange(1, len(together) + 1) * 7
    assert torch.equal(keyed.bits(together, count)[row], keyed.bits([together[row]], count)[0])
    assert torch.equal(
        keyed.choose(together, count, sizes)[row], keyed.choose([together[row]], count, sizes[row : row + 1])[0]
    )
    alone = keyed.normal([together[row]], count)[0]
    torch.testing.assert_close(keyed.normal(together, count)[row], alone, rtol=1e-6, atol=1e-6)


@given(st.lists(st.tuples(keys, st.integers(1, 10_000)), min_size=1, max_size=8))
def test_choices_are_within_range(drawn: list[tuple[int, int]]) -> None:
    sizes = torch.tensor([size for _, size in drawn])
    rows = keyed.choose([key for key, _ in drawn], 20, sizes)
    assert rows.shape == (len(drawn), 20)
    assert bool(((rows >= 0) & (rows < sizes.unsqueeze(1))).all())


@given(st.lists(st.tuples(keys, st.integers(1, 10**6)), min_size=1, max_size=9), st.integers(1, 30))
def test_numpy_chooses_what_torch_chooses(drawn: list[tuple[int, int]], count: int) -> None:
    sizes = torch.tensor([size for _, size in drawn])
    own = [key for key, _ in drawn]
    assert keyed.choose_here(own, count, sizes.numpy()).tolist() == keyed.choose(own, count, sizes).tolist()


def test_choices_are_uniform() -> None:
    """Chi-square over 13 rows: 12 degrees of freedom, 5 standard deviations."""
    rows = keyed.choose([keyed.key(3, i) for i in range(1_000)], 20, torch.full((1_000,), 13))
    expected = rows.numel() / 13
    chi_square = float(((rows.flatten().bincount(minlength=13) - expected) ** 2 / expected).sum())
    assert abs(chi_square - 12) < SIGMAS * math.sqrt(2 * 12)


def test_a_generator_is_a_pure_function_of_its_key() -> None:
    draws = [torch.rand(4, generator=keyed.generator(*parts)) for parts in ((1, 2), (1, 2), (2, 1))]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@given(st.lists(integers, max_size=4), integers)
def test_a_key_may_be_extended(parts: list[int], last: int) -> None:
    assert keyed.extend(keyed.key(*parts), last) == keyed.key(*parts, last)
