"""TD3+BC: a deterministic actor that climbs the critic and stays near the data's actions.

Fujimoto and Gu, A Minimalist Approach to Offline Reinforcement Learning, 2021 (arXiv:2106.06860).
Twin critics, target smoothing and an actor that is updated every other time, as in TD3; the actor's
loss is -lambda Q(s, pi(s)) + (pi(s) - a)^2 with lambda = alpha / E|Q|.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from gemrl.methods.actor_critic import bootstrap, next_key, values
from gemrl.methods.networks import Critic
from gemrl.methods.protocol import ANCHOR_ALONE, Batch, Method, Metrics, one_phase
from gemrl.methods.samplers import Deterministic
from gemrl.methods.td3 import Td3Config, Td3State, smoothed, td3_init, td3_models, td3_step


@dataclass(frozen=True)
class Td3BcConfig(Td3Config):
    """Settings of TD3+BC."""

    alpha: float = 2.5
    """How much the critic counts against the data's actions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("alpha", self.alpha > 0, "above 0")


def init(config: Td3BcConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> Td3State:
    """Fresh networks and optimizers."""
    return td3_init(config, obs_dim, action_dim, key)


def twin_target(
    state: Td3State, batch: Batch, key: Key[Array, ""], config: Td3Config
) -> Float[Array, " b"]:
    """The bootstrap of the smaller target critic at a smoothed action."""
    next_action = smoothed(state.target_actor, batch.next_obs, key, config)
    next_q = jnp.min(values(state.target_critics, batch.next_obs, next_action), axis=0)
    return bootstrap(batch, next_q, config)


def climb(
    critics: tuple[Critic, ...], obs: Float[Array, "b s"], action: Float[Array, "b a"]
) -> Float[Array, ""]:
    """-Q / E|Q|, by the first critic: rewards of any scale weigh the same."""
    q = values(critics[:1], obs, action)[0]
    return -jnp.mean(q) / jax.lax.stop_gradient(jnp.mean(jnp.abs(q)))


def actor_loss(
    actor: Deterministic, critics: tuple[Critic, ...], batch: Batch, config: Td3BcConfig
) -> tuple[Float[Array, ""], Metrics]:
    """-lambda Q + (pi - a)^2."""
    action = actor.mean(batch.obs)
    distance = jnp.mean((action - batch.action) ** 2)
    loss = config.alpha * climb(critics, batch.obs, action) + distance
    return loss, {"actor/loss": loss, "actor/distance": distance}


def update(state: Td3State, batch: Batch, config: Td3BcConfig) -> tuple[Td3State, Metrics]:
    """One step of the critics; of the actor and the targets when it is their turn."""
    words, key = next_key(state.key)
    return td3_step(
        state,
        words,
        batch,
        twin_target(state, batch, key, config),
        lambda actor, critics: actor_loss(actor, critics, batch, config),
        config,
    )


phases = one_phase(update)


METHOD = Method("td3bc", Td3BcConfig, init, phases, td3_models, deploy=ANCHOR_ALONE)
