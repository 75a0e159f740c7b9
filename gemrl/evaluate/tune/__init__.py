"""Knobs chosen from the log alone: a frontier by reranking, values by fitted Q evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.decide.policy import Policy
from gemrl.errors import ConfigError
from gemrl.evaluate.tune.choices import Choices, Grid, choose_at, grid_of
from gemrl.evaluate.tune.estimate import (
    agreement,
    evidence_of,
    interval,
    is_one_trajectory,
    replicates,
)
from gemrl.evaluate.tune.fqe import FqeConfig
from gemrl.evaluate.tune.recommend import Recommendation, recommend, too_little
from gemrl.progress import bar, say

__all__ = ["Budget", "Grid", "grid_for", "tune"]

WEIGHTS = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0, 4.0)
# States at which the frontier is looked at, and values averaged where episodes have no true starts.
LOOKED_AT = 2000


@dataclass(frozen=True)
class Budget:
    """How much an estimate may cost, and how careful it is."""

    states: int = 50_000
    """Held-out transitions to fit on, at most; whole episodes of them."""
    fits: int = 5
    """Times that everything is fitted anew, each time on both halves of the episodes."""
    coverage: float = 0.01
    """A setting that takes actions less likely than this share of the logged ones, and more often
    than this share, is beyond what the log can tell there, which counts as the worst there is; 0
    trusts the fit everywhere."""
    confidence: float = 0.95
    """Confidence of each bound."""
    fqe: FqeConfig = field(default_factory=FqeConfig)
    """How networks are fitted."""

    def __post_init__(self) -> None:
        whole = {"states": self.states, "updates": self.fqe.updates}
        for name, value in whole.items():
            if value < 1:
                raise ConfigError(f"{name} = {value}: must be at least 1")
        if self.fits < 2:
            raise ConfigError(f"fits = {self.fits}: must be at least 2, or there is no interval")
        if not 0 <= self.coverage < 1:
            raise ConfigError(f"coverage = {self.coverage}: must be at least 0 and below 1")
        if not 0.5 < self.confidence < 1:
            raise ConfigError(f"confidence = {self.confidence}: must lie between 0.5 and 1")


def grid_for(
    policy: Policy,
    n: int | None = None,
    lams: Sequence[float] | None = None,
    wps: Sequence[float] | None = None,
) -> Grid:
    """The settings to compare: by default no pessimism and the suite's, each with many weights."""
    if not policy.models.critics or policy.models.behavior is None:
        raise ConfigError(
            f"a policy of method {policy.method!r} has no critics or no behaviour density: "
            "there are no knobs to choose"
        )
    default = policy.knobs_for(policy.bundle.manifest["task"])
    default = default if n is None else replace(default, n=n)
    if default.temperature > 0:
        say("settings are compared by the candidates that they rank best: with a temperature of 0")
        default = replace(default, temperature=0.0)
    return grid_of(default, (0.0,) if lams is None else lams, WEIGHTS if wps is None else wps)


