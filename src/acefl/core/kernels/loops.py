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
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.numpy_support import carray

from acefl.core.kernels.jit import jit
from acefl.core.kernels.layout import ENCODINGS, EXCHANGE, GROUP, STEP, TINY, ZERO

F, S, U = np.float32, np.int32, np.uint32  # float, signed, unsigned
INFINITE = S(0x7F800000)  # bits of infinity; what is no number has more
BITE = 32  # groups a thread takes at a time
HALF16 = ENCODINGS["bf16"].block // 2
INT8, INT4 = ENCODINGS["int8"], ENCODINGS["int4"]
BLOCK8, HALF8, STEP8, LARGEST8 = INT8.block, INT8.block // 2, F(INT8.step), F(INT8.largest)
BLOCK4, HALF4, STEP4, LARGEST4 = INT4.block, INT4.block // 2, F(INT4.step), F(INT4.largest)

inlined = numba.njit(inline="always")  # into numba's own code, where it sees that slices need not be counted


# Operations that Python has no word for.


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


@intrinsic
def pointer(typing, address, like):
    """A pointer to numbers like those of an array, from an address."""
    kind = types.CPointer(like.dtype)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64, like), generate


@intrinsic
def prefetch(typing, x, i):
    """Have the processor fetch the number at this place, which is about to be needed."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()] + [ir.IntType(32)] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [place, *(ir.Constant(ir.IntType(32), number) for number in (1, 3, 1))])
        return context.get_dummy_value()

    return types.void(x, types.intp), generate


# Sums.


@jit
def power(exponent):
    return as_float(U(U(exponent + 127) << U(23)))


@jit
def size_of(x):
    """The absolute value, as a bit pattern."""
    return S(bits(x) & U(0x7FFFFFFF))


@inlined
def largest_of(x, y):
    top = S(0)
    for i in range(GROUP):
        top = max(top, max(size_of(x[i]), size_of(y[i])))
    return as_float(U(top))


@inlined
def fold(fresh, old, bound, total, exponent, scale):
    """Add scale * (fresh - old), no number of which is beyond the bound, to a group's sum; its exponent after that."""
    needed = S(bits(bound * abs(scale)) >> U(23)) - (127 + 27)
    if needed > exponent:
        rise = S(min(needed - exponent, 30))
        half = S(S(1) << S(rise - 1))
        for i in range(GROUP):
            total[i] = S(S(total[i] + half) >> rise)
        exponent = needed
    factor = F(scale * power(-exponent))
    high = S(0)
    for i in range(GROUP):
        count = S(S(total[i] + S(nearest(fresh[i] * factor))) - S(nearest(old[i] * factor)))
        total[i] = count
        high = max(high, S(abs(count)))
    if high >= 1 << 30:
        for i in range(GROUP):
            total[i] = S(S(total[i] + S(1)) >> S(1))
        exponent += 1
    return exponent


@inlined
def step(total, exponent, model, rate):
    unit = power(exponent)
    for i in range(GROUP):
        model[i] = fused(rate, F(total[i]) * unit, model[i])


# Encodings: `encode` stores a group and gives what was stored before and after, `decode` reads one. Both return a bound
# on the numbers they give: from the scales where there are any, which saves looking at every number.


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
def from_bf16(pattern):
    return as_float(U(U(pattern) << U(16)))


@inlined
def block_scale(x, size, step):
    """The bits of the bfloat16 scale of a block."""
    top = S(0)
    for i in range(size):
        top = max(top, size_of(x[i]))
    pattern = U(U(bits(as_float(U(top)) * step) + U(0xFFFF)) >> U(16))
    return pattern if top >= TINY else U(0)


@jit
def code(x, inverse, draw16):
    return S(S(S(x * inverse) + S(draw16)) >> S(16))


@jit
def nibble(four_bits):
    return S(S(four_bits ^ S(8)) - S(8))


