"""A critic at one state and many candidate actions: the dense value for a part of the arithmetic.

All candidates share the state, and over their set most rectified units never change sign. In the
first layer a unit that is off for every candidate drops out and one that is on for every candidate
is an affine function of the action; only mixed ones are evaluated. For the second layer, relaxing
the mixed units by lines bounds each unit from above and below by an affine function of the action,
which tells the same three kinds apart. What comes out is the dense value up to rounding.
"""

from typing import Any

import numpy as np

from gemrl.decide.fast import lanes
from gemrl.decide.fast.lanes import BLOCK, ROWS, WIDE
from gemrl.decide.fast.layers import (
    Critics,
    Room,
    Set,
    add_units,
    at_centre,
    compiled,
    dot,
    first_layer,
    greatest,
    linear,
    linear_part,
    place_of,
    product_rows,
    reach_of,
)
from gemrl.decide.fast.vectors import LANES

# Up to so many candidates are taken one after the other, with units in the lanes.
FEW = 6
# Cycles to sort the second layer's units, whatever the candidates.
SORTING = 10_000


@compiled
def bound_second(
    net: Critics, m: int, dims: int, base: Any, mixed: Any, count: int, room: Room
) -> None:
    """Affine functions of the action above and below every unit of the second layer.

    Between l and u a rectified unit lies below the chord u (z - l) / (u - l), and above 0 and z.
    Weights W = (W + |W|) / 2 + (W - |W|) / 2 take the one or the other by their sign.
    """
    hidden, width = len(base), net.second_bias.shape[1]
    low, high = room.units[0], room.units[1]
    along, apart = room.units[2], room.units[3]
    along_constant, apart_constant = room.units[4], room.units[5]
    for k in range(count):
        i = mixed[k]
        chord = high[i] / (high[i] - low[i])
        below = np.float32(1) if high[i] > -low[i] else np.float32(0)
        offset = np.float32(-0.5) * chord * low[i]
        along[i] = np.float32(0.5) * (chord + below)
        apart[i] = np.float32(0.5) * (chord - below)
        along_constant[i] = along[i] * base[i] + offset
        apart_constant[i] = apart[i] * base[i] + offset
    product_rows(
        mixed, count, net.second[m], width, along, along_constant, net.action[m], hidden, dims,
        room, room.upper, False,
    )  # fmt: skip
    product_rows(
        mixed, count, net.second[m], width, apart, apart_constant, net.action[m], hidden, dims,
        room, room.lower, True,
    )  # fmt: skip
    for place in range((dims + 1) * width):
        middle, spread = room.fold[place] + room.upper[place], room.lower[place]
        room.upper[place], room.lower[place] = middle + spread, middle - spread


@compiled
def settle_second(net: Critics, m: int, where: Set, vectors: int, rows: int, room: Room) -> int:
    """Sort the second layer's units by their bounds; how many are mixed, with the list in lists[2].

    units[6] becomes the last layer's weight where a unit is on for every candidate and 0 elsewhere.
    """
    dims, width = len(where.centre), net.second_bias.shape[1]
    constants = dims * width
    top, bottom = room.upper[constants:], room.lower[constants:]
    top_reach, bottom_reach, squares = room.units[0], room.units[1], room.units[2]
    reach_of(room.upper, width, where, top_reach, squares)
    reach_of(room.lower, width, where, bottom_reach, squares)
    kept, unsure, unsettled = room.units[6], room.lists[3], 0
    for j in range(width):
        is_on, is_off = bottom[j] - bottom_reach[j] >= 0, top[j] + top_reach[j] <= 0
        kept[j] = net.last[m, j] if is_on else np.float32(0)
        unsure[unsettled] = j
        unsettled += not (is_on or is_off)
    # Of each unsettled unit the bound that is more likely to settle it, exactly over the set.
    actions, mixed, found = room.lists[4], room.lists[2], 0
    for d in range(dims):
        actions[d] = d
    highest = room.extremes
    first = 0
    while first < unsettled:
        real = min(ROWS, unsettled - first)
        for r in range(ROWS):
            j = unsure[first + min(r, real - 1)]
            on = top[j] + bottom[j] > 0
            bound = room.lower if on else room.upper
            sign = np.float32(-1) if on else np.float32(1)
            for d in range(dims):
                room.weights[d * ROWS + r] = sign * bound[d * width + j]
            room.starts[r] = sign * bound[dims * width + j]
        for lane in range(ROWS * LANES):
            highest[lane] = np.float32(-np.inf)
        vector = 0
        while vector < vectors:
            place = place_of(vector, rows)
            if vector + WIDE <= vectors:
                lanes.highest(
                    (actions, room.features, BLOCK, place, room.weights, 0, dims, room.starts, 0,
                     highest)
                )  # fmt: skip
                vector += WIDE
            else:
                lanes.highest_narrow(
                    (actions, room.features, BLOCK, place, room.weights, 0, dims, room.starts, 0,
                     highest)
                )  # fmt: skip
                vector += 1
        for r in range(real):
            j = unsure[first + r]
            if greatest(highest, r * LANES) > 0:
                mixed[found] = j
                found += 1
            elif top[j] + bottom[j] > 0:
                kept[j] = net.last[m, j]
        first += ROWS
    return found


@compiled
def few_values(net: Critics, m: int, base: Any, count: int, room: Room, q: Any) -> Any:
    """One candidate after the other; all of them lie in the first vector."""
    hidden, width = len(base), net.second_bias.shape[1]
    dims = net.action.shape[1] // hidden
    z, y = room.units[2], room.units[3]
    share = np.float32(0)
    for c in range(count):
        for i in range(hidden):
            z[i] = base[i]
        for d in range(dims):
            x, row = room.features[d * BLOCK + c], d * hidden
            for i in range(hidden):
                z[i] += x * net.action[m, row + i]
        for i in range(hidden):
            share += np.float32(1) if z[i] > 0 else np.float32(0)
            z[i] = max(z[i], np.float32(0))
        linear(net.second[m], width, net.second_bias[m], z, hidden, room, y)
        for j in range(width):
            y[j] = max(y[j], np.float32(0))
        q[c] = net.last_bias[m] + dot(net.last[m], 0, y, width, room.sixteen)
    return share / np.float32(hidden * count)


