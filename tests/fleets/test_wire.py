"""Laws of the wire: what comes back, how many bytes it took, and that nothing is biased."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from acefl.core.errors import InvalidInput
from acefl.fleets import wire

LOSSY = ("bf16", "int8")
floats = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100)
vectors = st.lists(floats, min_size=1, max_size=300).map(lambda xs: torch.tensor(xs, dtype=torch.float32))


def sent(vector: torch.Tensor, encoding: str, draw: int = 0) -> torch.Tensor:
    return wire.decode(wire.encode(vector, encoding, draw), encoding, vector.numel())


@given(vectors)
def test_fp32_comes_back_bit_for_bit(vector: torch.Tensor) -> None:
    assert sent(vector, "fp32").view(torch.int32).tolist() == vector.view(torch.int32).tolist()


@given(vectors, st.sampled_from(wire.ENCODINGS), st.integers(0, 2**63))
def test_bytes_are_as_many_as_said(vector: torch.Tensor, encoding: str, draw: int) -> None:
    assert len(wire.encode(vector, encoding, draw)) == wire.nbytes(encoding, vector.numel())


@given(vectors, st.integers(0, 2**63))
def test_a_lossy_number_is_one_of_its_two_neighbours(vector: torch.Tensor, draw: int) -> None:
    bf16 = sent(vector, "bf16", draw).double()
    assert bool(((bf16 - vector.double()).abs() <= vector.double().abs() / 128 + 1e-38).all())
    int8 = sent(vector, "int8", draw).double()
    for block, numbers in zip(int8.split(wire.BLOCK), vector.double().split(wire.BLOCK), strict=True):
        step = float(numbers.abs().max()) / 127 * 1.00001 + 1e-37
        assert bool(((block - numbers).abs() <= step).all())


@pytest.mark.parametrize("encoding", LOSSY)
def test_rounding_is_right_on_average(encoding: str) -> None:
    """Over 4,000 sendings the mean of each of 64 numbers lies within 6 standard errors: false alarm below 1e-6.

    A number's error is at most one step, so its standard error is at most step / 2 / sqrt(4000).
    """
    vector = torch.randn(64, generator=torch.Generator().manual_seed(1))
    mean = torch.stack([sent(vector, encoding, draw) for draw in range(4000)]).double().mean(0)
    step = vector.double().abs() / 128 if encoding == "bf16" else vector.double().abs().max() / 127
    assert bool(((mean - vector).abs() <= 6 * step / 2 / math.sqrt(4000)).all())
    nearest = torch.stack([sent(vector, encoding, 5)] * 2).double().mean(0)
    assert not bool(((nearest - vector).abs() <= 6 * step / 2 / math.sqrt(4000)).all()), "the law has no teeth"


@pytest.mark.parametrize("encoding", LOSSY)
def test_rounding_is_drawn_by_key(encoding: str) -> None:
    vector = torch.randn(500, generator=torch.Generator().manual_seed(2))
    assert wire.encode(vector, encoding, 1) == wire.encode(vector, encoding, 1)
    assert wire.encode(vector, encoding, 1) != wire.encode(vector, encoding, 2)


@pytest.mark.parametrize("encoding", wire.ENCODINGS)
def test_zeros_stay_zeros_and_inputs_stay_as_they_are(encoding: str) -> None:
    zeros = torch.zeros(200)
    assert torch.equal(sent(zeros, encoding), torch.zeros(200))
    vector = torch.randn(200)
    before = vector.clone()
    wire.encode(vector, encoding)
    assert torch.equal(vector, before)
    assert vector._version == 0


def test_the_format_does_not_change() -> None:
    """Two installations must agree: these bytes were written by hand from the format's description."""
    assert wire.decode(np.array([1.5, -2.0], "<f4").tobytes(), "fp32", 2).tolist() == [1.5, -2.0]
    assert wire.decode(bytes([0xC0, 0x3F, 0x00, 0xC0]), "bf16", 2).tolist() == [1.5, -2.0]
    int8 = np.array([0.5], "<f4").tobytes() + bytes([3, 0xFE, 127])
    assert wire.decode(int8, "int8", 3).tolist() == [1.5, -1.0, 63.5]


@pytest.mark.parametrize("encoding", wire.ENCODINGS)
@given(data=st.binary(max_size=700))
def test_any_bytes_give_a_vector_or_one_clear_line(encoding: str, data: bytes) -> None:
    if len(data) == wire.nbytes(encoding, 100):
        assert wire.decode(data, encoding, 100).shape == (100,)
    else:
        with pytest.raises(InvalidInput, match="100 numbers"):
            wire.decode(data, encoding, 100)


@pytest.mark.parametrize("encoding", LOSSY)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_has_no_code_is_refused(encoding: str, bad: float) -> None:
    with pytest.raises(InvalidInput, match="not finite"):
        wire.encode(torch.tensor([1.0, bad]), encoding)


def test_unknown_encodings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="fp32, bf16, int8"):
        wire.encode(torch.ones(3), "fp16")
