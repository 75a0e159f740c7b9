"""What one must know of a dataset before training on it.

Values that training would refuse are counted and told here, never refused: every number in the
report is of the values that are finite, and None where there are none.
"""

from typing import Any

import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.data.inspect import probes
from gemrl.data.inspect.dimensions import columns, copies, measure
from gemrl.data.inspect.findings import describe, find
from gemrl.data.inspect.page import write_page
from gemrl.data.inspect.timing import reward_timing
from gemrl.data.tasks import TASKS
from gemrl.maths.statistics import normalized_score

__all__ = ["describe", "inspect", "write_page"]

SATURATED = 0.999
# Quantiles and correlations are of at most this many rows, drawn with a fixed seed.
SAMPLE = 50_000


def inspect(data: Dataset) -> dict[str, Any]:
    """Sizes, returns, action use, bad values and findings in plain words, as JSON values."""
    with np.errstate(all="ignore"):  # Values that are not finite are the subject here.
        report = _measure(data)
    report = _plain(report)
    report["findings"] = find(report)
    texts = {"warnings": ("refused", "warning"), "notes": ("note",)}
    for name, levels in texts.items():
        report[name] = [f["text"] for f in report["findings"] if f["level"] in levels]
    return report


def _measure(data: Dataset) -> dict[str, Any]:
    lengths = np.diff(np.append(data.episode_starts, len(data)))
    sample = probes.draw(len(data), SAMPLE)
    inside = data.episodes[1:] == data.episodes[:-1]
    observations = measure(data.observations, sample, data.episode_starts, lengths, inside)
    actions = measure(data.actions, sample, data.episode_starts, lengths, inside)
    bounds = _bounds(data, actions)
    ends = probes.ends(data, lengths, sample)
    jumps = _jumps(data, inside)
    return {
        "source": data.source,
        "task": data.task,
        "origin": data.origin,
        "bounds_origin": data.bounds_origin,
        "reader_notes": list(data.notes),
        "fingerprint": data.fingerprint,
        "rows": len(data),
        "episodes": len(lengths),
        "observation_dim": data.obs_dim,
        "action_dim": data.action_dim,
        "episode_length": _spread(lengths),
        "episode_return": _spread(data.episode_returns),
        "score": _score(data, ends["reading"] == "endless"),
        "reward": _reward(data.rewards, inside),
        "reward_timing": reward_timing(data),
        "terminals": int((data.masks == 0).sum()),
        "ends": ends,
        "jumps": jumps["rows"],
        "jump": jumps,
        "action_low": data.action_low.tolist(),
        "action_high": data.action_high.tolist(),
        "action_min": [column["min"] for column in actions],
        "action_max": [column["max"] for column in actions],
        **bounds,
        "constant_observation_dims": [c["dim"] for c in observations if c["constant"]],
        "constant_action_dims": [c["dim"] for c in actions if c["constant"]],
        **copies(data, sample),
        **_repeats(data, inside),
        "not_finite": {
            name: int((~np.isfinite(getattr(data, name))).sum())
            for name in ("observations", "actions", "rewards", "next_observations")
        },
        "bad_values": _bad_values(data),
        "observation_dims": observations,
        "action_dims": actions,
        "sampled_rows": len(sample),
    }


def _bounds(data: Dataset, dims: list[dict[str, Any]]) -> dict[str, Any]:
    """How actions use their bounds; each dimension's own numbers go into `dims`."""
    middle, half = (
        (data.action_low + data.action_high) / 2,
        (data.action_high - data.action_low) / 2,
    )
    outside = data.outside_bounds()
    saturated, worst = 0, None
    for dim, column in enumerate(columns(data.actions)):
        unit = (column - middle[dim]) / half[dim]
        at_low, at_high = unit <= -SATURATED, unit >= SATURATED
        saturated += int(at_low.sum()) + int(at_high.sum())
        dims[dim] |= {
            "at_low": float(at_low.mean()),
            "at_high": float(at_high.mean()),
            "outside": int(outside[:, dim].sum()),
        }
        if outside[:, dim].any():
            row = int(np.argmax(np.where(outside[:, dim], np.abs(unit), 0)))
            if worst is None or abs(unit[row]) > worst["excess"]:
                worst = {"row": row, "dim": dim, "value": float(column[row])}
                worst["excess"] = float(abs(unit[row]))
    rows = outside.any(axis=1)
    return {
        "saturated_share": saturated / data.actions.size,
        "outside_bounds": int(rows.sum()),
        "outside": {
            "share": float(rows.mean()),
            "first_row": int(np.argmax(rows)) if rows.any() else None,
            "dims": [d["dim"] for d in dims if d["outside"]],
            "worst": worst,
        },
        "usable_bounds": bool(np.isfinite(half).all() and (half > 0).all()),
    }


def _jumps(data: Dataset, inside: np.ndarray) -> dict[str, Any]:
    """Rows whose next observation is not the following row's, within an episode."""
    gap = np.zeros(len(data) - 1, dtype=np.float32)
    for following, now in zip(
        columns(data.next_observations), columns(data.observations), strict=True
    ):
        away = np.abs(following[:-1] - now[1:])
        # Rounding of large values is no jump.
        away[away <= 1e-6 * np.abs(now[1:])] = 0
        gap = np.fmax(gap, away)
    rows = np.flatnonzero(inside & (gap > 1e-5))
    if len(rows) == 0:
        return {"rows": 0, "first_row": None, "largest": None, "median": None}
    return {
        "rows": len(rows),
        "first_row": int(rows[0]),
        "largest": float(gap[rows].max()),
        "median": float(np.median(gap[rows])),
    }


