"""The JAX backend: every candidate through every critic, a block of states at a time.

What does not depend on candidates, and what makes them where that is a network, is evaluated state
by state, so that the candidates are the same bit for bit whatever the batch. The rest goes in
blocks that fill a matrix product and stay in cache, which also bounds the memory of a large batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gemrl.decide.backend import seed_pairs
from gemrl.decide.select import (
    Scales,
    Scored,
    Shape,
    State,
    Weights,
    look,
    propose,
    rank,
    score_candidates,
)
from gemrl.learn.spec import Spec
from gemrl.methods.protocol import Models
from gemrl.methods.samplers import Sampler

Tree = TypeVar("Tree")

# Candidates of all states that are evaluated together.
CANDIDATES_TOGETHER = 1024


class JaxBackend:
    """Dense evaluation, compiled once for each shape of the knobs and each size of block."""

    name = "jax"

    def __init__(self, models: Models, spec: Spec) -> None:
        self.models = models
        self.scales = scales_of(spec)

    def decide(
        self, obs: np.ndarray, seeds: np.ndarray, weights: Weights, shape: Shape
    ) -> dict[str, np.ndarray]:
        """All fields of the record, in one go."""
        return _in_blocks(
            lambda rows, part: _decide(self.models, self.scales, rows, *part, shape=shape),
            (self.begin(obs, seeds), weights),
            shape.candidates,
        )

    def planned_bytes(self, obs: np.ndarray, shape: Shape) -> int | None:
        """Memory of a decision at one state as XLA plans it for both programs, where it says:
        arguments, of which weights are most, results and scratch.
        """
        begun, numbers = self.begin(obs[None], np.zeros((), np.uint32)), np.zeros(1, np.float32)
        weights = Weights(numbers, numbers, numbers)
        given = (self.models, self.scales, np.int32(1), begun, weights)
        looked = (self.models, self.scales, obs[None], seed_pairs(np.zeros((), np.uint32), 1))
        found = 0
        for program in (_look.lower(*looked), _decide.lower(*given, shape=shape)):
            plan = program.compile().memory_analysis()
            if plan is None:
                return None
            found += plan.argument_size_in_bytes + plan.output_size_in_bytes
            found += plan.temp_size_in_bytes
        return found

    def begin(self, obs: np.ndarray, seeds: np.ndarray) -> State:
        """Each state's mixtures and key."""
        rows = len(obs)
        # Rows that fill up to a size that was compiled before are thrown away. There are at least
        # two: a loop of one turn is compiled into something that rounds otherwise.
        filled = np.minimum(np.arange(max(2, _few_sizes(rows))), rows - 1)
        pairs = seed_pairs(seeds, rows)
        states = _look(self.models, self.scales, obs[filled], pairs[filled])
        return jax.tree.map(lambda x: np.asarray(x)[:rows], states)

    def score(self, begun: State, shape: Shape, first: int, count: int) -> Scored:
        """Some of the candidates of each state."""
        run = partial(_score, source=shape.source, anchor=shape.anchor, count=count)
        first_of_all = np.int32(first)
        return _in_blocks(
            lambda rows, states: run(self.models, self.scales, rows, states, first_of_all),
            begun,
            count,
        )

    def rank(
        self, begun: State, scored: Scored, weights: Weights, shape: Shape
    ) -> dict[str, np.ndarray]:
        """The record of the candidates scored so far, whose number needs no compilation."""
        count = scored.log_support.shape[-1]
        missing = shape.candidates - count
        filled = Scored(
            np.pad(scored.candidates, ((0, 0), (0, missing), (0, 0))),
            np.pad(scored.q, ((0, 0), (0, 0), (0, missing))),
            np.pad(scored.log_support, ((0, 0), (0, missing))),
        )
        result = _in_blocks(
            lambda _, part: _rank(self.scales, *part, np.int32(count), shape=shape),
            (begun, filled, weights),
            shape.candidates,
        )
        for name in ("lcb", "support_z", "score"):
            result[name] = result[name][:, :count]
        return result | scored._asdict()


