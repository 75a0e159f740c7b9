"""What actor-critic methods share: their settings, ensembles, noise and bootstraps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, UInt32

from gemrl.maths.expectile import guidance_weight
from gemrl.maths.mixture import log_prob
from gemrl.methods.networks import Critic, MixtureNet
from gemrl.methods.protocol import Batch, Metrics, PublishedConfig, implausible_value

BACKUP_ACTIONS = 10
"""Actions of which the max-Q backup takes the best."""


@dataclass(frozen=True)
class ActorCriticConfig(PublishedConfig):
    """Settings that actor-critic methods share."""

    critics: int = 2
    """Critics in the ensemble."""
    discount: float = 0.99
    """Discount of future rewards."""
    polyak: float = 0.005
    """Rate at which target networks follow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("critics", self.critics >= 1, "at least 1")
        self.require("discount", 0 <= self.discount < 1, "from 0 to below 1")
        self.require("polyak", 0 < self.polyak <= 1, "above 0 and at most 1")

    def value_limit(self, largest_reward: float) -> float:
        """|Q| that no rewards of that size explain."""
        return implausible_value(largest_reward, self.discount)

    def actor_optimizer(self) -> optax.GradientTransformation:
        """The optimizer of the actor."""
        return self.optimizer()


@dataclass(frozen=True)
class TunedByTaskConfig(ActorCriticConfig):
    """Settings of methods whose papers tune the actor's rate and the rewards by task."""

    actor_learning_rate: float = 3e-4
    """Adam's step size for the actor; `learning_rate` is the critics'."""
    reward_shift: float = 0.0
    """Added to the task's rewards, before they are scaled."""
    reward_scale: float = 1.0
    """Factor on the task's rewards, and so on the critics' values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("actor_learning_rate", self.actor_learning_rate > 0, "above 0")
        self.require("reward_scale", self.reward_scale > 0, "above 0")

    def actor_optimizer(self) -> optax.GradientTransformation:
        """The optimizer of the actor."""
        return optax.adam(self.actor_learning_rate)

    def rewarded(self, batch: Batch) -> Batch:
        """The batch with this method's rewards."""
        return batch._replace(reward=self.reward_scale * (batch.reward + self.reward_shift))

    @property
    def value_scale(self) -> float:
        """As many times as this method's rewards are the task's."""
        return self.reward_scale

    def value_limit(self, largest_reward: float) -> float:
        """|Q| that none of this method's rewards explain."""
        return super().value_limit(self.reward_scale * (largest_reward + abs(self.reward_shift)))


def new_critics(
    config: ActorCriticConfig, obs_dim: int, action_dim: int, key: Key[Array, ""], **kind: Any
) -> tuple[Critic, ...]:
    """Critics with weights of their own; for `kind` see `Critic`."""
    keys = jax.random.split(key, config.critics)
    return tuple(Critic(obs_dim, action_dim, config.hidden, k, **kind) for k in keys)


def new_key(key: Key[Array, ""]) -> UInt32[Array, "2"]:
    """The beginning of a method's noise, as words that a checkpoint can hold."""
    return jax.random.key_data(key)


def next_key(words: UInt32[Array, "2"]) -> tuple[UInt32[Array, "2"], Key[Array, ""]]:
    """The words to carry on with, and a key to use now."""
    carried, used = jax.random.split(jax.random.wrap_key_data(words))
    return jax.random.key_data(carried), used


def values(
    critics: Sequence[Critic], obs: Float[Array, "*#b s"], action: Float[Array, "*#b a"]
) -> Float[Array, "m *b"]:
    """Each critic's value. A loop, not a vmapped ensemble: on CPUs it is faster by a fifth."""
    return jnp.stack([critic(obs, action) for critic in critics])


def bootstrap(
    batch: Batch, next_value: Float[Array, " b"], config: ActorCriticConfig
) -> Float[Array, " b"]:
    """The reward and gamma V(s'), without the latter at a true terminal; no gradient passes."""
    target = batch.reward + config.discount * batch.mask * next_value
    return jax.lax.stop_gradient(target)


def regression(
    critics: Sequence[Critic], batch: Batch, target: Float[Array, " b"]
) -> tuple[Float[Array, ""], Metrics]:
    """Squared error of every critic, summed over critics, and what is watched of it."""
    q = values(critics, batch.obs, batch.action)
    loss = jnp.sum(jnp.mean((q - target) ** 2, axis=1))
    return loss, {
        "critic/loss": loss / len(critics),
        "critic/mean": jnp.mean(q),
        "critic/std": jnp.mean(jnp.std(q, axis=0)),
        "critic/largest": jnp.max(jnp.abs(q)),
    }


def weighted_regression(
    actor: MixtureNet, advantage: Float[Array, " b"], batch: Batch, beta: float, cap: float
) -> tuple[Float[Array, ""], Metrics]:
    """E[-min(exp(beta A), cap) log pi(a|s)]: the data's actions, weighted by their advantage."""
    weight = guidance_weight(advantage, beta, cap)
    log_likelihood = log_prob(actor(batch.obs), batch.action)
    loss = -jnp.mean(weight * log_likelihood)
    return loss, {
        "actor/loss": loss,
        "actor/nll": -jnp.mean(log_likelihood),
        "actor/weight": jnp.mean(weight),
        "actor/weight_clipped": jnp.mean(weight >= cap),
    }
