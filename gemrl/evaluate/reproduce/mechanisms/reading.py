"""Records as numbers with errors, and numbers as plain sentences."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gemrl.data.tasks import TASKS
from gemrl.maths.statistics import Estimate, estimate

Record = dict[str, Any]
Points = list[tuple[float, float, float, float]]

# How sure a difference must be to be called one.
SURE = 0.95


def pick(records: Iterable[Record], **fields: Any) -> list[Record]:
    """The records with these values."""
    return [
        record
        for record in records
        if all(record.get(name) == value for name, value in fields.items())
    ]


def each(records: Iterable[Record], name: str) -> list[Any]:
    """The values of a field, in the order in which they first appear."""
    return list(dict.fromkeys(record[name] for record in records))


def tasks_in(records: Iterable[Record]) -> list[str]:
    """The tasks of the records, in the order of the task table."""
    found = {record.get("task") for record in records}
    return [name for name in TASKS if name in found]


def with_error(name: str, values: np.ndarray | Sequence[float]) -> Record:
    """A field and its standard error, as a part of a record."""
    found = estimate(values)
    return {name: found.mean, f"{name}_error": found.stderr if found.samples > 1 else None}


def over_seeds(records: Sequence[Record], name: str) -> Estimate:
    """Mean and error between training seeds; of one seed, the error within it."""
    if len(records) == 1:
        error = records[0].get(f"{name}_error")
        return Estimate(records[0][name], float("nan") if error is None else error, 1)
    return estimate([record[name] for record in records])


def difference(ours: Sequence[Record], theirs: Sequence[Record], name: str) -> Estimate:
    """One figure minus another, paired by training seed where there are several."""
    if len(ours) == len(theirs) == 1:
        first, second = over_seeds(ours, name), over_seeds(theirs, name)
        error = float(np.hypot(first.stderr, second.stderr))
        return Estimate(first.mean - second.mean, error, 1)
    other = {record["seed"]: record[name] for record in theirs}
    return estimate([record[name] - other[record["seed"]] for record in ours])


def points(records: Sequence[Record], x: str, y: str) -> Points:
    """A curve with its errors, for a plot."""
    found = []
    for at in sorted({record[x] for record in records}):
        mean, error, _ = over_seeds(pick(records, **{x: at}), y)
        found.append((at, mean, mean - error, mean + error))
    return found


def sign(found: Estimate, than: float = 0.0) -> int:
    """1 where an estimate is surely above a number, -1 where surely below, 0 where undecided.

    By Student's interval over training seeds; of one seed, by the normal one over its samples.
    """
    from scipy.stats import norm, t

    level = (1 + SURE) / 2
    errors = t.ppf(level, found.samples - 1) if found.samples > 1 else norm.ppf(level)
    away = found.mean - than
    # Not so where the error is unknown: NaN compares as False.
    return int(np.sign(away)) if abs(away) > errors * found.stderr else 0


WORDS = {1: "Holds", 0: "Undecided", -1: "Does not hold"}


def verdict(sense: int, because: str) -> str:
    """A sentence that says whether a statement holds, and the numbers that say so."""
    return f"{WORDS[sense]}: {because}."


def by_task(
    found: Mapping[str, Estimate], than: float = 0.0, *, below: bool = False, form: str = "+.2f"
) -> str:
    """In which tasks an estimate is above a number, as a statement says, or below it."""
    senses = {task: sign(one, than) * (-1 if below else 1) for task, one in found.items()}
    parts = []
    for sense, words in WORDS.items():
        named = [
            f"{task} ({found[task]:{form}})" for task, is_so in senses.items() if is_so == sense
        ]
        if named:
            parts.append(f"{words} in {', '.join(named)}")
    return "; ".join(parts) + "."
