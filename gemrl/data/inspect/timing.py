"""To which observation, and to which row, a dataset's rewards belong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.data.inspect.probes import draw

# The probe looks at this many rows, drawn with a fixed seed.
PROBED = 4000
FOLDS = 5
BLOCKS = 20
# Numbers of dimensions that its models use.
SIZES = (1, 2, 4, 16)
# Fewer changes of a sparse reward than this tell nothing.
FEWEST_CHANGES = 20


def reward_timing(data: Dataset) -> dict[str, Any]:
    """Is the reward a function of this row's observation, of the next one or of the row before?

    The same models are fitted to both observations, out of fold, of few dimensions and of more:
    with many, as with a velocity beside a position, one observation gives the other, so that both
    fit. Where the rewards take few values, the rows at which they change are told apart; else their
    differences from row to row are predicted, in which a shift by one row shows most. A reward for
    the way from one observation to the other needs both: unless it is the next one's, this row's
    both are held against those of the row before. An episode's first reward is left out: in a
    column that was shifted it is another episode's.
    """
    answer: dict[str, Any] = {"verdict": "cannot tell", "why": "", "rows": 0}
    answer |= dict.fromkeys(("observation", "next_observation", "row", "previous_row"))
    values, counts = np.unique(data.rewards[np.isfinite(data.rewards)], return_counts=True)
    if len(values) < 2:
        return answer | {"why": "the rewards do not vary"}
    sparse, common = len(values) <= 10, values[counts.argmax()]
    rows, focus = _changes(data, common) if sparse else _stretches(data)
    if len(rows) < 50 or focus.sum() < 2 * FEWEST_CHANGES:
        return answer | {"why": "too few rows in which the reward changes"}
    now, following, actions = data.observations, data.next_observations, data.actions
    if sparse:
        target = (data.rewards[rows] != common).astype(np.float64)
        pair = [_losses(_basis(obs[rows]), target, focus, _surprise) for obs in (now, following)]
    else:
        target = _within_reach(data.rewards[rows].astype(np.float64) - data.rewards[rows - 1])
        pair = [
            _losses(_steps(rows, obs, actions), target, focus, _squared) for obs in (now, following)
        ]
    left, right, clear = _compared(*pair)
    answer |= {"rows": len(rows), "observation": left, "next_observation": right}
    verdict = None if not clear else "current" if left < right else "next"
    if not sparse and verdict != "next":
        both = (now, actions, following)
        own, before, clear = _compared(
            *(_losses(_steps(at, *both), target, focus, _squared) for at in (rows, rows - 1))
        )
        answer |= {"row": own, "previous_row": before}
        if clear and before < own:
            return answer | _verdict("previous", own, before)
    if verdict:
        return answer | _verdict(verdict, left, right)
    if min(left, right) > 0.5:
        return answer | {"why": "neither observation explains the reward"}
    why = "both observations explain the reward about as well"
    return answer | {"why": f"{why}, the row before less well" if clear else why}


def _verdict(verdict: str, one: float, other: float) -> dict[str, str]:
    rest = "this row" if verdict == "previous" else "the other"
    why = (
        f"a simple model of it leaves {min(one, other):.1%} unexplained, one of {rest} "
        f"{min(max(one, other), 1):.1%}"
    )
    return {"verdict": verdict, "why": why}


def _losses(
    basis: np.ndarray,
    target: np.ndarray,
    focus: np.ndarray,
    loss: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> dict[int, np.ndarray]:
    """What models of few dimensions and of more leave unexplained in the rows of the focus."""
    order = _most_telling(basis, target)
    return {size: loss(basis[:, _columns_of(order[:size], basis)], target)[focus] for size in SIZES}


def _compared(
    one: dict[int, np.ndarray], other: dict[int, np.ndarray]
) -> tuple[float, float, bool]:
    """The mean losses of two where they differ first, and whether they differ clearly."""
    means = {size: (float(one[size].mean()), float(other[size].mean())) for size in SIZES}
    clear = [size for size in SIZES if _clear(one[size], other[size])]
    size = clear[0] if clear else min(means, key=lambda size: min(means[size]))
    left, right = means[size]
    agreed = len({means[size][0] < means[size][1] for size in clear}) == 1
    return left, right, agreed and min(left, right) <= 0.5


def _clear(current: np.ndarray, following: np.ndarray) -> bool:
    """Does one of two losses explain, the other much less, and not only by chance?"""
    low, high = sorted((current.mean(), following.mean()))
    block = np.arange(len(current)) * BLOCKS // len(current)
    gain = np.bincount(block, weights=current - following) / np.bincount(block)
    by_chance = gain.std() / np.sqrt(BLOCKS)
    return bool(low <= 0.5 and high >= 2 * low and abs(gain.mean()) > 3 * by_chance)


def _usable(data: Dataset) -> np.ndarray:
    """Rows whose successor is known: where the following row stood in, a terminal has none."""
    stand_in = (data.next_observations[:-1] == data.observations[1:]).all(axis=1)
    usable = (data.masks == 1) | ~np.append(stand_in, False)
    for array in (data.observations, data.next_observations, data.actions):
        usable &= np.isfinite(array).all(axis=1)
    return usable & np.isfinite(data.rewards)


def _changes(data: Dataset, common: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows around changes between the commonest reward and others, and which are next to one."""
    other = data.rewards != common
    inside = data.episodes[1:] == data.episodes[:-1]
    first = _first(data)
    changes = np.flatnonzero(inside & (other[1:] != other[:-1]) & ~first[:-1])
    changes = changes[draw(len(changes), PROBED // 6)]
    near = changes[:, None] + np.arange(-2, 4)
    rows = np.unique(near[(near >= 0) & (near < len(data))])
    rows = rows[(_usable(data) & ~first)[rows]]
    return rows, np.isin(rows, np.concatenate([changes, changes + 1]))


def _stretches(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Stretches of rows with two of the same episode before them; all of them are in the focus."""
    usable = _usable(data)
    rows = np.arange(2, len(data))
    near = usable[rows] & usable[rows - 1] & usable[rows - 2]
    rows = rows[near & (data.episodes[rows] == data.episodes[rows - 2])]
    if len(rows) > PROBED:
        starts = draw(len(rows) - 100, PROBED // 100)
        rows = rows[np.unique(starts[:, None] + np.arange(100))]
    return rows, np.ones(len(rows), dtype=bool)


def _first(data: Dataset) -> np.ndarray:
    """First rows of episodes."""
    first = np.zeros(len(data), dtype=bool)
    first[data.episode_starts] = True
    return first


def _within_reach(values: np.ndarray) -> np.ndarray:
    """The values, those far out drawn in: a few would rule the squares of all."""
    low, high = np.quantile(values, [0.005, 0.995])
    return np.clip(values, 2 * low - high, 2 * high - low) if low < high else values


def _steps(rows: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
    """How the basis of the arrays, side by side, changes from the row before each row."""
    at = np.concatenate([rows, rows - 1])
    basis = _basis(np.concatenate([array[at] for array in arrays], axis=1))
    return basis[: len(rows)] - basis[len(rows) :]


def _basis(values: np.ndarray) -> np.ndarray:
    table = values.astype(np.float64)
    spread = table.std(axis=0)
    table = (table - table.mean(axis=0))[:, spread > 0] / spread[spread > 0]
    table = np.clip(table, -10, 10)
    return np.concatenate([table, table**2, np.ones((len(table), 1))], axis=1)


def _columns_of(dims: list[int], basis: np.ndarray) -> list[int]:
    """A basis's columns for some dimensions: the value and the square of each, and the constant."""
    count = basis.shape[1] // 2
    return [*dims, *(count + dim for dim in dims), 2 * count]


def _most_telling(basis: np.ndarray, target: np.ndarray) -> list[int]:
    """Dimensions in the order in which each explains most of what those before it left."""
    gram = basis.T @ basis + 1e-4 * len(basis) * np.eye(basis.shape[1])
    slope = basis.T @ target
    order: list[int] = []
    rest = list(range(basis.shape[1] // 2))
    while rest and len(order) < max(SIZES):

        def explained(dim: int) -> float:
            at = _columns_of([*order, dim], basis)
            return float(slope[at] @ np.linalg.solve(gram[np.ix_(at, at)], slope[at]))

        order.append(max(rest, key=explained))
        rest.remove(order[-1])
    return order


def _out_of_fold(
    basis: np.ndarray, target: np.ndarray, fit: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Each row's prediction by a model of the other folds, which are stretches of rows."""
    fold = np.arange(len(target)) * FOLDS // len(target)
    predicted = np.empty(len(target))
    for k in range(FOLDS):
        weights = fit(basis[fold != k], target[fold != k])
        predicted[fold == k] = basis[fold == k] @ weights
    return predicted


def _squared(basis: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Squared errors as shares of the target's variance."""
    return (_out_of_fold(basis, target, _ridge) - target) ** 2 / max(target.var(), 1e-30)


def _surprise(basis: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Bits of surprise at a target of 0 or 1, at most five."""
    chance = _squash(_out_of_fold(basis, target, _logistic))
    return -np.log2(np.maximum(np.where(target > 0, chance, 1 - chance), 2.0**-5))


def _ridge(basis: np.ndarray, target: np.ndarray) -> np.ndarray:
    gram = basis.T @ basis + 1e-4 * len(basis) * np.eye(basis.shape[1])
    return np.linalg.solve(gram, basis.T @ target)


def _logistic(basis: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Logistic regression by Newton's steps, hardly held back: the border is to be found sharp."""
    weights = np.zeros(basis.shape[1])
    for _ in range(15):
        chance = _squash(basis @ weights)
        curvature = (basis * (chance * (1 - chance))[:, None]).T @ basis
        slope = basis.T @ (chance - target) + 1e-3 * weights
        weights -= np.linalg.solve(curvature + 1e-3 * np.eye(len(weights)), slope)
    return weights


def _squash(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(values, -30, 30)))
