"""Golden decisions: what `policy.decide` answers to given states, noise and knobs.

They travel with an exported file, so that any copy on any machine can be checked.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gemrl.decide.backend import seed_pairs
from gemrl.decide.decision import PER_CANDIDATE, Decision
from gemrl.decide.history import History
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy
from gemrl.deploy.export.contract import Contract, Fixed, normals_of
from gemrl.maths.audits import VIOLATION_Z
from gemrl.maths.mixture import sampling_noise
from gemrl.maths.score import draw_noise, perturbed

SEED = 0
POOL = 32
"""States that are looked at; the clearest of them are kept."""
KEPT = 4
MANY = 64
"""Candidates beside the anchor, where their noise is not too long."""
NUMBERS = 60_000
"""Of noise, at most: a megabyte of JSON."""
TOLERANCE = 1e-4
"""Of an output's scale: rounding on other processors stays far below, half precision does not."""

LAMS = (0.0, 0.5, 1.0, 2.0)
WPS = (0.4, 0.0, 1.0, 3.0)
COOLER = (1.0, 0.5, 0.0, 0.25)


class Case(NamedTuple):
    """A way to call the graph at every golden state."""

    knobs: list[Knobs]
    """Of each state of the pool."""
    given: tuple[str, ...]
    """Knobs that the caller gives; the others have their defaults."""


