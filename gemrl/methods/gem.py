"""Guided Expectation-Maximization, Phase I (Algorithm 2 of the paper).

First the behaviour density is fitted by maximum likelihood. Then critics and value learn as in IQL,
while a Gaussian-mixture actor is fitted to the data's actions by EM-style updates whose samples are
weighted by the critics' advantage. Guidance weights samples; it never touches responsibilities.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from gemrl.maths.expectile import guidance_weight
from gemrl.maths.mixture import em_surrogate, gate_entropy, log_joint
from gemrl.methods.bc import fit_likelihood
from gemrl.methods.iql import CriticParams, IqlConfig, critic_losses, init_critics
from gemrl.methods.networks import Critic, MixtureNet
from gemrl.methods.protocol import (
    MAIN,
    Batch,
    Method,
    Metrics,
    Models,
    Phase,
    descend,
    floor_share,
    follow,
)


@dataclass(frozen=True)
class GemConfig(IqlConfig):
    """Settings of GEM's training."""

    components: int = 8
    """Mixture components of the actor and of the behaviour density (K)."""
    gate_entropy: float = 0.01
    """Weight of the entropy bonus on the actor's gates, against early collapse."""
    detach_responsibilities: bool = True
    """Treat responsibilities as constants in the gradient, which makes it EM's M-step."""
    pretrain_steps: int | None = None
    """Updates of the behaviour density before the main phase; by default a tenth of `steps`, and
    at least 10,000. With 0 a frozen density stays unfitted, and support means nothing."""
    freeze_behavior: bool = True
    """Leave the behaviour density as it is after its own phase."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("components", self.components >= 1, "at least 1")
        self.require("gate_entropy", self.gate_entropy >= 0, "at least 0")
        self.require("pretrain_steps", (self.pretrain_steps or 0) >= 0, "at least 0")

    @property
    def behavior_steps(self) -> int:
        """Updates of the behaviour density before the main phase."""
        return max(self.steps // 10, 10_000) if self.pretrain_steps is None else self.pretrain_steps


class GemState(eqx.Module):
    """What training carries from update to update."""

    learner: CriticParams
    targets: tuple[Critic, ...]
    actor: MixtureNet
    opt_state: optax.OptState
    behavior: MixtureNet
    behavior_opt_state: optax.OptState


def init(config: GemConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> GemState:
    """Fresh networks and optimizers."""
    critic_key, actor_key = jax.random.split(key)
    learner = init_critics(config, obs_dim, action_dim, critic_key)
    actor, behavior = (
        MixtureNet(obs_dim, action_dim, config.components, config.hidden, k)
        for k in jax.random.split(actor_key)
    )
    optimizer = config.optimizer()
    return GemState(
        learner=learner,
        targets=learner.critics,
        actor=actor,
        opt_state=optimizer.init((learner, actor)),  # pyright: ignore[reportArgumentType]
        behavior=behavior,
        behavior_opt_state=optimizer.init(behavior),  # pyright: ignore[reportArgumentType]
    )


def actor_loss(
    actor: MixtureNet, advantage: Float[Array, " b"], batch: Batch, config: GemConfig
) -> tuple[Float[Array, ""], Metrics]:
    """E[omega (-sum_k gamma_k u_k)] - alpha E[H(w)]  (Eq. 44, Eq. 71)."""
    mixture = actor(batch.obs)
    joint = log_joint(mixture, batch.action)
    weight = guidance_weight(advantage, config.beta, config.weight_cap)
    surrogate = em_surrogate(joint, detach=config.detach_responsibilities)
    entropy = jnp.mean(gate_entropy(mixture.log_weights))
    loss = -jnp.mean(weight * surrogate) - config.gate_entropy * entropy
    return loss, {
        "actor/loss": loss,
        "actor/nll": -jnp.mean(jax.nn.logsumexp(joint, axis=-1)),
        "actor/gate_entropy": entropy,
        "actor/weight": jnp.mean(weight),
        "actor/weight_clipped": jnp.mean(weight >= config.weight_cap),
    }


def update_behavior(state: GemState, batch: Batch, config: GemConfig) -> tuple[GemState, Metrics]:
    """One maximum-likelihood step of the behaviour density."""
    behavior, opt_state, metrics = fit_likelihood(
        state.behavior, state.behavior_opt_state, batch, config, "behavior"
    )
    where = lambda s: (s.behavior, s.behavior_opt_state)  # noqa: E731
    return eqx.tree_at(where, state, (behavior, opt_state)), metrics


def update(state: GemState, batch: Batch, config: GemConfig) -> tuple[GemState, Metrics]:
    """One joint gradient step on critics, value and actor."""

    def loss(params: tuple[CriticParams, MixtureNet]) -> tuple[Float[Array, ""], Metrics]:
        learner, actor = params
        critic_loss, advantage, metrics = critic_losses(learner, state.targets, batch, config)
        guided_loss, actor_metrics = actor_loss(actor, advantage, batch, config)
        return critic_loss + guided_loss, metrics | actor_metrics

    (learner, actor), opt_state, metrics = descend(
        loss, (state.learner, state.actor), state.opt_state, config.optimizer()
    )
    actor = actor.clamped(config.log_std_min, config.log_std_max)
    metrics["actor/log_std_at_floor"] = floor_share(actor, config)
    state = GemState(
        learner=learner,
        targets=follow(state.targets, learner.critics, config.polyak),
        actor=actor,
        opt_state=opt_state,
        behavior=state.behavior,
        behavior_opt_state=state.behavior_opt_state,
    )
    if config.freeze_behavior:
        return state, metrics
    state, behavior_metrics = update_behavior(state, batch, config)
    return state, metrics | behavior_metrics


def phases(config: GemConfig) -> tuple[Phase, ...]:
    """The behaviour density first, then everything else."""
    return (
        Phase("behavior", config.behavior_steps, update_behavior),
        Phase(MAIN, config.steps, update),
    )


def models(state: GemState) -> Models:
    """A multimodal proposal, the critics and an independent density."""
    return Models(
        actor=state.actor,
        behavior=state.behavior,
        critics=state.learner.critics,
        value=state.learner.value,
    )


METHOD = Method("gem", GemConfig, init, phases, models)
