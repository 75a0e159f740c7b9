"""IFQL: IQL's critics, a flow model of the data, and the best of its samples.

Park, Li and Levine, Flow Q-Learning, 2025 (arXiv:2502.02538), where it is the flow counterpart of
IDQL. The flow is trained by flow matching alone, so the proposal never sees the critics; they only
rank its samples at run time, by the minimum of two. As in the authors' code: 32 samples, 10 flow
steps, GELU networks, layer-normalized critics and value.

The expectile is 0.9 for AntMaze as there; the paper has no locomotion and no Maze2D, which take
IQL's own 0.7. The paper's networks have four layers of 512 units (`hidden`), and it does not scale
observations.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import optax
from jaxtyping import Array, Float, Key, UInt32

from gemrl.methods.actor_critic import new_critics, new_key, next_key
from gemrl.methods.generative import Flow, flow_loss, plain_field
from gemrl.methods.implicit import Critics, ImplicitConfig, new_implicit, update_implicit
from gemrl.methods.iql import CriticParams
from gemrl.methods.networks import Value
from gemrl.methods.protocol import Batch, Method, Metrics, Models, descend, one_phase


@dataclass(frozen=True)
class IfqlConfig(ImplicitConfig):
    """Settings of implicit flow Q-learning."""

    flow_steps: int = 10
    """Euler steps of the flow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("flow_steps", self.flow_steps >= 1, "at least 1")


class IfqlState(eqx.Module):
    """What training carries from update to update."""

    critics: Critics
    flow: Flow
    flow_opt_state: optax.OptState
    key: UInt32[Array, "2"]


def init(config: IfqlConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> IfqlState:
    """Fresh networks and optimizers."""
    critic_key, value_key, flow_key, noise_key = jax.random.split(key, 4)
    learner = CriticParams(
        new_critics(config, obs_dim, action_dim, critic_key, activation="gelu", normed=True),
        Value(obs_dim, config.hidden, value_key, activation="gelu", normed=True),
    )
    field = plain_field(obs_dim, action_dim, config.hidden, flow_key, activation="gelu", times=1)
    flow = Flow(field, config.flow_steps)
    return IfqlState(
        critics=new_implicit(learner, config),
        flow=flow,
        flow_opt_state=config.optimizer().init(flow),  # pyright: ignore[reportArgumentType]
        key=new_key(noise_key),
    )


def actor_loss(flow: Flow, batch: Batch, key: Key[Array, ""]) -> tuple[Float[Array, ""], Metrics]:
    """Flow matching."""
    loss = flow_loss(flow, batch, key)
    return loss, {"actor/loss": loss}


def update(state: IfqlState, batch: Batch, config: IfqlConfig) -> tuple[IfqlState, Metrics]:
    """One step of the critics and one of the flow; neither sees the other."""
    words, key = next_key(state.key)
    critics, metrics = update_implicit(state.critics, batch, config)
    flow, flow_opt_state, flow_metrics = descend(
        lambda flow: actor_loss(flow, batch, key),
        state.flow,
        state.flow_opt_state,
        config.optimizer(),
    )
    return IfqlState(critics, flow, flow_opt_state, words), metrics | flow_metrics


phases = one_phase(update)


def models(state: IfqlState) -> Models:
    """The flow as the proposal, and the critics."""
    learner = state.critics.learner
    return Models(actor=state.flow, behavior=None, critics=learner.critics, value=learner.value)


METHOD = Method(
    "ifql",
    IfqlConfig,
    init,
    phases,
    models,
    deploy={"n": 32, "lam": 1.0, "wp": 0.0, "anchor": "none"},
)
