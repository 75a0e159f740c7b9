"""GEM with IQL and behaviour cloning beside it, in one training instead of three.

IQL's critics and value never look at its actor, so GEM's are IQL's, and only actors are left to
train. All see the same minibatches, as they would with the same seed alone.
"""

from dataclasses import fields
from typing import Any

import equinox as eqx
import jax
import optax
from jaxtyping import Array, Key

from gemrl.methods import bc, gem, iql
from gemrl.methods.networks import MixtureNet
from gemrl.methods.protocol import (
    MAIN,
    Batch,
    Companion,
    Method,
    MethodConfig,
    Metrics,
    Phase,
    descend,
)


class State(eqx.Module):
    """What training carries from update to update."""

    gem: gem.GemState
    iql_actor: MixtureNet
    iql_opt_state: optax.OptState
    bc: bc.BcState


def init(config: gem.GemConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> State:
    """Each method's networks as they start alone."""
    iql_actor = iql.init(config, obs_dim, action_dim, key).actor
    return State(
        gem=gem.init(config, obs_dim, action_dim, key),
        iql_actor=iql_actor,
        iql_opt_state=config.optimizer().init(iql_actor),  # pyright: ignore[reportArgumentType]
        bc=bc.init(_settings(bc.BcConfig, config), obs_dim, action_dim, key),
    )


def update_behavior(state: State, batch: Batch, config: gem.GemConfig) -> tuple[State, Metrics]:
    """GEM's first phase; the others have none."""
    found, metrics = gem.update_behavior(state.gem, batch, config)
    return eqx.tree_at(lambda s: s.gem, state, found), metrics


def update(state: State, batch: Batch, config: gem.GemConfig) -> tuple[State, Metrics]:
    """One step of each. Compiled, the advantage is computed once for GEM and IQL."""
    advantage = jax.lax.stop_gradient(iql.advantage(state.gem.learner, state.gem.targets, batch))
    iql_actor, iql_opt_state, iql_metrics = descend(
        lambda actor: iql.actor_loss(actor, advantage, batch, config),
        state.iql_actor,
        state.iql_opt_state,
        config.optimizer(),
    )
    clone, bc_metrics = bc.update(state.bc, batch, _settings(bc.BcConfig, config))
    gem_state, metrics = gem.update(state.gem, batch, config)
    for name, found in (("iql", iql_metrics), ("bc", bc_metrics)):
        metrics |= {f"{name}_{key}": value for key, value in found.items()}
    iql_actor = iql_actor.clamped(config.log_std_min, config.log_std_max)
    return State(gem_state, iql_actor, iql_opt_state, clone), metrics


def phases(config: gem.GemConfig) -> tuple[Phase, ...]:
    """GEM's phases."""
    return (
        Phase("behavior", config.behavior_steps, update_behavior),
        Phase(MAIN, config.steps, update),
    )


def companions(config: gem.GemConfig, state: State) -> tuple[Companion, ...]:
    """The baselines as policies of their own."""
    as_iql = iql.IqlState(
        state.gem.learner, state.gem.targets, state.iql_actor, state.iql_opt_state
    )
    return (
        Companion("iql", _settings(iql.IqlConfig, config), iql.models(as_iql)),
        Companion("bc", _settings(bc.BcConfig, config), bc.models(state.bc)),
    )


def _settings(kind: type[MethodConfig], config: gem.GemConfig) -> Any:
    """A baseline's settings: GEM's where it has them too, but one component."""
    values: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(kind)}
    if "components" in values:
        values["components"] = 1
    return kind(**values)


METHOD = Method("gem", gem.GemConfig, init, phases, lambda state: gem.models(state.gem), companions)
