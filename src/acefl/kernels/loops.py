"""The inner loops of `cpu`, compiled by numba, bit for bit what `reference` computes.

What makes them fast: several short loops over one group, which stays in the first-level cache, rather than a long one
that does everything; integers held to 32 bits by explicit casts (numba widens them, and then half the vector lanes are
lost); maxima taken of bit patterns, because a float maximum does not vectorise.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,call-arg"

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from acefl.kernels.layout import ENCODINGS, GROUP, TINY

F, S, U = np.float32, np.int32, np.uint32  # float, signed, unsigned
BITE = 32  # groups a thread takes at a time
HALF16 = ENCODINGS["bf16"].block // 2
BLOCK8, STEP8 = ENCODINGS["int8"].block, F(ENCODINGS["int8"].step)
BLOCK4, STEP4 = ENCODINGS["int4"].block, F(ENCODINGS["int4"].step)
HALF8, HALF4 = BLOCK8 // 2, BLOCK4 // 2

jit = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")


# Four operations that Python has no word for.


@intrinsic
def take(typing, counter):
    """The counter's number, which is raised by one, in one atomic step."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), generate


@intrinsic
def bits(typing, x):
    """A float32's bit pattern."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def as_float(typing, pattern):
    """The float32 of a bit pattern."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def nearest(typing, x):
    """The nearest whole number, halves to even, still as a float."""

    def generate(context, builder, signature, arguments):
        return builder.call(builder.module.declare_intrinsic("llvm.rint", [ir.FloatType()]), arguments)

    return types.float32(types.float32), generate


@intrinsic
def fused(typing, a, b, c):
    """a * b + c, rounded once: how torch computes `c.add_(b, alpha=a)`."""

    def generate(context, builder, signature, arguments):
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


# Sums.


@jit
def power(exponent):
    return as_float(U(U(exponent + 127) << U(23)))


@jit
def size_of(x):
    """The absolute value, as a bit pattern."""
    return S(bits(x) & U(0x7FFFFFFF))


@jit
def fold(fresh, old, total, exponent, scale):
    """Add scale * (fresh - old) to a group's sum; returns its exponent after that."""
    top = S(0)
    for i in range(GROUP):
        top = max(top, max(size_of(fresh[i]), size_of(old[i])))
    needed = S(bits(as_float(U(top)) * abs(scale)) >> U(23)) - (127 + 27)
    if needed > exponent:
        rise = S(min(needed - exponent, 30))
        half = S(S(1) << S(rise - 1))
        for i in range(GROUP):
            total[i] = S(S(total[i] + half) >> rise)
        exponent = needed
    factor = F(scale * power(-exponent))
    top = S(0)
    for i in range(GROUP):
        count = S(S(total[i] + S(nearest(fresh[i] * factor))) - S(nearest(old[i] * factor)))
        total[i] = count
        top = max(top, S(abs(count)))
    if top >= 1 << 30:
        for i in range(GROUP):
            total[i] = S(S(total[i] + S(1)) >> S(1))
        exponent += 1
    return exponent


@jit
def step(total, exponent, model, rate):
    unit = power(exponent)
    for i in range(GROUP):
        model[i] = fused(rate, F(total[i]) * unit, model[i])


# Encodings: `encode` stores a group and gives what was stored before and after; `decode` reads one.


@jit
def draw(counter, second):
    """32 random bits, a function of the counter and the key."""
    x = U(counter ^ U(counter >> U(16)))
    x = U(x * U(0x7FEB352D))
    x = U(x ^ U(x >> U(15)))
    x = U(x + second)
    x = U(x * U(0x846CA68B))
    return U(x ^ U(x >> U(16)))


@jit
def as_scale(pattern):
    return as_float(U(U(pattern) << U(16)))


@jit
def block_scale(x, size, step):
    """The bits of the bfloat16 scale of a block."""
    top = S(0)
    for i in range(size):
        top = max(top, size_of(x[i]))
    if top < TINY:
        return U(0)
    return U(U(bits(as_float(U(top)) * step) + U(0xFFFF)) >> U(16))


@jit
def code(x, inverse, draw16):
    return S(S(S(x * inverse) + S(draw16)) >> S(16))


