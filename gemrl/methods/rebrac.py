"""ReBRAC: TD3 with a behaviour penalty in the actor's loss and another in the critics' target.

Tarasov, Kurenkov, Nikulin and Kolesnikov, Revisiting the Minimalist Approach to Offline
Reinforcement Learning, 2023 (arXiv:2305.09836). The actor minimizes actor_beta |pi(s) - a|^2 -
Q / E|Q|; the target takes critic_beta |a' - data's next action|^2 off the next value. Critics have
layer normalization, the actor none, and all have three hidden layers.

The betas are those of the paper's code, file by file; Maze2D's are CORL's, by the same authors.
Rewards are as there: locomotion's as they are, AntMaze's 100 r. So are last layers, which begin
small: while values are near 0, their division by E|Q| would drive an actor to its bounds. The code
leaves observations unscaled; here they are as for all methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from gemrl.methods.actor_critic import TunedByTaskConfig, bootstrap, next_key, values
from gemrl.methods.networks import Critic
from gemrl.methods.protocol import ANCHOR_ALONE, Batch, Method, Metrics, one_phase
from gemrl.methods.samplers import Deterministic
from gemrl.methods.td3 import Td3Config, Td3State, smoothed, td3_init, td3_models, td3_step


def _betas(actor: float, critic: float, **others: float) -> dict[str, float]:
    return {"actor_beta": actor, "critic_beta": critic, **others}


def _antmaze(actor: float, critic: float) -> dict[str, float]:
    """A slow critic and a long view; the task's rewards are r - 1, the paper's 100 r."""
    return _betas(
        actor,
        critic,
        learning_rate=5e-5,
        actor_learning_rate=3e-4,
        discount=0.999,
        reward_shift=1.0,
        reward_scale=100.0,
    )


@dataclass(frozen=True)
class RebracConfig(Td3Config, TunedByTaskConfig):
    """Settings of ReBRAC. Published batches are of 1,024 for locomotion, 256 for mazes."""

    learning_rate: float = 1e-3
    """Adam's step size for the critics."""
    actor_learning_rate: float = 1e-3
    """Adam's step size for the actor."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Width of each hidden layer."""
    actor_beta: float = 0.01
    """Weight of the squared distance to the data's action in the actor's loss."""
    critic_beta: float = 0.01
    """Weight of the squared distance to the data's next action in the critics' target."""
    critic_norms: bool = True
    """Layer normalization in the critics; the paper's own ablation is without."""

    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "maze2d": _betas(0.003, 0.001, learning_rate=3e-4, actor_learning_rate=3e-4),
        "antmaze-umaze-v": _antmaze(0.003, 0.002),
        "antmaze-umaze-diverse": _antmaze(0.003, 0.001),
        "antmaze-medium-play": _antmaze(0.001, 0.0005),
        "antmaze-medium-diverse": _antmaze(0.001, 0.0),
        "antmaze-large-play": _antmaze(0.002, 0.001),
        "antmaze-large-diverse": _antmaze(0.002, 0.002),
        "halfcheetah-medium-v": _betas(0.001, 0.01),
        "halfcheetah-medium-replay": _betas(0.01, 0.001),
        "halfcheetah-medium-expert": _betas(0.01, 0.1),
        "halfcheetah-expert": _betas(0.01, 0.01),
        "hopper-medium-v": _betas(0.01, 0.01),
        "hopper-medium-replay": _betas(0.05, 0.5),
        "hopper-medium-expert": _betas(0.1, 0.01),
        "hopper-expert": _betas(0.1, 0.1),
        "walker2d-medium-v": _betas(0.05, 0.1),
        "walker2d-medium-replay": _betas(0.05, 0.01),
        "walker2d-medium-expert": _betas(0.01, 0.01),
        "walker2d-expert": _betas(0.01, 0.5),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("actor_beta", self.actor_beta >= 0, "at least 0")
        self.require("critic_beta", self.critic_beta >= 0, "at least 0")


def init(config: RebracConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> Td3State:
    """Fresh networks and optimizers."""
    return td3_init(config, obs_dim, action_dim, key, small_ends=True, normed=config.critic_norms)


def distance(action: Float[Array, "b a"], other: Float[Array, "b a"]) -> Float[Array, " b"]:
    """Squared distance, summed over the action's dimensions."""
    return jnp.sum((action - other) ** 2, axis=-1)


def target_of(
    state: Td3State, batch: Batch, key: Key[Array, ""], config: RebracConfig
) -> Float[Array, " b"]:
    """The reward and the discounted next value, less the penalty for leaving the data there."""
    assert batch.next_action is not None  # The method asks for it.
    action = smoothed(state.target_actor, batch.next_obs, key, config)
    next_q = jnp.min(values(state.target_critics, batch.next_obs, action), axis=0)
    penalty = config.critic_beta * distance(action, batch.next_action)
    return bootstrap(batch, next_q - penalty, config)


def actor_loss(
    actor: Deterministic, critics: tuple[Critic, ...], batch: Batch, config: RebracConfig
) -> tuple[Float[Array, ""], Metrics]:
    """Distance to the data less the lowest critic's value, which is brought to a mean size of 1."""
    action = actor.mean(batch.obs)
    q = jnp.min(values(critics, batch.obs, action), axis=0)
    size = jax.lax.stop_gradient(jnp.mean(jnp.abs(q)))
    away = jnp.mean(distance(action, batch.action))
    loss = config.actor_beta * away - jnp.mean(q) / size
    return loss, {"actor/loss": loss, "actor/distance": away}


def update(state: Td3State, batch: Batch, config: RebracConfig) -> tuple[Td3State, Metrics]:
    """One step of TD3 with both penalties."""
    batch = config.rewarded(batch)
    words, key = next_key(state.key)
    return td3_step(
        state,
        words,
        batch,
        target_of(state, batch, key, config),
        lambda actor, critics: actor_loss(actor, critics, batch, config),
        config,
    )


phases = one_phase(update)


METHOD = Method(
    "rebrac",
    RebracConfig,
    init,
    phases,
    td3_models,
    deploy=ANCHOR_ALONE,
    next_actions=True,
    scaled_rewards=False,
)
