"""Proposals that carry noise to an action: by a flow, by diffusion, or in one step.

Scaled observations, actions in [-1, 1]. Every random number that an action takes is part of its
noise, so a decision can be replayed; noise 0 gives the anchor.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from gemrl.methods.networks import ACTIVATIONS, Layers, Linear, Norm, dropout, mish, product
from gemrl.methods.protocol import Batch
from gemrl.methods.samplers import Sampler

UNROLLED = 10
"""Steps of a sampler that are compiled one after another; more of them become a loop."""


class Body(eqx.Module):
    """What follows the first layer of a `Field`."""

    def __call__(self, x: Float[Array, "*b h"], key: Key[Array, ""] | None) -> Float[Array, "*b a"]:
        """The key is for what is random in training; None at run time."""
        raise NotImplementedError


class Plain(Body):
    """Linear layers with an activation before each."""

    layers: Layers

    def __init__(self, sizes: Sequence[int], key: Key[Array, ""], activation: str) -> None:
        self.layers = Layers(sizes, key, activation=activation)

    def __call__(self, x: Float[Array, "*b h"], key: Key[Array, ""] | None) -> Float[Array, "*b a"]:
        return self.layers(ACTIVATIONS[self.layers.activation](x))


class Block(eqx.Module):
    """x and a two-layer network of its normalized self, with dropout in training."""

    norm: Norm
    layers: Layers
    dropout: float = eqx.field(static=True)

    def __init__(self, width: int, expansion: int, dropout: float, key: Key[Array, ""]) -> None:
        self.norm = Norm(width)
        self.layers = Layers((width, expansion * width, width), key, activation="mish")
        self.dropout = dropout

    def __call__(self, x: Float[Array, "*b h"], key: Key[Array, ""] | None) -> Float[Array, "*b h"]:
        return x + self.layers(self.norm(dropout(x, self.dropout, key)))


class Residual(Body):
    """Blocks, an activation and a linear layer."""

    blocks: tuple[Block, ...]
    last: Linear

    def __init__(
        self,
        width: int,
        action_dim: int,
        key: Key[Array, ""],
        *,
        blocks: int,
        expansion: int,
        dropout: float,
    ) -> None:
        last_key, *keys = jax.random.split(key, blocks + 1)
        self.blocks = tuple(Block(width, expansion, dropout, k) for k in keys)
        self.last = Linear(width, action_dim, last_key)

    def __call__(self, x: Float[Array, "*b h"], key: Key[Array, ""] | None) -> Float[Array, "*b a"]:
        for number, block in enumerate(self.blocks):
            x = block(x, None if key is None else jax.random.fold_in(key, number))
        return self.last(mish(x))


class Field(eqx.Module):
    """A vector of the action's size for a state, an action and a time.

    The first layer is kept in parts, so that candidates and steps share the state's part. The time
    is a row of features: the time itself for a flow, one of T places for diffusion, none at all
    for one step. Of T places any embedding is a table, which the first layer learns directly.
    """

    from_state: Linear
    from_action: Float[Array, "a h"]
    from_time: Float[Array, "k h"] | None
    body: Body

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        width: int,
        key: Key[Array, ""],
        body: Body,
        *,
        times: int = 0,
    ) -> None:
        state_key, action_key, time_key = jax.random.split(key, 3)
        fan_in = obs_dim + action_dim
        self.from_state = Linear(obs_dim, width, state_key, fan_in=fan_in)
        self.from_action = Linear(action_dim, width, action_key, fan_in=fan_in).weight
        # As wide as a standardized input can move a unit: what to do hangs on the time.
        self.from_time = Linear(times, width, time_key, fan_in=1).weight if times else None
        self.body = body

    @property
    def action_dim(self) -> int:
        """Entries of the action."""
        return self.from_action.shape[-2]

    def __call__(
        self,
        obs: Float[Array, "*#b s"],
        action: Float[Array, "*#b a"],
        time: Float[Array, "*#b k"] | None = None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "*b a"]:
        first = self.from_state(obs) + product(action, self.from_action)
        if self.from_time is not None and time is not None:
            first = first + product(time, self.from_time)
        return self.body(first, key)


def plain_field(
    obs_dim: int,
    action_dim: int,
    hidden: Sequence[int],
    key: Key[Array, ""],
    *,
    activation: str,
    times: int = 0,
) -> Field:
    """A `Field` with hidden layers of these widths."""
    first_key, body_key = jax.random.split(key)
    body = Plain((*hidden, action_dim), body_key, activation)
    return Field(obs_dim, action_dim, hidden[0], first_key, body, times=times)


class OneStep(Sampler):
    """A network of the observation and the noise."""

    net: Field

    @property
    def noise_size(self) -> int:
        """One for each action dimension."""
        return self.net.action_dim

    def __call__(
        self, obs: Float[Array, "*#b s"], noise: Float[Array, "*#b n"]
    ) -> Float[Array, "*b a"]:
        return jnp.clip(self.net(obs, noise), -1, 1)


class Flow(Sampler):
    """Euler steps along a velocity, from the noise at time 0 to the action at time 1."""

    net: Field
    steps: int = eqx.field(static=True)

    @property
    def noise_size(self) -> int:
        """One for each action dimension."""
        return self.net.action_dim

    def __call__(
        self, obs: Float[Array, "*#b s"], noise: Float[Array, "*#b n"]
    ) -> Float[Array, "*b a"]:
        def step(x: Array, time: Float[Array, "1"]) -> tuple[Array, None]:
            return x + self.net(obs, x, time) / self.steps, None

        times = jnp.arange(self.steps)[:, None] / self.steps
        end, _ = jax.lax.scan(step, _spread(obs, noise), times, unroll=UNROLLED)
        return jnp.clip(end, -1, 1)


def flow_loss(flow: Flow, batch: Batch, key: Key[Array, ""]) -> Float[Array, ""]:
    """Flow matching: the velocity on the straight way from noise to the data's action."""
    noise_key, time_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, batch.action.shape)
    time = jax.random.uniform(time_key, (len(batch.action), 1))
    between = (1 - time) * noise + time * batch.action
    velocity = flow.net(batch.obs, between, time)
    return jnp.mean((velocity - (batch.action - noise)) ** 2)


