"""How a row and a running sum lie in memory, and where rounding draws come from: the same for every kernel.

A row is one run of bytes: the codes, then the scales. All bytes zero means a row of zeros, so a row that was just
allocated, or a hole in a sparse file, needs no special case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import torch

from acefl.core.errors import one_of
from acefl.core.types import Vector

GROUP: Final = 512  # numbers that share the exponent of a running sum; kernels work on one group at a time
LOWEST: Final = -100  # exponent of an empty sum
ADD, EXCHANGE, STEP, ZERO = range(4)  # what a change on a `Tape` is
TINY: Final = 0x0D800000  # bits of 2**-100: a block whose largest number is smaller is stored as zeros


class Encoding(NamedTuple):
    """A way to store numbers. Every lossy one rounds stochastically, so that E[stored(x)] = x.

    Nearest rounding would be cheaper and half as noisy, but where clients' updates cancel (at the optimum of a
    heterogeneous problem) it leaves an offset that no later arrival averages away, the bias ACE exists to remove.
    """

    bits: int
    block: int  # numbers that share a scale and a run of rounding hashes
    largest: int  # codes reach from -largest to largest; 0 where there are no scales
    dtype: torch.dtype  # of the codes; those of bf16 are bit patterns

    @property
    def step(self) -> float:
        """The scale of a block, before it is rounded up to bfloat16, as a multiple of its largest number.

        A little more than 1/largest: then no rounding carries a code beyond the largest, and nothing is clipped.
        """
        return 1 / (self.largest - 0.01)


ENCODINGS: Final = {
    "fp32": Encoding(bits=32, block=1, largest=0, dtype=torch.float32),
    "bf16": Encoding(bits=16, block=128, largest=0, dtype=torch.int16),
    "int8": Encoding(bits=8, block=128, largest=127, dtype=torch.int8),
    "int4": Encoding(bits=4, block=32, largest=7, dtype=torch.uint8),
}


@dataclass(frozen=True)
class Layout:
    """An encoding applied to vectors of one length."""

    name: str
    dim: int

    def __post_init__(self) -> None:
        one_of("encoding", self.name, tuple(ENCODINGS))

    @cached_property
    def encoding(self) -> Encoding:
        return ENCODINGS[self.name]

    @cached_property
    def blocks(self) -> int:
        return -(-self.dim // self.encoding.block)

    @cached_property
    def codes(self) -> int:
        """How many codes a row holds; 4-bit codes come in pairs from either half of a block, so blocks are whole."""
        return self.blocks * self.encoding.block if self.encoding.bits == 4 else self.dim

    @cached_property
    def code_bytes(self) -> int:
        return self.codes * self.encoding.bits // 8

    @cached_property
    def scale_bytes(self) -> int:
        return 2 * self.blocks if self.encoding.largest else 0

    @cached_property
    def row_bytes(self) -> int:
        return self.code_bytes + self.code_bytes % 2 + self.scale_bytes


class Row(NamedTuple):
    """One row's bytes, and the same bytes seen as codes and as the bits of bfloat16 scales.

    What kernels touch is a numpy array in host memory and a tensor on a GPU.
    """

    raw: torch.Tensor  # uint8
    codes: Any
    scales: Any  # int16, one per block; empty where the encoding has none

    @classmethod
    def of(cls, raw: torch.Tensor, layout: Layout) -> Row:
        codes = raw[: layout.code_bytes].view(layout.encoding.dtype)
        scales = raw[layout.row_bytes - layout.scale_bytes :].view(torch.int16)
        return cls(raw, native(codes), native(scales))


class Sum(NamedTuple):
    """Where a running sum is kept: a plain float32 vector, or one of the two forms of `Accumulator`."""

    total: Any  # float32, float64 or int32
    value: Any = None  # the float32 copy of a float64 total
    exponents: Any = None  # int32, one per group: an int32 total counts multiples of 2**exponent


def native(x: torch.Tensor) -> Any:
    """The same memory as the kernels of its device take it."""
    return x.numpy() if x.device.type == "cpu" else x


class Key(NamedTuple):
    """What makes one visit's rounding draws its own: 64 bits hashed from seed, client and visit."""

    first: int
    second: int

    @classmethod
    def of(cls, seed: int, client: int, visit: int) -> Key:
        mixed = _mix64(_of_client(seed, client) ^ visit)
        return cls(mixed & 0xFFFFFFFF, mixed >> 32)


NO_DRAWS: Final = Key(0, 0)


Change = tuple[int, float, Row | None, Vector | None, Key, float]  # kind, scale, row, new, key, rate


class Tape:
    """What happens to a table, to the running sum over its rows, and to the model that steps on the sum, in order.

    Kept twice: as objects, and as bare numbers for loops that are compiled.
    """

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.numbers: list[int] = []  # five a change: kind, addresses of the row and of `new`, halves of the key
        self.factors: list[float] = []  # two a change: scale and rate

    def exchange(self, row: Row, new: Vector, scale: float, key: Key) -> None:
        """Store `new` in the row, and add `scale` times the change to the sum."""
        self.changes.append((EXCHANGE, scale, row, new, key, 0.0))
        self.numbers += EXCHANGE, row.raw.data_ptr(), new.data_ptr(), *key
        self.factors += scale, 0.0

    def add(self, row: Row, scale: float) -> None:
        """Add `scale` times the row to the sum."""
        self.changes.append((ADD, scale, row, None, NO_DRAWS, 0.0))
        self.numbers += ADD, row.raw.data_ptr(), 0, 0, 0
        self.factors += scale, 0.0

    def step(self, rate: float, scale: float) -> None:
        """Take `rate` times (`scale` times the sum) from the model."""
        self.changes.append((STEP, scale, None, None, NO_DRAWS, rate))
        self.numbers += STEP, 0, 0, 0, 0
        self.factors += scale, rate

    def zero(self) -> None:
        """Empty the sum."""
        self.changes.append((ZERO, 0.0, None, None, NO_DRAWS, 0.0))
        self.numbers += ZERO, 0, 0, 0, 0
        self.factors += 0.0, 0.0


@lru_cache(1 << 16)
def _of_client(seed: int, client: int) -> int:
    return _mix64(_mix64(seed) ^ client)


def _mix64(x: int) -> int:
    """The splitmix64 finaliser: every bit of the input moves every bit of the output."""
    x = (x + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)
