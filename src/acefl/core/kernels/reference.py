"""The table's arithmetic in plain numpy: what every other kernel must equal bit for bit, and what runs without them.

It also serves short vectors, where the fixed cost of a call is all there is, and numpy's is lower than torch's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from acefl.core.kernels.layout import GROUP, STEP, TINY, ZERO, Key, Layout, Row, Sum, Tape
from acefl.core.types import Vector

Array = np.ndarray[Any, Any]
F, S, U = np.float32, np.int32, np.uint32  # float, signed, unsigned
SILENT = np.errstate(over="ignore", invalid="ignore")  # a run that diverges is found by the server, not by a warning
CHUNK = 1 << 15  # numbers worked on at once: temporaries stay in the cache however long the vector


class Part(NamedTuple):
    """A stretch of a row and of a sum, as arrays."""

    start: int
    codes: Array
    scales: Array
    total: Array
    value: Array | None
    exponents: Array | None


class Reference:
    """Kernels for one layout, on vectors in host memory."""

    name = "numpy"

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        block = layout.encoding.block
        self._short = layout.dim <= CHUNK
        self._wide, self._other = np.empty(min(layout.dim, CHUNK)), np.empty(min(layout.dim, CHUNK))
        self._counter = np.arange(-(-self._wide.size // block) * block // 2, dtype=U)

    @SILENT
    def exchange(self, row: Row, new: Vector, into: Sum, scale: float, key: Key) -> None:
        """Add scale * (stored(new) - stored(old)) to the sum, and store new."""
        x = new.numpy()
        for part in self._parts(row, into):
            self._exchange(part, x if self._short else x[part.start : part.start + CHUNK], scale, key)

    def exchange_and_step(
        self, row: Row, new: Vector, into: Sum, scale: float, key: Key, model: Vector, rate: float
    ) -> None:
        """`exchange`, then model -= rate * sum."""
        self.exchange(row, new, into, scale, key)
        if into.exponents is None:
            model.sub_(torch.from_numpy(into.value), alpha=rate)
        else:
            read(into, value := torch.empty_like(model))
            model.sub_(value, alpha=rate)

    @SILENT
    def add(self, row: Row, into: Sum, scale: float) -> None:
        """Add scale * stored(row) to the sum."""
        for part in self._parts(row, into):
            self._add(part, self._decode(part), F(0), scale)

    def play(self, tape: Tape, into: Sum, model: Vector, models: torch.Tensor) -> None:
        """Make its changes one after another; row k of `models` is the model after the k-th step.

        The sum is a short one, in float64.
        """
        steps = iter(models)
        for kind, scale, row, new, key, rate in tape.changes:
            if kind == STEP:
                value = torch.as_tensor(into.value)
                model.sub_(value if scale == 1 else value * scale, alpha=rate)
                next(steps).copy_(model)
            elif kind == ZERO:
                into.total[:] = 0
                into.value[:] = 0
            elif row is not None and new is not None:
                self.exchange(row, new, into, scale, key)
            elif row is not None:
                self.add(row, into, scale)

    def decode(self, row: Row) -> Vector:
        """The numbers a row stands for, as a new float32 vector."""
        values = torch.empty(self.layout.dim)
        for part in self._parts(row, Sum(values.numpy())):
            part.total[:] = self._decode(part)
        return values

    def _parts(self, row: Row, into: Sum) -> Iterable[Part]:
        if self._short:
            return (Part(0, row.codes, row.scales, *into),)
        return self._chunks(row, into)

    def _chunks(self, row: Row, into: Sum) -> Iterator[Part]:
        _, codes, scales = row
        total, value, exponents = into
        block, packed = self.layout.encoding.block, codes.itemsize * 8 // self.layout.encoding.bits
        for start in range(0, self.layout.dim, CHUNK):
            stop = start + CHUNK
            yield Part(
                start,
                codes[start // packed : stop // packed],
                scales[start // block : stop // block],
                total[start:stop],
                None if value is None else value[start:stop],
                None if exponents is None else exponents[start // GROUP : stop // GROUP],
            )

    def _exchange(self, part: Part, x: Array, scale: float, key: Key) -> None:
        if self.layout.encoding.bits == 32:
            self._add(part, x, part.codes, scale)
            part.codes[:] = x
        else:
            old, scales = self._decode(part), part.scales.copy()
            self._add(part, self._encode(part, x, key), old, scale, scales)

    def _add(
        self, part: Part, new: Array, old: Array | np.float32, scale: float, old_scales: Array | None = None
    ) -> None:
        if part.exponents is not None:
            scales = part.scales if old_scales is None else np.maximum(part.scales, old_scales)
            _add_integers(part.total, part.exponents, new, old, self._bounds(new, old, scales), scale)
            return
        wide, other = self._wide, self._other
        if not self._short:
            wide, other = wide[: new.size], other[: new.size]
        wide[:] = new
        other[:] = old
        wide -= other
        if scale != 1:
            wide *= scale
        total, value = part.total, part.value
        if value is None:
            other[:] = total
            wide += other
            total[:] = wide
        else:
            total += wide
            value[:] = total

    def _bounds(self, new: Array, old: Array | np.float32, scales: Array) -> Array:
        """For each group, a bound on the size of its numbers: from the scales where there are any."""
        encoding = self.layout.encoding
        if encoding.largest:
            bounds: Array = _lines(_floats(scales), GROUP // encoding.block).max(axis=1) * F(encoding.largest)
        else:
            bounds = _lines(np.maximum(np.abs(new), np.abs(old)), GROUP).max(axis=1)
        return bounds

    def _decode(self, part: Part) -> Array:
        encoding, codes = self.layout.encoding, part.codes
        if encoding.bits == 32:
            return codes
        if encoding.bits == 16:
            return _floats(codes)
        if encoding.bits == 4:
            pairs = codes.reshape(-1, encoding.block // 2)
            codes = np.concatenate([pairs & 15, pairs >> 4], axis=1).view(np.int8).reshape(-1)
            codes = (codes ^ 8) - 8
        values = _lines(codes.astype(F), encoding.block)
        values *= _floats(part.scales)[:, None]
        return values.reshape(-1)[: part.total.size]

    def _encode(self, part: Part, new: Array, key: Key) -> Array:
        """Store the numbers; returns what is stored."""
        encoding = self.layout.encoding
        x = _lines(new, encoding.block)
        draws = self._draws(x, part.start, key)
        if encoding.bits == 16:
            draws += x.view(U)
            draws >>= 16
            part.codes[:] = draws.reshape(-1)[: new.size]
            draws <<= 16
            stored: Array = draws.view(F)
            return stored.reshape(-1)[: new.size]
        tops = (x.view(U) & 0x7FFFFFFF).max(axis=1)
        patterns = ((tops.view(F) * F(encoding.step)).view(U) + 0xFFFF) >> 16
        patterns[tops < TINY] = 0
        part.scales[:] = patterns
        scales = (patterns << 16).view(F)
        inverses = np.zeros_like(scales)
        np.divide(F(65536), scales, out=inverses, where=patterns > 0)
        codes = (x * inverses[:, None]).astype(S)
        codes += draws.view(S)
        codes >>= 16
        stored = codes.astype(F)
        stored *= scales[:, None]
        if encoding.bits == 4:
            half = encoding.block // 2
            codes = (codes[:, :half] & 15) | ((codes[:, half:] & 15) << 4)
        part.codes[:] = codes.reshape(-1)[: part.codes.size]
        return stored.reshape(-1)[: new.size]

    def _draws(self, like: Array, start: int, key: Key) -> Array:
        """One number below 2**16 per element, a block per line; a hash serves two elements, one in either half."""
        lines, block = like.shape
        x = self._counter[: lines * block // 2] + U((key.first + start // 2) & 0xFFFFFFFF)
        x ^= x >> 16
        x *= 0x7FEB352D
        x ^= x >> 15
        x += key.second
        x *= 0x846CA68B
        x ^= x >> 16
        hashes = x.reshape(lines, block // 2)
        draws = np.empty((lines, block), U)
        np.bitwise_and(hashes, 0xFFFF, out=draws[:, : block // 2])
        np.right_shift(hashes, 16, out=draws[:, block // 2 :])
        return draws


def read(of: Sum, value: Vector) -> None:
    """Write a sum of integers as float32."""
    units, values = _power(of.exponents), value.numpy()
    for start in range(0, values.size, CHUNK):
        counts = _lines(of.total[start : start + CHUNK].astype(F), GROUP)
        counts *= units[start // GROUP : (start + CHUNK) // GROUP, None]
        values[start : start + CHUNK] = counts.reshape(-1)[: values.size - start]


def _add_integers(
    total: Array, exponents: Array, new: Array, old: Array | np.float32, bounds: Array, scale: float
) -> None:
    """Sums in integers: what is added comes out again exactly, so nothing is left behind, however long the run.

    A term counts as the nearest multiple of 2**exponent. The exponent of a group rises where a term would pass 2**28 or
    the sum 2**30; so 29 bits of the largest sum yet are in use, against the 24 of a float32.
    """
    new, old = _lines(new, GROUP), _lines(old, GROUP) if isinstance(old, np.ndarray) else old
    needed = ((bounds * abs(F(scale))).view(S) >> 23) - (127 + 27)
    raised = np.maximum(exponents, needed)
    rise = np.minimum(raised - exponents, 30)[:, None]
    counts = (_lines(total, GROUP) + ((1 << rise) >> 1)) >> rise
    factors = (F(scale) * _power(-raised))[:, None]
    counts += np.rint(new * factors).astype(S)
    counts -= np.rint(old * factors).astype(S)
    full = (np.abs(counts).max(axis=1) >= 1 << 30).astype(S)
    counts = (counts + full[:, None]) >> full[:, None]
    total[:] = counts.reshape(-1)[: total.size]
    exponents[:] = raised + full


def _lines(x: Array, size: int) -> Array:
    """The vector as lines of `size` numbers, the last one filled up with zeros."""
    missing = -x.size % size
    if missing:
        filled = np.zeros(x.size + missing, x.dtype)
        filled[: x.size] = x
        x = filled
    return x.reshape(-1, size)


def _floats(patterns: Array) -> Array:
    """The numbers whose upper 16 bits these are: bfloat16."""
    return (patterns.astype(U) << 16).view(F)


def _power(exponents: Array) -> Array:
    return ((exponents + 127) << 23).view(F)
