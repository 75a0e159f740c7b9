"""Fitted Q evaluation: what a setting's decisions are worth, learnt from logged transitions.

For each setting k the network Q_k solves Q_k(s, a) = E[r + γ m Q_k(s', a_k(s'))], a_k being what
the setting chooses. The log says nothing about actions that it hardly holds. There a plain fit
extrapolates, most often upwards, and praises the settings that leave the data. So a next action
outside the log's coverage is worth the least that the rewards allow: the estimate is the value that
the log vouches for.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from gemrl.methods.networks import Layers
from gemrl.methods.protocol import Batch
from gemrl.progress import Report, silent

# Updates between two reports of progress.
CHUNK = 250


@dataclass(frozen=True)
class FqeConfig:
    """How the networks of an estimate are fitted."""

    updates: int = 4000
    """Minibatches of a fit."""
    batch_size: int = 256
    """Transitions in a minibatch."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of the hidden layers."""
    learning_rate: float = 1e-3
    """Adam's step size at the start; it falls to nothing along a cosine."""
    polyak: float = 0.05
    """Rate at which target networks follow."""


class Transitions(NamedTuple):
    """T logged transitions as networks see them, and what K settings do next."""

    batch: Batch
    next_actions: Float[Array, "k t a"]
    """Scaled to [-1, 1]."""
    covered: Float[Array, "k t"]
    """1 where the log holds such actions at such states, 0 where it cannot tell."""


class Bounds(NamedTuple):
    """What values can be, given rewards."""

    low: float
    high: float
    typical: float


def value_bounds(reward: np.ndarray, mask: np.ndarray, discount: float) -> Bounds:
    """Least, greatest and typical discounted sums of rewards such as these.

    A sum of equal rewards is extreme after one step or after endlessly many: the former is possible
    where episodes can end, the latter where they can go on.
    """
    lengths = [1.0] * (not mask.all()) + [1 / (1 - discount)] * bool(mask.any())
    low, high, mean = float(reward.min()), float(reward.max()), float(reward.mean())
    return Bounds(
        min(low * length for length in lengths),
        max(high * length for length in lengths),
        mean / (1 - discount * float(mask.mean())),
    )


class ValueNet(eqx.Module):
    """Q(s, a) with normalized layers, which keep its values bounded away from the data."""

    net: Layers
    middle: float = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def __init__(
        self, inputs: int, hidden: tuple[int, ...], bounds: Bounds, key: Key[Array, ""]
    ) -> None:
        self.net = Layers((inputs, *hidden, 1), key)
        self.middle = bounds.typical
        # A tenth of the range is about what values differ by; the floor is for constant rewards.
        self.scale = max((bounds.high - bounds.low) / 10, 1e-6)

    def __call__(self, obs: Float[Array, "*b s"], action: Float[Array, "*b a"]) -> Array:
        x = jnp.concatenate([obs, action], axis=-1)
        for layer in self.net.layers[:-1]:
            x = jax.nn.relu(_normalized(layer(x)))
        return self.middle + self.scale * self.net.layers[-1](x)[..., 0]


def _normalized(x: Float[Array, "*b h"]) -> Float[Array, "*b h"]:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5)


def fit(
    data: Transitions,
    minibatches: Int[np.ndarray, "u b"],
    discount: float,
    bounds: Bounds,
    config: FqeConfig,
    key: Key[Array, ""],
    report: Report = silent,
) -> ValueNet:
    """The target networks of all settings, fitted together; every leaf has a leading axis K.

    All settings start from the same weights and see the same minibatches: settings that choose
    alike get the same network, and what they share by chance cancels in differences.
    """
    settings = data.next_actions.shape[0]
    inputs = data.batch.obs.shape[1] + data.batch.action.shape[1]
    one = ValueNet(inputs, config.hidden, bounds, key)
    nets = jax.tree.map(lambda leaf: jnp.stack([leaf] * settings), one)
    optimizer = _optimizer(config)
    state = (nets, nets, optimizer.init(eqx.filter(nets, eqx.is_array)))
    for first in range(0, len(minibatches), CHUNK):
        rows = jnp.asarray(minibatches[first : first + CHUNK])
        state = _descend(state, data, rows, discount, bounds, config)
        jax.block_until_ready(state[1].net.layers[0].bias)
        report(first + len(rows))
    return state[1]


def _optimizer(config: FqeConfig) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(config.learning_rate, config.updates))


@eqx.filter_jit
def _descend(
    state: tuple[ValueNet, ValueNet, optax.OptState],
    data: Transitions,
    minibatches: Int[Array, "u b"],
    discount: float,
    bounds: Bounds,
    config: FqeConfig,
) -> tuple[ValueNet, ValueNet, optax.OptState]:
    optimizer = _optimizer(config)

    def update(state: tuple, rows: Array) -> tuple[tuple, None]:
        nets, targets, opt_state = state
        batch = jax.tree.map(lambda column: column[rows], data.batch)
        wanted = jax.vmap(td_target, (0, 0, 0, None, None, None))(
            targets, data.next_actions[:, rows], data.covered[:, rows], batch, discount, bounds
        )

        def loss(nets: ValueNet) -> Array:
            values = jax.vmap(lambda net: net(batch.obs, batch.action))(nets)
            # The sum over settings keeps their gradients apart.
            return jnp.sum(jnp.mean(jnp.square(values - wanted), axis=1))

        steps, opt_state = optimizer.update(jax.grad(loss)(nets), opt_state)
        nets = optax.apply_updates(nets, steps)
        targets = jax.tree.map(lambda t, n: t + config.polyak * (n - t), targets, nets)
        return (nets, targets, opt_state), None

    return jax.lax.scan(update, state, minibatches)[0]


def td_target(
    target: ValueNet, next_action: Array, covered: Array, batch: Batch, discount: float, b: Bounds
) -> Float[Array, " b"]:
    """Reward plus γ m Q(s', a'), with the least value there is where the log cannot tell."""
    known = jnp.clip(target(batch.next_obs, next_action), b.low, b.high)
    worth = jnp.where(covered > 0, known, b.low)
    return batch.reward + discount * batch.mask * worth


@eqx.filter_jit
def values_of(
    nets: ValueNet,
    obs: Float[Array, "b s"],
    actions: Float[Array, "k b a"],
    covered: Float[Array, "k b"],
    bounds: Bounds,
) -> Float[Array, "k b"]:
    """What each setting's choice is worth at each state, by the setting's own network."""
    known = jax.vmap(lambda net, action: net(obs, action))(nets, actions)
    return jnp.where(covered > 0, jnp.clip(known, bounds.low, bounds.high), bounds.low)
