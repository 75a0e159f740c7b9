"""Behaviour cloning: a mixture fitted to the data's actions by maximum likelihood.

With one component it is the usual unimodal Gaussian clone, on the same trunk as the other methods.
The same loss fits GEM's behaviour density.
"""

from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from gemrl.maths.mixture import gate_entropy, log_prob
from gemrl.methods.networks import MixtureNet
from gemrl.methods.protocol import (
    Batch,
    GaussianConfig,
    Method,
    Metrics,
    Models,
    descend,
    floor_share,
    one_phase,
)


@dataclass(frozen=True)
class BcConfig(GaussianConfig):
    """Settings of behaviour cloning."""

    components: int = 1
    """Mixture components of the clone; 1 is the usual Gaussian."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("components", self.components >= 1, "at least 1")


class BcState(eqx.Module):
    """What training carries from update to update."""

    actor: MixtureNet
    opt_state: optax.OptState


def likelihood_loss(net: MixtureNet, batch: Batch) -> tuple[Float[Array, ""], Metrics]:
    """-E[log mu(a|s)]  (Eq. 54)."""
    mixture = net(batch.obs)
    loss = -jnp.mean(log_prob(mixture, batch.action))
    return loss, {"nll": loss, "gate_entropy": jnp.mean(gate_entropy(mixture.log_weights))}


def fit_likelihood(
    net: MixtureNet, opt_state: optax.OptState, batch: Batch, config: GaussianConfig, name: str
) -> tuple[MixtureNet, optax.OptState, Metrics]:
    """One maximum-likelihood step; `name` goes before the metrics' names."""
    net, opt_state, metrics = descend(
        lambda params: likelihood_loss(params, batch), net, opt_state, config.optimizer()
    )
    net = net.clamped(config.log_std_min, config.log_std_max)
    metrics["log_std_at_floor"] = floor_share(net, config)
    return net, opt_state, {f"{name}/{key}": value for key, value in metrics.items()}


def init(config: BcConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> BcState:
    """Fresh networks and optimizer."""
    actor = MixtureNet(obs_dim, action_dim, config.components, config.hidden, key)
    return BcState(actor, config.optimizer().init(actor))  # pyright: ignore[reportArgumentType]


def update(state: BcState, batch: Batch, config: BcConfig) -> tuple[BcState, Metrics]:
    """One step of maximum likelihood."""
    actor, opt_state, metrics = fit_likelihood(state.actor, state.opt_state, batch, config, "actor")
    return BcState(actor, opt_state), metrics


phases = one_phase(update)


def models(state: BcState) -> Models:
    """A proposal and nothing else."""
    return Models(actor=state.actor, behavior=None, critics=(), value=None)


METHOD = Method("bc", BcConfig, init, phases, models)
