"""Which columns of a log hold what: written on the command line, in Python or in a TOML file."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gemrl.errors import DataError

EXAMPLE = 'observations = ["temperature", "flow_*"], actions = ["valve"], reward = "yield"'


@dataclass(frozen=True)
class Columns:
    """What the columns of a CSV or Parquet file are."""

    observations: tuple[str, ...] = ()
    """Columns of the observation, in this order; `flow_*` is all whose name starts with flow_."""
    actions: tuple[str, ...] = ()
    """Columns of the action, likewise."""
    reward: str | None = None
    """Column of the reward; without one all rewards are zero."""
    episode: str | None = None
    """Column that tells episodes apart, numbers or text."""
    time: str | None = None
    """Column of the time, in seconds or as ISO timestamps: rows must be in its order."""
    gap: float | None = None
    """Seconds: where the time steps further than this, a new episode starts."""
    terminal: str | None = None
    """Column that is true where the process ended for good: nothing of value follows."""
    timeout: str | None = None
    """Column that is true where an episode was merely cut off."""
    action_low: tuple[float, ...] = ()
    """Lower bound of the action: one number, or one for each column."""
    action_high: tuple[float, ...] = ()
    """Upper bound of the action, likewise."""

    def __post_init__(self) -> None:
        if self.gap is not None and not self.gap > 0:
            raise DataError(f"columns: gap {self.gap!r} must be a positive number of seconds")
        if self.gap is not None and self.time is None:
            raise DataError("columns: gap needs the column of the time: give time too")
        if bool(self.action_low) != bool(self.action_high):
            raise DataError("columns: action_low and action_high go together; give both or none")


def read_columns(path: str | Path) -> Columns:
    """The mapping in a TOML file, whose keys are the fields of `Columns`."""
    try:
        with open(path, "rb") as file:
            return columns_from(tomllib.load(file), str(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a TOML file ({error})") from error


def columns_from(values: Mapping[str, Any], source: str = "columns") -> Columns:
    """The mapping out of plain values; single ones may stand for a list of one."""
    known = {field.name: field.type for field in fields(Columns)}
    if unknown := sorted(values.keys() - known.keys()):
        raise DataError(f"{source}: unknown {', '.join(unknown)}; known are {', '.join(known)}")
    return Columns(
        **{key: _as(known[key], value, f"{source}: {key}") for key, value in values.items()}
    )


def _as(kind: Any, value: Any, what: str) -> Any:
    """A value of a field's type."""
    if kind == tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if isinstance(items, Sequence) and all(isinstance(item, str) for item in items):
            return tuple(items)
        raise DataError(f"{what} is {value!r}: must be a list of column names")
    if kind == tuple[float, ...]:
        items = value if isinstance(value, Sequence) else [value]
        if all(_is_number(item) for item in items):
            return tuple(float(item) for item in items)
        raise DataError(f"{what} is {value!r}: must be a number or a list of numbers")
    if kind == float | None:
        if value is None or _is_number(value):
            return None if value is None else float(value)
        raise DataError(f"{what} is {value!r}: must be a number")
    if value is None or isinstance(value, str):
        return value
    raise DataError(f"{what} is {value!r}: must be the name of a column")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def chosen(names: Sequence[str], have: Sequence[str], field: str, source: str) -> list[str]:
    """The columns that the names of a field stand for, stars and commas resolved."""
    parts = []
    for name in names:
        # A column's name may hold a comma; on the command line one separates names.
        parts += [name] if name in have else [part.strip() for part in name.split(",")]
    found = [column for part in parts for column in _expanded(part, have, field, source)]
    if not found:
        raise DataError(f"{source}: no {field} are named; the file has {listed(have)}")
    if twice := {column for column in found if found.count(column) > 1}:
        raise DataError(f"{source}: {field} name {', '.join(sorted(twice))} twice")
    return found


def _expanded(name: str, have: Sequence[str], field: str, source: str) -> list[str]:
    if name in have:
        return [name]
    start = name.removesuffix("*")
    matches = [column for column in have if column.startswith(start)] if name != start else []
    if not matches:
        raise DataError(f"{source}: has no column {name!r} for {field}; it has {listed(have)}")
    ends = [column.removeprefix(start) for column in matches]
    if all(end.isdecimal() for end in ends):
        matches = [column for _, column in sorted(zip(map(int, ends), matches, strict=True))]
    return matches


def listed(have: Sequence[str]) -> str:
    """The columns of a file for a sentence."""
    shown = [f"{name!r}" for name in have[:40]]
    return ", ".join(shown) + (f" and {len(have) - 40} more" if len(have) > 40 else "")