def vp_rates(steps: int) -> Float[np.ndarray, " t"]:
    """beta_t, the share of variance that step t makes noise, of a variance-preserving diffusion
    whose rate rises from 0.1 to 10 over unit time.
    """
    least, most = 0.1, 10.0
    number = np.arange(1, steps + 1)
    rate = least / steps + (most - least) * (2 * number - 1) / (2 * steps**2)
    return -np.expm1(-rate)


class Schedule(NamedTuple):
    """What each denoising step t multiplies, [T]; the last that is taken is number 0."""

    kept: Float[np.ndarray, " t"]
    """Share of the action's variance that is left after t."""
    of_start: Float[np.ndarray, " t"]
    """The weight of the start in the posterior's mean."""
    of_now: Float[np.ndarray, " t"]
    """The weight of where the step is."""
    std: Float[np.ndarray, " t"]
    """Of the noise that is added; 0 in the last step."""


def schedule(steps: int, clip_start: bool) -> Schedule:
    """The steps of `Diffusion`."""
    rates = vp_rates(steps)
    kept = np.cumprod(1 - rates)
    before = np.concatenate([[1.0], kept[:-1]])
    variance = rates * (1 - before) / (1 - kept) if clip_start else rates * (before < 1)
    return Schedule(
        kept=kept,
        of_start=rates * np.sqrt(before) / (1 - kept),
        of_now=(1 - before) * np.sqrt(1 - rates) / (1 - kept),
        std=np.sqrt(variance),
    )


class Diffusion(Sampler):
    """Denoising in T steps, each with noise of its own but the last.

    The network says which noise is in an action. With `clip_start` the action that this implies is
    clipped and a step draws from the posterior given it (Diffusion-QL). Without, every step's
    result is clipped, and its noise has the variance that the forward step adds (IDQL).
    """

    net: Field
    steps: int = eqx.field(static=True)
    clip_start: bool = eqx.field(static=True)

    @property
    def noise_size(self) -> int:
        """One for each action dimension and step; the first are where denoising starts."""
        return self.steps * self.net.action_dim

    def __call__(
        self, obs: Float[Array, "*#b s"], noise: Float[Array, "*#b n"]
    ) -> Float[Array, "*b a"]:
        def step(x: Array, at: tuple[Array, ...]) -> tuple[Array, None]:
            place, kept, of_start, of_now, std, fresh = at
            start = (x - jnp.sqrt(1 - kept) * self.net(obs, x, place)) / jnp.sqrt(kept)
            start = jnp.clip(start, -1, 1) if self.clip_start else start
            x = of_start * start + of_now * x + std * fresh
            return x if self.clip_start else jnp.clip(x, -1, 1), None

        draws = noise.reshape(*noise.shape[:-1], self.steps, self.net.action_dim)
        # A step's noise is the next draw; the last step has variance 0, whatever it is given.
        fresh = jnp.moveaxis(jnp.roll(draws, -1, axis=-2), -2, 0)
        per_step = schedule(self.steps, self.clip_start)
        backwards = tuple(jnp.asarray(x[::-1].copy(), jnp.float32) for x in per_step)
        places = jnp.eye(self.steps)[::-1]
        start = _spread(obs, draws[..., 0, :])
        end, _ = jax.lax.scan(step, start, (places, *backwards, fresh), unroll=UNROLLED)
        return jnp.clip(end, -1, 1)


def diffusion_loss(
    diffusion: Diffusion, batch: Batch, key: Key[Array, ""], dropout: Key[Array, ""] | None = None
) -> Float[Array, ""]:
    """Squared error of the noise that the network sees in a noised action of the data."""
    noise_key, step_key = jax.random.split(key)
    step: Int[Array, " b"] = jax.random.randint(step_key, (len(batch.action),), 0, diffusion.steps)
    kept = jnp.asarray(np.cumprod(1 - vp_rates(diffusion.steps)), jnp.float32)[step, None]
    noise = jax.random.normal(noise_key, batch.action.shape)
    noised = jnp.sqrt(kept) * batch.action + jnp.sqrt(1 - kept) * noise
    seen = diffusion.net(batch.obs, noised, jax.nn.one_hot(step, diffusion.steps), dropout)
    return jnp.mean((seen - noise) ** 2)


def _spread(obs: Float[Array, "*#b s"], x: Float[Array, "*#b a"]) -> Float[Array, "*b a"]:
    """X for every observation, as a loop must begin with the shape that it ends with."""
    batch = jnp.broadcast_shapes(obs.shape[:-1], x.shape[:-1])
    return jnp.broadcast_to(x, (*batch, x.shape[-1]))
