"""The table's arithmetic in plain torch: what every other kernel must equal bit for bit, and what runs without them.

Sums are formed in float64, element by element: scale * (stored(new) - stored(old)), plus what the float32 sum lacks,
plus the float32 sum. So the only error a running sum collects is the rounding of its low part.
"""

from __future__ import annotations

import torch

from acefl.kernels.layout import Key, Layout, Row
from acefl.types import Vector

CHUNK = 1 << 15  # numbers worked on at once on a CPU: temporaries stay in the cache however long the vector


class Reference:
    """Kernels for one layout on one device, with the few temporaries they need."""

    name = "torch"

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        size = layout.blocks * layout.encoding.block
        self._chunk = min(size, CHUNK) if device.type == "cpu" else size
        self._wide = torch.empty(self._chunk, dtype=torch.float64, device=device)
        self._other = torch.empty(self._chunk, dtype=torch.float64, device=device)
        lossy = self._chunk if layout.encoding.bits < 32 else 0
        self._padded = torch.zeros(lossy, device=device)
        self._counter = torch.arange(lossy // 2, dtype=torch.int32, device=device)

    def exchange(self, row: Row, new: Vector, into: Vector, rest: Vector | None, scale: float, key: Key) -> None:
        """Add scale * (stored(new) - stored(old)) to the sum, and store new."""
        if self._chunk >= self.layout.dim:
            self._exchange(row, new, into, rest, scale, key, 0)
            return
        for start, part, chunk in self._chunks(row):
            low = None if rest is None else rest[part]
            self._exchange(chunk, new[part], into[part], low, scale, key, start)

    def exchange_and_step(
        self, row: Row, new: Vector, into: Vector, rest: Vector, scale: float, key: Key, model: Vector, rate: float
    ) -> None:
        """The same, then model -= rate * sum."""
        self.exchange(row, new, into, rest, scale, key)
        model.sub_(into, alpha=rate)

    def add(self, row: Row, into: Vector, rest: Vector | None, scale: float) -> None:
        """Add scale * stored(row) to the sum."""
        for _, part, chunk in self._chunks(row):
            low = None if rest is None else rest[part]
            wide = self._wide[: part.stop - part.start]
            wide.copy_(self._decode(chunk)[: wide.numel()])
            self._accumulate(wide, into[part], low, scale)

    def decode(self, row: Row) -> Vector:
        """The numbers a row stands for, as a new float32 vector."""
        return self._decode(row)[: self.layout.dim].to(torch.float32, copy=True)

    def _chunks(self, row: Row) -> list[tuple[int, slice, Row]]:
        encoding, dim, chunk = self.layout.encoding, self.layout.dim, self._chunk
        if chunk >= dim:
            return [(0, slice(0, dim), row)]
        packed = row.codes.element_size() * 8 // encoding.bits
        parts = []
        for start in range(0, dim, chunk):
            stop = start + chunk
            codes = row.codes[start // packed : stop // packed]
            scales = row.scales[start // encoding.block : stop // encoding.block]
            parts.append((start, slice(start, min(stop, dim)), Row(row.raw, codes, scales)))
        return parts

    def _exchange(
        self, row: Row, new: Vector, into: Vector, rest: Vector | None, scale: float, key: Key, start: int
    ) -> None:
        size = new.numel()
        wide, other = self._wide, self._other
        if size < self._chunk:
            wide, other = wide[:size], other[:size]
        if self.layout.encoding.bits == 32:
            wide.copy_(new)
            other.copy_(row.codes)
            row.codes.copy_(new)
        else:
            other.copy_(self._decode(row)[:size])
            self._encode(row, new, key, start)
            wide.copy_(self._decode(row)[:size])
        wide.sub_(other)
        self._accumulate(wide, into, rest, scale)

    def _accumulate(self, wide: Vector, into: Vector, rest: Vector | None, scale: float) -> None:
        """Sum += scale * wide, where `rest` is the sum in float64, or in bfloat16 what the sum lacks, or missing."""
        if rest is not None and rest.dtype == torch.float64:
            rest.add_(wide, alpha=scale)
            into.copy_(rest)
            return
        other = self._other[: wide.numel()]
        wide.mul_(scale)
        if rest is not None:
            wide.add_(other.copy_(rest))
        wide.add_(other.copy_(into))
        into.copy_(wide)
        if rest is not None:
            rest.copy_(wide.sub_(other.copy_(into)).to(torch.float32))

    def _decode(self, row: Row) -> Vector:
        encoding = self.layout.encoding
        if not encoding.largest:
            return row.codes
        codes = row.codes.view(-1, encoding.block * encoding.bits // 8)
        if encoding.bits == 4:
            nibbles = torch.cat([codes & 15, codes >> 4], dim=1).to(torch.int8)
            codes = (nibbles ^ 8) - 8
        return (codes.to(torch.float32) * _scale(row.scales)[:, None]).view(-1)

    def _encode(self, row: Row, new: Vector, key: Key, start: int) -> None:
        encoding = self.layout.encoding
        size = row.codes.numel() * row.codes.element_size() * 8 // encoding.bits
        padded = self._padded[:size]
        padded[: new.numel()] = new
        padded[new.numel() :] = 0
        x = padded.view(-1, encoding.block)
        draws = self._draws(size, key, start)
        if not encoding.largest:
            bits = (x.view(torch.int32) + draws) >> 16
            row.codes.view(torch.int16).copy_(bits.view(-1))
            return
        highest = (x.view(torch.int32) & 0x7FFFFFFF).amax(dim=1)
        steps = highest.view(torch.float32) * encoding.step
        row.scales.copy_(torch.where(highest < encoding.tiny, 0, (steps.view(torch.int32) + 0xFFFF) >> 16))
        scales = _scale(row.scales)
        inverse = torch.where(scales > 0, 65536 * scales.reciprocal(), 0)
        codes = ((x * inverse[:, None]).to(torch.int32) + draws) >> 16
        if encoding.bits == 4:
            half = encoding.block // 2
            codes = (codes[:, :half] & 15) | ((codes[:, half:] & 15) << 4)
        row.codes.copy_(codes.reshape(-1))

    def _draws(self, size: int, key: Key, start: int) -> torch.Tensor:
        """One number below 2**16 per element; a hash serves two, one in either half of a block."""
        x = self._counter[: size // 2] + _signed((key.first + start // 2) & 0xFFFFFFFF)
        x ^= (x >> 16) & 0xFFFF
        x *= _signed(0x7FEB352D)
        x ^= (x >> 15) & 0x1FFFF
        x += _signed(key.second)
        x *= _signed(0x846CA68B)
        x ^= (x >> 16) & 0xFFFF
        x = x.view(-1, self.layout.encoding.block // 2)
        return torch.cat([x & 0xFFFF, (x >> 16) & 0xFFFF], dim=1)


def _scale(bits: torch.Tensor) -> torch.Tensor:
    return (bits.to(torch.int32) << 16).view(torch.float32)


def _signed(x: int) -> int:
    """The same 32 bits as a signed integer: torch multiplies those with wrap-around."""
    return x - (1 << 32) if x >= 1 << 31 else x
