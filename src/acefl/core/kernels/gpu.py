"""The table's kernels for a GPU, in Triton: one launch and one pass over memory, bit for bit what `reference` computes.

One program works on one group of numbers. It holds every block as two halves, as the rounding draws and the 4-bit codes
want them. Only a large vector's last, short group is masked, because masks keep loads from being vectorised. A tape is
one launch too: each program makes all changes of its group in order, and keeps its sum and model in registers.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,import-not-found,import-untyped"

from __future__ import annotations

import logging
import struct
from array import array
from functools import cached_property
from typing import Any

import torch
import triton
import triton.language as tl

from acefl.core.kernels.layout import EXCHANGE, GROUP, NO_DRAWS, STEP, TINY, ZERO, Key, Row, Sum, Tape
from acefl.core.kernels.reference import Reference
from acefl.core.types import Vector

log = logging.getLogger(__name__)
WARPS = 2  # 64 threads, so that each moves 16 bytes of a half group of float32 at a time
_WORTH_TWO_LAUNCHES = 100_000  # numbers: of fewer, one launch with masks is faster than two
PLAIN, WIDE, INTEGERS = 0, 1, 2  # kinds of sums: float32; float64 with a float32 copy; integers with exponents
_CODES = {32: tl.float32, 16: tl.int16, 8: tl.int8, 4: tl.uint8}  # by bits


class Triton(Reference):
    """Kernels for one layout on a GPU."""

    name = "triton"
    _plays: bool | None = None  # whether tapes are played in one launch; None: not tried yet

    def exchange(self, row: Row, new: Vector, into: Sum, scale: float, key: Key) -> None:
        self._launch(row, into, scale, key, new=new)

    def exchange_and_step(
        self, row: Row, new: Vector, into: Sum, scale: float, key: Key, model: Vector, rate: float
    ) -> None:
        self._launch(row, into, scale, key, new=new, model=model, rate=rate)

    def add(self, row: Row, into: Sum, scale: float) -> None:
        self._launch(row, into, scale, NO_DRAWS)

    def play(self, tape: Tape, into: Sum, model: Vector, models: torch.Tensor) -> None:
        if self._plays is None:
            self._plays = self._try(model.device)
        (self._play if self._plays else super().play)(tape, into, model, models)

    def _try(self, device: torch.device) -> bool:
        """Whether a tape in one launch does what one launch for each change does, bit for bit: compilers differ."""
        layout, draw = self.layout, torch.Generator().manual_seed(0)
        updates = torch.randn(6, layout.dim, generator=draw).to(device)

        def left(*, at_once: bool) -> list[torch.Tensor]:
            rows = [torch.zeros(layout.row_bytes, dtype=torch.uint8, device=device) for _ in range(2)]
            model, models, tape = torch.ones_like(updates[0]), torch.zeros_like(updates), Tape()
            into = Sum(torch.zeros_like(model, dtype=torch.float64), torch.zeros_like(model))
            for visit, new in enumerate(updates):
                client = visit // 2 % 2  # twice in a row
                codes = rows[client][: layout.code_bytes]
                scales = rows[client][layout.row_bytes - layout.scale_bytes :]
                row = Row(rows[client], codes.view(layout.encoding.dtype), scales.view(torch.int16))
                key = Key.of(7, client, visit)
                if at_once:
                    tape.exchange(row, new, 0.3, key)
                    tape.step(0.013, 1.0)
                else:
                    self.exchange_and_step(row, new, into, 0.3, key, model, 0.013)
                    models[visit].copy_(model)
            if at_once:
                self._play(tape, into, model, models)
            return [*rows, model, models, into.total, into.value]

        same = all(map(torch.equal, left(at_once=True), left(at_once=False)))
        if not same:
            log.warning("changes of a table on this GPU are made one launch each: one for many gave other numbers")
        return same

    def _play(self, tape: Tape, into: Sum, model: Vector, models: torch.Tensor) -> None:
        layout, factors = self.layout, array("q", array("d", tape.factors).tobytes())
        words = torch.frombuffer(array("q", tape.numbers) + factors, dtype=torch.int64)
        if model.device.type == "cuda":
            words = words.pin_memory().to(model.device, non_blocking=True)  # one copy that nobody waits for
        _play[(-(-layout.dim // GROUP),)](
            words,
            into.total,
            into.value,
            model,
            models,
            layout.dim,
            len(tape.changes),
            layout.row_bytes - layout.scale_bytes,
            CODE=_CODES[layout.encoding.bits],
            EXCHANGE=EXCHANGE,
            TAKE=STEP,
            ZERO=ZERO,
            num_warps=WARPS,
            **self._fixed,
        )

    def decode(self, row: Row) -> Vector:
        values = torch.zeros(self.layout.dim, device=row.raw.device)
        self._launch(row, Sum(values), 1.0, NO_DRAWS)
        return values

    @cached_property
    def _fixed(self) -> dict[str, Any]:
        """What is the same in every launch."""
        encoding = self.layout.encoding
        return {
            "BITS": encoding.bits,
            "BLOCK": encoding.block if encoding.bits < 32 else GROUP,
            "STEP": encoding.step if encoding.largest else 0.0,
            "GROUP": GROUP,
            "TINY": TINY,
            "enable_fp_fusion": False,  # what is rounded twice elsewhere is rounded twice here
        }

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
                    LARGEST=encoding.largest,
                    KIND=INTEGERS if exponents is not None else PLAIN if value is None else WIDE,
                    NEW=new is not None,
                    STEPS=model is not None,
                    MASKED=masked,
                    num_warps=WARPS,
                    **self._fixed,
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


@triton.jit
def _places(group, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """Where a group's numbers, pairs of 4-bit codes and blocks are."""
    HALF: tl.constexpr = BLOCK // 2
    line, column = tl.arange(0, GROUP // BLOCK)[:, None], tl.arange(0, HALF)[None, :]
    i = group * GROUP + line * BLOCK + column
    return i, i + HALF, group * (GROUP // 2) + line * HALF + column, group * (GROUP // BLOCK) + line


@triton.jit
def _decoded(
    codes, scales, group, dim, BITS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, MASKED: tl.constexpr
):
    """A group of the row, and its scales where there are any."""
    i, j, pair, block = _places(group, BLOCK, GROUP)
    blocks = (dim + BLOCK - 1) // BLOCK
    if BITS == 32:
        a, b = _get(codes, i, dim, MASKED), _get(codes, j, dim, MASKED)
        scale = a
    elif BITS == 16:
        a = _float(_get(codes, i, dim, MASKED).to(tl.int32) << 16)
        b = _float(_get(codes, j, dim, MASKED).to(tl.int32) << 16)
        scale = a
    else:
        scale = _float(_get(scales, block, blocks, MASKED).to(tl.int32) << 16)
        if BITS == 8:
            a_code, b_code = _get(codes, i, dim, MASKED), _get(codes, j, dim, MASKED)
        else:
            both = _get(codes, pair, blocks * (BLOCK // 2), MASKED)
            a_code, b_code = _signed(both), _signed(both >> 4)
        a, b = a_code.to(tl.float32) * scale, b_code.to(tl.float32) * scale
    return a, b, scale


@triton.jit
def _encoded(
    codes,
    scales,
    a,
    b,
    group,
    first,
    second,
    dim,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    TINY: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Store numbers in a group of the row: what is stored, and its scales where there are any."""
    i, j, pair, block = _places(group, BLOCK, GROUP)
    blocks = (dim + BLOCK - 1) // BLOCK
    scale = a
    if BITS == 32:
        _put(codes, i, a, dim, MASKED)
        _put(codes, j, b, dim, MASKED)
    else:
        draw = _draw(pair.to(tl.uint32) + first, second)
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
            scale = _float(pattern << 16)
            inverse = tl.where(pattern > 0, tl.div_rn(65536.0, tl.where(pattern > 0, scale, 1.0)), 0.0)
            a_code = ((a * inverse).to(tl.int32) + a_draw) >> 16
            b_code = ((b * inverse).to(tl.int32) + b_draw) >> 16
            if BITS == 8:
                _put(codes, i, a_code.to(tl.int8), dim, MASKED)
                _put(codes, j, b_code.to(tl.int8), dim, MASKED)
            else:
                both = ((a_code & 15) | ((b_code & 15) << 4)).to(tl.uint8)
                _put(codes, pair, both, blocks * (BLOCK // 2), MASKED)
            a, b = a_code.to(tl.float32) * scale, b_code.to(tl.float32) * scale
    return a, b, scale


@triton.jit
def _added(total, new, old, scale):
    """A sum in float64 after a change."""
    return total.to(tl.float64) + (new.to(tl.float64) - old.to(tl.float64)) * scale


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
    group = tl.program_id(0).to(tl.int64) + begin
    i, j, _, _ = _places(group, BLOCK, GROUP)

    a_sum, b_sum = _get(total, i, dim, MASKED), _get(total, j, dim, MASKED)
    if NEW:
        a, b = _get(new, i, dim, MASKED), _get(new, j, dim, MASKED)
    if STEPS:
        a_model, b_model = _get(model, i, dim, MASKED), _get(model, j, dim, MASKED)

    a_old, b_old, before = _decoded(codes, scales, group, dim, BITS, BLOCK, GROUP, MASKED)
    if NEW:
        first, second = first.to(tl.uint32), second.to(tl.uint32)
        a, b, after = _encoded(codes, scales, a, b, group, first, second, dim, BITS, BLOCK, STEP, GROUP, TINY, MASKED)
    else:
        a, b, after = a_old, b_old, before
        a_old, b_old = tl.zeros_like(a), tl.zeros_like(b)

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
        a_sum, b_sum = _added(a_sum, a, a_old, wide), _added(b_sum, b, b_old, wide)
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


@triton.jit(do_not_specialize=["dim", "changes", "beyond"])
def _play(
    words,
    total,
    value,
    model,
    models,
    dim,
    changes,
    beyond,
    CODE: tl.constexpr,
    EXCHANGE: tl.constexpr,
    TAKE: tl.constexpr,
    ZERO: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    TINY: tl.constexpr,
):
    """All changes of a `Tape` to a group of numbers; `words` are its numbers, then its factors."""
    group = tl.program_id(0).to(tl.int64)
    i, j, _, _ = _places(group, BLOCK, GROUP)
    a_sum, b_sum = _get(total, i, dim, True), _get(total, j, dim, True)
    a_model, b_model = _get(model, i, dim, True), _get(model, j, dim, True)
    factors = words + 5 * changes
    done = 0
    while done < changes:
        kind, row, new = tl.load(words), tl.load(words + 1), tl.load(words + 2)
        scale = tl.load(factors).to(tl.float64, bitcast=True)
        if kind == TAKE:
            rate, part = -tl.load(factors + 1).to(tl.float64, bitcast=True).to(tl.float32), scale.to(tl.float32)
            a_model = tl.fma(a_sum.to(tl.float32) * part, rate, a_model)
            b_model = tl.fma(b_sum.to(tl.float32) * part, rate, b_model)
            _put(models, i, a_model, dim, True)
            _put(models, j, b_model, dim, True)
            models += dim
        elif kind == ZERO:
            a_sum, b_sum = tl.zeros_like(a_sum), tl.zeros_like(b_sum)
        else:
            tl.debug_barrier()  # what one thread wrote to a row another may read
            codes, scales = row.to(tl.pointer_type(CODE)), (row + beyond).to(tl.pointer_type(tl.int16))
            if kind == EXCHANGE:
                update = new.to(tl.pointer_type(tl.float32))
                a, b = _get(update, i, dim, True), _get(update, j, dim, True)
                a_old, b_old, _before = _decoded(codes, scales, group, dim, BITS, BLOCK, GROUP, True)
                first, second = tl.load(words + 3).to(tl.uint32), tl.load(words + 4).to(tl.uint32)
                a, b, _after = _encoded(
                    codes, scales, a, b, group, first, second, dim, BITS, BLOCK, STEP, GROUP, TINY, True
                )
            else:
                a, b, _before = _decoded(codes, scales, group, dim, BITS, BLOCK, GROUP, True)
                a_old, b_old = tl.zeros_like(a), tl.zeros_like(b)
            a_sum, b_sum = _added(a_sum, a, a_old, scale), _added(b_sum, b, b_old, scale)
        words += 5
        factors += 2
        done += 1
    _put(total, i, a_sum, dim, True)
    _put(total, j, b_sum, dim, True)
    _put(value, i, a_sum.to(tl.float32), dim, True)
    _put(value, j, b_sum.to(tl.float32), dim, True)
    _put(model, i, a_model, dim, True)
    _put(model, j, b_model, dim, True)


@triton.jit
def _read(total, exponents, value, size, GROUP: tl.constexpr):
    group = tl.program_id(0).to(tl.int64)
    i = group * GROUP + tl.arange(0, GROUP)
    unit = _float((tl.load(exponents + group) + 127) << 23)
    tl.store(value + i, tl.load(total + i, mask=i < size).to(tl.float32) * unit, mask=i < size)
