"""The table's kernels for long vectors on a CPU: numba's loops, shared among threads."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch

from acefl.core.kernels import loops
from acefl.core.kernels.layout import GROUP, NO_DRAWS, Key, Layout, Row, Sum, Tape
from acefl.core.kernels.reference import Array, Reference
from acefl.core.types import Vector

NOTHING: Array = np.empty(0, np.float32)
ALONE = 16 * loops.BITE  # with fewer groups than this, waking a second thread costs more than it saves


class Compiled(Reference):
    """One pass over memory for sums of integers or float64; float32 sums are left to plain numpy."""

    name = "numba"

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        encoding = layout.encoding
        codes = GROUP * encoding.bits // 8 // encoding.dtype.itemsize
        self._shape = codes, GROUP // encoding.block if encoding.largest else 0  # codes and scales of a group

    def exchange(self, row: Row, new: Vector, into: Sum, scale: float, key: Key) -> None:
        if into.exponents is None and into.value is None:
            super().exchange(row, new, into, scale, key)
        else:
            self._pass(row, into, scale, new=new.numpy(), key=key)

    def exchange_and_step(
        self, row: Row, new: Vector, into: Sum, scale: float, key: Key, model: Vector, rate: float
    ) -> None:
        if into.exponents is None and into.value is None:
            super().exchange_and_step(row, new, into, scale, key, model, rate)
        else:
            self._pass(row, into, scale, new=new.numpy(), key=key, model=model.numpy(), rate=rate)

    def add(self, row: Row, into: Sum, scale: float) -> None:
        if into.exponents is None and into.value is None:
            super().add(row, into, scale)
        else:
            self._pass(row, into, scale)

    def play(self, tape: Tape, into: Sum, model: Vector, models: torch.Tensor) -> None:
        like = next((row for _, _, row, _, _, _ in tape.changes if row is not None), None)
        if like is None or into.value is None:
            super().play(tape, into, model, models)
            return
        loops.play(
            np.frombuffer(array("q", tape.numbers), np.int64).reshape(-1, 5),
            np.frombuffer(array("d", tape.factors), np.float64).reshape(-1, 2),
            like.codes,
            like.scales,
            self.layout.row_bytes - self.layout.scale_bytes,
            into.total,
            into.value,
            model.numpy(),
            models.numpy(),
            *self._shape,
        )

    def _pass(
        self,
        row: Row,
        into: Sum,
        scale: float,
        new: Array = NOTHING,
        key: Key = NO_DRAWS,
        model: Array = NOTHING,
        rate: float = 0.0,
    ) -> None:
        draws = np.uint32(key.first), np.uint32(key.second)
        step = model, np.float32(-rate)
        if into.exponents is None:
            wide = into.total, into.value, np.float64(scale)
            loops.exchange_wide(row.codes, row.scales, new, *wide, *draws, *step, *self._shape)
            return
        sums = into.total, into.exponents, np.float32(scale)
        _share(loops.exchange, into.exponents.size, row.codes, row.scales, new, *sums, *draws, *step, *self._shape)


def buffered(
    updates: Sequence[Vector],
    weights: Sequence[float],
    held: int,
    buffer: int,
    total: Vector,
    direction: Vector,
    model: Vector,
    models: torch.Tensor,
    rate: float,
) -> None:
    """See `loops.buffered`. Updates are contiguous; sum, direction, model and the models after steps are written to."""
    loops.buffered(
        np.array([update.data_ptr() for update in updates]),
        np.array(weights, np.float32),
        held,
        buffer,
        total.numpy(),
        direction.numpy(),
        model.numpy(),
        models.numpy(),
        np.float32(-rate),
    )


def read(of: Sum, value: Vector) -> None:
    """Write a sum of integers as float32."""
    _share(loops.read, of.exponents.size, of.total, of.exponents, value.numpy())


def is_finite(vector: Vector) -> bool:
    """Whether every entry of a float32 vector is; torch's reduction would leave its threads spinning for a while."""
    return not _share(loops.look, vector.numel() // GROUP, vector.numpy())


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="acefl-kernel")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a fork inherits a pool, but none of its threads


def _share(loop: Callable[..., None], groups: int, *arguments: Any) -> int:
    """Run a loop on as many threads as torch uses. Each takes the next bite until none is left; what they counted.

    Our own threads, because numba's either die when two servers of one process call them at once, or need a second
    OpenMP runtime beside torch's.
    """
    bites = np.zeros(2, np.int64)
    helpers = torch.get_num_threads() - 1 if groups >= ALONE else 0
    tasks = [_pool(helpers).submit(loop, *arguments, bites) for _ in range(helpers)]
    loop(*arguments, bites)
    for task in tasks:
        if not task.cancel():
            task.result()
    return int(bites[1])
