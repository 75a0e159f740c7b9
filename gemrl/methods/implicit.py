"""IQL's critics and value for methods that draw their actions from a model of the behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import optax

from gemrl.methods import iql
from gemrl.methods.actor_critic import ActorCriticConfig
from gemrl.methods.networks import Critic
from gemrl.methods.protocol import Batch, Metrics, descend, follow


@dataclass(frozen=True)
class ImplicitConfig(ActorCriticConfig):
    """Settings of IQL's critics and value."""

    expectile: float = 0.7
    """Expectile of the value regression: 0.5 is the mean, towards 1 the best action in the data."""

    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {"antmaze": {"expectile": 0.9}}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("expectile", 0 < self.expectile < 1, "between 0 and 1")

    def iql(self) -> iql.IqlConfig:
        """These settings as IQL takes them; those of its actor play no part."""
        return iql.IqlConfig(
            hidden=self.hidden,
            critics=self.critics,
            discount=self.discount,
            expectile=self.expectile,
            polyak=self.polyak,
        )


class Critics(eqx.Module):
    """The critics, their value and targets, and the state of their optimizer."""

    learner: iql.CriticParams
    targets: tuple[Critic, ...]
    opt_state: optax.OptState


def new_implicit(learner: iql.CriticParams, config: ImplicitConfig) -> Critics:
    """Targets that equal the critics, and a fresh optimizer."""
    opt_state = config.optimizer().init(learner)  # pyright: ignore[reportArgumentType]
    return Critics(learner, learner.critics, opt_state)


def update_implicit(
    critics: Critics, batch: Batch, config: ImplicitConfig
) -> tuple[Critics, Metrics]:
    """One step of IQL's critics and value, and of the targets behind them."""

    def loss(learner: iql.CriticParams) -> tuple[Any, Metrics]:
        loss, _, metrics = iql.critic_losses(learner, critics.targets, batch, config.iql())
        return loss, metrics

    learner, opt_state, metrics = descend(
        loss, critics.learner, critics.opt_state, config.optimizer()
    )
    targets = follow(critics.targets, learner.critics, config.polyak)
    return Critics(learner, targets, opt_state), metrics
