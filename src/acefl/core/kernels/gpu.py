"""The table's kernels for a GPU, in Triton: one launch and one pass over memory, bit for bit what `reference` computes.

One program works on one group of numbers. It holds every block as two halves, as the rounding draws and the 4-bit codes
want them. Only a large vector's last, short group is masked, because masks keep loads from being vectorised.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,import-not-found,import-untyped"

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl

from acefl.core.kernels.layout import GROUP, NO_DRAWS, TINY, Key, Row, Sum
from acefl.core.kernels.reference import Reference
from acefl.core.types import Vector

WARPS = 2  # 64 threads, so that each moves 16 bytes of a half group of float32 at a time
_WORTH_TWO_LAUNCHES = 100_000  # numbers: of fewer, one launch with masks is faster than two
PLAIN, WIDE, INTEGERS = 0, 1, 2  # kinds of sums: float32; float64 with a float32 copy; integers with exponents


class Triton(Reference):
    """Kernels for one layout on a GPU."""

    name = "triton"

    def exchange(self, row: Row, new: Vector, into: Sum, scale: float, key: Key) -> None:
        self._launch(row, into, scale, key, new=new)

    def exchange_and_step(
        self, row: Row, new: Vector, into: Sum, scale: float, key: Key, model: Vector, rate: float
    ) -> None:
        self._launch(row, into, scale, key, new=new, model=model, rate=rate)

    def add(self, row: Row, into: Sum, scale: float) -> None:
        self._launch(row, into, scale, NO_DRAWS)

    def decode(self, row: Row) -> Vector:
        values = torch.zeros(self.layout.dim, device=row.raw.device)
        self._launch(row, Sum(values), 1.0, NO_DRAWS)
        return values

    def _launch(
        self,
        row: Row,
        into: Sum,
        scale: float,
        key: Key,
        new: Vector | None = None,
        model: Vector | None = None,
        rate: float = 0.0,
    ) -> None:
        total, value, exponents = into
        encoding, dim = self.layout.encoding, self.layout.dim
        low, high = struct.unpack("<ii", struct.pack("<d", scale))
        first, second = struct.unpack("<ii", struct.pack("<II", *key))
        spare = row.raw  # stands in for whatever this launch does not touch
        whole = dim // GROUP if dim >= _WORTH_TWO_LAUNCHES else 0
        for masked, begin, programs in ((False, 0, whole), (True, whole, -(-dim // GROUP) - whole)):
            if programs:
                _group[(programs,)](
                    row.codes,
                    row.scales if encoding.largest else spare,
                    spare if new is None else new,
                    total,
                    spare if value is None else value,
                    spare if exponents is None else exponents,
                    spare if model is None else model,
                    dim,
                    begin,
                    first,
                    second,
                    low,
                    high,
                    float(scale),
                    float(rate),
                    BITS=encoding.bits,
                    BLOCK=encoding.block if encoding.bits < 32 else GROUP,
                    STEP=encoding.step if encoding.largest else 0.0,
                    LARGEST=encoding.largest,
                    KIND=INTEGERS if exponents is not None else PLAIN if value is None else WIDE,
                    NEW=new is not None,
                    STEPS=model is not None,
                    MASKED=masked,
                    GROUP=GROUP,
                    TINY=TINY,
                    num_warps=WARPS,
                    enable_fp_fusion=False,  # what is rounded twice elsewhere is rounded twice here
                )


def read(of: Sum, value: Vector) -> None:
    """Write a sum of integers as float32."""
    size = value.numel()
    _read[(-(-size // GROUP),)](of.total, of.exponents, value, size, GROUP=GROUP, num_warps=WARPS)


@triton.jit
def _get(x, i, size, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(x + i, mask=i < size, other=0)
    return tl.load(x + i)


@triton.jit
def _put(x, i, numbers, size, MASKED: tl.constexpr):
    if MASKED:
        tl.store(x + i, numbers, mask=i < size)
    else:
        tl.store(x + i, numbers)


@triton.jit
def _float(pattern):
    return pattern.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _size(x):
    """The absolute value, as a bit pattern."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _draw(counter, second):
    """32 random bits, a function of the counter and the key."""
    x = counter ^ (counter >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x + second
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _nearest(x):
    """The nearest integer, halves to even."""
    below = tl.floor(x)
    rest = x - below
    count = below.to(tl.int32)
    return count + ((rest > 0.5) | ((rest == 0.5) & ((count & 1) == 1))).to(tl.int32)


@triton.jit
def _largest(x, y):
    return tl.max(tl.max(tl.maximum(x, y), axis=1), axis=0)


@triton.jit
def _signed(nibble):
    return ((nibble.to(tl.int32) & 15) ^ 8) - 8


@triton.jit(do_not_specialize=["dim", "begin", "first", "second", "low", "high"])
def _group(
    codes,
    scales,
    new,
    total,
    value,
    exponents,
    model,
    dim,
    begin,
    first,
    second,
    low,
    high,
    scale,
    rate,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    LARGEST: tl.constexpr,
    KIND: tl.constexpr,
    NEW: tl.constexpr,
    STEPS: tl.constexpr,
    MASKED: tl.constexpr,
    GROUP: tl.constexpr,
    TINY: tl.constexpr,
):
    """Decode a group of the row, store the new numbers, add the change to the sum, step the model.

    Loads come first, so that none waits for a maximum over the group.
    """
    HALF: tl.constexpr = BLOCK // 2
    LINES: tl.constexpr = GROUP // BLOCK
    group = tl.program_id(0).to(tl.int64) + begin
    line, column = tl.arange(0, LINES)[:, None], tl.arange(0, HALF)[None, :]
    i = group * GROUP + line * BLOCK + column
    j = i + HALF
    pair = group * (GROUP // 2) + line * HALF + column
    block = group * LINES + line
    blocks = (dim + BLOCK - 1) // BLOCK

    a_sum, b_sum = _get(total, i, dim, MASKED), _get(total, j, dim, MASKED)
    if NEW:
        a, b = _get(new, i, dim, MASKED), _get(new, j, dim, MASKED)
    if STEPS:
        a_model, b_model = _get(model, i, dim, MASKED), _get(model, j, dim, MASKED)

    if BITS == 32:
        a_old, b_old = _get(codes, i, dim, MASKED), _get(codes, j, dim, MASKED)
    elif BITS == 16:
        a_old = _float(_get(codes, i, dim, MASKED).to(tl.int32) << 16)
        b_old = _float(_get(codes, j, dim, MASKED).to(tl.int32) << 16)
    else:
        before = _float(_get(scales, block, blocks, MASKED).to(tl.int32) << 16)
        if BITS == 8:
            a_code, b_code = _get(codes, i, dim, MASKED), _get(codes, j, dim, MASKED)
        else:
            both = _get(codes, pair, blocks * HALF, MASKED)
            a_code, b_code = _signed(both), _signed(both >> 4)
        a_old, b_old = a_code.to(tl.float32) * before, b_code.to(tl.float32) * before

    if NEW:
        if BITS == 32:
            _put(codes, i, a, dim, MASKED)
            _put(codes, j, b, dim, MASKED)
        else:
            draw = _draw(pair.to(tl.uint32) + first.to(tl.uint32), second.to(tl.uint32))
            a_draw, b_draw = (draw & 0xFFFF).to(tl.int32), (draw >> 16).to(tl.int32)
            if BITS == 16:
                a_bits = (a.to(tl.int32, bitcast=True) + a_draw) >> 16
                b_bits = (b.to(tl.int32, bitcast=True) + b_draw) >> 16
                _put(codes, i, a_bits.to(tl.int16), dim, MASKED)
                _put(codes, j, b_bits.to(tl.int16), dim, MASKED)
                a, b = _float(a_bits << 16), _float(b_bits << 16)
            else:
                top = tl.max(tl.maximum(_size(a), _size(b)), axis=1)[:, None]
                pattern = (((_float(top) * STEP).to(tl.int32, bitcast=True)) + 0xFFFF) >> 16
                pattern = tl.where(top < TINY, 0, pattern)
                _put(scales, block, pattern.to(tl.int16), blocks, MASKED)
                after = _float(pattern << 16)
                inverse = tl.where(pattern > 0, tl.div_rn(65536.0, tl.where(pattern > 0, after, 1.0)), 0.0)
                a_code = ((a * inverse).to(tl.int32) + a_draw) >> 16
                b_code = ((b * inverse).to(tl.int32) + b_draw) >> 16
                if BITS == 8:
                    _put(codes, i, a_code.to(tl.int8), dim, MASKED)
                    _put(codes, j, b_code.to(tl.int8), dim, MASKED)
                else:
                    _put(codes, pair, ((a_code & 15) | ((b_code & 15) << 4)).to(tl.uint8), blocks * HALF, MASKED)
                a, b = a_code.to(tl.float32) * after, b_code.to(tl.float32) * after
    else:
        a, b = a_old, b_old
        a_old, b_old = a_old * 0, b_old * 0
        if BITS < 16:
            after = before

    if KIND == 2:
        exponent = tl.load(exponents + group)
        if BITS < 16:
            bound = tl.max(tl.max(tl.maximum(before, after), axis=1), axis=0) * LARGEST
        else:
            bound = _float(_largest(tl.maximum(_size(a), _size(a_old)), tl.maximum(_size(b), _size(b_old))))
        needed = ((bound * tl.abs(scale)).to(tl.int32, bitcast=True) >> 23) - (127 + 27)
        raised = tl.maximum(exponent, needed)
        rise = tl.minimum(raised - exponent, 30)
        half = (1 << rise) >> 1
        factor = scale * _float((127 - raised) << 23)
        a_sum = ((a_sum + half) >> rise) + _nearest(a * factor) - _nearest(a_old * factor)
        b_sum = ((b_sum + half) >> rise) + _nearest(b * factor) - _nearest(b_old * factor)
        full = (_largest(tl.abs(a_sum), tl.abs(b_sum)) >= 1 << 30).to(tl.int32)
        a_sum, b_sum = (a_sum + full) >> full, (b_sum + full) >> full
        tl.store(exponents + group, raised + full)
        unit = _float((raised + full + 127) << 23)
        a_value, b_value = a_sum.to(tl.float32) * unit, b_sum.to(tl.float32) * unit
    else:
        wide = ((high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)).to(tl.float64, bitcast=True)
        a_sum = a_sum.to(tl.float64) + (a.to(tl.float64) - a_old.to(tl.float64)) * wide
        b_sum = b_sum.to(tl.float64) + (b.to(tl.float64) - b_old.to(tl.float64)) * wide
        a_value, b_value = a_sum.to(tl.float32), b_sum.to(tl.float32)
        if KIND == 1:
            _put(value, i, a_value, dim, MASKED)
            _put(value, j, b_value, dim, MASKED)
        else:
            a_sum, b_sum = a_value, b_value
    _put(total, i, a_sum, dim, MASKED)
    _put(total, j, b_sum, dim, MASKED)

    if STEPS:
        _put(model, i, tl.fma(a_value, -rate, a_model), dim, MASKED)
        _put(model, j, tl.fma(b_value, -rate, b_model), dim, MASKED)


@triton.jit
def _read(total, exponents, value, size, GROUP: tl.constexpr):
    group = tl.program_id(0).to(tl.int64)
    i = group * GROUP + tl.arange(0, GROUP)
    unit = _float((tl.load(exponents + group) + 127) << 23)
    tl.store(value + i, tl.load(total + i, mask=i < size).to(tl.float32) * unit, mask=i < size)
