"""Values of all settings, cross-fitted on held-out episodes, with intervals."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc
from jaxtyping import Float, Int

from gemrl.data.dataset import Dataset
from gemrl.errors import TrainingError
from gemrl.evaluate.tune.choices import Choices
from gemrl.evaluate.tune.fqe import (
    Bounds,
    FqeConfig,
    Transitions,
    fit,
    value_bounds,
    values_of,
)
from gemrl.learn.spec import Spec, scale
from gemrl.progress import Report, later_part, silent

# Times a typical step by which the start of an episode may lie off the end of the one before it,
# for a log to count as one endless trajectory that was merely cut: the same state, or the next.
# Fast robots move nearly as far in a step as a reset takes them (HalfCheetah: 1.2), hence so close.
CONTINUED = 1.1


class Interval(NamedTuple):
    """A mean, and bounds each of which holds with the stated confidence."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Evidence:
    """All that an estimate is made of."""

    transitions: Transitions
    episodes: Int[np.ndarray, " t"]
    """Episode of each transition, counted from 0."""
    initial_obs: Float[np.ndarray, "b s"]
    """Scaled states over which values are averaged."""
    initial_actions: Float[np.ndarray, "k b a"]
    initial_covered: Float[np.ndarray, "k b"]
    initial_episodes: Int[np.ndarray, " b"]
    bounds: Bounds
    discount: float


def evidence_of(
    rows: Dataset,
    following: Choices,
    initial: np.ndarray,
    first: Choices,
    spec: Spec,
    discount: float,
    least_log_support: float,
    coverage: float,
) -> Evidence:
    """The held-out rows with what the settings choose at next states and at `initial` rows."""
    batch = scale(rows, spec)
    episodes = np.unique(rows.episodes, return_inverse=True)[1]
    obs_scaled = (rows.observations[initial] - spec.obs_mean) / spec.obs_std
    return Evidence(
        transitions=Transitions(
            batch,
            jnp.asarray(_scaled_actions(following.action, spec)),
            jnp.asarray(covered(following.log_support, least_log_support, coverage)),
        ),
        episodes=episodes,
        initial_obs=obs_scaled,
        initial_actions=_scaled_actions(first.action, spec),
        initial_covered=covered(first.log_support, least_log_support, coverage),
        initial_episodes=episodes[initial],
        bounds=value_bounds(np.asarray(batch.reward), np.asarray(batch.mask), discount),
        discount=discount,
    )


def covered(
    log_support: Float[np.ndarray, "k b"], least: float, share: float
) -> Float[np.ndarray, "k b"]:
    """1 where the log can tell what a choice leads to, 0 where it cannot.

    A `share` of the logged actions themselves lies below `least`. So may that share of a setting's
    choices, the likeliest of those below: only what it does beyond the log's own habit is beyond
    what the log can tell.
    """
    below = (log_support < least).sum(axis=1)
    beyond = np.maximum(0, below - int(share * log_support.shape[1]))
    ranks = log_support.argsort(axis=1).argsort(axis=1)
    return (ranks >= beyond[:, None]).astype(np.float32)


def _scaled_actions(actions: np.ndarray, spec: Spec) -> np.ndarray:
    return np.clip((actions - spec.action_middle) / spec.action_half, -1, 1).astype(np.float32)


def is_one_trajectory(data: Dataset, spec: Spec) -> bool:
    """Whether episodes go on where the one before them ended, so that their starts are no starts.

    So it is in logs that one long run filled and that time limits cut.
    """
    starts = data.episode_starts[1:]
    if len(starts) == 0:
        return True
    gaps = (data.observations[starts] - data.next_observations[starts - 1]) / spec.obs_std
    some = np.linspace(0, len(data) - 1, min(len(data), 10_000)).astype(int)
    steps = (data.next_observations[some] - data.observations[some]) / spec.obs_std
    typical = np.median(np.linalg.norm(steps, axis=1))
    return bool(np.median(np.linalg.norm(gaps, axis=1)) <= CONTINUED * typical)


