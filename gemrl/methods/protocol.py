"""What a method is to the rest of the project, and the settings that every method has."""

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from gemrl.data.tasks import task_named
from gemrl.errors import ConfigError
from gemrl.methods.context import Context
from gemrl.methods.networks import Critic, MixtureNet, Value
from gemrl.methods.samplers import Sampler

Metrics = dict[str, Float[Array, ""]]

MAIN = "main"
"""Name of the phase whose updates `steps` counts."""
ANCHOR_ALONE: Mapping[str, Any] = {"n": 0, "wp": 0.0, "anchor": "mode"}
"""The knobs of methods that execute one action, without a search."""


class Batch(NamedTuple):
    """A minibatch: scaled observations, actions in [-1, 1], transformed rewards.

    `mask` is 0 where the value of the next state must not be bootstrapped (a true terminal), which
    is not the same as the end of an episode.
    """

    obs: Float[Array, "b s"]
    action: Float[Array, "b a"]
    reward: Float[Array, " b"]
    next_obs: Float[Array, "b s"]
    mask: Float[Array, " b"]
    next_action: Float[Array, "b a"] | None = None
    """What the data does next, for methods that ask for it; the last one's again at an end."""
    context: Float[Array, "b kw"] | None = None
    """The steps up to this one, packed (see `context.py`), for methods that look back."""


class Models(eqx.Module):
    """What a trained method offers a decision: a proposal, perhaps critics, perhaps a density."""

    actor: MixtureNet | Sampler
    behavior: MixtureNet | None
    critics: tuple[Critic, ...]
    value: Value | None


@dataclass(frozen=True)
class MethodConfig:
    """Settings that every method has."""

    steps: int = 50_000
    """Updates of the main phase."""
    seed: int = 0
    """Seed of initial weights, minibatches and the held-out split."""
    batch_size: int = 256
    """Transitions in a minibatch."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    hidden: tuple[int, ...] = (256, 256)
    """Width of each hidden layer."""
    holdout: float = 0.05
    """Share of the episodes kept from training for held-out likelihood and calibration."""
    checkpoint_every: int = 10_000
    """Updates between checkpoints."""

    steadier: ClassVar[str] = "a lower --learning-rate"
    """What to try where training diverges."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, self._checked(field))
        self.require("steps", self.steps >= 0, "at least 0")
        self.require("seed", 0 <= self.seed < 2**32, "from 0 to 2**32 - 1")
        self.require("batch_size", self.batch_size >= 1, "at least 1")
        self.require("learning_rate", self.learning_rate > 0, "above 0")
        self.require("holdout", 0 <= self.holdout < 1, "from 0 to below 1")
        self.require("checkpoint_every", self.checkpoint_every >= 1, "at least 1")

    def _checked(self, field: dataclasses.Field[Any]) -> Any:
        """The field's value as its own type: 3 for a float is 3.0, and 10.5 for an int is wrong."""
        value: Any = getattr(self, field.name)
        if field.type is bool and not isinstance(value, bool):
            raise ConfigError(f"{field.name} = {value!r}: must be True or False")
        if field.name == "hidden":
            widths = list(value) if isinstance(value, tuple | list) else []
            if not widths or not all(type(width) is int and width >= 1 for width in widths):
                raise ConfigError(f"hidden = {value!r}: must be widths such as (256, 256)")
            return tuple(widths)
        if field.type in (int | None, float | None) and value is None:
            return None
        number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if field.type in (int, int | None):
            if not number or not isinstance(value, numbers.Integral):
                raise ConfigError(f"{field.name} = {value!r}: must be a whole number")
            return int(value)
        if field.type in (float, float | None):
            if not number or not math.isfinite(value):
                raise ConfigError(f"{field.name} = {value!r}: must be a finite number")
            return float(value)
        return value

    @classmethod
    def for_task(cls, task: str | None, **settings: Any) -> Self:
        """The settings given, then those that the task's suite asks for, then the defaults."""
        known = {field.name for field in dataclasses.fields(cls)}
        asked: dict[str, Any] = dict(task_named(task).training) if task else {}
        return cls(**({k: v for k, v in asked.items() if k in known} | settings))

    def require(self, name: str, holds: bool, allowed: str) -> None:
        """Raise an error that names the field, its value and what is allowed."""
        if not holds:
            raise ConfigError(f"{name} = {getattr(self, name)!r}: must be {allowed}")

    def value_limit(self, largest_reward: float) -> float | None:
        """|Q| above which training has diverged; None for methods without critics."""
        return None

    @property
    def value_scale(self) -> float:
        """What the critics' values are multiplied by beside the rewards of the data's spec."""
        return 1.0

    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer of every network."""
        return optax.adam(self.learning_rate)


def implausible_value(largest_reward: float, discount: float) -> float:
    """Ten times what rewards of that size can add up to."""
    return 10 * max(largest_reward, 1.0) / (1 - discount)


@dataclass(frozen=True)
class PublishedConfig(MethodConfig):
    """Settings of methods whose papers set some of them by task."""

    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """What the method's paper sets for a task, or for all tasks whose names begin so."""

    @classmethod
    def for_task(cls, task: str | None, **settings: Any) -> Self:
        """The settings given, then those published for the task, then the defaults.

        Of several beginnings of the task's name the longest counts.
        """
        name = task_named(task).name if task else ""
        fitting = [start for start in cls.published if name.startswith(start)]
        found = cls.published[max(fitting, key=len)] if fitting else {}
        return cls(**{**found, **settings})


