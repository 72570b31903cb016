"""The table's arithmetic in plain torch: what every other kernel must equal bit for bit, and what runs without them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from acefl.kernels.layout import GROUP, TINY, Key, Layout, Row, Sum
from acefl.types import Vector

CHUNK = 1 << 15  # numbers worked on at once on a CPU: temporaries stay in the cache however long the vector


class Reference:
    """Kernels for one layout on one device."""

    name = "torch"

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self._chunk = min(layout.dim, CHUNK) if device.type == "cpu" else layout.dim
        self._wide = torch.empty(self._chunk, dtype=torch.float64, device=device)
        self._other = torch.empty_like(self._wide)
        pairs = -(-self._chunk // layout.encoding.block) * layout.encoding.block // 2
        self._counter = torch.arange(pairs, dtype=torch.int32, device=device)

    def exchange(self, row: Row, new: Vector, into: Sum, scale: float, key: Key) -> None:
        """Add scale * (stored(new) - stored(old)) to the sum, and store new."""
        if self._chunk == self.layout.dim:
            self._exchange(row, new, into, scale, key, 0)
            return
        for part, piece, sums in self._pieces(row, into):
            self._exchange(piece, new[part], sums, scale, key, part.start)

    def exchange_and_step(
        self, row: Row, new: Vector, into: Sum, scale: float, key: Key, model: Vector, rate: float
    ) -> None:
        """`exchange`, then model -= rate * sum."""
        self.exchange(row, new, into, scale, key)
        value = into.value
        if value is None:
            read(into, value := torch.empty_like(into.total, dtype=torch.float32))
        model.sub_(value, alpha=rate)

    def add(self, row: Row, into: Sum, scale: float) -> None:
        """Add scale * stored(row) to the sum."""
        for _, piece, sums in self._pieces(row, into):
            values = self._decode(piece, sums.total.numel())
            if sums.exponents is not None:
                self._add_fixed(sums, scale, values, None, self._tops(values, piece))
            else:
                self._add_float(sums, scale, values, None)

    def decode(self, row: Row) -> Vector:
        """The numbers a row stands for, as a new float32 vector."""
        return self._decode(row, self.layout.dim).to(torch.float32, copy=True)

    def _pieces(self, row: Row, into: Sum) -> Iterator[tuple[slice, Row, Sum]]:
        dim, chunk, encoding = self.layout.dim, self._chunk, self.layout.encoding
        packed = row.codes.element_size() * 8 // encoding.bits
        total, value, exponents = into
        for start in range(0, dim, chunk):
            part = slice(start, min(start + chunk, dim))
            codes = row.codes[start // packed : (start + chunk + packed - 1) // packed]
            scales = row.scales[start // encoding.block : -(-part.stop // encoding.block)]
            sums = Sum(
                total[part],
                None if value is None else value[part],
                None if exponents is None else exponents[start // GROUP : -(-part.stop // GROUP)],
            )
            yield part, Row(row.raw, codes, scales), sums

    def _exchange(self, row: Row, new: Vector, into: Sum, scale: float, key: Key, start: int) -> None:
        size, fixed, lossless = new.numel(), into.exponents is not None, self.layout.encoding.bits == 32
        old = self._decode(row, size)
        tops = self._tops(old, row) if fixed else None
        if not lossless:
            self._encode(row, new, key, start)
        fresh = new if lossless else self._decode(row, size)
        if tops is not None:
            self._add_fixed(into, scale, fresh, old, torch.maximum(tops, self._tops(fresh, row)))
        else:
            self._add_float(into, scale, fresh, old)
        if lossless:
            row.codes.copy_(new)

    def _add_float(self, into: Sum, scale: float, new: Vector, old: Vector | None) -> None:
        """Sums in float64; the total is float64 itself, or a plain float32 vector."""
        wide, other = self._wide, self._other
        if new.numel() < self._chunk:
            wide, other = wide[: new.numel()], other[: new.numel()]
        wide.copy_(new)
        if old is not None:
            wide.sub_(other.copy_(old))
        if into.value is not None:
            into.total.add_(wide, alpha=scale)
            into.value.copy_(into.total)
        else:
            into.total.copy_(wide.mul_(scale).add_(other.copy_(into.total)))

    def _add_fixed(self, into: Sum, scale: float, new: Vector, old: Vector | None, tops: torch.Tensor) -> None:
        """Sums in integers: what is added comes out again exactly, so nothing is left behind, however long the run.

        A term counts as the nearest multiple of 2**exponent. The exponent of a group rises where a term would pass
        2**28 or the sum 2**30, so 29 bits or more are in use, against the 24 of a float32.
        """
        assert into.exponents is not None
        scale = torch.tensor(scale, dtype=torch.float32).item()
        needed = ((tops * abs(scale)).view(torch.int32) >> 23) - (127 + 27)
        exponents = torch.maximum(into.exponents, needed)
        rise = (exponents - into.exponents).clamp_(max=30)[:, None]
        total = _groups(into.total)
        total = (total + ((1 << rise) >> 1)) >> rise
        factors = (_power(-exponents) * scale)[:, None]
        total += torch.round(_groups(new) * factors).to(torch.int32)
        if old is not None:
            total -= torch.round(_groups(old) * factors).to(torch.int32)
        full = (total.abs().amax(dim=1) >= 1 << 30).to(torch.int32)
        total = (total + full[:, None]) >> full[:, None]
        into.total.copy_(total.view(-1)[: new.numel()])
        into.exponents.copy_(exponents + full)

    def _tops(self, values: Vector, row: Row) -> torch.Tensor:
        """For each group of numbers, a bound on their size: from the scales where there are any."""
        encoding = self.layout.encoding
        if not encoding.largest:
            return _groups(values).to(torch.float32).abs().amax(dim=1)
        return _groups(_scale(row.scales), GROUP // encoding.block).amax(dim=1) * encoding.largest

    def _decode(self, row: Row, size: int) -> Vector:
        encoding = self.layout.encoding
        codes = row.codes
        if not encoding.largest:
            return codes.to(torch.float32)
        if encoding.bits == 4:
            codes = codes.view(-1, encoding.block // 2)
            codes = torch.cat([codes & 15, codes >> 4], dim=1).view(-1).to(torch.int8)
            codes = (codes ^ 8) - 8
        values = _groups(codes, encoding.block).to(torch.float32) * _scale(row.scales)[:, None]
        return values.view(-1)[:size]

    def _encode(self, row: Row, new: Vector, key: Key, start: int) -> None:
        encoding = self.layout.encoding
        x = _groups(new, encoding.block)
        draws = self._draws(x.numel(), key, start)
        if not encoding.largest:
            codes = (x.view(torch.int32) + draws) >> 16
            row.codes.view(torch.int16).copy_(codes.view(-1)[: new.numel()])
            return
        highest = (x.view(torch.int32) & 0x7FFFFFFF).amax(dim=1)
        scales = (highest.view(torch.float32) * encoding.step).view(torch.int32) + 0xFFFF >> 16
        row.scales.copy_(torch.where(highest < TINY, 0, scales))
        scales = _scale(row.scales)
        inverses = torch.where(scales > 0, 65536 * scales.reciprocal(), 0)
        codes = ((x * inverses[:, None]).to(torch.int32) + draws) >> 16
        if encoding.bits == 4:
            half = encoding.block // 2
            codes = (codes[:, :half] & 15) | ((codes[:, half:] & 15) << 4)
        row.codes.copy_(codes.reshape(-1)[: row.codes.numel()])

    def _draws(self, size: int, key: Key, start: int) -> torch.Tensor:
        """One number below 2**16 per element, a block per line; a hash serves two elements, one in either half."""
        x = self._counter[: size // 2] + _signed((key.first + start // 2) & 0xFFFFFFFF)
        x ^= (x >> 16) & 0xFFFF
        x *= _signed(0x7FEB352D)
        x ^= (x >> 15) & 0x1FFFF
        x += _signed(key.second)
        x *= _signed(0x846CA68B)
        x ^= (x >> 16) & 0xFFFF
        x = x.view(-1, self.layout.encoding.block // 2)
        return torch.cat([x & 0xFFFF, (x >> 16) & 0xFFFF], dim=1)


def read(of: Sum, value: Vector) -> None:
    """Write a sum of integers as float32."""
    assert of.exponents is not None
    factors = _power(of.exponents).repeat_interleave(GROUP)[: value.numel()]
    torch.mul(of.total.to(torch.float32), factors, out=value)


def _groups(x: torch.Tensor, size: int = GROUP) -> torch.Tensor:
    """The vector as lines of `size` numbers, the last one filled up with zeros."""
    missing = -x.numel() % size
    return (torch.nn.functional.pad(x, (0, missing)) if missing else x).view(-1, size)


def _scale(bits: torch.Tensor) -> torch.Tensor:
    return (bits.to(torch.int32) << 16).view(torch.float32)


def _power(exponents: torch.Tensor) -> torch.Tensor:
    return ((exponents + 127) << 23).view(torch.float32)


def _signed(x: int) -> int:
    """The same 32 bits as a signed integer: torch multiplies those with wrap-around."""
    return x - (1 << 32) if x >= 1 << 31 else x
