"""Every kernel computes what the plain numpy one computes, bit for bit; and that one rounds fairly."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acefl.core import kernels
from acefl.core.errors import InvalidInput
from acefl.core.kernels import patient
from acefl.core.kernels.cpu import Compiled
from acefl.core.kernels.cpu import read as read_with_numba
from acefl.core.kernels.host import ThroughHost
from acefl.core.kernels.layout import (
    ENCODINGS,
    GROUP,
    LOWEST,
    Key,
    Layout,
    Row,
    Sum,
    Tape,
    native,
)
from acefl.core.kernels.reference import CHUNK, Reference
from acefl.core.kernels.reference import read as read_with_numpy

LOSSY = [name for name in ENCODINGS if name != "fp32"]
KINDS = ("plain", "wide", "integers")


def empty_sum(kind: str, dim: int) -> list[torch.Tensor | None]:
    """Total, value and exponents of a sum of zeros."""
    if kind == "plain":
        return [torch.zeros(dim), None, None]
    if kind == "wide":
        return [torch.zeros(dim, dtype=torch.float64), torch.zeros(dim), None]
    exponents = torch.full((-(-dim // GROUP),), LOWEST, dtype=torch.int32)
    return [torch.zeros(dim, dtype=torch.int32), None, exponents]


def updates(dim: int, seed: int, spread: float) -> list[torch.Tensor]:
    """Vectors of very different sizes, with zeros and a stretch of numbers too small to store."""
    generator = torch.Generator().manual_seed(seed)
    vectors = []
    for size in (spread * torch.randn(5, generator=generator)).tolist():
        vector = torch.randn(dim, generator=generator) * 10.0**size
        vector[torch.rand(dim, generator=generator) < 0.1] = 0.0
        vector[dim // 3 : dim // 3 + 40] = 1e-38
        vectors.append(vector)
    return vectors


def row_of(raw: torch.Tensor, layout: Layout, tensors: bool) -> Row:
    """A row as kernels of the host take it, or as those of a GPU do."""
    if not tensors:
        return Row.of(raw, layout)
    codes = raw[: layout.code_bytes].view(layout.encoding.dtype)
    return Row(raw, codes, raw[layout.row_bytes - layout.scale_bytes :].view(torch.int16))


def outcome(kernel: Reference, kind: str, *, seed: int = 0, spread: float = 1.0, tensors: bool = False) -> list[bytes]:
    """Everything a run of exchanges, steps and additions leaves behind."""
    layout = kernel.layout
    raw = torch.zeros(layout.row_bytes, dtype=torch.uint8)
    row, parts = row_of(raw, layout, tensors), empty_sum(kind, layout.dim)
    sums = Sum(*parts) if tensors else Sum(*(None if part is None else native(part) for part in parts))
    model = torch.ones(layout.dim)
    for visit, new in enumerate(updates(layout.dim, seed, spread)):
        key = Key.of(7, 3, visit)
        if visit % 2 and kind != "plain":
            kernel.exchange_and_step(row, new, sums, 0.3, key, model, 0.01)
        else:
            kernel.exchange(row, new, sums, -1.7, key)
    kernel.add(row, sums, 0.7)
    left = [raw, model, kernel.decode(row), *(part for part in parts if part is not None)]
    return [tensor.numpy().tobytes() for tensor in left]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("dim", [1, GROUP - 1, 3 * GROUP, CHUNK + 77])
@pytest.mark.parametrize("kind", ["wide", "integers"])
def test_numba_equals_numpy(encoding: str, dim: int, kind: str) -> None:
    layout = Layout(encoding, dim)
    assert outcome(Compiled(layout), kind) == outcome(Reference(layout), kind)


def played(kernel: Reference, seed: int, *, rate: float = 0.01, tensors: bool = False) -> list[bytes]:
    """Everything that changes made in one pass leave behind, of three rows, their sum, the model and the models."""
    layout = kernel.layout
    parts = empty_sum("wide", layout.dim)
    sums = Sum(*parts) if tensors else Sum(*(None if part is None else native(part) for part in parts))
    rows = [row_of(torch.zeros(layout.row_bytes, dtype=torch.uint8), layout, tensors) for _ in range(3)]
    model, models = torch.ones(layout.dim), torch.zeros(6, layout.dim)
    tape = Tape()
    for visit, new in enumerate(updates(layout.dim, seed, 1.0)):
        tape.exchange(rows[visit % 3], new, 0.3 * visit, Key.of(7, visit % 3, visit))
        tape.step(rate, 1.0 / (visit + 1))
        if visit == 2:
            tape.add(rows[visit % 3], -0.7)
            tape.zero()
            tape.add(rows[0], 1.0)
    tape.add(rows[1], 0.5)
    tape.step(32 * rate, 1.0)
    kernel.play(tape, sums, model, models)
    left = [model, models, *(row.raw for row in rows), *(part for part in parts if part is not None)]
    return [tensor.numpy().tobytes() for tensor in left]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("dim", [1, GROUP - 1, 3 * GROUP, 4810])
def test_changes_in_one_pass_are_those_of_numpy_one_by_one(encoding: str, dim: int) -> None:
    layout = Layout(encoding, dim)
    assert played(Compiled(layout), 3) == played(Reference(layout), 3)


@settings(max_examples=40)
@given(
    encoding=st.sampled_from(list(ENCODINGS)),
    dim=st.integers(1, 3000),
    seed=st.integers(0, 10**6),
    spread=st.floats(0, 6),
)
def test_numba_equals_numpy_on_sums_that_outgrow_their_exponents(
    encoding: str, dim: int, seed: int, spread: float
) -> None:
    layout = Layout(encoding, dim)
    expected = outcome(Reference(layout), "integers", seed=seed, spread=spread)
    assert outcome(Compiled(layout), "integers", seed=seed, spread=spread) == expected


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_threads_change_nothing(encoding: str) -> None:
    from acefl.core.kernels.cpu import ALONE

    layout = Layout(encoding, ALONE * GROUP + 100)
    alone = outcome(Compiled(layout), "integers")
    torch.set_num_threads(3)
    try:
        assert outcome(Compiled(layout), "integers") == alone
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_changes_in_one_pass_visit_the_host_one_by_one(encoding: str) -> None:
    layout = Layout(encoding, 700)
    assert played(ThroughHost(layout), 3, tensors=True) == played(Reference(layout), 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_visit_to_the_host_equals_numpy(encoding: str, kind: str) -> None:
    layout = Layout(encoding, 700)
    assert outcome(ThroughHost(layout), kind, tensors=True) == outcome(Reference(layout), kind)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_triton_equals_numpy(encoding: str) -> None:
    """In Triton's interpreter, whose fused multiply-add rounds twice: models are compared by the GPU benchmark.

    Those of a tape are compared here too, at a rate by which products are exact.
    """
    code = f"""
