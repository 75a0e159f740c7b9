"""Layers of a critic over a set of candidates, and what bounds them over the set.

Matrices lie in flat arrays, row by row. `features` has a row for each action dimension, then one
for each unit of the first layer, over the candidates; it is cut into blocks of candidates, so that
what is used together lies together. Actions are taken from the centre of their set, so that affine
functions of them hold small numbers and round little.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from gemrl.decide.fast import lanes
from gemrl.decide.fast.cache import SETTINGS
from gemrl.decide.fast.lanes import BLOCK, ROWS, WIDE
from gemrl.decide.fast.vectors import LANES

compiled = njit(**SETTINGS)
# Sums in any order: for bounds, which need not be the same to the last bit.
loosely = njit(**SETTINGS, fastmath=True)


class Critics(NamedTuple):
    """Weights of M critics with hidden layers of H and G units, flat but for the first axis."""

    state: np.ndarray
    """[M, S * H]"""
    state_bias: np.ndarray
    """[M, H]"""
    action: np.ndarray
    """[M, A * H]"""
    second: np.ndarray
    """[M, H * G]"""
    second_bias: np.ndarray
    """[M, G]"""
    last: np.ndarray
    """[M, G]"""
    last_bias: np.ndarray
    """[M]"""
    packed: np.ndarray
    """`second` in groups of six units, as a tile takes it: [M, groups * H * 6]"""


class Room(NamedTuple):
    """Memory to work in, of one thread."""

    features: np.ndarray
    """[blocks, A + H + 1, BLOCK] Actions, rectified units, and a row that nobody reads."""
    weights: np.ndarray
    starts: np.ndarray
    factors: np.ndarray
    fold: np.ndarray
    """[A + 1, G] Slopes and constants of the second layer by the units that are on."""
    upper: np.ndarray
    """[A + 1, G] Of functions above the second layer's units."""
    lower: np.ndarray
    units: np.ndarray
    """[8, units] Numbers of each unit."""
    extremes: np.ndarray
    lists: np.ndarray
    """[6, units] Rows and units."""
    sixteen: np.ndarray
    zeros: np.ndarray


class Set(NamedTuple):
    """Where the candidates lie: per dimension the middle, half the width and the deviation."""

    centre: np.ndarray
    half: np.ndarray
    deviation: np.ndarray
    radius: np.ndarray
    """[1] The furthest candidate from the centre, in deviations."""


@compiled
def dot(left: Any, begin: int, right: Any, size: int, sixteen: Any) -> Any:
    """The product left[begin:] . right[:size]."""
    lanes.dot((left, begin, right, size, sixteen))
    total = np.float32(0)
    for lane in range(LANES):
        total += sixteen[lane]
    return total


@compiled
def linear(matrix: Any, width: int, bias: Any, x: Any, size: int, room: Room, out: Any) -> None:
    """Set out = bias + x @ matrix, skipping the zeros of x."""
    picked, values = room.lists[5], room.weights
    count = 0
    for i in range(size):
        # Without a branch, which could not be predicted.
        picked[count], values[count] = i, x[i]
        count += x[i] != 0
    column = 0
    while column < width:
        if column + BLOCK <= width:
            lanes.keep_one(
                (picked, matrix, width, column, values, 0, count, room.zeros, 0, out, 0, 0, column)
            )
            column += BLOCK
        else:
            lanes.keep_one_narrow(
                (picked, matrix, width, column, values, 0, count, room.zeros, 0, out, 0, 0, column)
            )
            column += LANES
    for j in range(width):
        out[j] += bias[j]


@compiled
def place_of(vector: int, rows: int) -> int:
    """Where the vector-th 16 candidates begin in row 0 of `features` with so many rows."""
    return vector // WIDE * rows * BLOCK + vector % WIDE * LANES