def tune(
    policy: Policy,
    data: Dataset,
    grid: Grid | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    quiet: bool = True,
) -> dict[str, Any]:
    """The settings of a grid compared on held-out episodes, and which to take, as JSON values."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed = {seed}: must be from 0 to 2**32 - 1")
    grid = grid_for(policy) if grid is None else grid
    budget = Budget() if budget is None else budget
    held = policy.bundle.split(data)[1]
    if len(held) == 0:
        raise ConfigError("no episode was held out from training: train with a larger --holdout")
    rows = _some_episodes(data.select(held), budget.states, seed)
    looked = np.linspace(0, len(rows) - 1, min(LOOKED_AT, len(rows))).astype(int)
    with bar("frontier", len(looked), "states", quiet) as report:
        here = choose_at(policy, grid, rows.observations[looked], (seed, 0), report)
    least = _least_support(policy, rows, budget.coverage)
    manifest = policy.bundle.manifest
    found: dict[str, Any] = {
        "run": {
            "method": policy.method,
            "bundle": policy.digest,
            "task": manifest["task"],
            "dataset": Path(manifest["dataset"]["source"]).name,
        },
        "rows": {
            "held_out": len(held),
            "used": len(rows),
            "episodes": len(rows.episode_starts),
            "states": len(looked),
            "seed": seed,
        },
        "default": grid.default.to_json(),
        "settings": _frontier(grid, here, least),
        "estimate": None,
    }
    own = policy.knobs_for(manifest["task"])
    refused = too_little(len(rows.episode_starts), len(rows), grid.default)
    if refused is not None:
        return found | {"recommendation": refused.to_json(own)}
    look = _Look(rows, looked, here, least)
    values, about = _values(policy, data, grid, budget, seed, quiet, look)
    judged, choice = _judged(grid, found["settings"], values, budget.confidence)
    return found | {
        "settings": judged,
        "recommendation": choice.to_json(own),
        "estimate": about,
    }


class _Look(NamedTuple):
    """What was looked at for the frontier, which serves the estimate too."""

    rows: Dataset
    at: np.ndarray
    choices: Choices
    least_support: float


def _values(
    policy: Policy, data: Dataset, grid: Grid, budget: Budget, seed: int, quiet: bool, look: _Look
) -> tuple[np.ndarray, dict[str, Any]]:
    """The value of each setting in each fit [R, K], and how it was estimated."""
    rows, discount = look.rows, policy.bundle.manifest["config"]["discount"]
    initial, first, over = look.at, look.choices, "states"
    if not is_one_trajectory(data, policy.spec):
        initial, over = rows.episode_starts, "episode starts"
        first = choose_at(policy, grid, rows.observations[initial], (seed, 1))
    with bar("next actions", len(rows), "states", quiet) as report:
        following = choose_at(policy, grid, rows.next_observations, (seed, 2), report)
    evidence = evidence_of(
        rows,
        following,
        initial,
        first,
        policy.spec,
        discount,
        look.least_support,
        budget.coverage,
    )
    with bar("fitted Q", 2 * budget.fits * budget.fqe.updates, "updates", quiet) as report:
        values = replicates(evidence, budget.fqe, budget.fits, seed, report)
    return values, {
        "over": over,
        "fits": budget.fits,
        "updates": budget.fqe.updates,
        "confidence": budget.confidence,
        "coverage": budget.coverage,
        "discount": discount,
        "least_value": evidence.bounds.low,
        "rank_correlation": agreement(values),
    }


def _judged(
    grid: Grid, settings: list[dict[str, Any]], values: np.ndarray, confidence: float
) -> tuple[list[dict[str, Any]], Recommendation]:
    """The settings with their values, and the recommendation that follows from them."""
    gains = (values - values[:, [grid.default_at]]).T
    # The best of many bounds is looked at, so each must hold more surely (Bonferroni).
    each = 1 - (1 - confidence) / max(len(gains) - 1, 1)
    differences = [interval(gain, each) for gain in gains]
    judged = [
        setting
        | {"value": interval(value, confidence)._asdict(), "difference": difference._asdict()}
        for setting, value, difference in zip(settings, values.T, differences, strict=True)
    ]
    return judged, recommend(grid.settings, grid.default_at, differences, confidence)


def _some_episodes(held: Dataset, most: int, seed: int) -> Dataset:
    """Episodes in random order until there are enough rows; all of them where there are fewer."""
    if len(held) <= most:
        return held
    lengths = np.diff(held.episode_starts, append=len(held))
    order = np.random.default_rng([seed, 3]).permutation(len(lengths))
    # At least two, since one half must judge what was fitted on the other.
    enough = max(2, int(np.searchsorted(np.cumsum(lengths[order]), most, side="right")))
    taken = np.zeros(len(lengths), bool)
    taken[order[:enough]] = True
    return held.select(np.flatnonzero(np.repeat(taken, lengths)))


def _least_support(policy: Policy, rows: Dataset, coverage: float) -> float:
    """The log density below which an action is beyond what the log can tell."""
    if coverage == 0:
        return -np.inf
    log_density = policy.behavior(rows.observations).log_prob(jnp.asarray(rows.actions))
    return float(np.quantile(np.asarray(log_density), coverage))


def _frontier(grid: Grid, choices: Choices, least: float) -> list[dict[str, Any]]:
    """Mean audits of each setting's choice; values are filled in where they can be estimated."""
    names = ("value", "lcb", "critic_std", "log_support", "support_z", "violation", "anchor")
    means = {name: getattr(choices, name).mean(axis=1, dtype=np.float64) for name in names}
    means["uncovered"] = (choices.log_support < least).mean(axis=1)
    return [
        {
            "knobs": knobs.to_json(),
            "default": k == grid.default_at,
            "frontier": {name: float(values[k]) for name, values in means.items()},
            "value": None,
            "difference": None,
        }
        for k, knobs in enumerate(grid.settings)
    ]
