"""The table's kernels for short vectors on a CPU: numpy at first, numba's loops in long runs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar

import torch

from acefl.core.kernels.layout import Key, Layout, Row, Sum, Tape
from acefl.core.kernels.reference import Reference
from acefl.core.types import Vector

PATIENCE, PATIENCE_LOSSLESS = 8_000, 35_000  # exchanges: compiled loops save some 60 and 12 microseconds of one, and
# loading them takes half a second, most of it for the garbage collection that so many new objects bring on
_made: Counter[str] = Counter()  # exchanges in this process, by encoding: many short runs wait together
_expected: ContextVar[float] = ContextVar("expected", default=0.0)


@contextlib.contextmanager
def expecting(exchanges: float) -> Iterator[None]:
    """Tables that are made in here will see about so many exchanges: where loading pays, nobody waits to find out."""
    token = _expected.set(exchanges)
    try:
        yield
    finally:
        _expected.reset(token)


def many_expected() -> bool:
    """Whether compiled loops will pay that save a few microseconds of each exchange."""
    return _expected.get() >= PATIENCE_LOSSLESS


class Patient(Reference):
    """For short vectors: plain numpy, until there were so many exchanges that loading compiled kernels pays.

    Both compute the same bits, so nobody can tell but by the time it takes.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._patience = PATIENCE_LOSSLESS if layout.encoding.bits == 32 else PATIENCE
        self._compiled: Reference | None = None
        if _made[layout.name] + _expected.get() >= self._patience:
            self._load()

    def exchange(self, row: Row, new: Vector, into: Sum, scale: float, key: Key) -> None:
        if self._compiled is None:
            self._count()
            super().exchange(row, new, into, scale, key)
        else:
            self._compiled.exchange(row, new, into, scale, key)

    def exchange_and_step(
        self, row: Row, new: Vector, into: Sum, scale: float, key: Key, model: Vector, rate: float
    ) -> None:
        if self._compiled is None:
            super().exchange_and_step(row, new, into, scale, key, model, rate)
        else:
            self._compiled.exchange_and_step(row, new, into, scale, key, model, rate)

    def add(self, row: Row, into: Sum, scale: float) -> None:
        if self._compiled is None:
            super().add(row, into, scale)
        else:
            self._compiled.add(row, into, scale)

    def play(self, tape: Tape, into: Sum, model: Vector, models: torch.Tensor) -> None:
        if self._compiled is None:
            super().play(tape, into, model, models)
        else:
            self._compiled.play(tape, into, model, models)

    def _count(self) -> None:
        _made[self.layout.name] += 1
        if _made[self.layout.name] == self._patience:
            self._load()

    def _load(self) -> None:
        with contextlib.suppress(ImportError):  # numba is missing, or refuses this numpy
            from acefl.core.kernels.cpu import Compiled

            self._compiled = Compiled(self.layout)
            self.name = self._compiled.name