@loosely
def describe_set(actions: Any, length: int, where: Set) -> None:
    """Box and ball around the candidates, whose dimensions are rows of `actions`."""
    dims = len(where.centre)
    for d in range(dims):
        row = actions[d * length : (d + 1) * length]
        low, high, total, squares = row[0], row[0], np.float32(0), np.float32(0)
        for c in range(length):
            low, high = min(low, row[c]), max(high, row[c])
            total += row[c]
        mean = total / np.float32(length)
        for c in range(length):
            squares += (row[c] - mean) * (row[c] - mean)
        where.centre[d] = np.float32(0.5) * (low + high)
        where.half[d] = np.float32(0.5) * (high - low)
        where.deviation[d] = max(np.sqrt(squares / np.float32(length)), np.float32(1e-6))


@loosely
def furthest(actions: Any, length: int, where: Set, distances: Any) -> Any:
    """The distance of the furthest candidate from the centre, in deviations."""
    for c in range(length):
        distances[c] = np.float32(0)
    for d in range(len(where.centre)):
        middle, factor = where.centre[d], np.float32(1) / where.deviation[d]
        row = actions[d * length : (d + 1) * length]
        for c in range(length):
            off = (row[c] - middle) * factor
            distances[c] += off * off
    most = np.float32(0)
    for c in range(length):
        most = max(most, distances[c])
    return np.sqrt(most)


@compiled
def at_centre(action: Any, base: Any, hidden: int, where: Set, out: Any) -> None:
    """The first layer before ReLU at the centre of the set."""
    for i in range(hidden):
        out[i] = base[i]
    for d in range(len(where.centre)):
        middle = where.centre[d]
        row = action[d * hidden : (d + 1) * hidden]
        for i in range(hidden):
            out[i] += row[i] * middle


@loosely
def reach_of(slopes: Any, width: int, where: Set, reach: Any, squares: Any) -> None:
    """How far affine functions can go from their values at the centre: by the box and the ball."""
    for j in range(width):
        reach[j], squares[j] = np.float32(0), np.float32(0)
    for d in range(len(where.centre)):
        half, deviation = where.half[d], where.deviation[d]
        row = slopes[d * width : (d + 1) * width]
        for j in range(width):
            slope = row[j]
            reach[j] += abs(slope) * half
            squares[j] += slope * deviation * slope * deviation
    radius = where.radius[0]
    for j in range(width):
        reach[j] = min(reach[j], radius * np.sqrt(squares[j]))


@loosely
def greatest(values: Any, begin: int) -> Any:
    """Of 16 lanes."""
    most = values[begin]
    for lane in range(begin + 1, begin + LANES):
        most = max(most, values[lane])
    return most


@loosely
def least(values: Any, begin: int) -> Any:
    """Of 16 lanes."""
    lowest = values[begin]
    for lane in range(begin + 1, begin + LANES):
        lowest = min(lowest, values[lane])
    return lowest


@compiled
def product_rows(
    picked: Any, count: int, matrix: Any, width: int, factors: Any, constants: Any, action: Any,
    hidden: int, dims: int, room: Room, out: Any, absolute: bool,
) -> None:  # fmt: skip
    """Set out[d, j] = sum_i factor_i action[d, i] matrix[i, j] over i in `picked`.

    The last row sums constant_i matrix[i, j]. `absolute` takes the matrix's absolute values.
    """
    weights = room.weights
    # The constants go with the last slopes, or alone where those fill their groups.
    alone = dims % ROWS == 0
    first = 0
    while first < dims + (not alone):
        for r in range(ROWS):
            d = first + r
            if d < dims:
                row = action[d * hidden : (d + 1) * hidden]
                for k in range(count):
                    weights[k * ROWS + r] = factors[picked[k]] * row[picked[k]]
            elif d == dims:
                for k in range(count):
                    weights[k * ROWS + r] = constants[picked[k]]
            else:
                for k in range(count):
                    weights[k * ROWS + r] = np.float32(0)
        column = 0
        while column < width:
            wide = column + BLOCK <= width
            operands = (
                picked, matrix, width, column, weights, 0, count, room.zeros, 0, out, width, first,
                column,
            )  # fmt: skip
            if absolute:
                if wide:
                    lanes.keep_absolute(operands)
                else:
                    lanes.keep_absolute_narrow(operands)
            elif wide:
                lanes.keep(operands)
            else:
                lanes.keep_narrow(operands)
            column += BLOCK if wide else LANES
        first += ROWS
    if alone:
        for k in range(count):
            weights[k] = constants[picked[k]]
        column = 0
        while column < width:
            wide = column + BLOCK <= width
            operands = (
                picked, matrix, width, column, weights, 0, count, room.zeros, 0, out, width, dims,
                column,
            )  # fmt: skip
            if absolute:
                if wide:
                    lanes.keep_one_absolute(operands)
                else:
                    lanes.keep_one_absolute_narrow(operands)
            elif wide:
                lanes.keep_one(operands)
            else:
                lanes.keep_one_narrow(operands)
            column += BLOCK if wide else LANES