def replicates(
    evidence: Evidence,
    config: FqeConfig,
    fits: int,
    seed: int,
    report: Report = silent,
) -> Float[np.ndarray, "r k"]:
    """The value of each setting, estimated anew `fits` times.

    Each time episodes are drawn with replacement and split in two halves; networks fitted on one
    half value the initial states of the other. So no state is valued by a network that saw its
    episode, and the spread of the estimates is that of both the episodes and the fits.
    """
    estimates = []
    for number in range(fits):
        rng = np.random.default_rng([seed, number])
        before = 2 * number * config.updates
        estimates.append(_replicate(evidence, config, rng, later_part(report, before)))
    values = np.stack(estimates)
    if not np.isfinite(values).all():
        raise TrainingError(
            "fitted Q evaluation gave values that are not finite: look at the rewards with "
            "`gemrl data inspect`"
        )
    return values


def _replicate(
    evidence: Evidence,
    config: FqeConfig,
    rng: np.random.Generator,
    report: Report,
) -> Float[np.ndarray, " k"]:
    count = int(evidence.episodes.max()) + 1
    times = np.bincount(rng.integers(count, size=count), minlength=count)
    drawn = rng.permutation(np.flatnonzero(times))
    half = np.full(count, -1)
    half[drawn[: len(drawn) // 2]], half[drawn[len(drawn) // 2 :]] = 0, 1
    total, weight = 0.0, 0.0
    for side in (0, 1):
        rows = np.flatnonzero(half[evidence.episodes] == side)
        rows = np.repeat(rows, times[evidence.episodes[rows]])
        minibatches = rng.choice(rows, (config.updates, config.batch_size)).astype(np.int32)
        nets = fit(
            evidence.transitions,
            minibatches,
            evidence.discount,
            evidence.bounds,
            config,
            jax.random.key(int(rng.integers(2**32))),
            later_part(report, side * config.updates),
        )
        values = values_of(
            nets,
            jnp.asarray(evidence.initial_obs),
            jnp.asarray(evidence.initial_actions),
            jnp.asarray(evidence.initial_covered),
            evidence.bounds,
        )
        unseen = (half == 1 - side) * times
        weights = unseen[evidence.initial_episodes].astype(np.float64)
        total = total + np.asarray(values, np.float64) @ weights
        weight += weights.sum()
    return np.asarray(total / weight)


def interval(samples: Float[np.ndarray, " r"], confidence: float) -> Interval:
    """Mean of bootstrap estimates, and bounds by Student's t: their spread is the standard error.

    It is not divided by their number: another fit on the same episodes brings no new episodes.
    """
    mean, spread = float(np.mean(samples)), float(np.std(samples, ddof=1))
    # The mean of a few fits is itself unsure by their spread over the root of their number.
    reach = t_quantile(confidence, len(samples) - 1) * spread * math.sqrt(1 + 1 / len(samples))
    return Interval(mean, mean - reach, mean + reach)


@lru_cache
def t_quantile(level: float, freedom: int) -> float:
    """The point below which Student's t lies with probability `level`, at least one half."""
    low, high = 0.0, 1e4
    for _ in range(60):
        t = (low + high) / 2
        above = 0.5 * float(betainc(freedom / 2, 0.5, freedom / (freedom + t * t)))
        low, high = (t, high) if 1 - above < level else (low, t)
    return (low + high) / 2


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's; None where one of them has the same value everywhere."""
    ranks_x, ranks_y = _ranks(x), _ranks(y)
    if np.ptp(ranks_x) == 0 or np.ptp(ranks_y) == 0:
        return None
    return float(np.corrcoef(ranks_x, ranks_y)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values sharing the mean of theirs."""
    below = (values[:, None] > values[None]).sum(axis=1)
    equal = (values[:, None] == values[None]).sum(axis=1)
    return below + (equal - 1) / 2


def agreement(values: Float[np.ndarray, "r k"]) -> float | None:
    """Mean rank correlation of settings between two fits."""
    pairs = [(a, b) for a in range(len(values)) for b in range(a)]
    found = [rank_correlation(values[a], values[b]) for a, b in pairs]
    known = [r for r in found if r is not None]
    return float(np.mean(known)) if known else None