@compiled
def dense_values(net: Critics, m: int, base: Any, vectors: int, room: Room, q: Any) -> Any:
    """Every unit at every candidate."""
    hidden, width = len(base), net.second_bias.shape[1]
    dims = net.action.shape[1] // hidden
    units, picked = room.lists[0], room.lists[1]
    for i in range(hidden):
        units[i], picked[i] = i, dims + i
    first_layer(units, hidden, net.action[m], hidden, base, vectors, dims, room)
    groups = (width + ROWS - 1) // ROWS
    for j in range(groups * ROWS):
        real = j < width
        room.starts[j] = net.second_bias[m, j] if real else np.float32(0)
        room.factors[j] = net.last[m, j] if real else np.float32(0)
    for c in range(vectors * LANES):
        q[c] = net.last_bias[m]
    add_units(picked, hidden, net.packed[m], groups, vectors, dims + hidden + 1, room, q)
    return np.float32(1)


@compiled
def critic_values(
    net: Critics, m: int, state: Any, where: Set, count: int, vectors: int, room: Room, q: Any
) -> Any:
    """Critic m's value of each candidate into q; returns the share of the dense arithmetic.

    `state` [H] is the state's part of the first layer. The candidates' actions, from the centre of
    their set, are in `features`.
    """
    dims, hidden, width = len(where.centre), len(state), net.second_bias.shape[1]
    action, second, rows = net.action[m], net.second[m], dims + hidden + 1
    base = room.units[7][:hidden]
    at_centre(action, state, hidden, where, base)
    if count <= FEW:
        return few_values(net, m, base, count, room, q)

    # First layer: box and ball settle some units, the others are evaluated.
    centre, reach = base, room.units[3]
    reach_of(action, hidden, where, reach, room.units[4])
    on, on_count, mixed, unsettled = room.lists[1], 0, room.lists[0], 0
    for i in range(hidden):
        # Without branches, which could not be predicted.
        on[on_count] = mixed[unsettled] = i
        is_on, is_off = centre[i] - reach[i] >= 0, centre[i] + reach[i] <= 0
        on_count += is_on
        unsettled += not (is_on or is_off)
    first_layer(mixed, unsettled, action, hidden, base, vectors, dims, room)
    mixed_count = 0
    low, high = room.units[0], room.units[1]
    for k in range(unsettled):
        i = mixed[k]
        on[on_count] = mixed[mixed_count] = i
        is_on, is_off = low[i] >= 0, high[i] <= 0
        on_count += is_on
        mixed_count += not (is_on or is_off)

    # What is worth while, in cycles: 16 products take half of one, and packing a weight takes one.
    inputs = dims + mixed_count
    of_rows = (dims + ROWS) // ROWS * ROWS * (width // LANES) / 2
    dense = vectors * hidden * (width + dims) / 2
    unsorted = (vectors / 2 + 1) * inputs * width
    if of_rows * on_count + unsorted > dense:
        return dense_values(net, m, base, vectors, room, q)
    ones, constants = room.units[5], room.units[4]
    for k in range(on_count):
        ones[on[k]], constants[on[k]] = np.float32(1), base[on[k]]
    product_rows(
        on, on_count, second, width, ones, constants, action, hidden, dims, room, room.fold, False
    )
    for j in range(width):
        room.fold[dims * width + j] += net.second_bias[m, j]
    kept, mixed_now = room.units[6], room.lists[2]
    bounds = SORTING + 2.5 * of_rows * mixed_count + vectors * width * dims / 4
    if bounds < 0.7 * unsorted:
        bound_second(net, m, dims, base, mixed, mixed_count, room)
        found = settle_second(net, m, where, vectors, rows, room)
    else:
        found = width
        for j in range(width):
            mixed_now[j], kept[j] = j, np.float32(0)

    # Units that are on add up to one affine function of actions and mixed units.
    picked, weights = room.lists[3], room.weights
    room.starts[0] = net.last_bias[m] + dot(room.fold, dims * width, kept, width, room.sixteen)
    for d in range(dims):
        picked[d], weights[d] = d, dot(room.fold, d * width, kept, width, room.sixteen)
    for k in range(mixed_count):
        picked[dims + k] = dims + mixed[k]
        weights[dims + k] = dot(second, mixed[k] * width, kept, width, room.sixteen)
    linear_part(picked, inputs, vectors, rows, room, q)
    groups = (found + ROWS - 1) // ROWS
    for index in range(found, groups * ROWS):
        mixed_now[index] = 0  # Its factor is zero.
    for index in range(groups * ROWS):
        room.starts[index] = room.fold[dims * width + mixed_now[index]]
        real = index < found
        room.factors[index] = net.last[m, mixed_now[index]] if real else np.float32(0)
    for k in range(inputs):
        begin = k * width if k < dims else mixed[k - dims] * width
        line = room.fold[begin : begin + width] if k < dims else second[begin : begin + width]
        for group in range(groups):
            place = (group * inputs + k) * ROWS
            for r in range(ROWS):
                weights[place + r] = line[mixed_now[group * ROWS + r]]
    add_units(picked, inputs, weights, groups, vectors, rows, room, q)
    return np.float32(inputs * (found + 1) + unsettled * dims) / np.float32(
        hidden * width + hidden * dims
    )
