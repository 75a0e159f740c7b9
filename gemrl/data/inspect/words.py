"""How findings about a dataset are worded."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

Level = Literal["refused", "warning", "note"]
Said = Iterator[tuple[Level, str, str]]
"""Level, the report's key that a finding is about, and its text."""
LEVELS = ("refused", "warning", "note")


def some(items: Sequence[Any]) -> str:
    """Numbers with their runs drawn together, or the first few of a list of words."""
    if not all(isinstance(item, int) for item in items):
        more = f" and {len(items) - 5} more" if len(items) > 5 else ""
        return ", ".join(map(str, items[:5])) + more
    runs: list[list[int]] = []
    for item in items:
        if runs and item == runs[-1][-1] + 1:
            runs[-1].append(item)
        else:
            runs.append([item])
    words = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    return f"[{', '.join(words)}]"


def number(value: float | None, form: str) -> str:
    """A number that may be missing."""
    return "none" if value is None else format(value, form)
