"""SAC-N: soft actor-critic whose target is the lowest of N critics.

An, Moon, Kim and Song, Uncertainty-Based Offline Reinforcement Learning with Diversified
Q-Ensemble, 2021 (arXiv:2110.01548). Nothing holds the actor to the data but pessimism: where few
critics have seen data they disagree, and their minimum is low. So N decides the score.

Published N: 10 for HalfCheetah; for Hopper 500 on medium, 200 on medium-replay and medium-expert;
20 for Walker2d (100 on expert, and 500 for Hopper's, are not verified). Maze2D and AntMaze are not
in the paper; CORL has 25, and in AntMaze rewards of 0 and 1, which here are -1 and 0. Here N is 10
throughout, which two cores can train: give `critics` for more. The paper has three hidden layers of
256: set `hidden` for those.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from gemrl.methods.actor_critic import bootstrap, next_key, regression, values
from gemrl.methods.protocol import (
    ANCHOR_ALONE,
    Batch,
    Method,
    Metrics,
    Models,
    one_phase,
)
from gemrl.methods.sac import SoftConfig, SoftState, sampled, soft_init, soft_step


@dataclass(frozen=True)
class SacNConfig(SoftConfig):
    """Settings of SAC-N."""

    critics: int = 10
    """Critics in the ensemble (N)."""

    steadier: ClassVar[str] = "more --critics or a lower --learning-rate"


def target_of(
    state: SoftState, batch: Batch, key: Key[Array, ""], config: SoftConfig
) -> Float[Array, " b"]:
    """The reward and the discounted lowest next value with its entropy."""
    action, log_prob = sampled(state.actor, batch.next_obs, key)
    lowest = jnp.min(values(state.targets, batch.next_obs, action), axis=0)
    return bootstrap(batch, lowest - jnp.exp(state.log_temperature) * log_prob, config)


def step(
    state: SoftState,
    batch: Batch,
    config: SacNConfig,
    critic_loss: Callable[..., tuple[Float[Array, ""], Metrics]],
) -> tuple[SoftState, Metrics]:
    """One step of critics, by `critic_loss(critics, batch, target)`, actor and temperature."""
    words, key = next_key(state.key)
    backup_key, actor_key = jax.random.split(key)
    target = target_of(state, batch, backup_key, config)
    return soft_step(
        state,
        batch,
        lambda critics: critic_loss(critics, batch, target),
        words,
        actor_key,
        config,
    )


def update(state: SoftState, batch: Batch, config: SacNConfig) -> tuple[SoftState, Metrics]:
    """One step of every critic towards the same target, of the actor and of the temperature."""
    return step(state, batch, config, regression)


phases = one_phase(update)


def models(state: SoftState) -> Models:
    """The actor and the critics."""
    return Models(actor=state.actor, behavior=None, critics=state.critics, value=None)


METHOD = Method(
    "sacn",
    SacNConfig,
    soft_init,
    phases,
    models,
    deploy=ANCHOR_ALONE,
    scaled_rewards=False,
    heavy=True,
)