def encode_bf16(codes, scales, x, fresh, old, counter, second):
    for i in range(GROUP):
        old[i] = from_bf16(codes[i])
    for begin in range(0, GROUP, 2 * HALF16):
        numbers, now = x[begin : begin + 2 * HALF16], fresh[begin : begin + 2 * HALF16]
        base = U(counter + U(begin // 2))
        for i in range(HALF16):
            random = draw(U(base + U(i)), second)
            now[i] = as_float(U(U(bits(numbers[i]) + U(random & U(0xFFFF))) & U(0xFFFF0000)))
            now[i + HALF16] = as_float(U(U(bits(numbers[i + HALF16]) + U(random >> U(16))) & U(0xFFFF0000)))
    for i in range(GROUP):
        codes[i] = np.int16(U(bits(fresh[i]) >> U(16)))
    return largest_of(fresh, old)


def decode_bf16(codes, scales, fresh):
    for i in range(GROUP):
        fresh[i] = from_bf16(codes[i])
    return largest_of(fresh, fresh)


def encode_int8(codes, scales, x, fresh, old, counter, second):
    widest = F(0)
    for block in range(GROUP // BLOCK8):
        begin, end = block * BLOCK8, (block + 1) * BLOCK8
        numbers, stored, was, now = x[begin:end], codes[begin:end], old[begin:end], fresh[begin:end]
        pattern = block_scale(numbers, BLOCK8, STEP8)
        before, after = from_bf16(scales[block]), from_bf16(pattern)
        scales[block] = np.int16(pattern)
        widest = max(widest, max(before, after))
        inverse = F(65536) / after if after > 0 else F(0)
        base = U(counter + U(block * HALF8))
        for i in range(HALF8):
            random = draw(U(base + U(i)), second)
            a = code(numbers[i], inverse, U(random & U(0xFFFF)))
            b = code(numbers[i + HALF8], inverse, U(random >> U(16)))
            was[i], was[i + HALF8] = F(stored[i]) * before, F(stored[i + HALF8]) * before
            stored[i], stored[i + HALF8] = a, b
            now[i], now[i + HALF8] = F(a) * after, F(b) * after
    return widest * LARGEST8


def decode_int8(codes, scales, fresh):
    widest = F(0)
    for block in range(GROUP // BLOCK8):
        scale = from_bf16(scales[block])
        widest = max(widest, scale)
        stored, now = codes[block * BLOCK8 : (block + 1) * BLOCK8], fresh[block * BLOCK8 : (block + 1) * BLOCK8]
        for i in range(BLOCK8):
            now[i] = F(stored[i]) * scale
    return widest * LARGEST8


def encode_int4(codes, scales, x, fresh, old, counter, second):
    widest = F(0)
    for block in range(GROUP // BLOCK4):
        begin, end = block * BLOCK4, (block + 1) * BLOCK4
        numbers, was, now = x[begin:end], old[begin:end], fresh[begin:end]
        stored = codes[block * HALF4 : (block + 1) * HALF4]
        pattern = block_scale(numbers, BLOCK4, STEP4)
        before, after = from_bf16(scales[block]), from_bf16(pattern)
        scales[block] = np.int16(pattern)
        widest = max(widest, max(before, after))
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
    return widest * LARGEST4


def decode_int4(codes, scales, fresh):
    widest = F(0)
    for block in range(GROUP // BLOCK4):
        scale = from_bf16(scales[block])
        widest = max(widest, scale)
        stored, now = codes[block * HALF4 : (block + 1) * HALF4], fresh[block * BLOCK4 : (block + 1) * BLOCK4]
        for i in range(HALF4):
            both = S(stored[i])
            now[i] = F(nibble(S(both & S(15)))) * scale
            now[i + HALF4] = F(nibble(S(both >> S(4)))) * scale
    return widest * LARGEST4


def exchange_lossy(codes, scales, x, fresh, old, counter, second, total, exponent, scale):
    bound = encode(codes, scales, x, fresh, old, counter, second)
    return fold(fresh, old, bound, total, exponent, scale)


def exchange_fp32(codes, scales, x, fresh, old, counter, second, total, exponent, scale):
    exponent = fold(x, codes, largest_of(x, codes), total, exponent, scale)
    for i in range(GROUP):
        codes[i] = x[i]
    return exponent


def add_lossy(codes, scales, fresh, nothing, total, exponent, scale):
    bound = decode(codes, scales, fresh)
    return fold(fresh, nothing, bound, total, exponent, scale)


def add_fp32(codes, scales, fresh, nothing, total, exponent, scale):
    return fold(codes, nothing, largest_of(codes, codes), total, exponent, scale)


def fetch_lossy(codes, model):
    """Encoding takes so long that the model, which is stepped on last, can be there by then."""
    for i in range(0, model.size, 16):
        prefetch(model, i)


def fetch_fp32(codes, model):
    pass


# The type of a row's codes decides which of these runs; numba asks when it compiles.


def fetch(codes, model): ...


def encode(codes, scales, x, fresh, old, counter, second): ...


def decode(codes, scales, fresh): ...


def exchange_group(codes, scales, x, fresh, old, counter, second, total, exponent, scale): ...


def add_group(codes, scales, fresh, nothing, total, exponent, scale): ...


@overload(fetch, inline="always")
def choose_fetch(codes, model):
    return fetch_fp32 if codes.dtype == types.float32 else fetch_lossy


@overload(encode, inline="always")
def choose_encode(codes, scales, x, fresh, old, counter, second):
    return {types.int16: encode_bf16, types.int8: encode_int8, types.uint8: encode_int4}[codes.dtype]


@overload(decode, inline="always")
def choose_decode(codes, scales, fresh):
    return {types.int16: decode_bf16, types.int8: decode_int8, types.uint8: decode_int4}[codes.dtype]


@overload(exchange_group, inline="always")
def choose_exchange(codes, scales, x, fresh, old, counter, second, total, exponent, scale):
    return exchange_fp32 if codes.dtype == types.float32 else exchange_lossy


@overload(add_group, inline="always")
def choose_add(codes, scales, fresh, nothing, total, exponent, scale):
    return add_fp32 if codes.dtype == types.float32 else add_lossy


# Whole vectors.


@jit
def whole_groups(codes, scales, new, total, exponents, scale, first, second, model, rate, width, blocks, bites):
    fresh, old = np.empty(GROUP, F), np.zeros(GROUP, F)
    number = total.size // GROUP
    while True:
        begin = take(bites) * BITE
        if begin >= number:
            return
        for group in range(begin, min(begin + BITE, number)):
            low, high = group * GROUP, (group + 1) * GROUP
            c, s = codes[group * width : (group + 1) * width], scales[group * blocks : (group + 1) * blocks]
            t, exponent = total[low:high], exponents[group]
            fetch(codes, model[low:high])
            if new.size:
                counter = U(first + U(group * (GROUP // 2)))
                exponent = exchange_group(c, s, new[low:high], fresh, old, counter, second, t, exponent, scale)
            else:
                exponent = add_group(c, s, fresh, old, t, exponent, scale)
            exponents[group] = exponent
            if model.size:
                step(t, exponent, model[low:high], rate)


@jit
def filled(x, begin, size):
    """The numbers from `begin` on, and zeros up to a size; nothing where there are no numbers at all."""
    copy = np.zeros(size if x.size else 0, x.dtype)
    for i in range(begin, x.size):
        copy[i - begin] = x[i]
    return copy


@jit
def fill(copy, x, begin):
    """`filled` into a copy that was filled before, from as many numbers."""
    for i in range(begin, x.size):
        copy[i - begin] = x[i]


@jit
def restore(x, begin, copy):
    for i in range(begin, x.size):
        x[i] = copy[i - begin]


@jit
def exchange(codes, scales, new, total, exponents, scale, first, second, model, rate, width, blocks, bites):
    """Store new, add the change to the sum, then model += rate * sum. Without new, add the row; without model, stay.

    A group has `width` codes and `blocks` scales. A short last group is worked on in a copy, by whoever comes first.
    """
    whole_groups(codes, scales, new, total, exponents, scale, first, second, model, rate, width, blocks, bites)
    done = total.size // GROUP
    if done == exponents.size or take(bites[1:]):
        return
    c, s = filled(codes, done * width, width), filled(scales, done * blocks, blocks)
    x, t, m = filled(new, done * GROUP, GROUP), filled(total, done * GROUP, GROUP), filled(model, done * GROUP, GROUP)
    counter, bite = U(first + U(done * (GROUP // 2))), np.zeros(1, np.int64)
    whole_groups(c, s, x, t, exponents[done:], scale, counter, second, m, rate, width, blocks, bite)
    restore(codes, done * width, c)
    restore(scales, done * blocks, s)
    restore(total, done * GROUP, t)
    restore(model, done * GROUP, m)


# Short vectors: the sum is float64, and its float32 value is kept beside it.


@inlined
def fold_wide(fresh, old, total, value, scale):
    for i in range(GROUP):
        total[i] += (np.float64(fresh[i]) - np.float64(old[i])) * scale
        value[i] = F(total[i])


def exchange_wide_lossy(codes, scales, x, fresh, old, counter, second, total, value, scale):
    encode(codes, scales, x, fresh, old, counter, second)
    fold_wide(fresh, old, total, value, scale)


def exchange_wide_fp32(codes, scales, x, fresh, old, counter, second, total, value, scale):
    fold_wide(x, codes, total, value, scale)
    for i in range(GROUP):
        codes[i] = x[i]


def add_wide_lossy(codes, scales, fresh, nothing, total, value, scale):
    decode(codes, scales, fresh)
    fold_wide(fresh, nothing, total, value, scale)


def add_wide_fp32(codes, scales, fresh, nothing, total, value, scale):
    fold_wide(codes, nothing, total, value, scale)


def exchange_wide_group(codes, scales, x, fresh, old, counter, second, total, value, scale): ...


def add_wide_group(codes, scales, fresh, nothing, total, value, scale): ...


@overload(exchange_wide_group, inline="always")
def choose_exchange_wide(codes, scales, x, fresh, old, counter, second, total, value, scale):
    return exchange_wide_fp32 if codes.dtype == types.float32 else exchange_wide_lossy


@overload(add_wide_group, inline="always")
def choose_add_wide(codes, scales, fresh, nothing, total, value, scale):
    return add_wide_fp32 if codes.dtype == types.float32 else add_wide_lossy


@jit
def whole_wide_groups(codes, scales, new, total, value, scale, first, second, model, rate, width, blocks):
    fresh, old = np.empty(GROUP, F), np.zeros(GROUP, F)
    for group in range(total.size // GROUP):
        low, high = group * GROUP, (group + 1) * GROUP
        c, s = codes[group * width : (group + 1) * width], scales[group * blocks : (group + 1) * blocks]
        t, v = total[low:high], value[low:high]
        if new.size:
            counter = U(first + U(group * (GROUP // 2)))
            exchange_wide_group(c, s, new[low:high], fresh, old, counter, second, t, v, scale)
        else:
            add_wide_group(c, s, fresh, old, t, v, scale)
        if model.size:
            m = model[low:high]
            for i in range(GROUP):
                m[i] = fused(rate, v[i], m[i])


@jit
def exchange_wide(codes, scales, new, total, value, scale, first, second, model, rate, width, blocks):
    """`exchange` with a sum in float64, on one thread."""
    whole_wide_groups(codes, scales, new, total, value, scale, first, second, model, rate, width, blocks)
    done = total.size // GROUP
    if done * GROUP == total.size:
        return
    c, s = filled(codes, done * width, width), filled(scales, done * blocks, blocks)
    x, m = filled(new, done * GROUP, GROUP), filled(model, done * GROUP, GROUP)
    t, v = filled(total, done * GROUP, GROUP), filled(value, done * GROUP, GROUP)
    counter = U(first + U(done * (GROUP // 2)))
    whole_wide_groups(c, s, x, t, v, scale, counter, second, m, rate, width, blocks)
    restore(codes, done * width, c)
    restore(scales, done * blocks, s)
    restore(total, done * GROUP, t)
    restore(value, done * GROUP, v)
    restore(model, done * GROUP, m)


@inlined
def step_wide(value, model, after, rate, scale, size):
    for i in range(size):
        model[i] = fused(rate, F(value[i] * scale), model[i])
        after[i] = model[i]


@jit
def play(changes, factors, codes, scales, beyond, total, value, model, models, width, blocks):
    """Changes of a table and its sum in float64, and steps on it, one after another: see `Tape`.

    Rows and updates are given by their addresses; a row has codes and scales like those given, the scales `beyond` so
    many bytes from its beginning. After each step the model is also written to the next row of `models`. All changes of
    one group are made before those of the next one, so that its part of the sum and of the model stays in the cache.
    """
    done = total.size // GROUP
    fresh, old, zeros = np.empty(GROUP, F), np.empty(GROUP, F), np.zeros(GROUP, F)
    for group in range(done):
        low, high = group * GROUP, (group + 1) * GROUP
        t, v, m = total[low:high], value[low:high], model[low:high]
        steps = 0
        for k in range(changes.shape[0]):
            kind, row, new, first, second = changes[k]
            scale, rate = factors[k]
            if kind == STEP:
                step_wide(v, m, models[steps, low:high], F(-rate), F(scale), GROUP)
                steps += 1
            elif kind == ZERO:
                t[:] = 0
                v[:] = 0
            else:
                c = carray(pointer(row, codes), codes.size)[group * width : (group + 1) * width]
                s = carray(pointer(row + beyond, scales), scales.size)[group * blocks : (group + 1) * blocks]
                if kind == EXCHANGE:
                    x, counter = carray(pointer(new, model), model.size)[low:high], U(first + group * (GROUP // 2))
                    exchange_wide_group(c, s, x, fresh, old, counter, U(second), t, v, scale)
                else:
                    add_wide_group(c, s, fresh, zeros, t, v, scale)
    if done * GROUP < total.size:
        play_rest(changes, factors, codes, scales, beyond, total, value, model, models, width, blocks)


@jit
def play_rest(changes, factors, codes, scales, beyond, total, value, model, models, width, blocks):
    """`play` for the numbers after the last whole group, which are worked on in copies."""
    group = total.size // GROUP
    low, rest = group * GROUP, total.size - group * GROUP
    fresh, old, zeros = np.empty(GROUP, F), np.empty(GROUP, F), np.zeros(GROUP, F)
    t, v, m = filled(total, low, GROUP), filled(value, low, GROUP), filled(model, low, GROUP)
    c, s, x = np.zeros(width, codes.dtype), np.zeros(blocks, scales.dtype), np.zeros(GROUP, F)
    steps = 0
    for k in range(changes.shape[0]):
        kind, row, new, first, second = changes[k]
        scale, rate = factors[k]
        if kind == STEP:
            step_wide(v, m, models[steps, low:], F(-rate), F(scale), rest)
            steps += 1
        elif kind == ZERO:
            t[:] = 0
            v[:] = 0
        else:
            all_codes, all_scales = (
                carray(pointer(row, codes), codes.size),
                carray(pointer(row + beyond, scales), scales.size),
            )
            fill(c, all_codes, group * width)
            fill(s, all_scales, group * blocks)
            if kind == EXCHANGE:
                fill(x, carray(pointer(new, model), model.size), low)
                counter = U(first + group * (GROUP // 2))
                exchange_wide_group(c, s, x, fresh, old, counter, U(second), t, v, scale)
                restore(all_codes, group * width, c)
                restore(all_scales, group * blocks, s)
            else:
                add_wide_group(c, s, fresh, zeros, t, v, scale)
    restore(total, low, t)
    restore(value, low, v)
    restore(model, low, m)


@jit
def buffered(updates, weights, held, buffer, total, direction, model, models, rate):
    """Updates, given by their addresses, go into a buffer one after another, and the model steps on its mean when it is
    full; `held` are in it already. Row 0 of `models` becomes the model after the first update, each step writes the
    next row. All is done for one group of numbers before the next one, so that it stays in the cache."""
    for low in range(0, model.size, GROUP):
        high = min(low + GROUP, model.size)
        s, d, m = total[low:high], direction[low:high], model[low:high]
        count, row = held, 0
        for k in range(updates.size):
            u, weight = carray(pointer(updates[k], model), model.size)[low:high], weights[k]
            if count == 0:
                for i in range(high - low):
                    s[i] = u[i] * weight
            else:
                for i in range(high - low):
                    s[i] = fused(weight, u[i], s[i])
            count += 1
            if count >= buffer:
                share, after = F(count), models[row, low:high]
                for i in range(high - low):
                    d[i] = s[i] / share
                    m[i] = fused(rate, d[i], m[i])
                    after[i] = m[i]
                count = 0
                row += 1
            elif k == 0:
                models[0, low:high] = m
                row = 1


@jit
def read(total, exponents, value, bites):
    """Write the sum as float32."""
    while True:
        begin = take(bites) * BITE
        if begin >= exponents.size:
            return
        for group in range(begin, min(begin + BITE, exponents.size)):
            unit, high = power(exponents[group]), min((group + 1) * GROUP, total.size)
            for i in range(group * GROUP, high):
                value[i] = F(total[i]) * unit


@jit
def look(x, bites):
    """Count in bites[1] the bites that hold an infinity or no number at all."""
    while True:
        begin = take(bites) * BITE * GROUP
        if begin >= x.size:
            return
        top = S(0)
        for i in range(begin, min(begin + BITE * GROUP, x.size)):
            top = max(top, size_of(x[i]))
        if top >= INFINITE:
            take(bites[1:])
