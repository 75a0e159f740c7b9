"""Summaries of evaluation rows: means with errors, and bootstrap intervals over training seeds."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A mean with its standard error; the error is NaN where one sample gives none."""

    mean: float
    stderr: float
    samples: int

    def __format__(self, form: str) -> str:
        form = form or ".1f"
        error = "" if math.isnan(self.stderr) else f" ± {self.stderr:{form.lstrip('+')}}"
        return f"{self.mean:{form}}{error}"

    def __str__(self) -> str:
        return format(self, "")


def estimate(samples: Sequence[float] | np.ndarray) -> Estimate:
    """Mean and standard error of independent samples."""
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no samples to summarize")
    stderr = values.std(ddof=1) / math.sqrt(values.size) if values.size > 1 else math.nan
    return Estimate(float(values.mean()), float(stderr), int(values.size))


def clustered(groups: Sequence[Sequence[float]]) -> Estimate:
    """Mean over groups of their means, with the standard error between the groups.

    For scores the groups are training seeds: their episodes share a policy and are not independent.
    With a single group it is the error between its samples, which says nothing about other seeds.
    """
    if len(groups) == 1:
        return estimate(groups[0])
    between = estimate([float(np.mean(group)) for group in groups])
    return Estimate(between.mean, between.stderr, sum(len(group) for group in groups))


def normalized_score(episode_return: float, low: float, high: float) -> float:
    """D4RL's score: 0 at the reference minimum, 100 at the reference maximum."""
    return 100.0 * (episode_return - low) / (high - low)


class Interval(NamedTuple):
    """A statistic with its bootstrap interval; the bounds are NaN where the runs give none."""

    value: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        form = form or ".1f"
        bounds = "" if math.isnan(self.low) else f" [{self.low:{form}}, {self.high:{form}}]"
        return f"{self.value:{form}}{bounds}"

    def __str__(self) -> str:
        return format(self, "")


class Profile(NamedTuple):
    """Share of runs above each threshold, with a pointwise band."""

    thresholds: np.ndarray
    share: np.ndarray
    low: np.ndarray
    high: np.ndarray


Groups = Sequence[Sequence[float] | np.ndarray] | np.ndarray
"""One list of runs a task: the mean scores of its training seeds. Of an array, its rows."""


def interquartile_mean(values: Groups | Sequence[float]) -> float:
    """Mean of the middle half, as `scipy.stats.trim_mean(values, 0.25)`; several tasks pooled."""
    pooled = np.sort(_checked([np.concatenate([np.ravel(part) for part in values])])[0])
    cut = pooled.size // 4
    return float(pooled[cut : pooled.size - cut].mean())


def stratified_bootstrap(
    groups: Groups,
    statistic: Callable[[Sequence[np.ndarray]], float],
    *,
    level: float = 0.95,
    repeats: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of a statistic of all tasks, with runs resampled within each task.

    A task with a single run has no spread to resample. One such task takes the bounds away: an
    interval out of the others' spread would look surer than it is.
    """
    value, low, high = _percentiles(groups, statistic, level, repeats, seed)
    return Interval(float(value), float(low), float(high))


def probability_of_improvement(
    first: Groups, second: Groups, *, level: float = 0.95, repeats: int = 2000, seed: int = 0
) -> Interval:
    """Mean over tasks of P(X > Y) + P(X = Y) / 2 for a run X of `first` and Y of `second`.

    Of each task this is Mann and Whitney's U over the number of pairs.
    """
    tasks = len(first)
    if tasks != len(second):
        raise ValueError(f"{tasks} tasks cannot be compared with {len(second)}")

    def share(groups: Sequence[np.ndarray]) -> float:
        pairs = zip(groups[:tasks], groups[tasks:], strict=True)
        return float(np.mean([np.mean(np.sign(x[:, None] - y) / 2 + 0.5) for x, y in pairs]))

    return stratified_bootstrap([*first, *second], share, level=level, repeats=repeats, seed=seed)


def performance_profile(
    groups: Groups,
    thresholds: Sequence[float] | np.ndarray,
    *,
    level: float = 0.95,
    repeats: int = 2000,
    seed: int = 0,
) -> Profile:
    """Share of runs with a score above each threshold, averaged over tasks."""
    at = np.asarray(thresholds, dtype=np.float64)

    def shares(groups: Sequence[np.ndarray]) -> np.ndarray:
        return np.mean([np.mean(runs[:, None] > at, axis=0) for runs in groups], axis=0)

    return Profile(at, *_percentiles(groups, shares, level, repeats, seed))


def _percentiles(
    groups: Groups, statistic: Callable[..., Any], level: float, repeats: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A statistic of any shape with its percentile bounds."""
    if not 0 < level < 1 or repeats < 1:
        raise ValueError(f"level must be in (0, 1) and repeats 1 or more, not {level}, {repeats}")
    tasks = _checked(groups)
    value = np.asarray(statistic(tasks), dtype=np.float64)
    if min(len(runs) for runs in tasks) < 2:
        unknown = np.full_like(value, np.nan)
        return value, unknown, unknown
    rng = np.random.default_rng(seed)
    # Each task's resamples [repeats, runs] are drawn at once.
    drawn = [runs[rng.integers(len(runs), size=(repeats, len(runs)))] for runs in tasks]
    found = np.stack([statistic([runs[i] for runs in drawn]) for i in range(repeats)])
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return value, low, high


def _checked(groups: Groups) -> list[np.ndarray]:
    """Each task's runs as an array; an empty task or a score that is no number is refused."""
    tasks = [np.asarray(runs, dtype=np.float64) for runs in groups]
    if not tasks or any(runs.ndim != 1 or runs.size == 0 for runs in tasks):
        raise ValueError("no samples to summarize: each task needs a list of one run or more")
    if not all(np.isfinite(runs).all() for runs in tasks):
        raise ValueError("cannot summarize scores that are not finite")
    return tasks