@compiled
def first_layer(
    units: Any, count: int, action: Any, hidden: int, base: Any, vectors: int, dims: int, room: Room
) -> None:
    """Evaluate these units at all candidates, rectified, and note their extremes before that."""
    low, high = room.units[0], room.units[1]
    into, actions = room.lists[4], room.lists[3]
    rows = dims + hidden + 1
    for d in range(dims):
        actions[d] = d
    lowest, highest = room.extremes[: ROWS * LANES], room.extremes[ROWS * LANES :]
    first = 0
    while first < count:
        real = min(ROWS, count - first)
        for r in range(ROWS):
            # A group that is not full repeats its last unit, into a row that nobody reads.
            i = units[first + min(r, real - 1)]
            into[r] = dims + i if r < real else rows - 1
            room.starts[r] = base[i]
            for d in range(dims):
                room.weights[d * ROWS + r] = action[d * hidden + i]
        for lane in range(ROWS * LANES):
            lowest[lane], highest[lane] = np.float32(np.inf), np.float32(-np.inf)
        vector = 0
        while vector < vectors:
            place = place_of(vector, rows)
            if vector + WIDE <= vectors:
                lanes.rectify(
                    (actions, room.features, BLOCK, place, room.weights, 0, dims, room.starts, 0,
                     room.features, BLOCK, into, place, lowest, highest)
                )  # fmt: skip
                vector += WIDE
            else:
                lanes.rectify_narrow(
                    (actions, room.features, BLOCK, place, room.weights, 0, dims, room.starts, 0,
                     room.features, BLOCK, into, place, lowest, highest)
                )  # fmt: skip
                vector += 1
        for r in range(real):
            i = units[first + r]
            low[i], high[i] = least(lowest, r * LANES), greatest(highest, r * LANES)
        first += ROWS


@compiled
def add_units(
    picked: Any, count: int, packed: Any, groups: int, vectors: int, rows: int, room: Room, out: Any
) -> None:
    """Let out += sum_j factor_j max(start_j + sum_k weight[k, j] features[picked_k], 0)."""
    vector = 0
    while vector < vectors:
        place, wide = place_of(vector, rows), vector + WIDE <= vectors
        for group in range(groups):
            weights = group * count * ROWS
            if wide:
                lanes.add(
                    (picked, room.features, BLOCK, place, packed, weights, count, room.starts,
                     group * ROWS, out, vector * LANES, room.factors, group * ROWS)
                )  # fmt: skip
            else:
                lanes.add_narrow(
                    (picked, room.features, BLOCK, place, packed, weights, count, room.starts,
                     group * ROWS, out, vector * LANES, room.factors, group * ROWS)
                )  # fmt: skip
        vector += WIDE if wide else 1


@compiled
def linear_part(picked: Any, count: int, vectors: int, rows: int, room: Room, out: Any) -> None:
    """Set out = start + sum_k weight_k features[picked_k]."""
    vector = 0
    while vector < vectors:
        place = place_of(vector, rows)
        if vector + WIDE <= vectors:
            lanes.keep_one(
                (picked, room.features, BLOCK, place, room.weights, 0, count, room.starts, 0, out,
                 0, 0, vector * LANES)
            )  # fmt: skip
            vector += WIDE
        else:
            lanes.keep_one_narrow(
                (picked, room.features, BLOCK, place, room.weights, 0, count, room.starts, 0, out,
                 0, 0, vector * LANES)
            )  # fmt: skip
            vector += 1