def _repeats(data: Dataset, inside: np.ndarray) -> dict[str, Any]:
    """Rows that are in the data already, rows in which nothing moves, actions that are held."""
    key = np.zeros(len(data), dtype=np.uint64)
    factors = np.random.default_rng(0)
    arrays = (data.observations, data.actions, data.rewards[:, None], data.next_observations)
    for array in arrays:
        for column in columns(array):
            odd = np.uint64(factors.integers(1 << 62) * 2 + 1)
            # Adding zero makes one of the two zeros.
            key = (key + (column + np.float32(0)).view(np.uint32)) * odd
    frozen = np.ones(len(data), dtype=bool)
    for following, now in zip(
        columns(data.next_observations), columns(data.observations), strict=True
    ):
        frozen &= following == now
    held, at_bound = inside.copy(), np.ones(len(data), dtype=bool)
    for dim, column in enumerate(columns(data.actions)):
        held &= column[1:] == column[:-1]
        at_bound &= (column <= data.action_low[dim]) | (column >= data.action_high[dim])
    # A controller that pushes with all it has repeats itself without being held.
    free = inside & ~at_bound[1:]
    return {
        "repeated_rows": len(data) - len(np.unique(key)),
        "frozen_share": float(frozen.mean()),
        "held_action_share": float((held & free).sum() / max(free.sum(), 1)),
    }


def _bad_values(data: Dataset) -> dict[str, Any]:
    found = {}
    for name in ("observations", "actions", "rewards", "next_observations", "masks"):
        array = getattr(data, name).reshape(len(data), -1)
        bad = ~np.isfinite(array)
        if bad.any():
            rows = bad.any(axis=1)
            found[name] = {
                "nan": int(np.isnan(array).sum()),
                "infinite": int(np.isinf(array).sum()),
                "rows": int(rows.sum()),
                "first_row": int(np.argmax(rows)),
                "dims": np.flatnonzero(bad.any(axis=0)).tolist(),
            }
    return found


def _reward(rewards: np.ndarray, inside: np.ndarray) -> dict[str, Any]:
    values = np.unique(rewards[np.isfinite(rewards)])
    return _spread(rewards) | {
        "nonzero_share": float((rewards != 0).mean()),
        "distinct": len(values),
        "values": values.tolist() if len(values) <= 10 else None,
        "never_falls": not bool((inside & (rewards[1:] < rewards[:-1])).any()),
    }


def _score(data: Dataset, endless: bool) -> dict[str, Any] | None:
    """Normalized scores of the episodes, or of stretches as long as the task's horizon.

    An evaluation stops at the first terminal, so an episode's rewards count up to there.
    """
    task = TASKS.get(data.task or "")
    if task is None:
        return None
    returns, of = _scored(data)
    if endless:
        count = len(data) // task.horizon
        if count == 0:
            return None
        cut = data.rewards[: count * task.horizon].astype(np.float64)
        returns, of = cut.reshape(count, -1).sum(axis=1), f"stretches of {task.horizon} rows"
    scores = np.array([normalized_score(float(r), *task.reference) for r in returns])
    finite = np.isfinite(scores)
    if not finite.any():
        return None
    return {
        "of": of,
        "mean": scores[finite].mean(),
        "worst": scores[finite].min(),
        "worst_index": int(np.argmin(np.where(finite, scores, np.inf))),
        "best": scores[finite].max(),
        "best_index": int(np.argmax(np.where(finite, scores, -np.inf))),
    }


def _scored(data: Dataset) -> tuple[np.ndarray, str]:
    """Returns of episodes as an evaluation would count them, and which episodes they are."""
    starts, terminal = data.episode_starts, data.masks == 0
    lengths = np.diff(np.append(starts, len(data)))
    before = np.cumsum(terminal) - terminal
    over = before > np.repeat(before[starts], lengths)
    returns = np.add.reduceat(np.where(over, 0, data.rewards).astype(np.float64), starts)
    short = ~np.logical_or.reduceat(terminal, starts) & (lengths < lengths.max())
    of = "episodes"
    if short[-1]:  # The end of the data cut it: how it would have ended is not known.
        returns, short, of = returns[:-1], short[:-1], "episodes but the last, which is cut short"
    return returns, f"{of}; cut episodes count as they are" if short.any() else of


def _spread(values: np.ndarray) -> dict[str, float | None]:
    """Of the values that are finite; None where there are none, which JSON can hold."""
    names = ("min", "q05", "q25", "median", "mean", "q75", "q95", "max")
    finite = values[np.isfinite(values)].astype(np.float64)
    if finite.size == 0:
        return dict.fromkeys(names)
    low, q05, q25, median, q75, q95, high = np.quantile(
        finite, [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1]
    ).tolist()
    return dict(zip(names, (low, q05, q25, median, finite.mean(), q75, q95, high), strict=True))


def _plain(value: Any) -> Any:
    """The same as JSON values: NumPy's numbers as Python's, what is not finite as None."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
