"""What methods on SAC share: a squashed Gaussian actor whose entropy is held at a target.

Haarnoja et al., Soft Actor-Critic Algorithms and Applications, 2018 (arXiv:1812.05905). The target
is minus the action dimensions, as there; the range of log-stds is that of CQL's and EDAC's code.
That code begins with small last layers and hidden biases of 0.1; here all begin as everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, UInt32

from gemrl.methods.actor_critic import ActorCriticConfig, new_critics, new_key, values
from gemrl.methods.networks import Critic
from gemrl.methods.protocol import Batch, GaussianConfig, Metrics, descend, follow
from gemrl.methods.samplers import TanhGaussian


@dataclass(frozen=True)
class SoftConfig(ActorCriticConfig, GaussianConfig):
    """Settings of methods on SAC: a squashed Gaussian actor with automatic entropy."""

    log_std_min: float = -5.0
    """Floor of the actor's log standard deviation, before tanh."""
    log_std_max: float = 2.0
    """Ceiling of the actor's log standard deviation, before tanh."""


class SoftState(eqx.Module):
    """What training on SAC carries from update to update."""

    critics: tuple[Critic, ...]
    targets: tuple[Critic, ...]
    actor: TanhGaussian
    log_temperature: Float[Array, ""]
    critic_opt_state: optax.OptState
    actor_opt_state: optax.OptState
    temperature_opt_state: optax.OptState
    key: UInt32[Array, "2"]


def soft_init(config: SoftConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> SoftState:
    """Fresh networks and optimizers, and a temperature of 1."""
    critic_key, actor_key, noise_key = jax.random.split(key, 3)
    critics = new_critics(config, obs_dim, action_dim, critic_key)
    actor = TanhGaussian(
        obs_dim,
        action_dim,
        config.hidden,
        actor_key,
        log_std_min=config.log_std_min,
        log_std_max=config.log_std_max,
    )
    log_temperature = jnp.zeros(())
    return SoftState(
        critics=critics,
        targets=critics,
        actor=actor,
        log_temperature=log_temperature,
        critic_opt_state=config.optimizer().init(critics),  # pyright: ignore[reportArgumentType]
        actor_opt_state=config.actor_optimizer().init(actor),  # pyright: ignore[reportArgumentType]
        temperature_opt_state=config.actor_optimizer().init(log_temperature),
        key=new_key(noise_key),
    )


def sampled(
    actor: TanhGaussian, obs: Float[Array, "*b s"], key: Key[Array, ""], *count: int
) -> tuple[Float[Array, "*b a"], Float[Array, "*b"]]:
    """An action a state and its log density; with `count` as many, on an axis of their own."""
    noise = jax.random.normal(key, (*obs.shape[:-1], *count, actor.noise_size))
    return actor.with_log_prob(jnp.expand_dims(obs, -2) if count else obs, noise)


def soft_actor_loss(
    actor: TanhGaussian,
    critics: Sequence[Critic],
    temperature: Float[Array, ""],
    batch: Batch,
    key: Key[Array, ""],
) -> tuple[Float[Array, ""], Metrics]:
    """E[temperature log pi(a|s) - min Q(s, a)] with a from the actor."""
    action, log_prob = sampled(actor, batch.obs, key)
    q = jnp.min(values(critics, batch.obs, action), axis=0)
    loss = jnp.mean(temperature * log_prob - q)
    return loss, {
        "actor/loss": loss,
        "actor/entropy": -jnp.mean(log_prob),
        "actor/distance": jnp.mean((action - batch.action) ** 2),
    }


def temperature_loss(
    log_temperature: Float[Array, ""], entropy: Float[Array, ""], action_dim: int
) -> tuple[Float[Array, ""], Metrics]:
    """It rises while the actor's entropy is below its target, minus the action dimensions."""
    temperature = jnp.exp(log_temperature)
    return log_temperature * (entropy + action_dim), {"actor/temperature": temperature}


def soft_step(
    state: SoftState,
    batch: Batch,
    critic_loss: Callable[[tuple[Critic, ...]], tuple[Float[Array, ""], Metrics]],
    words: UInt32[Array, "2"],
    key: Key[Array, ""],
    config: SoftConfig,
) -> tuple[SoftState, Metrics]:
    """One step of critics, actor and temperature, each from the parameters before it."""
    critics, critic_opt_state, metrics = descend(
        critic_loss, state.critics, state.critic_opt_state, config.optimizer()
    )
    temperature = jnp.exp(state.log_temperature)
    actor, actor_opt_state, actor_metrics = descend(
        lambda actor: soft_actor_loss(actor, state.critics, temperature, batch, key),
        state.actor,
        state.actor_opt_state,
        config.actor_optimizer(),
    )
    entropy = jax.lax.stop_gradient(actor_metrics["actor/entropy"])
    log_temperature, temperature_opt_state, temperature_metrics = descend(
        lambda log: temperature_loss(log, entropy, state.actor.noise_size),
        state.log_temperature,
        state.temperature_opt_state,
        config.actor_optimizer(),
    )
    return SoftState(
        critics=critics,
        targets=follow(state.targets, critics, config.polyak),
        actor=actor,
        log_temperature=log_temperature,
        critic_opt_state=critic_opt_state,
        actor_opt_state=actor_opt_state,
        temperature_opt_state=temperature_opt_state,
        key=words,
    ), metrics | actor_metrics | temperature_metrics
