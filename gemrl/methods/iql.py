"""Implicit Q-learning: a critic ensemble, an expectile value and an advantage-weighted actor.

The critic and value losses are GEM's too (appendix E). Plain IQL (Kostrikov et al., 2021) extracts
a unimodal Gaussian actor from them.
"""

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from gemrl.maths.expectile import expectile_loss
from gemrl.methods.actor_critic import weighted_regression
from gemrl.methods.networks import Critic, MixtureNet, Value
from gemrl.methods.protocol import (
    Batch,
    GaussianConfig,
    Method,
    Metrics,
    Models,
    descend,
    floor_share,
    follow,
    implausible_value,
    one_phase,
)


@dataclass(frozen=True)
class IqlConfig(GaussianConfig):
    """Settings of implicit Q-learning."""

    critics: int = 4
    """Critics in the ensemble (M)."""
    discount: float = 0.99
    """Discount of future rewards."""
    expectile: float = 0.7
    """Expectile of the value regression: 0.5 is the mean, towards 1 the best action in the data."""
    beta: float = 3.0
    """Inverse temperature of the advantage weight."""
    weight_cap: float = 100.0
    """Upper bound of the advantage weight."""
    polyak: float = 0.005
    """Rate at which the target critics follow the critics."""

    steadier: ClassVar[str] = "a lower --learning-rate or --beta"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("critics", self.critics >= 1, "at least 1")
        self.require("discount", 0 <= self.discount < 1, "from 0 to below 1")
        self.require("expectile", 0 < self.expectile < 1, "between 0 and 1")
        self.require("beta", self.beta >= 0, "at least 0")
        self.require("weight_cap", self.weight_cap > 0, "above 0")
        self.require("polyak", 0 < self.polyak <= 1, "above 0 and at most 1")

    def value_limit(self, largest_reward: float) -> float:
        """|Q| that no rewards of that size explain."""
        return implausible_value(largest_reward, self.discount)


class CriticParams(eqx.Module):
    """The critics and the value that are trained together."""

    critics: tuple[Critic, ...]
    value: Value


class IqlState(eqx.Module):
    """What training carries from update to update."""

    learner: CriticParams
    targets: tuple[Critic, ...]
    actor: MixtureNet
    opt_state: optax.OptState


def init_critics(
    config: IqlConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]
) -> CriticParams:
    """Fresh critics, each with weights of its own, and a fresh value."""
    value_key, *critic_keys = jax.random.split(key, config.critics + 1)
    critics = tuple(Critic(obs_dim, action_dim, config.hidden, k) for k in critic_keys)
    return CriticParams(critics, Value(obs_dim, config.hidden, value_key))


def advantage(
    learner: CriticParams, targets: tuple[Critic, ...], batch: Batch
) -> Float[Array, " b"]:
    """What the data's action is worth more than the state, by the most pessimistic target."""
    target_q = [target(batch.obs, batch.action) for target in targets]
    min_target = jax.lax.stop_gradient(jnp.min(jnp.stack(target_q), axis=0))  # Eq. 63
    return min_target - learner.value(batch.obs)  # Eq. 64


def critic_losses(
    learner: CriticParams, targets: tuple[Critic, ...], batch: Batch, config: IqlConfig
) -> tuple[Float[Array, ""], Float[Array, " b"], Metrics]:
    """L_Q + L_V, the advantage, and metrics; everything from the parameters before the update."""
    delta = advantage(learner, targets, batch)
    value_loss = jnp.mean(expectile_loss(delta, config.expectile))  # Eq. 66

    next_value = jax.lax.stop_gradient(learner.value(batch.next_obs))
    bootstrap = batch.reward + config.discount * batch.mask * next_value  # Eq. 60
    # A loop, not a vmapped ensemble: on CPUs it is faster by a fifth.
    q = jnp.stack([critic(batch.obs, batch.action) for critic in learner.critics])
    critic_loss = jnp.mean((q - bootstrap) ** 2)  # Eq. 61

    metrics = {
        "critic/loss": critic_loss,
        "critic/mean": jnp.mean(q),
        "critic/std": jnp.mean(jnp.std(q, axis=0)),
        "critic/largest": jnp.max(jnp.abs(q)),
        "value/loss": value_loss,
        "value/advantage": jnp.mean(delta),
    }
    return critic_loss + value_loss, jax.lax.stop_gradient(delta), metrics


def init(config: IqlConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> IqlState:
    """Fresh networks and optimizer. Critics start as GEM's do for the same key."""
    critic_key, actor_key = jax.random.split(key)
    learner = init_critics(config, obs_dim, action_dim, critic_key)
    actor = MixtureNet(obs_dim, action_dim, 1, config.hidden, actor_key)
    opt_state = config.optimizer().init((learner, actor))  # pyright: ignore[reportArgumentType]
    return IqlState(learner, learner.critics, actor, opt_state)


def actor_loss(
    actor: MixtureNet, advantage: Float[Array, " b"], batch: Batch, config: IqlConfig
) -> tuple[Float[Array, ""], Metrics]:
    """E[-omega log pi(a|s)]: regression weighted by the advantage."""
    return weighted_regression(actor, advantage, batch, config.beta, config.weight_cap)


def update(state: IqlState, batch: Batch, config: IqlConfig) -> tuple[IqlState, Metrics]:
    """One joint gradient step on critics, value and actor."""

    def loss(params: tuple[CriticParams, MixtureNet]) -> tuple[Float[Array, ""], Metrics]:
        learner, actor = params
        critic_loss, delta, metrics = critic_losses(learner, state.targets, batch, config)
        weighted_loss, actor_metrics = actor_loss(actor, delta, batch, config)
        return critic_loss + weighted_loss, metrics | actor_metrics

    (learner, actor), opt_state, metrics = descend(
        loss, (state.learner, state.actor), state.opt_state, config.optimizer()
    )
    actor = actor.clamped(config.log_std_min, config.log_std_max)
    metrics["actor/log_std_at_floor"] = floor_share(actor, config)
    targets = follow(state.targets, learner.critics, config.polyak)
    return IqlState(learner, targets, actor, opt_state), metrics


phases = one_phase(update)


def models(state: IqlState) -> Models:
    """A unimodal proposal and the critics."""
    return Models(
        actor=state.actor,
        behavior=None,
        critics=state.learner.critics,
        value=state.learner.value,
    )


METHOD = Method("iql", IqlConfig, init, phases, models)
