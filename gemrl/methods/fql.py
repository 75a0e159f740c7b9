"""FQL: a one-step policy that climbs the critic and stays near a flow model of the data.

Park, Li and Levine, Flow Q-Learning, 2025 (arXiv:2502.02538). A behaviour flow is trained by flow
matching alone. A network of the observation and the noise is distilled from where the flow takes
the same noise, with -Q added: alpha |pi(s, z) - flow(s, z)|^2 - Q(s, pi(s, z)). No gradient passes
through the flow's steps. As in the authors' code: GELU networks, layer-normalized critics, targets
from the mean of the critics (a setting: their minimum), the policy's Q from their mean, actions
clipped where the critic sees them but not where they are distilled.

The published settings are of AntMaze, there without normalizing Q. The paper has no locomotion: its
alphas are those with which Flow Actor-Critic (Chae et al., ICLR 2026) runs FQL beside itself, for
rewards as they are; expert data take those of medium-expert. Nobody publishes Maze2D's. The authors
recommend dividing by |Q| for new tasks, so that alpha does not depend on the reward's scale; that
is the default here, with alpha from within the range they name. The paper's networks have four
layers of 512 units (`hidden`), and it does not scale observations.
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
)
from gemrl.methods.generative import Flow, OneStep, flow_loss, plain_field
from gemrl.methods.networks import Critic
from gemrl.methods.protocol import (
    Batch,
    Method,
    Metrics,
    Models,
    descend,
    follow,
    one_phase,
)


@dataclass(frozen=True)
class FqlConfig(ActorCriticConfig):
    """Settings of flow Q-learning."""

    alpha: float = 1.0
    """How much the flow's actions count against the critic."""
    normalize_q: bool = True
    """Divide Q by its mean size in the policy's loss."""
    pessimistic: bool = False
    """Targets from the critics' minimum instead of their mean."""
    flow_steps: int = 10
    """Euler steps of the behaviour flow."""

    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "antmaze": {"alpha": 10.0, "normalize_q": False},
        "antmaze-large": {"alpha": 3.0, "normalize_q": False},
        "halfcheetah": {"alpha": 30.0, "normalize_q": False},
        "halfcheetah-medium-v": {"alpha": 3.0, "normalize_q": False},
        "hopper": {"alpha": 100.0, "normalize_q": False},
        "walker2d": {"alpha": 300.0, "normalize_q": False},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("alpha", self.alpha >= 0, "at least 0")
        self.require("flow_steps", self.flow_steps >= 1, "at least 1")


class Policies(eqx.Module):
    """The behaviour flow and the policy that is distilled from it."""

    flow: Flow
    one_step: OneStep


class FqlState(eqx.Module):
    """What training carries from update to update."""

    critics: tuple[Critic, ...]
    target_critics: tuple[Critic, ...]
    policies: Policies
    critic_opt_state: optax.OptState
    policy_opt_state: optax.OptState
    key: UInt32[Array, "2"]


def init(config: FqlConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> FqlState:
    """Fresh networks and optimizers."""
    critic_key, flow_key, one_step_key, noise_key = jax.random.split(key, 4)
    critics = new_critics(config, obs_dim, action_dim, critic_key, activation="gelu", normed=True)
    sizes = (obs_dim, action_dim, config.hidden)
    policies = Policies(
        Flow(plain_field(*sizes, flow_key, activation="gelu", times=1), config.flow_steps),
        OneStep(plain_field(*sizes, one_step_key, activation="gelu")),
    )
    optimizer = config.optimizer()
    return FqlState(
        critics=critics,
        target_critics=critics,
        policies=policies,
        critic_opt_state=optimizer.init(critics),  # pyright: ignore[reportArgumentType]
        policy_opt_state=optimizer.init(policies),  # pyright: ignore[reportArgumentType]
        key=new_key(noise_key),
    )


def backup(
    state: FqlState, batch: Batch, key: Key[Array, ""], config: FqlConfig
) -> Float[Array, " b"]:
    """The critics' target, by an action that the policy draws at the next state."""
    noise = jax.random.normal(key, batch.action.shape)
    action = state.policies.one_step(batch.next_obs, noise)
    next_q = values(state.target_critics, batch.next_obs, action)
    aggregate = jnp.min if config.pessimistic else jnp.mean
    return bootstrap(batch, aggregate(next_q, axis=0), config)


def policy_loss(
    policies: Policies,
    critics: tuple[Critic, ...],
    batch: Batch,
    key: Key[Array, ""],
    config: FqlConfig,
) -> tuple[Float[Array, ""], Metrics]:
    """Flow matching, alpha times the distance from the flow's own action, and -Q."""
    flow_key, noise_key = jax.random.split(key)
    matching = flow_loss(policies.flow, batch, flow_key)

    noise = jax.random.normal(noise_key, batch.action.shape)
    taught = jax.lax.stop_gradient(policies.flow(batch.obs, noise))
    action = policies.one_step.net(batch.obs, noise)
    distance = jnp.mean((action - taught) ** 2)

    q = jnp.mean(values(critics, batch.obs, jnp.clip(action, -1, 1)), axis=0)
    size = jax.lax.stop_gradient(jnp.mean(jnp.abs(q))) if config.normalize_q else 1.0
    loss = matching + config.alpha * distance - jnp.mean(q) / size
    return loss, {"actor/loss": loss, "actor/flow": matching, "actor/distance": distance}


def update(state: FqlState, batch: Batch, config: FqlConfig) -> tuple[FqlState, Metrics]:
    """One step of critics, flow and policy, all from the parameters before it."""
    words, key = next_key(state.key)
    backup_key, policy_key = jax.random.split(key)
    target = backup(state, batch, backup_key, config)
    optimizer = config.optimizer()
    critics, critic_opt_state, metrics = descend(
        lambda critics: regression(critics, batch, target),
        state.critics,
        state.critic_opt_state,
        optimizer,
    )
    policies, policy_opt_state, policy_metrics = descend(
        lambda policies: policy_loss(policies, state.critics, batch, policy_key, config),
        state.policies,
        state.policy_opt_state,
        optimizer,
    )
    return FqlState(
        critics=critics,
        target_critics=follow(state.target_critics, critics, config.polyak),
        policies=policies,
        critic_opt_state=critic_opt_state,
        policy_opt_state=policy_opt_state,
        key=words,
    ), metrics | policy_metrics


phases = one_phase(update)


def models(state: FqlState) -> Models:
    """The one-step policy and the critics."""
    return Models(actor=state.policies.one_step, behavior=None, critics=state.critics, value=None)


METHOD = Method(
    "fql",
    FqlConfig,
    init,
    phases,
    models,
    deploy={"n": 1, "wp": 0.0, "anchor": "none"},
    scaled_rewards=False,
)
