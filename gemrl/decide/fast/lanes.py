"""What numba's own vectorizer does not get to, 16 lanes at a time, as intrinsics.

An intrinsic is Python that runs while numba compiles and writes LLVM's instructions. Each takes one
tuple of arrays and whole numbers.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gemrl.decide.fast.vectors import (
    I32,
    I64,
    LANES,
    VEC,
    WORDS,
    Builder,
    Lanes,
    Value,
    exp,
    inverse_erf,
    log,
    splat,
    threefry,
    unit_interval,
)

# A tile keeps ROWS x WIDE vectors of sums in registers. AVX-512 has 32 registers of 16 lanes;
# elsewhere a vector of 16 lanes takes two or four registers, and more of them would spill.
ROWS = 6
WIDE = 4 if llvm.get_host_cpu_features().get("avx512f") else 1
BLOCK = WIDE * LANES


def _data(context: Any, builder: Builder, kind: Any, value: Value) -> Value:
    """Where an array's numbers begin."""
    return context.make_array(kind)(context, builder, value).data


def _at(builder: Builder, pointer: Value, index: Value) -> Value:
    return builder.gep(pointer, [index])


def _load(builder: Builder, pointer: Value, index: Value) -> Lanes:
    address = builder.bitcast(_at(builder, pointer, index), VEC.as_pointer())
    return Lanes(builder, builder.load(address, align=4))


def _store(builder: Builder, value: Lanes, pointer: Value, index: Value) -> None:
    address = builder.bitcast(_at(builder, pointer, index), VEC.as_pointer())
    builder.store(value.value, address, align=4)


