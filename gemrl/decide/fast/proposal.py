"""What the networks say of one state, the candidates drawn from it, and their support."""

import math
from typing import Any, NamedTuple

import numpy as np

from gemrl.decide.fast import lanes
from gemrl.decide.fast.layers import Critics, Room, compiled, linear
from gemrl.decide.fast.vectors import LANES, ROTATIONS

MASK = 0xFFFFFFFF
ACTOR, BEHAVIOR, UNIMODAL = 0, 1, 2
MODE, BARYCENTER, NO_ANCHOR = 0, 1, 2


class MixtureNet(NamedTuple):
    """A mixture's network, flat, its last layer filled up with zeros to whole vectors."""

    first: np.ndarray
    first_bias: np.ndarray
    second: np.ndarray
    second_bias: np.ndarray
    last: np.ndarray
    last_bias: np.ndarray
    stds: np.ndarray
    """[K, A] In environment units."""


class Scales(NamedTuple):
    """Observation scaler and action bounds."""

    obs_mean: np.ndarray
    obs_std: np.ndarray
    low: np.ndarray
    high: np.ndarray
    middle: np.ndarray
    half: np.ndarray


class Options(NamedTuple):
    """The knobs that are words or whole numbers."""

    k_smooth: int
    source: int
    anchor: int
    raw_support: int
    value_zscore: int


class State(NamedTuple):
    """What the networks say of one state, in environment units."""

    scaled: np.ndarray
    actor_weights: np.ndarray
    """[K] Logarithms."""
    actor_means: np.ndarray
    """[K, A]"""
    behavior_weights: np.ndarray
    behavior_means: np.ndarray
    base: np.ndarray
    """[M, H] The state's part of the critics' first layers."""


class Work(NamedTuple):
    """Memory to work in beside the critics' own."""

    gates: np.ndarray
    normals: np.ndarray
    """[A * length]"""
    actions: np.ndarray
    """[A * length] Candidates in environment units."""
    unit: np.ndarray
    """[A * length] Candidates as the critics see them."""
    support: np.ndarray
    value: np.ndarray
    joint: np.ndarray
    inverse: np.ndarray
    constants: np.ndarray
    cumulative: np.ndarray


@compiled
def hashed(high: Any, low: Any, counter: Any) -> tuple[int, int]:
    """`fold_in(key, counter)` of JAX: Threefry-2x32 of (0, counter)."""
    keys = (high, low, high ^ low ^ 0x1BD11BDA)
    x, y = high, (counter + low) & MASK
    for five in range(5):
        for turn in range(4):
            bits = ROTATIONS[five % 2][turn]
            x = (x + y) & MASK
            y = (((y << bits) | (y >> (32 - bits))) & MASK) ^ x
        x = (x + keys[(five + 1) % 3]) & MASK
        y = (y + keys[(five + 2) % 3] + five + 1) & MASK
    return x, y


@compiled
def mixture(
    net: MixtureNet, x: Any, scales: Scales, room: Room, log_weights: Any, means: Any
) -> None:
    """The mixture of a network at a scaled observation."""
    hidden, second, outputs = len(net.first_bias), len(net.second_bias), len(net.last_bias)
    components, dims = net.stds.shape
    one, two = room.units[2], room.units[3]
    linear(net.first, hidden, net.first_bias, x, len(x), room, one)
    for i in range(hidden):
        one[i] = max(one[i], np.float32(0))
    linear(net.second, second, net.second_bias, one, hidden, room, two)
    for i in range(second):
        two[i] = max(two[i], np.float32(0))
    linear(net.last, outputs, net.last_bias, two, second, room, one)
    most = one[0]
    for k in range(1, components):
        most = max(most, one[k])
    total = np.float32(0)
    for k in range(components):
        total += math.exp(one[k] - most)
    shift = most + math.log(total)
    for k in range(components):
        log_weights[k] = one[k] - shift
        for d in range(dims):
            mean = math.tanh(one[components + k * dims + d])
            means[k, d] = np.float32(mean) * scales.half[d] + scales.middle[d]


@compiled
def look(
    obs: Any, actor: MixtureNet, behavior: MixtureNet, critics: Critics, scales: Scales,
    state: State, room: Room,
) -> None:  # fmt: skip
    """Evaluate at one observation all that does not depend on candidates."""
    for d in range(len(obs)):
        state.scaled[d] = (obs[d] - scales.obs_mean[d]) / scales.obs_std[d]
    mixture(actor, state.scaled, scales, room, state.actor_weights, state.actor_means)
    mixture(behavior, state.scaled, scales, room, state.behavior_weights, state.behavior_means)
    for m in range(len(critics.last_bias)):
        linear(
            critics.state[m], critics.state_bias.shape[1], critics.state_bias[m], state.scaled,
            len(obs), room, state.base[m],
        )  # fmt: skip


@compiled
def heaviest(log_weights: Any) -> int:
    """The first component with the greatest weight."""
    best = 0
    for k in range(1, len(log_weights)):
        if log_weights[k] > log_weights[best]:
            best = k
    return best


@compiled
def propose(
    state: State, actor: MixtureNet, behavior: MixtureNet, scales: Scales, options: Options,
    high: int, low: int, first: int, count: int, length: int, work: Work, out: Any,
) -> None:  # fmt: skip
    """Candidates `first` to `first + count - 1` into out [count, A] (Eq. 1, Eq. 7, Eq. 76)."""
    dims = len(scales.low)
    anchors = 0 if options.anchor == NO_ANCHOR else 1
    begin = max(first - anchors, 0)
    for column in range(0, length, LANES):
        lanes.noise((high, low, begin + column, work.gates, work.normals, length, column, dims))
    weights, means, stds = state.actor_weights, state.actor_means, actor.stds
    if options.source == BEHAVIOR:
        weights, means, stds = state.behavior_weights, state.behavior_means, behavior.stds
    components = len(weights)
    total = np.float32(0)
    for k in range(components):
        total += math.exp(weights[k])
        work.cumulative[k] = total
    top = heaviest(weights)
    for c in range(count):
        j = first + c - anchors
        if j < 0:
            best = heaviest(state.actor_weights)
            for d in range(dims):
                x = state.actor_means[best, d]
                if options.anchor == BARYCENTER:
                    x = np.float32(0)
                    for k in range(len(state.actor_weights)):
                        x += math.exp(state.actor_weights[k]) * state.actor_means[k, d]
                out[c, d] = min(max(x, scales.low[d]), scales.high[d])
            continue
        j -= begin
        k = top
        if options.source != UNIMODAL:
            k = 0
            while k < components - 1 and work.gates[j] >= work.cumulative[k]:
                k += 1
        for d in range(dims):
            x = means[k, d] + stds[k, d] * work.normals[d * length + j]
            out[c, d] = min(max(x, scales.low[d]), scales.high[d])


@compiled
def log_support(
    state: State, behavior: MixtureNet, actions: Any, length: int, work: Work, out: Any
) -> None:
    """Log density under the behaviour mixture of actions [A * length]."""
    components, dims = behavior.stds.shape
    half_log_2pi = np.float32(0.5 * math.log(2 * math.pi))
    for k in range(components):
        total = state.behavior_weights[k]
        for d in range(dims):
            work.inverse[k, d] = np.float32(1) / behavior.stds[k, d]
            total -= math.log(behavior.stds[k, d]) + half_log_2pi
        work.constants[k] = total
    for column in range(0, length, LANES):
        lanes.support(
            (actions, length, column, state.behavior_means, work.inverse, work.constants,
             components, dims, work.joint, out)
        )  # fmt: skip
