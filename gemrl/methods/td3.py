"""What methods on TD3 share: a deterministic actor, target smoothing and delayed updates.

Fujimoto, van Hoof and Meger, Addressing Function Approximation Error in Actor-Critic Methods, 2018
(arXiv:1802.09477).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, UInt32

from gemrl.methods.actor_critic import ActorCriticConfig, new_critics, new_key, regression
from gemrl.methods.networks import Critic, with_small_end
from gemrl.methods.protocol import Batch, Metrics, Models, descend, follow
from gemrl.methods.samplers import Deterministic


@dataclass(frozen=True)
class Td3Config(ActorCriticConfig):
    """Settings of methods on TD3: a deterministic actor, target smoothing, delayed updates."""

    policy_noise: float = 0.2
    """Standard deviation of the noise on the target's action."""
    noise_clip: float = 0.5
    """Largest noise on the target's action."""
    actor_every: int = 2
    """Critic updates for one of the actor and the targets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("policy_noise", self.policy_noise >= 0, "at least 0")
        self.require("noise_clip", self.noise_clip >= 0, "at least 0")
        self.require("actor_every", self.actor_every >= 1, "at least 1")


class Td3State(eqx.Module):
    """What training on TD3 carries from update to update."""

    critics: tuple[Critic, ...]
    actor: Deterministic
    target_critics: tuple[Critic, ...]
    target_actor: Deterministic
    critic_opt_state: optax.OptState
    actor_opt_state: optax.OptState
    count: Array
    key: UInt32[Array, "2"]


def td3_init(
    config: Td3Config,
    obs_dim: int,
    action_dim: int,
    key: Key[Array, ""],
    *,
    small_ends: bool = False,
    **kind: Any,
) -> Td3State:
    """Fresh networks and optimizers; for `kind` of critic see `Critic`.

    With `small_ends` the first values and actions are near 0.
    """
    critic_key, actor_key, noise_key = jax.random.split(key, 3)
    critics = new_critics(config, obs_dim, action_dim, critic_key, **kind)
    actor = Deterministic(obs_dim, action_dim, config.hidden, actor_key, spread=config.policy_noise)
    if small_ends:
        critics = tuple(
            eqx.tree_at(lambda c: c.net, critic, with_small_end(critic.net, 3e-3))
            for critic in critics
        )
        actor = eqx.tree_at(lambda a: a.net, actor, with_small_end(actor.net, 1e-3))
    return Td3State(
        critics=critics,
        actor=actor,
        target_critics=critics,
        target_actor=actor,
        critic_opt_state=config.optimizer().init(critics),  # pyright: ignore[reportArgumentType]
        actor_opt_state=config.actor_optimizer().init(actor),  # pyright: ignore[reportArgumentType]
        count=jnp.zeros((), jnp.int32),
        key=new_key(noise_key),
    )


def td3_models(state: Td3State) -> Models:
    """The actor and the critics."""
    return Models(actor=state.actor, behavior=None, critics=state.critics, value=None)


def smoothed(
    actor: Deterministic, obs: Float[Array, "b s"], key: Key[Array, ""], config: Td3Config
) -> Float[Array, "b a"]:
    """The actor's actions with clipped noise, so that the target does not trust a sharp peak."""
    mean = actor.mean(obs)
    noise = config.policy_noise * jax.random.normal(key, mean.shape)
    return jnp.clip(mean + jnp.clip(noise, -config.noise_clip, config.noise_clip), -1, 1)


def td3_step(
    state: Td3State,
    words: UInt32[Array, "2"],
    batch: Batch,
    target: Float[Array, " b"],
    actor_loss: Callable[[Deterministic, tuple[Critic, ...]], tuple[Float[Array, ""], Metrics]],
    config: Td3Config,
) -> tuple[Td3State, Metrics]:
    """One step of the critics; of the actor and the targets when it is their turn."""
    critics, critic_opt_state, metrics = descend(
        lambda critics: regression(critics, batch, target),
        state.critics,
        state.critic_opt_state,
        config.optimizer(),
    )

    def step() -> Any:
        actor, opt_state, metrics = descend(
            lambda actor: actor_loss(actor, critics),
            state.actor,
            state.actor_opt_state,
            config.actor_optimizer(),
        )
        # Counted once for each update since the last turn, their mean over updates is right.
        metrics = {name: config.actor_every * value for name, value in metrics.items()}
        target_critics = follow(state.target_critics, critics, config.polyak)
        return (
            actor,
            opt_state,
            target_critics,
            follow(state.target_actor, actor, config.polyak),
            metrics,
        )

    def wait() -> Any:
        no_metrics = jax.tree.map(jnp.zeros_like, jax.eval_shape(step)[-1])
        unchanged = (state.actor, state.actor_opt_state, state.target_critics, state.target_actor)
        return *unchanged, no_metrics

    turn = (state.count + 1) % config.actor_every == 0
    actor, actor_opt_state, target_critics, target_actor, actor_metrics = jax.lax.cond(
        turn, step, wait
    )
    return Td3State(
        critics=critics,
        actor=actor,
        target_critics=target_critics,
        target_actor=target_actor,
        critic_opt_state=critic_opt_state,
        actor_opt_state=actor_opt_state,
        count=state.count + 1,
        key=words,
    ), metrics | actor_metrics
