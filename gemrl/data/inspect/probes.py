"""What a dataset's ends seem to mean."""

from typing import Any

import numpy as np

from gemrl.data.dataset import Dataset


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
    if terminals == 1 and is_terminal[-1] and not found["inside"]:
        return "last_row_only"
    if not terminals and not found["inside"] and found["follow_on"]:
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
