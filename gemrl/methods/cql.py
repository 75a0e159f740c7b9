"""CQL: soft actor-critic whose critics are pushed down where the data has no actions.

Kumar, Zhou, Tucker and Levine, Conservative Q-Learning for Offline Reinforcement Learning, 2020
(arXiv:2006.04779). This is CQL(H): each critic's loss has weight * (log-sum-exp of Q over actions -
Q of the data's action). The log-sum-exp is estimated from uniform actions and from the actor's
actions at this state and at the next, all valued at this state and weighted by one over the density
that they were drawn from. With `lagrange` a multiplier holds that gap at `target_gap`.

Rates, gap, weight and AntMaze's rewards are those of the paper's code. It names weights of 5 and 10
for locomotion, beside rewards as they are; CORL has 10, which is taken. Maze2D is CORL's setting,
since neither paper nor code has one; its actor's rate of 3e-5 is meant for a million updates, and
1e-4 serves here too. The paper's code clones the data with the actor for its first 40,000 updates
and says that it makes no difference: it is left out. It has three hidden layers: set `hidden` for
those. CORL's AntMaze differs from it: a gap of 4, rewards 10 r - 5, five hidden layers
in the critics and the best of ten next actions, which is `max_q_backup`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from gemrl.methods.actor_critic import (
    BACKUP_ACTIONS,
    TunedByTaskConfig,
    bootstrap,
    next_key,
    regression,
    values,
)
from gemrl.methods.networks import Critic
from gemrl.methods.protocol import (
    ANCHOR_ALONE,
    Batch,
    Method,
    Metrics,
    Models,
    descend,
    one_phase,
)
from gemrl.methods.sac import SoftConfig, SoftState, sampled, soft_init, soft_step
from gemrl.methods.samplers import TanhGaussian

LARGEST_MULTIPLIER = 1e6


@dataclass(frozen=True)
class CqlConfig(SoftConfig, TunedByTaskConfig):
    """Settings of CQL."""

    actor_learning_rate: float = 1e-4
    """Adam's step size for the actor; `learning_rate` is the critics'."""
    weight: float = 5.0
    """How much the gap between all actions and the data's counts."""
    samples: int = 10
    """Actions of each of the three kinds that estimate the log-sum-exp at a state."""
    lagrange: bool = False
    """Whether a multiplier holds the weighted gap at `target_gap`."""
    target_gap: float = 5.0
    """The weighted gap that the multiplier aims at; unused without `lagrange`."""
    max_q_backup: bool = False
    """Whether targets take the best of ten of the actor's next actions instead of one."""

    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # CORL aims at a gap of 5 before it is weighted.
        "maze2d": {"weight": 10.0, "lagrange": True, "target_gap": 50.0},
        # The paper's rewards are 4 (r - 0.5); the task's are r - 1.
        "antmaze": {
            "weight": 5.0,
            "lagrange": True,
            "target_gap": 5.0,
            "reward_shift": 0.5,
            "reward_scale": 4.0,
        },
        "halfcheetah": {"weight": 10.0},
        "hopper": {"weight": 10.0},
        "walker2d": {"weight": 10.0},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("weight", self.weight >= 0, "at least 0")
        self.require("samples", self.samples >= 1, "at least 1")


class CqlState(eqx.Module):
    """What training carries from update to update."""

    soft: SoftState
    log_multiplier: Float[Array, ""]
    multiplier_opt_state: optax.OptState


