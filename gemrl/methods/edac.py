"""EDAC: SAC-N with critics whose slopes in the action are pushed apart, so that fewer serve.

An, Moon, Kim and Song, Uncertainty-Based Offline Reinforcement Learning with Diversified
Q-Ensemble, 2021 (arXiv:2110.01548). The critics' loss has eta times the cosine between the action
gradients of two critics at the data, summed over pairs and divided by N - 1.

Published N: 10 for HalfCheetah and Walker2d, 50 for Hopper; here 10 throughout, which two cores can
train: give `critics` for more. Locomotion's rewards are as they are, beside which eta stands. For
expert data eta is not verified. Maze2D and AntMaze are not in the paper; their eta is CORL's, whose
rewards in AntMaze are 0 and 1 where they are -1 and 0 here.
The paper has three hidden layers of 256: set `hidden` for those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gemrl.methods.actor_critic import regression
from gemrl.methods.networks import Critic
from gemrl.methods.protocol import ANCHOR_ALONE, Batch, Method, Metrics, one_phase
from gemrl.methods.sac import SoftState, soft_init
from gemrl.methods.sacn import SacNConfig, models, step


@dataclass(frozen=True)
class EdacConfig(SacNConfig):
    """Settings of EDAC."""

    eta: float = 1.0
    """Weight of the likeness of the critics' slopes."""

    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "maze2d": {"eta": 0.1},
        "antmaze": {"eta": 1.0},
        "halfcheetah": {"eta": 1.0},
        "halfcheetah-medium-expert": {"eta": 5.0},
        "hopper": {"eta": 1.0},
        "walker2d": {"eta": 1.0},
        "walker2d-medium-expert": {"eta": 5.0},
        "walker2d-expert": {"eta": 5.0},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("critics", self.critics >= 2, "at least 2")
        self.require("eta", self.eta >= 0, "at least 0")


def likeness(critics: tuple[Critic, ...], batch: Batch) -> Float[Array, ""]:
    """Cosine of two critics' slopes in the action, summed over ordered pairs, over N - 1."""

    def direction(critic: Critic) -> Float[Array, "b a"]:
        slope = jax.grad(lambda action: jnp.sum(critic(batch.obs, action)))(batch.action)
        # The small number keeps a slope of zero, which has no direction, from giving NaN.
        return slope * jax.lax.rsqrt(jnp.sum(slope**2, axis=-1, keepdims=True) + 1e-12)

    directions = jnp.stack([direction(critic) for critic in critics])
    # All pairs without those of a critic with itself, in one sum instead of N^2.
    pairs = jnp.sum(jnp.sum(directions, axis=0) ** 2, axis=-1) - jnp.sum(directions**2, axis=(0, 2))
    return jnp.mean(pairs) / (len(critics) - 1)


def critic_loss(
    critics: tuple[Critic, ...], batch: Batch, target: Float[Array, " b"], config: EdacConfig
) -> tuple[Float[Array, ""], Metrics]:
    """Squared error of every critic, and how alike their slopes are."""
    error, metrics = regression(critics, batch, target)
    alike = likeness(critics, batch)
    return error + config.eta * alike, metrics | {"critic/likeness": alike}


def update(state: SoftState, batch: Batch, config: EdacConfig) -> tuple[SoftState, Metrics]:
    """SAC-N's step with critics whose slopes are pushed apart."""
    return step(state, batch, config, partial(critic_loss, config=config))


phases = one_phase(update)


METHOD = Method(
    "edac",
    EdacConfig,
    soft_init,
    phases,
    models,
    deploy=ANCHOR_ALONE,
    scaled_rewards=False,
    heavy=True,
)
