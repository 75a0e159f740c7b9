"""Spending few evaluation episodes on many settings: an upper-confidence rule, and its statistic.

An arm is a setting of knobs, a pull one validation episode of it, and its score the reward.
"""

import math
from collections.abc import Sequence

import numpy as np

from gemrl.errors import ConfigError
from gemrl.maths.statistics import Estimate, estimate


def next_arm(pulls: Sequence[Sequence[float]]) -> int:
    """The arm to pull next: one not pulled yet, else the one with the highest upper bound (UCB1).

    `pulls` has the scores of each arm so far. UCB1 is for scores from 0 to 1; here the bonus is in
    standard deviations of all scores seen. The arm pulled least, then the first, wins a tie.
    """
    if not pulls:
        raise ConfigError("there must be at least one setting to choose from")
    counts = np.array([len(scores) for scores in pulls])
    if (counts == 0).any():
        return int(np.argmax(counts == 0))
    means = np.array([np.mean(scores) for scores in pulls])
    spread = float(np.std(np.concatenate([np.asarray(s, np.float64) for s in pulls])))
    bonus = spread * np.sqrt(2 * math.log(counts.sum()) / counts)
    return int(np.lexsort((counts, -(means + bonus)))[0])


def best_arm(pulls: Sequence[Sequence[float]]) -> int:
    """The arm with the highest mean; of equal ones the arm pulled most, then the first."""
    tried = [
        (-float(np.mean(scores)), -len(scores), i) for i, scores in enumerate(pulls) if len(scores)
    ]
    if not tried:
        raise ConfigError("no setting has been evaluated yet")
    return min(tried)[2]


def score_by_budget(
    validation: Sequence[Sequence[float]],
    test: Sequence[float],
    budgets: Sequence[int],
    rng: np.random.Generator,
    repeats: int = 200,
) -> list[Estimate]:
    """The test score of the setting that the rule picks after so many episodes, for each budget.

    Episodes are drawn again from each setting's validation scores, with replacement, and the
    settings come in a new order each time, so that a budget below their number favours none. The
    standard error is over the repeats: it says nothing about other validation episodes.
    """
    if len(validation) != len(test) or not all(len(scores) for scores in validation):
        raise ConfigError("every setting needs validation scores and one test score")
    if repeats < 1 or not budgets or min(budgets) < 1:
        raise ConfigError("repeats and every budget must be at least 1")
    picked = _picked([np.asarray(s, np.float64) for s in validation], max(budgets), repeats, rng)
    scores = np.asarray(test, np.float64)[picked]
    return [estimate(scores[budget - 1]) for budget in budgets]


def _picked(
    validation: Sequence[np.ndarray], most: int, repeats: int, rng: np.random.Generator
) -> np.ndarray:
    """The best arm after each episode [most, repeats], all repetitions side by side."""
    arms = len(validation)
    order = rng.permuted(np.tile(np.arange(arms), (repeats, 1)), axis=1)
    rows = np.arange(repeats)
    counts, sums, squares = (np.zeros((repeats, arms)) for _ in range(3))
    found = np.empty((most, repeats), dtype=int)
    for spent in range(most):
        if spent < arms:  # Every arm once, before any twice.
            arm = np.full(repeats, spent)
        else:
            means = sums / counts
            spread = np.sqrt(
                np.maximum(squares.sum(axis=1) / spent - (sums.sum(axis=1) / spent) ** 2, 0.0)
            )
            upper = means + spread[:, None] * np.sqrt(2 * math.log(spent) / counts)
            arm = _first(upper, -counts)
        drawn = np.array([rng.choice(validation[a]) for a in order[rows, arm]])
        counts[rows, arm] += 1
        sums[rows, arm] += drawn
        squares[rows, arm] += drawn**2
        means = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
        found[spent] = order[rows, _first(means, counts)]
    return found


def _first(values: np.ndarray, then: np.ndarray) -> np.ndarray:
    """Of each row the place of the highest value; of equal ones that with the highest `then`."""
    equal = values == values.max(axis=1, keepdims=True)
    return np.where(equal, then, -np.inf).argmax(axis=1)
