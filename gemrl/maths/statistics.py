"""Summaries of evaluation rows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A mean with its standard error; the error is NaN where one sample gives none."""

    mean: float
    stderr: float
    samples: int

    def __str__(self) -> str:
        error = "" if math.isnan(self.stderr) else f" ± {self.stderr:.1f}"
        return f"{self.mean:.1f}{error}"


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