def init(config: CqlConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> CqlState:
    """Fresh networks and optimizers, and a multiplier of 1."""
    log_multiplier = jnp.zeros(())
    return CqlState(
        soft=soft_init(config, obs_dim, action_dim, key),
        log_multiplier=log_multiplier,
        multiplier_opt_state=config.optimizer().init(log_multiplier),
    )


def backup(
    soft: SoftState, batch: Batch, key: Key[Array, ""], config: CqlConfig
) -> Float[Array, " b"]:
    """Targets: the lowest next value of the actor's action, or of the best of several.

    Entropy is left out, as published.
    """
    count = BACKUP_ACTIONS if config.max_q_backup else 1
    actions, _ = sampled(soft.actor, batch.next_obs, key, count)
    lowest = jnp.min(values(soft.targets, batch.next_obs[:, None], actions), axis=0)
    return bootstrap(batch, jnp.max(lowest, axis=-1), config)


def drawn_actions(
    actor: TanhGaussian, batch: Batch, key: Key[Array, ""], config: CqlConfig
) -> tuple[Float[Array, "b n a"], Float[Array, "b n"]]:
    """Actions that the log-sum-exp is estimated from, with their log densities; no gradient."""
    uniform_key, here_key, there_key = jax.random.split(key, 3)
    rows, action_dim = batch.action.shape
    shape = (rows, config.samples, action_dim)
    uniform = jax.random.uniform(uniform_key, shape, minval=-1, maxval=1)
    density = jnp.full(shape[:-1], -action_dim * math.log(2))
    here, here_density = sampled(actor, batch.obs, here_key, config.samples)
    there, there_density = sampled(actor, batch.next_obs, there_key, config.samples)
    drawn = (
        jnp.concatenate([uniform, here, there], axis=1),
        jnp.concatenate([density, here_density, there_density], axis=1),
    )
    return jax.lax.stop_gradient(drawn)


def conservative_gap(
    critics: tuple[Critic, ...],
    batch: Batch,
    actions: Float[Array, "b n a"],
    log_density: Float[Array, "b n"],
) -> Float[Array, " m"]:
    """Each critic's mean of log sum exp(Q - log density) over drawn actions, minus Q of the data.

    The sum is not divided by the number of actions, as in the paper's code: only the multiplier can
    tell.
    """
    over_actions = values(critics, batch.obs[:, None], actions) - log_density
    of_data = values(critics, batch.obs, batch.action)
    return jnp.mean(jax.nn.logsumexp(over_actions, axis=-1) - of_data, axis=-1)


def critic_loss(
    critics: tuple[Critic, ...],
    batch: Batch,
    target: Float[Array, " b"],
    drawn: tuple[Float[Array, "b n a"], Float[Array, "b n"]],
    multiplier: Float[Array, ""] | float,
    config: CqlConfig,
) -> tuple[Float[Array, ""], Metrics]:
    """Squared Bellman error and the weighted gap, summed over critics."""
    error, metrics = regression(critics, batch, target)
    gap = config.weight * conservative_gap(critics, batch, *drawn)
    return error + multiplier * jnp.sum(gap), metrics | {"critic/gap": jnp.mean(gap)}


def multiplier_of(log_multiplier: Float[Array, ""]) -> Float[Array, ""]:
    """The multiplier, bounded as in the paper's code."""
    return jnp.minimum(jnp.exp(log_multiplier), LARGEST_MULTIPLIER)


def multiplier_loss(
    log_multiplier: Float[Array, ""], gap: Float[Array, ""], config: CqlConfig
) -> tuple[Float[Array, ""], Metrics]:
    """It rises while the weighted gap, a mean over critics, is above its target."""
    multiplier = multiplier_of(log_multiplier)
    return -multiplier * (gap - config.target_gap), {"critic/multiplier": multiplier}


def update(state: CqlState, batch: Batch, config: CqlConfig) -> tuple[CqlState, Metrics]:
    """One step of critics, actor, temperature and, where there is one, the multiplier."""
    soft, batch = state.soft, config.rewarded(batch)
    words, key = next_key(soft.key)
    backup_key, drawn_key, actor_key = jax.random.split(key, 3)
    target = backup(soft, batch, backup_key, config)
    drawn = drawn_actions(soft.actor, batch, drawn_key, config)
    multiplier = multiplier_of(state.log_multiplier) if config.lagrange else 1.0
    soft, metrics = soft_step(
        soft,
        batch,
        lambda critics: critic_loss(critics, batch, target, drawn, multiplier, config),
        words,
        actor_key,
        config,
    )
    if not config.lagrange:
        return CqlState(soft, state.log_multiplier, state.multiplier_opt_state), metrics
    log_multiplier, multiplier_opt_state, multiplier_metrics = descend(
        lambda log: multiplier_loss(log, metrics["critic/gap"], config),
        state.log_multiplier,
        state.multiplier_opt_state,
        config.optimizer(),
    )
    return CqlState(soft, log_multiplier, multiplier_opt_state), metrics | multiplier_metrics


phases = one_phase(update)


def models(state: CqlState) -> Models:
    """The actor and the critics."""
    return Models(actor=state.soft.actor, behavior=None, critics=state.soft.critics, value=None)


METHOD = Method(
    "cql",
    CqlConfig,
    init,
    phases,
    models,
    deploy=ANCHOR_ALONE,
    scaled_rewards=False,
    heavy=True,
)