from tests.core.test_kernels import KINDS, Layout, Reference, outcome, played
from acefl.core.kernels.gpu import Triton
for kind in KINDS:
    for dim in (1, 700, 1024):
        layout = Layout({encoding!r}, dim)
        ours, expected = outcome(Triton(layout), kind, tensors=True), outcome(Reference(layout), kind)
        assert ours[:1] + ours[2:] == expected[:1] + expected[2:], (kind, dim)
for dim in (1, 700, 1024):
    layout = Layout({encoding!r}, dim)
    assert played(Triton(layout), 3, rate=2**-7, tensors=True) == played(Reference(layout), 3, rate=2**-7), dim
wrong = Triton(layout)
wrong._play = lambda *given: None  # found out, and not used
assert played(wrong, 3, rate=2**-7, tensors=True) == played(Reference(layout), 3, rate=2**-7)
"""
    path = os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize("dim", [1, GROUP, CHUNK + GROUP + 1])
def test_sums_of_integers_read_the_same_everywhere(dim: int) -> None:
    generator = np.random.default_rng(0)
    total = generator.integers(-(1 << 30), 1 << 30, dim, dtype=np.int32)
    exponents = generator.integers(-100, 90, -(-dim // GROUP), dtype=np.int32)
    of, one, two = Sum(total, exponents=exponents), torch.empty(dim), torch.empty(dim)
    read_with_numpy(of, one)
    read_with_numba(of, two)
    expected = np.ldexp(total.astype(np.float32), exponents.repeat(GROUP)[:dim])
    assert np.array_equal(one.numpy(), expected)
    assert torch.equal(one, two)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_added_and_taken_away_leaves_nothing(encoding: str) -> None:
    """Once a sum has seen its largest terms, every later one comes out exactly as it went in."""
    layout = Layout(encoding, 1000)
    kernel, rows = Reference(layout), []
    sums = Sum(*(None if part is None else native(part) for part in empty_sum("integers", 1000)))
    for client, new in enumerate(updates(1000, seed=1, spread=1.0)):
        rows.append(Row.of(torch.zeros(layout.row_bytes, dtype=torch.uint8), layout))
        kernel.exchange(rows[-1], new, sums, 0.2, Key.of(0, client, 1))
    for row in rows:
        kernel.add(row, sums, -0.2)
    empty = sums.total.copy()
    assert np.abs(empty).max() <= 2 * len(rows)  # a few units of 2**exponent, left from when exponents rose
    for round_trip in range(3):
        for row in rows:
            kernel.add(row, sums, 0.2)
        for row in rows[::-1] if round_trip % 2 else rows:
            kernel.add(row, sums, -0.2)
    assert np.array_equal(sums.total, empty)


@pytest.mark.parametrize("encoding", LOSSY)
def test_rounding_is_fair(encoding: str) -> None:
    """The mean over many visits is the number itself, within four standard errors."""
    dim, visits = 256, 2000
    layout = Layout(encoding, dim)
    kernel, row = Reference(layout), Row.of(torch.zeros(layout.row_bytes, dtype=torch.uint8), layout)
    x = torch.randn(dim, generator=torch.Generator().manual_seed(3))
    mean = Sum(np.zeros(dim), value=np.zeros(dim, np.float32))
    stored = []
    for visit in range(visits):
        kernel.exchange(row, x, mean, 0.0, Key.of(0, 0, visit))
        stored.append(kernel.decode(row))
    every = torch.stack(stored).double()
    error = (every.mean(dim=0) - x) / (every.std(dim=0) / visits**0.5 + 1e-9)
    assert error.abs().max() < 4.5
    assert abs(float(error.mean())) < 5 / dim**0.5


@pytest.mark.parametrize("encoding", LOSSY)
@given(seed=st.integers(0, 10**6), size=st.floats(-30, 30))
@settings(max_examples=25)
def test_rounding_moves_a_number_by_less_than_a_step(encoding: str, seed: int, size: float) -> None:
    layout, kind = Layout(encoding, 300), ENCODINGS[encoding]
    row = Row.of(torch.zeros(layout.row_bytes, dtype=torch.uint8), layout)
    x = torch.randn(300, generator=torch.Generator().manual_seed(seed)) * 10.0**size
    Reference(layout).exchange(row, x, Sum(np.zeros(300, np.float32)), 1.0, Key.of(seed, 0, 0))
    if kind.largest:
        blocks = torch.nn.functional.pad(x, (0, -300 % kind.block)).view(-1, kind.block)
        step = (blocks.abs().amax(dim=1) * 1.01 / (kind.largest - 0.01)).repeat_interleave(kind.block)[:300]
    else:
        step = x.abs() / 128
    assert bool(((Reference(layout).decode(row) - x).abs() <= step).all())


@pytest.mark.parametrize("encoding", LOSSY)
def test_rounding_is_a_function_of_seed_client_and_visit(encoding: str) -> None:
    layout, x = Layout(encoding, 500), torch.linspace(-1, 1, 500)

    def stored(*key: int) -> bytes:
        row = Row.of(torch.zeros(layout.row_bytes, dtype=torch.uint8), layout)
        Reference(layout).exchange(row, x, Sum(np.zeros(500, np.float32)), 1.0, Key.of(*key))
        return row.raw.numpy().tobytes()

    keys = [(0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 2)]
    assert len({stored(*key) for key in keys}) == len(keys)
    assert stored(0, 1, 1) == stored(0, 1, 1)


def test_zeros_are_stored_as_zero_bytes() -> None:
    """So that fresh memory, or a hole in a file, is a row of zeros."""
    for encoding in ENCODINGS:
        layout = Layout(encoding, 300)
        row = Row.of(torch.zeros(layout.row_bytes, dtype=torch.uint8), layout)
        assert not Reference(layout).decode(row).any()
        Reference(layout).exchange(row, torch.zeros(300), Sum(np.zeros(300, np.float32)), 1.0, Key(1, 2))
        assert not Reference(layout).decode(row).any()


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(InvalidInput, match="encoding is 'fp64'; allowed: fp32, bf16, int8, int4"):
        Layout("fp64", 10)


def test_long_vectors_get_compiled_kernels_and_short_ones_wait_for_them() -> None:
    cpu = torch.device("cpu")
    assert kernels.choose(Layout("fp32", kernels.LONG), cpu).name == "numba"
    assert isinstance(kernels.choose(Layout("fp32", kernels.LONG - 1), cpu), patient.Patient)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_short_vectors_get_compiled_kernels_in_long_runs_and_nobody_can_tell(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient, "PATIENCE", 2)
    monkeypatch.setattr(patient, "PATIENCE_LOSSLESS", 2)
    monkeypatch.setattr(patient, "_made", Counter())
    layout = Layout(encoding, 3 * GROUP + 5)
    kernel = kernels.choose(layout, torch.device("cpu"))
    assert outcome(kernel, "wide") == outcome(Reference(layout), "wide")
    assert kernel.name == "numba"


def test_a_run_that_is_known_to_be_long_does_not_wait_for_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient, "_made", Counter())
    short, cpu = Layout("int8", 3 * GROUP + 5), torch.device("cpu")
    with kernels.expecting(patient.PATIENCE):
        assert kernels.choose(short, cpu).name == "numba"
    assert kernels.choose(short, cpu).name == "numpy"


def test_without_numba_numpy_takes_over_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "numba" in kernels.describe()["CPU, 65,536 parameters or more"]
    monkeypatch.setattr(kernels, "_module", lambda name: None)
    monkeypatch.setattr(patient, "_made", Counter())  # whatever other tests did before
    assert kernels.choose(Layout("int8", kernels.LONG), torch.device("cpu")).name == "numpy"
    assert "numba is missing" in kernels.describe()["CPU, 65,536 parameters or more"]


def test_what_was_compiled_before_is_loaded_without_all_that_numba_could_compile() -> None:
    """That takes longer than the rest of a short process. The first process here compiles, where nobody has before."""
    program = """
import sys, torch
from acefl.core.kernels.cpu import is_finite
assert is_finite(torch.ones(1000)) and not is_finite(torch.full((1000,), torch.inf))
print("numba.np.linalg" in sys.modules)
"""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_a_device_without_kernels_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the model is on meta; allowed: cpu or cuda"):
        kernels.choose(Layout("fp32", 10), torch.device("meta"))
