"""Records as numbers with errors, and numbers as plain sentences."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gemrl.data.tasks import TASKS
from gemrl.maths.statistics import Estimate, estimate

Record = dict[str, Any]
Points = list[tuple[float, float, float, float]]

# How many standard errors a difference must be away from nothing to be called one.
SURE = 2.0


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


def points(records: Sequence[Record], x: str, y: str) -> Points:
    """A curve with its errors, for a plot."""
    found = []
    for at in sorted({record[x] for record in records}):
        mean, error, _ = over_seeds(pick(records, **{x: at}), y)
        found.append((at, mean, mean - error, mean + error))
    return found


def sign(found: Estimate, than: float = 0.0) -> int:
    """1 where an estimate is surely above a number, -1 where surely below, 0 where undecided."""
    away = found.mean - than
    # Not so where the error is unknown: NaN compares as False.
    return int(np.sign(away)) if abs(away) > SURE * found.stderr else 0


WORDS = {1: "**Holds**", 0: "**Undecided**", -1: "**Does not hold**"}


def verdict(sense: int, because: str) -> str:
    """A sentence that says whether a statement holds, and the numbers that say so."""
    return f"{WORDS[sense]}: {because}."


def by_task(senses: Mapping[str, int]) -> str:
    """In which tasks a statement holds."""
    parts = []
    for sense, words in WORDS.items():
        named = [task for task, found in senses.items() if found == sense]
        if named:
            parts.append(f"{words} in {', '.join(named)}")
    return "; ".join(parts) + "."
