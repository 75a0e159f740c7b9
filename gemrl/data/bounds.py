"""Action bounds: which are taken, and what becomes of actions that lie outside them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.data.tasks import task_named
from gemrl.errors import DataError
from gemrl.progress import say

Origin = Literal["task", "file", "unit", "data", "quantiles"]
Outside = Literal["refuse", "clip", "rescale"]
Limit = float | Sequence[float] | np.ndarray
Pair = tuple[Limit, Limit] | Sequence[Limit]
QUANTILES = (0.001, 0.999)


def with_bounds(
    data: Dataset,
    bounds: str | Pair | None = None,
    *,
    outside: str = "refuse",
    file: tuple[np.ndarray, np.ndarray] | None = None,
    holder: str = "file",
    otherwise: Origin = "unit",
) -> Dataset:
    """The dataset with other action bounds, saying which.

    `bounds` is `task`, `file`, `unit` ([-1, 1]), `data` (each dimension's own range), `quantiles`
    (its 0.1 % and 99.9 % quantiles), a pair of numbers or of one number a dimension, or None: then
    the task's, else those that the `file` names, else `otherwise`. Those of a file may be written
    elsewhere, in its `holder`. Actions outside are left for training to refuse, clipped, or drawn
    together about the middle until the furthest is inside.
    """
    bounds, outside = check_bounds(bounds, outside)
    why = dict(_WHY, file=f"as the {holder} has them")
    if bounds is None:
        opened = [] if data.task else _opened(file, data)
        bounds = "task" if data.task else otherwise if file is None or opened else "file"
        why["unit"] = "D4RL's convention, since neither a task nor the file names others"
        if bounds == otherwise and opened:
            why["unit"] = "D4RL's convention"
            why[otherwise] += f", since those of the {holder} are open in dimensions {opened}"
    notes = []
    if not isinstance(bounds, str):
        origin, (low, high) = "given", bounds
    elif bounds == "task":
        if data.task is None:
            raise DataError(f"{data.source}: bounds of its task were asked for, and it has none")
        task = task_named(data.task)
        origin, low, high = bounds, task.action_low, task.action_high
    elif bounds == "file":
        if file is None:
            raise DataError(f"{data.source}: bounds of the file were asked for, and it names none")
        origin, (low, high) = bounds, file
    elif bounds == "unit":
        origin, low, high = bounds, -1.0, 1.0
    else:
        origin, low, high, widened = _of_data(data.actions, bounds)
        notes += widened
    low, high = (_spread(name, value, data) for name, value in (("low", low), ("high", high)))
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise DataError(
            f"{data.source}: action bounds {_text(low)} to {_text(high)}: each must be finite and "
            "the lower below the upper"
        )
    data = replace(data, action_low=low, action_high=high, bounds_origin=origin)
    notes.insert(0, f"action bounds: {_text(low)} to {_text(high)}, {why[origin]}")
    if outside != "refuse":
        data, moved = _moved_inside(data, outside)
        notes += moved
    for note in notes:
        say(note)
    return replace(data, notes=(*data.notes, *notes))


_WHY = {
    "given": "as given",
    "task": "the task's",
    "unit": "as asked for",
    "data": "each dimension's own range in the data",
    "quantiles": "each dimension's 0.1 % and 99.9 % quantiles in the data",
}


def check_bounds(bounds: str | Pair | None, outside: str) -> tuple[str | Pair | None, str]:
    """The two as they are meant, "LOW,HIGH" as a pair; refused before a long reading."""
    if outside not in get_args(Outside):
        raise DataError(f"outside {outside!r}: must be one of {', '.join(get_args(Outside))}")
    if isinstance(bounds, str) and bounds not in get_args(Origin):
        try:
            low, high = (float(part) for part in bounds.split(","))
        except ValueError:
            raise DataError(
                f"bounds {bounds!r}: must be one of {', '.join(get_args(Origin))}, or two numbers "
                "such as -2,2"
            ) from None
        return (low, high), outside
    if bounds is None or isinstance(bounds, str):
        return bounds, outside
    is_list = isinstance(bounds, Sequence) or (isinstance(bounds, np.ndarray) and bounds.ndim > 0)
    if not is_list or len(bounds) != 2:
        raise DataError(
            f"bounds {bounds!r}: must be a pair, the lower and the upper, or one of "
            f"{', '.join(get_args(Origin))}"
        )
    return bounds, outside


def _opened(file: tuple[np.ndarray, np.ndarray] | None, data: Dataset) -> list[int]:
    """Dimensions that the file leaves without a bound on one side or both: a space may be open."""
    if file is None:
        return []
    low, high = (
        _spread(name, value, data) for name, value in zip(("low", "high"), file, strict=True)
    )
    return np.flatnonzero(~np.isfinite(low) | ~np.isfinite(high)).tolist()


def _of_data(actions: np.ndarray, word: str) -> tuple[str, np.ndarray, np.ndarray, list[str]]:
    """Each dimension's range of finite values; one that never changes gets some room."""
    limits = np.empty((2, actions.shape[1]), dtype=np.float32)
    notes = []
    for dimension, column in enumerate(actions.T):
        values = column[np.isfinite(column)]
        if values.size == 0:  # Training refuses what is not finite; inspection needs a number.
            limits[:, dimension] = -1, 1
            continue
        low, high = (
            (values.min(), values.max()) if word == "data" else np.quantile(values, QUANTILES)
        )
        if not np.float32(low) < np.float32(high):
            room = 0.01 * max(abs(low), 1.0)
            notes.append(
                f"action dimension {dimension} is {low:g} throughout: its bounds are widened by "
                f"{room:g}"
            )
            low, high = low - room, high + room
        limits[:, dimension] = low, high
    return word, limits[0], limits[1], notes


def _moved_inside(data: Dataset, outside: str) -> tuple[Dataset, list[str]]:
    finite = np.isfinite(data.actions)
    is_outside = data.outside_bounds() & finite
    if not is_outside.any():
        return data, []
    count = int(is_outside.any(axis=1).sum())
    low, high = data.action_low, data.action_high
    actions = data.actions
    note = f"{count} actions outside the bounds were clipped onto them"
    if outside == "rescale":
        middle, half = (low + high) / 2, (high - low) / 2
        reach = np.abs(actions - middle).max(axis=0, where=finite, initial=0.0)
        factors = np.where(is_outside.any(axis=0), half / np.maximum(reach, half), 1.0)
        actions = middle + (actions - middle) * factors.astype(np.float32)
        note = (
            f"{count} actions lay outside the bounds: all actions are drawn about the middle of "
            f"the bounds by the factors {_text(factors)}"
        )
    # Rounding may leave the furthest just outside. What is not finite stays, to be refused.
    actions = np.where(finite, np.clip(actions, low, high), data.actions)
    return replace(data, actions=actions.astype(np.float32, copy=False)), [note]


def _spread(name: str, value: Limit, data: Dataset) -> np.ndarray:
    try:
        limit = np.asarray(value, dtype=np.float32)
        return np.broadcast_to(limit, (data.action_dim,)).copy()
    except (TypeError, ValueError):
        raise DataError(
            f"{data.source}: the {name} bound {value!r} must be one number, or one for each of "
            f"the {data.action_dim} action dimensions"
        ) from None


def _text(values: np.ndarray) -> str:
    """Numbers for a sentence: one where all are the same, and a few where there are many."""
    if (values == values[0]).all():
        return f"{values[0]:g}"
    shown = [f"{value:g}" for value in values[:8]]
    return f"[{', '.join(shown)}{', ...' if len(values) > 8 else ''}]"
