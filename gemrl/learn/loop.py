"""The compiled training loop: many updates a call, minibatches drawn inside, data on the device."""

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from gemrl.methods.protocol import Batch, MethodConfig, Metrics, Phase


def pack(batch: Batch) -> Float[Array, "t w"]:
    """A dataset as one array on the device, so that a minibatch is a single gather."""
    columns = [np.asarray(column).reshape(len(batch.reward), -1) for column in batch]
    return jax.device_put(np.concatenate(columns, axis=1).astype(np.float32))


def unpack(rows: Float[Array, "b w"], obs_dim: int, action_dim: int) -> Batch:
    """The reverse of `pack` for some rows."""
    widths = (obs_dim, action_dim, 1, obs_dim, 1)
    obs, action, reward, next_obs, mask = jnp.split(rows, np.cumsum(widths)[:-1], axis=1)
    return Batch(obs, action, reward[:, 0], next_obs, mask[:, 0])


@partial(jax.jit, static_argnames=("update", "config", "obs_dim", "action_dim"), donate_argnums=0)
def run_updates(
    state: Any,
    data: Float[Array, "t w"],
    key: Key[Array, ""],
    first: Int[Array, ""],
    last: Int[Array, ""],
    *,
    update: Callable[[Any, Batch, Any], tuple[Any, Metrics]],
    config: MethodConfig,
    obs_dim: int,
    action_dim: int,
) -> tuple[Any, Metrics]:
    """Updates `first` to `last - 1` of a phase, and the mean of their metrics.

    Minibatch i depends on the key and i alone, so where a call starts and stops changes nothing.
    """

    def minibatch(step: Int[Array, ""]) -> Batch:
        rows = jax.random.randint(
            jax.random.fold_in(key, step), (config.batch_size,), 0, data.shape[0]
        )
        return unpack(data[rows], obs_dim, action_dim)

    def body(step: Int[Array, ""], carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
        state, totals = carry
        state, metrics = update(state, minibatch(step), config)
        return state, jax.tree.map(jnp.add, totals, metrics)

    shapes = jax.eval_shape(lambda: update(state, minibatch(first), config)[1])
    totals = jax.tree.map(lambda shape: jnp.zeros(shape.shape, jnp.float32), shapes)
    state, totals = jax.lax.fori_loop(first, last, body, (state, totals))
    return state, jax.tree.map(lambda total: total / (last - first), totals)


def phase_key(seed: int, phase: Phase) -> Key[Array, ""]:
    """The key of a phase's minibatches. The main phase's is the same for every method."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(phase.name.encode()))