def noise_of(seed: int | np.ndarray, rows: int, n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The noise that `policy.decide` draws: `gate_noise` [B, N] and `normal_noise` [B, N, size].

    `seed` is an integer, or an array with one for each of the rows, as `decide` takes it. `size` is
    the last of the sizes that the file gives for `normal_noise`.
    """
    pairs = seed_pairs(np.asarray(seed, np.uint32), rows)
    gate, normal = _noise(pairs, n, size)
    return np.asarray(gate), np.asarray(normal)


@partial(jax.jit, static_argnums=(1, 2))
def _noise(pairs: Array, n: int, size: int) -> tuple[Array, Array]:
    def one(pair: Array) -> tuple[Array, Array]:
        return sampling_noise(_key(pair), n, size)

    return jax.vmap(one)(pairs)


def draw_noise_of(seed: int | np.ndarray, rows: int, n: int, anchor: str) -> np.ndarray:
    """The `draw_noise` [B, N + 1] with which `policy.decide` draws among candidates: one for each,
    after a zero where there is no anchor.
    """
    pairs = seed_pairs(np.asarray(seed, np.uint32), rows)
    if anchor == "none":
        return np.pad(np.asarray(_draw_noise(pairs, n)), ((0, 0), (1, 0)))
    return np.asarray(_draw_noise(pairs, n + 1))


@partial(jax.jit, static_argnums=1)
def _draw_noise(pairs: Array, count: int) -> Array:
    return jax.vmap(lambda pair: draw_noise(_key(pair), count))(pairs)


def _key(pair: Array) -> Array:
    """The key of a row, of its seed and number."""
    return jax.random.fold_in(jax.random.key(pair[0]), pair[1])


def states_near_data(policy: Policy) -> np.ndarray:
    """Drawn from the scaler's mean and deviation, for where the dataset is not at hand. For a
    policy that looks back, contexts of such states and of any actions, from one step to full.
    """
    rng, spec = np.random.default_rng(SEED), policy.spec

    def drawn() -> np.ndarray:
        normal = rng.standard_normal((POOL, spec.obs_dim), np.float32)
        return spec.obs_mean + spec.obs_std * normal

    if policy.context is None:
        return drawn()
    history = History(policy, POOL, policy.context.target_return or policy.context.return_scale)
    found = [history.contexts(drawn())]
    for _ in range(policy.context.length):
        actions = rng.uniform(spec.action_low, spec.action_high, (POOL, spec.action_dim))
        history.add(drawn(), actions, policy.context.return_scale * rng.standard_normal(POOL))
        found.append(history.contexts(drawn()))
    # Few of them are kept, the first ones where none is clearer: full, short and between.
    lengths = np.linspace(policy.context.length, 0, KEPT).astype(int)
    return np.array([found[lengths[row % KEPT]][row] for row in range(POOL)])


def golden(
    policy: Policy, knobs: Knobs, contract: Contract, fixed: Fixed | None, states: np.ndarray
) -> tuple[dict[str, Any], dict[str, float]]:
    """Golden decisions as plain values, and how far each output may be off."""
    # The backend that serves every policy, and is the reference for the others.
    policy = Policy(policy.bundle, "jax")
    states = np.asarray(states, np.float32)[:POOL]
    size = normals_of(policy.models, policy.spec, knobs)
    cases = _cases(policy, knobs, fixed, len(states), _many(size))
    decisions = [policy.decide(states, case.knobs, seed=SEED) for case in cases]
    outputs = [_outputs(decision, contract) for decision in decisions]

    most = max(case.knobs[0].n for case in cases)
    wanted = NUMBERS // max(1, most * (size + 1))
    drawn = draw_noise_of(SEED, len(states), most, knobs.anchor)
    clearest = np.argsort(-_clarity(cases, decisions, drawn), kind="stable")
    kept = np.sort(clearest[: min(KEPT, max(1, wanted))])
    noise = (*noise_of(SEED, len(states), most, size), drawn)
    named = {port.name for port in contract.inputs}
    plain: dict[str, Any] = {"observation": _numbers(states[kept])}
    for name, values in zip(("gate_noise", "normal_noise", "draw_noise"), noise, strict=True):
        if name in named:
            plain[name] = _numbers(values[kept])
    plain["cases"] = [
        {
            "n": case.knobs[0].n,
            "given": {name: _given(case, name, kept) for name in case.given if name in named},
            "expected": {name: _numbers(values[kept]) for name, values in made.items()},
        }
        for case, made in zip(cases, outputs, strict=True)
    ]
    return plain, _tolerances(outputs, kept, policy.spec.action_half)


def _many(size: int) -> int:
    """How many candidates with noise of this size all golden states can have."""
    return max(4, min(MANY, NUMBERS // (KEPT * (size + 1))))


def _cases(policy: Policy, knobs: Knobs, fixed: Fixed | None, rows: int, most: int) -> list[Case]:
    """The calls: no candidates, one and many, with defaults and with knobs of each state."""
    weighed = policy.models.behavior is not None
    varied = [
        replace(
            knobs,
            lam=LAMS[row % 4],
            wp=WPS[row % 4] if weighed else 0.0,
            temperature=COOLER[row % 4] * knobs.temperature,
        )
        for row in range(rows)
    ]
    if fixed is not None:
        return [Case([replace(one, n=fixed.n) for one in varied], ("lam", "wp", "temperature"))]
    if not policy.models.critics:
        return [Case([knobs] * rows, ())]
    # Where there is no anchor there must be a sample.
    least = (1,) if knobs.anchor == "none" else (0, 1)
    few = [Case([replace(knobs, n=n, k_smooth=1)] * rows, ("k_smooth",)) for n in least]
    many = [
        Case([replace(knobs, n=most)] * rows, ()),
        Case(
            [replace(one, n=most, k_smooth=4) for one in varied],
            ("lam", "wp", "temperature", "k_smooth"),
        ),
    ]
    return few + many


def _outputs(decision: Decision, contract: Contract) -> dict[str, np.ndarray]:
    """A batch's decisions as the graph gives them: of the chosen candidate."""
    index = decision.chosen[:, None]
    return {
        port.name: np.take_along_axis(getattr(decision, port.name), index, axis=1)[:, 0]
        if port.name in PER_CANDIDATE
        else getattr(decision, port.name)
        for port in contract.outputs
    }


def _clarity(cases: list[Case], decisions: list[Decision], drawn: np.ndarray) -> np.ndarray:
    """How far each state is from another choice or flag, so that rounding cannot change it."""
    margins = []
    for case, decision in zip(cases, decisions, strict=True):
        k = case.knobs[0].k_smooth
        count = decision.score.shape[1]
        noise = drawn[:, case.knobs[0].anchor == "none" :][:, :count]
        heat = np.array([knobs.temperature for knobs in case.knobs], np.float32)[:, None]
        ranked = np.asarray(perturbed(*map(jnp.asarray, (decision.score, noise, heat))))
        best = -np.sort(-ranked, axis=1)[:, : k + 1]
        if best.shape[1] > 1:
            margins.append(-np.diff(best, axis=1).max(axis=1) / np.abs(ranked).max())
        for z in (decision.chosen_support_z, decision.executed_support_z):
            # Without a density there is no z, and no flag that could change.
            margins.append(np.where(np.isnan(z), np.inf, np.abs(z - VIOLATION_Z)))
    return np.min(margins, axis=0)


def _tolerances(
    outputs: list[dict[str, np.ndarray]], kept: np.ndarray, action_half: np.ndarray
) -> dict[str, float]:
    """What each number may be off: a share of the largest, for actions of the bounds' width."""
    allowed = {}
    for name, first in outputs[0].items():
        if first.dtype.kind != "f":
            continue
        scale = max(float(np.abs(made[name][kept]).max()) for made in outputs)
        if name == "action":
            scale = float(action_half.min())
        elif name.endswith("collapse_dist"):
            scale = float(action_half.max())
        elif name.endswith("support_z"):
            scale = max(scale, 1.0)
        allowed[name] = TOLERANCE * scale
    # A value and a support that cancel each other leave a score smaller than its rounding.
    if "score" in allowed:
        allowed["score"] = max(allowed["score"], allowed["lcb"])
    return allowed


def _given(case: Case, name: str, kept: np.ndarray) -> Any:
    if name == "k_smooth":
        return [case.knobs[0].k_smooth]
    return _numbers(np.array([getattr(case.knobs[row], name) for row in kept], np.float32))


def _numbers(array: np.ndarray) -> Any:
    """Lists in which a float32 has no more digits than it needs to survive."""
    return (array.astype(str).astype(float) if array.dtype.kind == "f" else array).tolist()
