"""AWAC: regression on the data's actions, weighted by what the critics say they gain.

Nair, Gupta, Dalal and Levine, AWAC: Accelerating Online Reinforcement Learning with Offline
Datasets, 2020 (arXiv:2006.09359). Twin critics bootstrap on the actor's own next actions; the actor
is a Gaussian with state-independent spread, fitted with weights exp(A / lambda), where A is Q of
the data's action minus Q of one of the actor's.

The paper's code divides the weights by their sum over the minibatch; here, as in CORL, they are
capped instead, and as there locomotion's rewards are as they are, beside which its lambda stands.
The paper's code gives the actor four hidden layers and decayed weights, has minibatches of 1,024,
and trains critics and actor apart at first; CORL has three hidden layers. Here sizes are those of
all methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

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
    weighted_regression,
)
from gemrl.methods.networks import Critic, MixtureNet
from gemrl.methods.protocol import (
    ANCHOR_ALONE,
    Batch,
    GaussianConfig,
    Method,
    Metrics,
    Models,
    descend,
    floor_share,
    follow,
    one_phase,
)


@dataclass(frozen=True)
class AwacConfig(ActorCriticConfig, GaussianConfig):
    """Settings of AWAC."""

    log_std_min: float = -6.0
    """Floor of the actor's log standard deviation."""
    temperature: float = 1 / 3
    """Lambda, by which advantages are divided: small trusts the critics, large clones the data."""
    weight_cap: float = 100.0
    """Upper bound of the advantage weight."""

    # CORL's figures. The paper's code has lambda 2 for its three locomotion tasks.
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "maze2d": {"temperature": 0.1},
        "antmaze": {"temperature": 0.1},
        "halfcheetah": {"temperature": 1 / 3},
        "hopper": {"temperature": 1 / 3},
        "walker2d": {"temperature": 1 / 3},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("temperature", self.temperature > 0, "above 0")
        self.require("weight_cap", self.weight_cap > 0, "above 0")


class AwacState(eqx.Module):
    """What training carries from update to update."""

    critics: tuple[Critic, ...]
    targets: tuple[Critic, ...]
    actor: MixtureNet
    critic_opt_state: optax.OptState
    actor_opt_state: optax.OptState
    key: UInt32[Array, "2"]


def init(config: AwacConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> AwacState:
    """Fresh networks and optimizers."""
    critic_key, actor_key, noise_key = jax.random.split(key, 3)
    critics = new_critics(config, obs_dim, action_dim, critic_key)
    actor = MixtureNet(obs_dim, action_dim, 1, config.hidden, actor_key)
    return AwacState(
        critics=critics,
        targets=critics,
        actor=actor,
        critic_opt_state=config.optimizer().init(critics),  # pyright: ignore[reportArgumentType]
        actor_opt_state=config.actor_optimizer().init(actor),  # pyright: ignore[reportArgumentType]
        key=new_key(noise_key),
    )


def value_of_actor(
    actor: MixtureNet,
    critics: tuple[Critic, ...],
    obs: Float[Array, "b s"],
    key: Key[Array, ""],
) -> Float[Array, " b"]:
    """The lowest critic's value of one action of the actor, clipped to the bounds."""
    mixture = actor(obs)
    mean, std = mixture.means[..., 0, :], mixture.stds[..., 0, :]
    action = jnp.clip(mean + std * jax.random.normal(key, mean.shape), -1, 1)
    return jnp.min(values(critics, obs, action), axis=0)


def update(state: AwacState, batch: Batch, config: AwacConfig) -> tuple[AwacState, Metrics]:
    """One step of the critics, then one of the actor on what they say now."""
    words, key = next_key(state.key)
    next_action_key, action_key = jax.random.split(key)
    next_q = value_of_actor(state.actor, state.targets, batch.next_obs, next_action_key)
    target = bootstrap(batch, next_q, config)
    critics, critic_opt_state, metrics = descend(
        lambda critics: regression(critics, batch, target),
        state.critics,
        state.critic_opt_state,
        config.optimizer(),
    )
    advantage = jnp.min(values(critics, batch.obs, batch.action), axis=0) - value_of_actor(
        state.actor, critics, batch.obs, action_key
    )
    actor, actor_opt_state, actor_metrics = descend(
        lambda actor: weighted_regression(
            actor, advantage, batch, 1 / config.temperature, config.weight_cap
        ),
        state.actor,
        state.actor_opt_state,
        config.actor_optimizer(),
    )
    actor = actor.clamped(config.log_std_min, config.log_std_max)
    actor_metrics["actor/log_std_at_floor"] = floor_share(actor, config)
    return AwacState(
        critics=critics,
        targets=follow(state.targets, critics, config.polyak),
        actor=actor,
        critic_opt_state=critic_opt_state,
        actor_opt_state=actor_opt_state,
        key=words,
    ), metrics | actor_metrics


phases = one_phase(update)


def models(state: AwacState) -> Models:
    """A unimodal proposal and the critics."""
    return Models(actor=state.actor, behavior=None, critics=state.critics, value=None)


METHOD = Method(
    "awac",
    AwacConfig,
    init,
    phases,
    models,
    deploy=ANCHOR_ALONE,
    scaled_rewards=False,
)