def _long(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


@contextmanager
def _loop(builder: Builder, count: Value) -> Iterator[Value]:
    with cgutils.for_range(builder, count) as loop:
        yield loop.index


Tile = list[list[Lanes]]
Finish = Callable[[Builder, Tile, list[Value]], None]


def _arguments(context: Any, builder: Builder, signature: Any, args: Any) -> list[Value]:
    """The members of the one tuple that an intrinsic is given; of arrays, where they begin."""
    (packed,) = signature.args
    return [
        _data(context, builder, kind, value) if isinstance(kind, types.Array) else value
        for kind, value in zip(packed, cgutils.unpack_tuple(builder, args[0]), strict=True)
    ]


def _made(write: Callable[[Builder, list[Value]], None]) -> Any:
    """An intrinsic that writes its instructions with `write(builder, arguments)`."""

    def compiled(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        write(builder, _arguments(context, builder, signature, args))
        return context.get_dummy_value()

    def made(typing_context: Any, packed: Any) -> Any:
        return types.void(packed), compiled

    return intrinsic(made)


def _tile(rows: int, wide: int, finish: Finish, absolute: bool = False) -> Any:
    """An intrinsic for sums s[r, c] = start[r] + sum_k weights[k, r] matrix[picked[k], column + c].

    It takes (picked, matrix, length of its rows, column, weights, where they begin, their count,
    start, where it begins, ...). This is the inner loop of a matrix product with all sums in
    registers; `finish` says what becomes of them and takes the arguments that are left. `absolute`
    takes the matrix's absolute values.
    """

    def write(builder: Builder, values: list[Value]) -> None:
        picked, matrix, length, column, weights, offset, count, starts, begin, *rest = values
        weights, starts = _at(builder, weights, offset), _at(builder, starts, begin)
        sums = [[cgutils.alloca_once(builder, VEC) for _ in range(wide)] for _ in range(rows)]
        for r, line in enumerate(sums):
            start = splat(builder, builder.load(_at(builder, starts, _long(r))))
            for place in line:
                builder.store(start, place)
        with _loop(builder, count) as k:
            row = builder.load(_at(builder, picked, k))
            first = builder.add(builder.mul(row, length), column)
            xs = [_load(builder, matrix, builder.add(first, _long(LANES * v))) for v in range(wide)]
            if absolute:
                xs = [(x.as_words() & 0x7FFFFFFF).as_floats() for x in xs]
            for r, line in enumerate(sums):
                place = builder.add(builder.mul(k, _long(rows)), _long(r))
                weight = Lanes(builder, splat(builder, builder.load(_at(builder, weights, place))))
                for x, into in zip(xs, line, strict=True):
                    total = Lanes(builder, builder.load(into))
                    builder.store(x.times_plus(weight, total).value, into)
        done = [[Lanes(builder, builder.load(place)) for place in line] for line in sums]
        finish(builder, done, rest)

    return _made(write)


def _keep(builder: Builder, sums: Tile, rest: list[Value]) -> None:
    """Into (out, length of its rows, first row, column)."""
    out, length, row, column = rest
    for r, line in enumerate(sums):
        first = builder.add(builder.mul(builder.add(row, _long(r)), length), column)
        for v, total in enumerate(line):
            _store(builder, total, out, builder.add(first, _long(LANES * v)))


def _keep_rectified(builder: Builder, sums: Tile, rest: list[Value]) -> None:
    """max(s, 0) into (out, length, its rows, column), extremes of s into (lowest, highest)."""
    out, length, into, column, lowest, highest = rest
    for r, line in enumerate(sums):
        row = builder.load(_at(builder, into, _long(r)))
        first = builder.add(builder.mul(row, length), column)
        low, high = (_load(builder, place, _long(LANES * r)) for place in (lowest, highest))
        for v, total in enumerate(line):
            _store(builder, total.largest(0.0), out, builder.add(first, _long(LANES * v)))
            low, high = low.least(total), high.largest(total)
        _store(builder, low, lowest, _long(LANES * r))
        _store(builder, high, highest, _long(LANES * r))


def _keep_highest(builder: Builder, sums: Tile, rest: list[Value]) -> None:
    """Nothing but the greatest of each row, into (highest)."""
    (highest,) = rest
    for r, line in enumerate(sums):
        high = _load(builder, highest, _long(LANES * r))
        for total in line:
            high = high.largest(total)
        _store(builder, high, highest, _long(LANES * r))


def _add_rectified(builder: Builder, sums: Tile, rest: list[Value]) -> None:
    """sum_r factor[r] max(s[r], 0), added to (out, column), with (factors, where they begin)."""
    out, column, factors, begin = rest
    for v in range(len(sums[0])):
        place = builder.add(column, _long(LANES * v))
        total = _load(builder, out, place)
        for r, line in enumerate(sums):
            address = _at(builder, factors, builder.add(begin, _long(r)))
            factor = Lanes(builder, splat(builder, builder.load(address)))
            total = line[v].largest(0.0).times_plus(factor, total)
        _store(builder, total, out, place)


# By width: a block of columns, and what is left at the end 16 at a time.
keep_one, keep_one_narrow = _tile(1, WIDE, _keep), _tile(1, 1, _keep)
keep, keep_narrow = _tile(ROWS, WIDE, _keep), _tile(ROWS, 1, _keep)
keep_absolute, keep_absolute_narrow = _tile(ROWS, WIDE, _keep, True), _tile(ROWS, 1, _keep, True)
keep_one_absolute, keep_one_absolute_narrow = _tile(1, WIDE, _keep, True), _tile(1, 1, _keep, True)
rectify, rectify_narrow = _tile(ROWS, WIDE, _keep_rectified), _tile(ROWS, 1, _keep_rectified)
highest, highest_narrow = _tile(ROWS, WIDE, _keep_highest), _tile(ROWS, 1, _keep_highest)
add, add_narrow = _tile(ROWS, WIDE, _add_rectified), _tile(ROWS, 1, _add_rectified)


def _write_noise(builder: Builder, values: list[Value]) -> None:
    """Noise of candidates `first` to `first + 15` as in `maths.mixture.sampling_noise`.

    Takes (key as two words, first, gate [n], normal [a, length], length, column, a).
    """
    high, low, first, gates, normals, length, column, count = values

    def words(scalar: Value) -> Lanes:
        return Lanes(builder, splat(builder, builder.trunc(scalar, I32), WORDS))

    zero = Lanes(builder, ir.Constant(WORDS, [0] * LANES))
    candidate = words(first) + Lanes(builder, ir.Constant(WORDS, list(range(LANES))))
    key = threefry((words(high), words(low)), (zero, candidate))
    gate_key, normal_key = threefry(key, (zero, zero)), threefry(key, (zero, zero + 1))
    x, y = threefry(gate_key, (zero, zero))
    _store(builder, unit_interval(x ^ y), gates, column)
    with _loop(builder, count) as dimension:
        x, y = threefry(normal_key, (zero, words(dimension)))
        # From (-1, 1): the least float above -1, and 2 in float32 is 1 less that.
        even = unit_interval(x ^ y) * 2.0 + _ABOVE_MINUS_ONE
        normal = inverse_erf(even.largest(_ABOVE_MINUS_ONE)) * math.sqrt(2)
        place = builder.add(builder.mul(dimension, length), column)
        _store(builder, normal, normals, place)


_ABOVE_MINUS_ONE = -1.0 + 2.0**-24
noise = _made(_write_noise)


def _write_support(builder: Builder, values: list[Value]) -> None:
    """Log density, log sum_k exp(u_k), at 16 actions (Eq. 27, Eq. 52).

    Takes (actions [a, length], length, column, means [k, a], 1 / stds [k, a], the part of u_k that
    no action changes [k], k, a, room [k, 16], out).
    """
    actions, length, column, means, inverse, constants, components, count, room, out = values
    most = cgutils.alloca_once(builder, VEC)
    builder.store(ir.Constant(VEC, [-math.inf] * LANES), most)
    squares = cgutils.alloca_once(builder, VEC)
    zero = ir.Constant(VEC, [0.0] * LANES)
    with _loop(builder, components) as k:
        builder.store(zero, squares)
        with _loop(builder, count) as d:
            place = builder.add(builder.mul(k, count), d)
            mean, factor = (
                Lanes(builder, splat(builder, builder.load(_at(builder, matrix, place))))
                for matrix in (means, inverse)
            )
            action = _load(builder, actions, builder.add(builder.mul(d, length), column))
            standard = (action - mean) * factor
            total = Lanes(builder, builder.load(squares))
            builder.store(standard.times_plus(standard, total).value, squares)
        constant = Lanes(builder, splat(builder, builder.load(_at(builder, constants, k))))
        joint = Lanes(builder, builder.load(squares)).times_plus(-0.5, constant)
        _store(builder, joint, room, builder.mul(k, _long(LANES)))
        builder.store(Lanes(builder, builder.load(most)).largest(joint).value, most)
    builder.store(zero, squares)
    top = Lanes(builder, builder.load(most))
    with _loop(builder, components) as k:
        joint = _load(builder, room, builder.mul(k, _long(LANES)))
        builder.store((Lanes(builder, builder.load(squares)) + exp(joint - top)).value, squares)
    _store(builder, top + log(Lanes(builder, builder.load(squares))), out, column)


support = _made(_write_support)


def _write_dot(builder: Builder, values: list[Value]) -> None:
    """Sums of 16 lanes of left[begin:] * right[:size], into (out [16])."""
    left, begin, right, size, out = values
    total = cgutils.alloca_once(builder, VEC)
    builder.store(ir.Constant(VEC, [0.0] * LANES), total)
    with _loop(builder, builder.sdiv(size, _long(LANES))) as block:
        place = builder.mul(block, _long(LANES))
        x = _load(builder, left, builder.add(begin, place))
        product = x.times_plus(_load(builder, right, place), Lanes(builder, builder.load(total)))
        builder.store(product.value, total)
    _store(builder, Lanes(builder, builder.load(total)), out, _long(0))


dot = _made(_write_dot)
