"""One decision after another, compiled by numba: `decide.select` for critics of two hidden layers.

The equations are those of `gemrl.maths`, which the tests hold these files against; they repeat them
because numba compiles neither JAX's functions nor calls to them.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.experimental import structref

from gemrl.decide.fast.cache import Entry
from gemrl.decide.fast.critic import critic_values
from gemrl.decide.fast.lanes import BLOCK
from gemrl.decide.fast.layers import Critics, Room, Set, compiled, describe_set, furthest, place_of
from gemrl.decide.fast.proposal import (
    MixtureNet,
    Options,
    Scales,
    State,
    Work,
    hashed,
    log_support,
    look,
    propose,
)
from gemrl.decide.fast.vectors import LANES
from gemrl.maths.audits import VIOLATION_Z
from gemrl.maths.score import DRAW, MIN_STD

# Columns of a record: of each candidate and of each state.
LCB, SUPPORT, SUPPORT_Z, SCORE, Q = range(5)
(
    CHOSEN, VIOLATION, COLLAPSE, EXECUTED_SUPPORT, EXECUTED_Z, EXECUTED_VIOLATION,
    EXECUTED_COLLAPSE, SHARE,
) = range(8)  # fmt: skip


class Record(NamedTuple):
    """What is recorded of a batch of decisions."""

    action: np.ndarray
    """[B, A]"""
    candidates: np.ndarray
    """[B, C, A]"""
    of_candidates: np.ndarray
    """[B, 4 + M, C] Lower bound, support, standardized support, score; then each critic's value."""
    of_states: np.ndarray
    """[B, 8] Choice, audits, and the share of the dense arithmetic."""


@structref.register
class _HeldType(types.StructRef):
    """Arrays behind one reference: numba takes a reference in far less time than fifty arrays."""

    def preprocess_fields(self, fields: Any) -> Any:
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class Held(structref.StructRefProxy):
    """A policy's networks, or a thread's memory, as numba holds them."""

    parts: Any

    def __new__(cls, parts: Any) -> "Held":
        return structref.StructRefProxy.__new__(cls, parts)


structref.define_proxy(Held, _HeldType, ["parts"])


@compiled
def score_chunk(
    state: State, actor: MixtureNet, behavior: MixtureNet, critics: Critics, scales: Scales,
    options: Options, high: int, low: int, first: int, where: Set, room: Room, work: Work,
    candidates: Any, q: Any, support: Any,
) -> Any:  # fmt: skip
    """Propose and evaluate some candidates; returns the share of the dense arithmetic."""
    count, dims = candidates.shape
    length = (count + LANES - 1) // LANES * LANES
    propose(
        state, actor, behavior, scales, options, high, low, first, count, length, work, candidates
    )
    for d in range(dims):
        for c in range(length):
            # The last vector is filled up with the first candidate, which moves no bound.
            x = candidates[c if c < count else 0, d]
            work.actions[d * length + c] = x
            work.unit[d * length + c] = (x - scales.middle[d]) / scales.half[d]
    describe_set(work.unit, length, where)
    where.radius[0] = furthest(work.unit, length, where, work.value)
    vectors, rows = length // LANES, dims + state.base.shape[1] + 1
    for d in range(dims):
        for vector in range(vectors):
            place = place_of(vector, rows) + d * BLOCK
            for lane in range(LANES):
                x = work.unit[d * length + vector * LANES + lane]
                room.features[place + lane] = x - where.centre[d]
    share = 0.0
    for m in range(len(critics.last_bias)):
        share += critic_values(critics, m, state.base[m], where, count, vectors, room, work.value)
        for c in range(count):
            q[m, c] = work.value[c]
    log_support(state, behavior, work.actions, length, work, work.support)
    for c in range(count):
        support[c] = work.support[c]
    return share / len(critics.last_bias)


@compiled
def moments(x: Any) -> tuple[Any, Any]:
    """`maths.score.moments` (Eq. 11)."""
    first, total, squares = float(x[0]), 0.0, 0.0
    for c in range(len(x)):
        total += x[c] - first
    mean = total / len(x)
    for c in range(len(x)):
        squares += (x[c] - first - mean) ** 2
    return first + mean, max(math.sqrt(squares / len(x)), MIN_STD)


@compiled
def standardize(x: Any, out: Any) -> tuple[Any, Any]:
    """`maths.score.zscore` (Eq. 2) into `out`; returns the moments."""
    mean, std = moments(x)
    limit = math.sqrt(len(x) - 1.0)
    for c in range(len(x)):
        out[c] = min(max((x[c] - mean) / std, -limit), limit)
    return mean, std


@compiled
def nearest(action: Any, means: Any) -> Any:
    """`maths.audits.collapse_distance`."""
    best = math.inf
    for k in range(len(means)):
        total = 0.0
        for d in range(len(action)):
            total += (means[k, d] - action[d]) ** 2
        best = min(best, total)
    return math.sqrt(best)


@compiled
def perturbed(scores: Any, seeds: Any, temperature: float, out: Any) -> None:
    """`maths.score.perturbed` with `draw_noise` of a row's seed and number, into `out`."""
    high, low = hashed(0, np.int64(seeds[0]), np.int64(seeds[1]))
    high, low = hashed(high, low, DRAW)
    for c in range(len(scores)):
        word, _ = hashed(high, low, c)
        uniform = np.float32(((word >> 9) + 0.5) * 2.0**-23)
        noise = -np.log(-np.log(uniform))
        out[c] = scores[c] + np.float32(temperature) * noise


