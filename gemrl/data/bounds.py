"""Action bounds: which are taken, and what becomes of actions that lie outside them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args

import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.data.statistics import Tails
from gemrl.data.tasks import task_named
from gemrl.data.trainable import outside_bounds
from gemrl.errors import DataError
from gemrl.progress import say

Origin = Literal["task", "file", "unit", "data", "quantiles"]
Outside = Literal["refuse", "clip", "rescale"]
Limit = float | Sequence[float] | np.ndarray
Pair = tuple[Limit, Limit] | Sequence[Limit]
Blocks = Callable[[], Iterable[np.ndarray]]
"""All actions, block after block, as often as they are asked for."""
TAIL = 0.001
"""Share of the data that bounds by quantiles leave outside at either end."""


class Acting(Protocol):
    """Rows with actions, in memory or in a file."""

    @property
    def task(self) -> str | None:
        """Name in the task table."""
        ...

    @property
    def source(self) -> str:
        """Where they are read from."""
        ...

    @property
    def action_dim(self) -> int:
        """Action dimensions."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, eq=False)
class ChosenBounds:
    """Action bounds, where they come from, and what they make of actions."""

    low: np.ndarray
    high: np.ndarray
    origin: str
    notes: tuple[str, ...]
    moved: Callable[[np.ndarray], np.ndarray]
    """Actions as they are to be, of some rows as they are read."""


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
    chosen = choose_bounds(
        data,
        lambda: [data.actions],
        bounds,
        outside=outside,
        file=file,
        holder=holder,
        otherwise=otherwise,
    )
    for note in chosen.notes:
        say(note)
    return replace(
        data,
        actions=chosen.moved(data.actions),
        action_low=chosen.low,
        action_high=chosen.high,
        bounds_origin=chosen.origin,
        notes=(*data.notes, *chosen.notes),
    )


def choose_bounds(
    data: Acting,
    actions: Blocks,
    bounds: str | Pair | None = None,
    *,
    outside: str = "refuse",
    file: tuple[np.ndarray, np.ndarray] | None = None,
    holder: str = "file",
    otherwise: Origin = "unit",
) -> ChosenBounds:
    """The bounds that `with_bounds` gives; actions are read only where bounds depend on them."""
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
        low, high, widened = _of_data(data, actions, bounds)
        origin = bounds
        notes += widened
    low, high = (_spread(name, value, data) for name, value in (("low", low), ("high", high)))
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise DataError(
            f"{data.source}: action bounds {_text(low)} to {_text(high)}: each must be finite and "
            "the lower below the upper"
        )
    notes.insert(0, f"action bounds: {_text(low)} to {_text(high)}, {why[origin]}")
    moved, words = _move_inside(actions, low, high, outside)
    return ChosenBounds(low, high, origin, (*notes, *words), moved)


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


def _opened(file: tuple[np.ndarray, np.ndarray] | None, data: Acting) -> list[int]:
    """Dimensions that the file leaves without a bound on one side or both: a space may be open."""
    if file is None:
        return []
    low, high = (
        _spread(name, value, data) for name, value in zip(("low", "high"), file, strict=True)
    )
    return np.flatnonzero(~np.isfinite(low) | ~np.isfinite(high)).tolist()


def _of_data(data: Acting, actions: Blocks, word: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Each dimension's range of finite values; one that never changes gets some room."""
    share = 0.0 if word == "data" else TAIL
    tails = [Tails(len(data), share) for _ in range(data.action_dim)]
    for block in actions():
        for tail, column in zip(tails, block.T, strict=True):
            tail.add(column[np.isfinite(column)])
    limits = np.empty((2, data.action_dim), dtype=np.float32)
    notes = []
    for dimension, tail in enumerate(tails):
        if tail.count == 0:  # Training refuses what is not finite; inspection needs a number.
            limits[:, dimension] = -1, 1
            continue
        low, high = tail.range() if word == "data" else tail.quantiles()
        if not np.float32(low) < np.float32(high):
            room = 0.01 * max(abs(low), 1.0)
            notes.append(
                f"action dimension {dimension} is {low:g} throughout: its bounds are widened by "
                f"{room:g}"
            )
            low, high = low - room, high + room
        limits[:, dimension] = low, high
    return limits[0], limits[1], notes


def _move_inside(
    actions: Blocks, low: np.ndarray, high: np.ndarray, outside: str
) -> tuple[Callable[[np.ndarray], np.ndarray], list[str]]:
    """What moves actions inside the bounds, and a sentence where it moves any."""
    count = 0
    is_outside = np.zeros(len(low), dtype=bool)
    middle, half = (low + high) / 2, (high - low) / 2
    reach = np.zeros(len(low), dtype=np.float32)
    for block in actions() if outside != "refuse" else ():
        finite = np.isfinite(block)
        beyond = outside_bounds(block, low, high) & finite
        count += int(beyond.any(axis=1).sum())
        is_outside |= beyond.any(axis=0)
        furthest = np.abs(block - middle).max(axis=0, where=finite, initial=0.0)
        reach = np.maximum(reach, furthest)
    if count == 0:
        return lambda block: block, []
    if outside == "clip":
        note = f"{count} actions outside the bounds were clipped onto them"
        return lambda block: _clipped(block, block, low, high), [note]
    factors = np.where(is_outside, half / np.maximum(reach, half), 1.0)
    scale = factors.astype(np.float32)
    note = (
        f"{count} actions lay outside the bounds: all actions are drawn about the middle of "
        f"the bounds by the factors {_text(factors)}"
    )
    return lambda block: _clipped(middle + (block - middle) * scale, block, low, high), [note]


def _clipped(
    moved: np.ndarray, actions: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Moved actions, which rounding may leave just outside. What is not finite stays as it was."""
    inside = np.where(np.isfinite(actions), np.clip(moved, low, high), actions)
    return inside.astype(np.float32, copy=False)


def _spread(name: str, value: Limit, data: Acting) -> np.ndarray:
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
