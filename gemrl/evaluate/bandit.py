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
    found = np.empty((repeats, len(budgets)))
    for repeat in range(repeats):
        order = rng.permutation(len(test))
        pulls: list[list[float]] = [[] for _ in order]
        picked: dict[int, int] = {}
        for spent in range(1, max(budgets) + 1):
            arm = next_arm(pulls)
            pulls[arm].append(float(rng.choice(validation[order[arm]])))
            picked[spent] = int(order[best_arm(pulls)])
        found[repeat] = [test[picked[budget]] for budget in budgets]
    return [estimate(column) for column in found.T]