@compiled
def rank(
    state: State, behavior: MixtureNet, scales: Scales, options: Options, seeds: Any, lam: float,
    wp: float, temperature: float, row: int, record: Record, work: Work,
) -> None:  # fmt: skip
    """Score the candidates of one state, choose, and audit (Eq. 3, 4, 8, 9, 14, 15)."""
    found, audit, candidates = (
        record.of_candidates[row],
        record.of_states[row],
        record.candidates[row],
    )
    lcb, support, z, score = found[LCB], found[SUPPORT], found[SUPPORT_Z], found[SCORE]
    critics, count, dims = len(found) - Q, len(lcb), candidates.shape[1]
    for c in range(count):
        mean = np.float32(0)
        for m in range(critics):
            mean += found[Q + m, c]
        mean /= np.float32(critics)
        squares = np.float32(0)
        for m in range(critics):
            squares += (found[Q + m, c] - mean) ** 2
        lcb[c] = mean - np.float32(lam) * np.sqrt(squares / np.float32(critics))
    mean, std = standardize(support, z)
    value = lcb
    if options.value_zscore:
        standardize(lcb, score)
        value = score
    ranked = support if options.raw_support else z
    for c in range(count):
        score[c] = value[c] + np.float32(wp) * ranked[c]
    drawn = score
    if temperature > 0:
        drawn = work.value[:count]
        perturbed(score, seeds, temperature, drawn)
    best = 0
    for c in range(count):
        if drawn[c] > drawn[best]:
            best = c
    action = record.action[row]
    top = min(options.k_smooth, count)
    if top == 1:
        for d in range(dims):
            action[d] = candidates[best, d]
        audit[EXECUTED_SUPPORT], audit[EXECUTED_Z] = support[best], z[best]
    else:
        order = np.argsort(-drawn, kind="mergesort")
        for d in range(dims):
            total = np.float32(0)
            for place in range(top):
                total += candidates[order[place], d]
            total /= np.float32(top)
            # A mean of actions at a bound can pass it by rounding.
            action[d] = min(max(total, scales.low[d]), scales.high[d])
            for lane in range(LANES):
                work.actions[d * LANES + lane] = action[d]
        log_support(state, behavior, work.actions, LANES, work, work.support)
        audit[EXECUTED_SUPPORT] = work.support[0]
        audit[EXECUTED_Z] = (work.support[0] - mean) / std
    audit[CHOSEN], audit[VIOLATION] = best, z[best] < VIOLATION_Z
    audit[COLLAPSE] = nearest(candidates[best], state.behavior_means)
    audit[EXECUTED_VIOLATION] = audit[EXECUTED_Z] < VIOLATION_Z
    audit[EXECUTED_COLLAPSE] = nearest(action, state.behavior_means)


@compiled
def score_row(
    row: int, obs: Any, seeds: Any, first: int, options: Options, policy: Any, memory: Any,
    record: Record,
) -> None:  # fmt: skip
    """Look at one state and score its candidates from `first` on, as many as the record holds."""
    actor, behavior, critics, scales = policy
    state, where, room, work = memory
    high, low = hashed(0, np.int64(seeds[row, 0]), np.int64(seeds[row, 1]))
    look(obs[row], actor, behavior, critics, scales, state, room)
    found = record.of_candidates[row]
    record.of_states[row, SHARE] = score_chunk(
        state, actor, behavior, critics, scales, options, high, low, first, where, room, work,
        record.candidates[row], found[Q:], found[SUPPORT],
    )  # fmt: skip


@Entry
def decide_rows(
    begin: int, end: int, obs: Any, seeds: Any, lam: Any, wp: Any, temperature: Any,
    options: Options, policy: Held, memory: Held, record: Record,
) -> None:  # fmt: skip
    """Decide rows `begin` to `end - 1`; `seeds` [B, 2] are each row's seed and number."""
    parts, room = policy.parts, memory.parts
    _, behavior, _, scales = parts
    state, _, _, work = room
    for row in range(begin, end):
        score_row(row, obs, seeds, 0, options, parts, room, record)
        rank(
            state, behavior, scales, options, seeds[row], lam[row], wp[row], temperature[row], row,
            record, work,
        )  # fmt: skip


@Entry
def score_rows(
    begin: int, end: int, obs: Any, seeds: Any, first: int, options: Options, policy: Held,
    memory: Held, record: Record,
) -> None:  # fmt: skip
    """Only score, and candidates from `first` on."""
    parts, room = policy.parts, memory.parts
    for row in range(begin, end):
        score_row(row, obs, seeds, first, options, parts, room, record)


@Entry
def rank_rows(
    begin: int, end: int, obs: Any, seeds: Any, lam: Any, wp: Any, temperature: Any,
    options: Options, policy: Held, memory: Held, record: Record,
) -> None:  # fmt: skip
    """Only rank: candidates, values and support are in the record."""
    actor, behavior, critics, scales = policy.parts
    state, _, room, work = memory.parts
    for row in range(begin, end):
        look(obs[row], actor, behavior, critics, scales, state, room)
        rank(
            state, behavior, scales, options, seeds[row], lam[row], wp[row], temperature[row], row,
            record, work,
        )  # fmt: skip