@jit
def from_bf16(pattern):
    return as_float(U(U(np.uint16(pattern)) << U(16)))


def encode(codes, scales, x, fresh, old, counter, second): ...


def decode(codes, scales, fresh): ...


def encode_bf16(codes, scales, x, fresh, old, counter, second):
    for begin in range(0, GROUP, 2 * HALF16):
        a, b = x[begin : begin + HALF16], x[begin + HALF16 : begin + 2 * HALF16]
        stored = codes[begin : begin + 2 * HALF16]
        was, now = old[begin : begin + 2 * HALF16], fresh[begin : begin + 2 * HALF16]
        base = U(counter + U(begin // 2))
        for i in range(2 * HALF16):
            was[i] = from_bf16(stored[i])
        for i in range(HALF16):
            random = draw(U(base + U(i)), second)
            first_half = U(U(bits(a[i]) + U(random & U(0xFFFF))) & U(0xFFFF0000))
            second_half = U(U(bits(b[i]) + U(random >> U(16))) & U(0xFFFF0000))
            now[i], now[i + HALF16] = as_float(first_half), as_float(second_half)
            stored[i] = np.int16(U(first_half >> U(16)))
            stored[i + HALF16] = np.int16(U(second_half >> U(16)))


def decode_bf16(codes, scales, fresh):
    for i in range(GROUP):
        fresh[i] = from_bf16(codes[i])


def encode_int8(codes, scales, x, fresh, old, counter, second):
    for block in range(GROUP // BLOCK8):
        part = slice(block * BLOCK8, (block + 1) * BLOCK8)
        numbers, stored, was, now = x[part], codes[part], old[part], fresh[part]
        pattern = block_scale(numbers, BLOCK8, STEP8)
        before, after = as_scale(scales[block]), as_scale(pattern)
        scales[block] = np.int16(pattern)
        inverse = F(65536) / after if after > 0 else F(0)
        base = U(counter + U(block * HALF8))
        for i in range(HALF8):
            random = draw(U(base + U(i)), second)
            a = code(numbers[i], inverse, U(random & U(0xFFFF)))
            b = code(numbers[i + HALF8], inverse, U(random >> U(16)))
            was[i], was[i + HALF8] = F(stored[i]) * before, F(stored[i + HALF8]) * before
            stored[i], stored[i + HALF8] = a, b
            now[i], now[i + HALF8] = F(a) * after, F(b) * after


def decode_int8(codes, scales, fresh):
    for block in range(GROUP // BLOCK8):
        scale = as_scale(scales[block])
        for i in range(block * BLOCK8, (block + 1) * BLOCK8):
            fresh[i] = F(codes[i]) * scale


@jit
def nibble(bits4):
    return S(S(bits4 ^ S(8)) - S(8))


def encode_int4(codes, scales, x, fresh, old, counter, second):
    for block in range(GROUP // BLOCK4):
        part = slice(block * BLOCK4, (block + 1) * BLOCK4)
        numbers, was, now = x[part], old[part], fresh[part]
        stored = codes[block * HALF4 : (block + 1) * HALF4]
        pattern = block_scale(numbers, BLOCK4, STEP4)
        before, after = as_scale(scales[block]), as_scale(pattern)
        scales[block] = np.int16(pattern)
        inverse = F(65536) / after if after > 0 else F(0)
        base = U(counter + U(block * HALF4))
        for i in range(HALF4):
            random = draw(U(base + U(i)), second)
            a = code(numbers[i], inverse, U(random & U(0xFFFF)))
            b = code(numbers[i + HALF4], inverse, U(random >> U(16)))
            both = S(stored[i])
            was[i], was[i + HALF4] = F(nibble(S(both & S(15)))) * before, F(nibble(S(both >> S(4)))) * before
            stored[i] = np.uint8(S(a & S(15)) | S(S(b & S(15)) << S(4)))
            now[i], now[i + HALF4] = F(a) * after, F(b) * after


def decode_int4(codes, scales, fresh):
    for block in range(GROUP // BLOCK4):
        scale = as_scale(scales[block])
        for i in range(HALF4):
            both = S(codes[block * HALF4 + i])
            fresh[block * BLOCK4 + i] = F(nibble(S(both & S(15)))) * scale
            fresh[block * BLOCK4 + HALF4 + i] = F(nibble(S(both >> S(4)))) * scale


def decode_fp32(codes, scales, fresh):
    for i in range(GROUP):
        fresh[i] = codes[i]


@overload(encode)
def encode_by_code(codes, scales, x, fresh, old, counter, second):
    return {types.int16: encode_bf16, types.int8: encode_int8, types.uint8: encode_int4}[codes.dtype]


@overload(decode)
def decode_by_code(codes, scales, fresh):
    return {
        types.float32: decode_fp32,
        types.int16: decode_bf16,
        types.int8: decode_int8,
        types.uint8: decode_int4,
    }[codes.dtype]


def turn(codes, scales, x, fresh, old, counter, second, total, exponent, scale): ...


def turn_lossless(codes, scales, x, fresh, old, counter, second, total, exponent, scale):
    exponent = fold(x, codes, total, exponent, scale)
    for i in range(GROUP):
        codes[i] = x[i]
    return exponent


def turn_lossy(codes, scales, x, fresh, old, counter, second, total, exponent, scale):
    encode(codes, scales, x, fresh, old, counter, second)
    return fold(fresh, old, total, exponent, scale)


@overload(turn)
def turn_by_code(codes, scales, x, fresh, old, counter, second, total, exponent, scale):
    return turn_lossless if codes.dtype == types.float32 else turn_lossy


# Whole vectors. A vector's last group may be short: it is worked on in a copy that is filled up with zeros.


@jit
def part(x, group, size):
    return x[group * size : (group + 1) * size]


@jit
def filled(x, size):
    copy = np.zeros(size, x.dtype)
    copy[: x.size] = x
    return copy


@jit
def restore(x, copy):
    x[:] = copy[: x.size]


@jit
def exchange(codes, scales, new, total, exponents, scale, first, second, model, rate, width, blocks, bites):
    """Store new, add the change to the sum, then model += rate * sum unless the model is empty.

    A group has `width` codes and `blocks` scales.
    """
    fresh, old = np.empty(GROUP, F), np.empty(GROUP, F)
    while True:
        begin = take(bites) * BITE
        if begin >= exponents.size:
            return
        for group in range(begin, min(begin + BITE, exponents.size)):
            c, s, x = part(codes, group, width), part(scales, group, blocks), part(new, group, GROUP)
            t, m = part(total, group, GROUP), part(model, group, GROUP)
            short = x.size < GROUP
            if short:
                c, s, x = filled(c, width), filled(s, blocks), filled(x, GROUP)
                t, m = filled(t, GROUP), filled(m, GROUP)
            counter = U(first + U(group * (GROUP // 2)))
            exponent = turn(c, s, x, fresh, old, counter, second, t, exponents[group], scale)
            exponents[group] = exponent
            if model.size:
                step(t, exponent, m, rate)
            if short:
                restore(part(codes, group, width), c)
                restore(part(scales, group, blocks), s)
                restore(part(total, group, GROUP), t)
                restore(part(model, group, GROUP), m)


@jit
def add(codes, scales, total, exponents, scale, width, blocks, bites):
    """Add a row to the sum."""
    fresh, nothing = np.empty(GROUP, F), np.zeros(GROUP, F)
    while True:
        begin = take(bites) * BITE
        if begin >= exponents.size:
            return
        for group in range(begin, min(begin + BITE, exponents.size)):
            c, s, t = part(codes, group, width), part(scales, group, blocks), part(total, group, GROUP)
            short = t.size < GROUP
            if short:
                c, s, t = filled(c, width), filled(s, blocks), filled(t, GROUP)
            decode(c, s, fresh)
            exponents[group] = fold(fresh, nothing, t, exponents[group], scale)
            if short:
                restore(part(total, group, GROUP), t)


@jit
def read(total, exponents, value, bites):
    """Write the sum as float32."""
    while True:
        begin = take(bites) * BITE
        if begin >= exponents.size:
            return
        for group in range(begin, min(begin + BITE, exponents.size)):
            t, v, unit = part(total, group, GROUP), part(value, group, GROUP), power(exponents[group])
            for i in range(t.size):
                v[i] = F(t[i]) * unit