def scales_of(spec: Spec) -> Scales:
    """The scaler and bounds on the device."""
    return Scales(
        *(jnp.asarray(x) for x in (spec.obs_mean, spec.obs_std, spec.action_low, spec.action_high))
    )


@jax.jit
def _look(models: Models, scales: Scales, obs: Array, pairs: Array) -> State:
    return jax.lax.map(lambda row: look(models, scales, row[0], *row[1]), (obs, pairs))


@partial(jax.jit, static_argnames="shape")
def _decide(
    models: Models, scales: Scales, rows: Array, states: State, weights: Weights, shape: Shape
) -> dict[str, Array]:
    def one(state: State, candidates: Array, weights: Weights) -> dict[str, Array]:
        scored = score_candidates(models, scales, state, candidates)
        return rank(scales, state, scored, shape.candidates, weights, shape)

    candidates = _proposed(
        models, scales, states, rows, 0, shape.source, shape.anchor, shape.candidates
    )
    return jax.vmap(one)(states, candidates, weights)


@partial(jax.jit, static_argnames=("source", "anchor", "count"))
def _score(
    models: Models,
    scales: Scales,
    rows: Array,
    states: State,
    first: Array,
    source: str,
    anchor: str,
    count: int,
) -> Scored:
    candidates = _proposed(models, scales, states, rows, first, source, anchor, count)
    return jax.vmap(partial(score_candidates, models, scales))(states, candidates)


def _proposed(
    models: Models,
    scales: Scales,
    states: State,
    rows: Array,
    first: Array | int,
    source: str,
    anchor: str,
    count: int,
) -> Array:
    """Candidates of each state: a mixture's together, a sampler's, whose networks make them, state
    by state. A loop of one turn would be compiled into something that rounds otherwise, so its
    length, `rows`, is no constant, and there is room for two.
    """

    def one(state: State) -> Array:
        return propose(models, state, scales, source, anchor, first, count)

    if not isinstance(models.actor, Sampler):
        return jax.vmap(one)(states)

    there = len(states.key)
    if there == 1:
        states = jax.tree.map(lambda x: jnp.concatenate([x, x]), states)

    def put(row: Array, made: Array) -> Array:
        return made.at[row].set(one(jax.tree.map(lambda x: x[row], states)))

    nothing = jnp.zeros((max(2, there), count, len(scales.action_low)), jnp.float32)
    return jax.lax.fori_loop(0, rows, put, nothing)[:there]


@partial(jax.jit, static_argnames="shape")
def _rank(
    scales: Scales,
    states: State,
    scored: Scored,
    weights: Weights,
    count: Array,
    shape: Shape,
) -> dict[str, Array]:
    def one(state: State, scored: Scored, weights: Weights) -> dict[str, Array]:
        return rank(scales, state, scored, count, weights, shape)

    return jax.vmap(one)(states, scored, weights)


def _in_blocks(run: Callable[[np.int32, Any], Tree], rows_of: Any, candidates: int) -> Tree:
    """`run` on blocks of the rows of a tree, with their number, and its results as one."""
    rows = len(jax.tree.leaves(rows_of)[0])
    most = max(1, CANDIDATES_TOGETHER // candidates)
    blocks = -(-rows // most)
    size = min(most, _few_sizes(-(-rows // blocks)))
    if blocks == 1 and size == rows:
        return jax.tree.map(np.asarray, run(np.int32(size), rows_of))
    parts = []
    for start in range(0, rows, size):
        # The last block is filled up with the last row.
        taken = np.minimum(np.arange(start, start + size), rows - 1)
        part = jax.tree.map(lambda x, taken=taken: x[taken], rows_of)
        parts.append(run(np.int32(size), part))
    return jax.tree.map(lambda *xs: np.concatenate([np.asarray(x) for x in xs])[:rows], *parts)


def _few_sizes(rows: int) -> int:
    """The next number with three binary digits and zeros: few sizes to compile, little waste."""
    step = 1 << max(0, rows.bit_length() - 3)
    return -(-rows // step) * step