@dataclass(frozen=True)
class GaussianConfig(MethodConfig):
    """Settings of methods with Gaussians, one or a mixture of them."""

    log_std_min: float = -3.0
    """Floor of a component's log standard deviation, with actions in [-1, 1]. It decides the
    density's spikes where actions saturate."""
    log_std_max: float = 0.0
    """Ceiling of a component's log standard deviation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("log_std_min", self.log_std_min <= self.log_std_max, "at most log_std_max")


class Phase(NamedTuple):
    """A stretch of training with one update rule: `update(state, batch, config)`."""

    name: str
    steps: int
    update: Callable[[Any, Batch, Any], tuple[Any, Metrics]]


def one_phase(update: Callable[[Any, Batch, Any], tuple[Any, Metrics]]) -> Any:
    """The phases of a method that learns all of it together."""
    return lambda config: (Phase(MAIN, config.steps, update),)


class Companion(NamedTuple):
    """A policy that another method's training yields on the way."""

    method: str
    config: MethodConfig
    models: Models


class Method(NamedTuple):
    """A method as the training loop and the bundle see it."""

    name: str
    config: type[MethodConfig]
    init: Callable[[Any, int, int, Key[Array, ""]], Any]
    """`init(config, obs_dim, action_dim, key)` gives the state that training carries along."""
    phases: Callable[[Any], tuple[Phase, ...]]
    models: Callable[[Any], Models]
    companions: Callable[[Any, Any], tuple[Companion, ...]] = lambda config, state: ()
    """`companions(config, state)` gives the policies that come with the method's own."""
    deploy: Mapping[str, Any] | None = None
    """The knobs with which the method's own paper executes its policy; None is GEM's rule where
    the method has critics and a density, and its anchor alone where not."""
    next_actions: bool = False
    """Whether its batches need the data's next action."""
    context: Callable[[Any], Context] | None = None
    """`context(config)` says how far back a method looks; None for the present state alone."""
    scaled_rewards: bool = True
    """Whether it trains on rewards scaled by the range of the data's returns, where the task asks
    for that. Not where weights in its losses were published for rewards of the task's own size."""
    heavy: bool = False
    """Whether its training costs several times GEM's, so that comparisons train one seed."""


def descend(
    loss: Callable[[Any], tuple[Float[Array, ""], Metrics]],
    params: Any,
    opt_state: optax.OptState,
    optimizer: optax.GradientTransformation,
) -> tuple[Any, optax.OptState, Metrics]:
    """One optimizer step on `loss(params)`, which returns the loss and its metrics."""
    (_, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, metrics


def follow(targets: Any, networks: Any, rate: float) -> Any:
    """Polyak averaging of target networks (Eq. 62)."""
    return jax.tree.map(lambda target, new: (1 - rate) * target + rate * new, targets, networks)


def floor_share(net: MixtureNet, config: GaussianConfig) -> Float[Array, ""]:
    """Share of a mixture's log-stds that sit at the floor."""
    return jnp.mean(net.log_std <= config.log_std_min)
