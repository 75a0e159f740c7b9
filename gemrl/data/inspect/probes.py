"""What a dataset's ends seem to mean, and to which observation its rewards belong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gemrl.data.dataset import Dataset

# The reward's probe looks at this many rows, drawn with a fixed seed.
PROBED = 4000
FOLDS = 5
BLOCKS = 20
# Numbers of dimensions that its models use.
SIZES = (1, 2, 4, 16)
# Fewer changes of a sparse reward than this tell nothing.
FEWEST_CHANGES = 20


def draw(count: int, size: int) -> np.ndarray:
    """At most `size` of `count` row numbers, always the same."""
    if count <= size:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, size, replace=False))


def ends(data: Dataset, lengths: np.ndarray, sample: np.ndarray) -> dict[str, Any]:
    """How many ends of each kind there are, and what they seem to mean."""
    last = data.episode_starts + lengths - 1
    is_terminal = data.masks[last] == 0
    longest = int(lengths.max())
    found = {
        "terminal": int(is_terminal.sum()),
        "cut": int((~is_terminal).sum()),
        "inside": int((data.masks == 0).sum() - is_terminal.sum()),
        "follow_on": _follow_on(data, last[~is_terminal], sample),
        "longest": longest,
        "terminals_at_longest": int((lengths[is_terminal] == longest).sum()),
        "cuts_at_longest": int((lengths[~is_terminal] == longest).sum()),
        "last_length": int(lengths[-1]),
    }
    return found | {"reading": _reading(data, found, is_terminal, lengths, last)}


def _reading(
    data: Dataset,
    found: dict[str, Any],
    is_terminal: np.ndarray,
    lengths: np.ndarray,
    last: np.ndarray,
) -> str:
    terminals, cuts, longest = found["terminal"], found["cut"], found["longest"]
    if len(lengths) == 1 and not terminals:
        return "no_ends"
    if terminals == 1 and is_terminal[-1]:
        return "last_row_only"
    if not terminals and found["follow_on"]:
        return "endless"
    # Episodes that are all of one length, or some that share the greatest, met a limit.
    limited = found["terminals_at_longest"]
    if longest >= 5 and limited >= 3 and limited >= 0.1 * terminals:
        return "time_limit_as_terminal"
    limited = found["cuts_at_longest"]
    if not terminals:
        return "time_limit" if limited >= 3 or (limited == cuts > 1) else "cuts"
    rewards = data.rewards[np.isfinite(data.rewards)]
    at_end = data.rewards[last[is_terminal]]
    # A value that most rows have tells nothing about those that end.
    common = np.mean(rewards == np.median(rewards)) if rewards.size else 1.0
    if (
        common < 1
        and np.mean(at_end >= rewards.max()) > 0.9
        and np.mean(rewards >= rewards.max()) < 0.5
    ):
        return "success"
    if common < 1 and np.mean(at_end <= np.quantile(rewards, 0.05)) > 0.9:
        return "failure"
    if cuts and np.median(lengths[is_terminal]) < 0.8 * np.median(lengths[~is_terminal]):
        returns = data.episode_returns
        less = np.median(returns[is_terminal]) < np.median(returns[~is_terminal])
        return "failure" if less else "success"
    return "unknown"


def _follow_on(data: Dataset, cuts: np.ndarray, sample: np.ndarray) -> bool | None:
    """Does the episode after a cut go on where the one before it stopped?"""
    cuts = cuts[cuts < len(data) - 1]
    if len(cuts) == 0:
        return None
    cuts, sample = cuts[draw(len(cuts), 1000)], sample[draw(len(sample), 1000)]
    scale = data.observations[sample].astype(np.float64).std(axis=0)
    use = np.isfinite(scale) & (scale > 0)
    if not use.any():
        return None

    def apart(left: np.ndarray, right: np.ndarray) -> float:
        away = np.abs(left[:, use].astype(np.float64) - right[:, use]) / scale[use]
        return float(np.median(away.mean(axis=1)))

    over = apart(data.next_observations[cuts], data.observations[cuts + 1])
    step = apart(data.observations[sample], data.next_observations[sample])
    strangers = apart(data.observations[sample], data.observations[sample[::-1]])
    # A successor that the file lacked leaves two steps between the rows, not one.
    return over <= 3 * step and over <= 0.3 * strangers


def reward_timing(data: Dataset) -> dict[str, Any]:
    """Is the reward a function of this row's observation or of the next one?

    The same models are fitted to both, out of fold, of few dimensions and of more: with many, as
    with a velocity beside a position, one observation gives the other, so that both fit. Where the
    rewards take few values, the rows at which they change are told apart; else their differences
    from row to row are predicted, in which a shift by one row shows most.
    """
    answer = {"verdict": "cannot tell", "why": "", "rows": 0, "observation": None}
    answer["next_observation"] = None
    values, counts = np.unique(data.rewards[np.isfinite(data.rewards)], return_counts=True)
    if len(values) < 2:
        return answer | {"why": "the rewards do not vary"}
    sparse, common = len(values) <= 10, values[counts.argmax()]
    rows, focus = _changes(data, common) if sparse else _stretches(data)
    if len(rows) < 50 or focus.sum() < 2 * FEWEST_CHANGES:
        return answer | {"why": "too few rows in which the reward changes"}
    losses: dict[int, list[np.ndarray]] = {}
    for observations in (data.observations, data.next_observations):
        if sparse:
            basis = _basis(observations[rows])
            target = (data.rewards[rows] != common).astype(np.float64)
        else:
            both = np.concatenate([rows, rows - 1])
            basis = _basis(np.concatenate([observations[both], data.actions[both]], axis=1))
            basis = basis[: len(rows)] - basis[len(rows) :]
            target = data.rewards[rows].astype(np.float64) - data.rewards[rows - 1]
        order = _most_telling(basis, target)
        for size in SIZES:
            chosen = basis[:, _columns_of(order[:size], basis)]
            loss = (_surprise if sparse else _squared)(chosen, target)
            losses.setdefault(size, []).append(loss[focus])
    means = {size: tuple(float(x.mean()) for x in pair) for size, pair in losses.items()}
    clear = [size for size, pair in losses.items() if _clear(*pair)]
    size = clear[0] if clear else min(means, key=lambda size: min(means[size]))
    left, right = means[size]
    answer |= {"rows": len(rows), "observation": left, "next_observation": right}
    if min(left, right) > 0.5:
        return answer | {"why": "neither observation explains the reward"}
    if len({means[size][0] < means[size][1] for size in clear}) != 1:
        return answer | {"why": "both observations explain the reward about as well"}
    return answer | {
        "verdict": "current" if left < right else "next",
        "why": f"a simple model of it leaves {min(left, right):.1%} unexplained, one of the other "
        f"{min(max(left, right), 1):.1%}",
    }


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
    changes = np.flatnonzero(inside & (other[1:] != other[:-1]))
    changes = changes[draw(len(changes), PROBED // 6)]
    near = changes[:, None] + np.arange(-2, 4)
    rows = np.unique(near[(near >= 0) & (near < len(data))])
    rows = rows[_usable(data)[rows]]
    return rows, np.isin(rows, np.concatenate([changes, changes + 1]))


def _stretches(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Stretches of rows whose row before is of the same episode; all of them are next to one."""
    usable = _usable(data)
    pair = usable[1:] & usable[:-1] & (data.episodes[1:] == data.episodes[:-1])
    rows = np.flatnonzero(pair) + 1
    if len(rows) > PROBED:
        starts = draw(len(rows) - 100, PROBED // 100)
        rows = rows[np.unique(starts[:, None] + np.arange(100))]
    return rows, np.ones(len(rows), dtype=bool)


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
