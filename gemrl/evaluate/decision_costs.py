"""What a decision of each method costs: time, throughput, memory, and how they grow.

Weights are random, since time does not depend on what was learnt. All methods decide through one
backend (JAX's), at the same states, in turns; GEM also through the `fast` one where it is
installed. A method is executed as its own paper does it: N is a knob of those that search among
samples, T of those that denoise, and nothing of the others, whose lines are flat by nature.
"""

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from gemrl.decide.backend import Shape
from gemrl.decide.dense import JaxBackend
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy
from gemrl.errors import ConfigError
from gemrl.learn.bundle import Bundle, config_to_json
from gemrl.learn.spec import Spec
from gemrl.methods import METHODS, default_config, method_named

NS = (1, 64, 1024, 2048)
TS = (10, 20, 50, 100)
STEP_FIELDS = ("diffusion_steps", "flow_steps")
BATCH = 64
# Hopper's sizes.
OBS_DIM, ACTION_DIM = 11, 3


@dataclass(frozen=True)
class Setting:
    """A method with a number of candidates or of denoising steps."""

    method: str
    knob: str
    """N or T."""
    value: int
    backend: str = "jax"

    @property
    def label(self) -> str:
        """The method, and the backend where it is not the usual one."""
        return self.method if self.backend == "jax" else f"{self.method} ({self.backend})"


@dataclass(frozen=True)
class Cost:
    """What was measured of a setting."""

    method: str
    knob: str
    value: int
    scales: bool
    """Whether the knob is one of this method's own deployment."""
    median_ms: float
    p99_ms: float
    decisions_per_second: float
    """In batches."""
    memory_mb: float | None
    """Arguments, results and scratch of the compiled decision; None where it is not XLA's."""
    parameters: int
    decisions: int
    """Single decisions that the median and the 99th percentile are of."""


def settings(methods: Sequence[str]) -> list[Setting]:
    """Every method with every N, and those with denoising steps with every T."""
    for name in methods:
        method_named(name)
    found = []
    for name in methods:
        found += [Setting(name, "N", n) for n in NS]
        if _step_field(name) is not None:
            found += [Setting(name, "T", t) for t in TS]
    if "gem" in methods and _has_fast():
        found += [Setting("gem", "N", n, "fast") for n in NS]
    if not found:
        raise ConfigError("methods: there must be at least one")
    return found


def policy_of(setting: Setting) -> tuple[Policy, Knobs, bool]:
    """A random policy with its own knobs, and whether the setting's knob is among them."""
    config: Any = default_config(setting.method, None)
    field = _step_field(setting.method)
    if setting.knob == "T" and field is not None:
        config = dataclasses.replace(config, **{field: setting.value})
    method = method_named(setting.method)
    if method.context is not None:  # Which return is asked for takes no time.
        config = dataclasses.replace(config, target_return=0.0)
    # Any numbers serve, and real first weights would take longer to compile than to measure.
    shapes = jax.eval_shape(
        lambda: method.models(method.init(config, OBS_DIM, ACTION_DIM, jax.random.key(0)))
    )
    rng = np.random.default_rng(0)
    models = jax.tree.map(lambda x: rng.normal(0, 0.05, x.shape).astype(x.dtype), shapes)
    ones = {"obs": np.ones(OBS_DIM, np.float32), "action": np.ones(ACTION_DIM, np.float32)}
    spec = Spec(0 * ones["obs"], ones["obs"], -ones["action"], ones["action"], 1.0, 0.0)
    manifest = {
        "method": setting.method,
        "config": config_to_json(config),
        "task": None,
        "digest": f"random {setting.method}",
    }
    policy = Policy(Bundle(models, spec, manifest), setting.backend)
    knobs = policy.knobs_for(None)
    # One sample of a one-step policy is its whole rule; those with more search among them.
    if setting.knob == "N" and knobs.n > 1:
        return policy, dataclasses.replace(knobs, n=setting.value), True
    return policy, knobs, setting.knob == "T" and _decides_in_steps(policy)


def measure(wanted: Sequence[Setting], rounds: int = 20, calls: int = 10) -> Iterator[list[Cost]]:
    """Costs after each round, the last of them final: all settings take turns in every round."""
    states = np.random.default_rng(0).normal(size=(BATCH, OBS_DIM)).astype(np.float32)
    made = [policy_of(one) for one in wanted]
    for policy, knobs, _ in made:  # Compile, and warm the caches.
        for obs in (states[0], states):
            policy.decide(obs, knobs, seed=0)
    alone: list[list[float]] = [[] for _ in made]
    together: list[list[float]] = [[] for _ in made]
    memory = [_memory_mb(policy, knobs) for policy, knobs, _ in made]
    for number in range(rounds):
        for place, (policy, knobs, _) in enumerate(made):
            for call in range(calls):
                start = time.perf_counter()
                policy.decide(states[call % BATCH], knobs, seed=number)
                alone[place].append(time.perf_counter() - start)
            start = time.perf_counter()
            policy.decide(states, knobs, seed=number)
            together[place].append(time.perf_counter() - start)
        yield [
            Cost(
                setting.label,
                setting.knob,
                setting.value,
                scales,
                1e3 * float(np.median(alone[place])),
                1e3 * float(np.quantile(alone[place], 0.99)),
                BATCH / float(np.median(together[place])),
                memory[place],
                _parameters(policy),
                len(alone[place]),
            )
            for place, (setting, (policy, _, scales)) in enumerate(zip(wanted, made, strict=True))
        ]


@dataclass(frozen=True)
class Growth:
    """How a method's latency grows with a knob."""

    method: str
    knob: str
    scales: bool
    microseconds: float
    """For each candidate or step, by least squares."""
    ratio: float
    """The largest setting's median over the smallest's."""


def growth(costs: Sequence[Cost]) -> list[Growth]:
    """The slope of each method's median latency in N and in T."""
    found = []
    for method, knob in dict.fromkeys((cost.method, cost.knob) for cost in costs):
        mine = sorted(
            (c for c in costs if (c.method, c.knob) == (method, knob)), key=lambda c: c.value
        )
        slope = np.polyfit([c.value for c in mine], [1e3 * c.median_ms for c in mine], 1)[0]
        ratio = mine[-1].median_ms / mine[0].median_ms
        found.append(Growth(method, knob, mine[0].scales, float(slope), ratio))
    return found


def _memory_mb(policy: Policy, knobs: Knobs) -> float | None:
    """Memory of one compiled decision, as XLA plans it."""
    if not isinstance(policy.backend, JaxBackend):
        return None
    planned = policy.backend.planned_bytes(policy.input_spec.obs_mean, Shape.of(knobs))
    return None if planned is None else planned / 1e6


def _parameters(policy: Policy) -> int:
    """Weights that a decision reads."""
    models = policy.models
    return sum(
        np.size(leaf) for leaf in jax.tree.leaves((models.actor, models.behavior, models.critics))
    )


def _step_field(method: str) -> str | None:
    """The setting that holds a method's denoising steps."""
    known = {field.name for field in dataclasses.fields(METHODS[method].config)}
    return next((name for name in STEP_FIELDS if name in known), None)


def _decides_in_steps(policy: Policy) -> bool:
    """Whether its proposal itself takes the steps: FQL's is distilled from them into one."""
    return hasattr(policy.models.actor, "steps")


def _has_fast() -> bool:
    try:
        import numba  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return os.environ.get("GEMRL_BACKEND", "auto") != "jax"
