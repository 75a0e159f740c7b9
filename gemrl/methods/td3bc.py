"""TD3+BC: a deterministic actor that climbs the critic and stays near the data's actions.

Fujimoto and Gu, A Minimalist Approach to Offline Reinforcement Learning, 2021 (arXiv:2106.06860).
Twin critics, target smoothing and an actor that is updated every other time, as in TD3; the actor's
loss is -lambda Q(s, pi(s)) + (pi(s) - a)^2 with lambda = alpha / E|Q|.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, UInt32

from gemrl.methods.actor_critic import (
    ActorCriticConfig,
    bootstrap,
    new_critics,
    new_key,
    next_key,
    regression,
    values,
)
from gemrl.methods.networks import Critic
from gemrl.methods.protocol import MAIN, Batch, Method, Metrics, Models, Phase, descend, follow
from gemrl.methods.samplers import Deterministic


@dataclass(frozen=True)
class Td3BcConfig(ActorCriticConfig):
    """Settings of TD3+BC."""

    alpha: float = 2.5
    """How much the critic counts against the data's actions."""
    policy_noise: float = 0.2
    """Standard deviation of the noise on the target's action."""
    noise_clip: float = 0.5
    """Largest noise on the target's action."""
    actor_every: int = 2
    """Critic updates for one of the actor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("alpha", self.alpha > 0, "above 0")
        self.require("policy_noise", self.policy_noise >= 0, "at least 0")
        self.require("noise_clip", self.noise_clip >= 0, "at least 0")
        self.require("actor_every", self.actor_every >= 1, "at least 1")


class Td3BcState(eqx.Module):
    """What training carries from update to update."""

    critics: tuple[Critic, ...]
    actor: Deterministic
    target_critics: tuple[Critic, ...]
    target_actor: Deterministic
    critic_opt_state: optax.OptState
    actor_opt_state: optax.OptState
    count: Array
    key: UInt32[Array, "2"]


def init(config: Td3BcConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> Td3BcState:
    """Fresh networks and optimizers."""
    critic_key, actor_key, noise_key = jax.random.split(key, 3)
    critics = new_critics(config, obs_dim, action_dim, critic_key)
    actor = Deterministic(obs_dim, action_dim, config.hidden, actor_key, spread=config.policy_noise)
    optimizer = config.optimizer()
    return Td3BcState(
        critics=critics,
        actor=actor,
        target_critics=critics,
        target_actor=actor,
        critic_opt_state=optimizer.init(critics),  # pyright: ignore[reportArgumentType]
        actor_opt_state=optimizer.init(actor),  # pyright: ignore[reportArgumentType]
        count=jnp.zeros((), jnp.int32),
        key=new_key(noise_key),
    )


def smoothed(
    actor: Deterministic, obs: Float[Array, "b s"], key: Key[Array, ""], config: Td3BcConfig
) -> Float[Array, "b a"]:
    """The actor's actions with clipped noise, so that the target does not trust a sharp peak."""
    mean = actor.mean(obs)
    noise = config.policy_noise * jax.random.normal(key, mean.shape)
    return jnp.clip(mean + jnp.clip(noise, -config.noise_clip, config.noise_clip), -1, 1)


def actor_loss(
    actor: Deterministic, critics: tuple[Critic, ...], batch: Batch, config: Td3BcConfig
) -> tuple[Float[Array, ""], Metrics]:
    """-lambda Q + (pi - a)^2, by the first critic."""
    action = actor.mean(batch.obs)
    q = values(critics[:1], batch.obs, action)[0]
    weight = config.alpha / jax.lax.stop_gradient(jnp.mean(jnp.abs(q)))
    distance = jnp.mean((action - batch.action) ** 2)
    loss = -weight * jnp.mean(q) + distance
    return loss, {"actor/loss": loss, "actor/distance": distance}


def update(state: Td3BcState, batch: Batch, config: Td3BcConfig) -> tuple[Td3BcState, Metrics]:
    """One step of the critics; of the actor and the targets when it is their turn."""
    words, key = next_key(state.key)
    next_action = smoothed(state.target_actor, batch.next_obs, key, config)
    next_q = jnp.min(values(state.target_critics, batch.next_obs, next_action), axis=0)
    target = bootstrap(batch, next_q, config)
    optimizer = config.optimizer()
    critics, critic_opt_state, metrics = descend(
        lambda critics: regression(critics, batch, target),
        state.critics,
        state.critic_opt_state,
        optimizer,
    )
    actor, actor_opt_state, actor_metrics = descend(
        lambda actor: actor_loss(actor, critics, batch, config),
        state.actor,
        state.actor_opt_state,
        optimizer,
    )
    turn = (state.count + 1) % config.actor_every == 0
    followed = (
        follow(state.target_critics, critics, config.polyak),
        follow(state.target_actor, actor, config.polyak),
    )
    before = (state.actor, state.actor_opt_state, state.target_critics, state.target_actor)
    after = (actor, actor_opt_state, *followed)
    actor, actor_opt_state, target_critics, target_actor = jax.tree.map(
        lambda old, new: jnp.where(turn, new, old), before, after
    )
    return Td3BcState(
        critics=critics,
        actor=actor,
        target_critics=target_critics,
        target_actor=target_actor,
        critic_opt_state=critic_opt_state,
        actor_opt_state=actor_opt_state,
        count=state.count + 1,
        key=words,
    ), metrics | actor_metrics


def phases(config: Td3BcConfig) -> tuple[Phase, ...]:
    """One phase."""
    return (Phase(MAIN, config.steps, update),)


def models(state: Td3BcState) -> Models:
    """The actor and the critics."""
    return Models(actor=state.actor, behavior=None, critics=state.critics, value=None)


METHOD = Method(
    "td3bc", Td3BcConfig, init, phases, models, deploy={"n": 0, "wp": 0.0, "anchor": "mode"}
)
