"""The paper's own figures, kept as data beside this file. They are quoted, never measured here."""

import json
from functools import cache
from importlib.resources import files
from typing import Any

GEM_UNIFIED = "GEM(OURS)"
"""GEM's column in the paper's unified table."""


@cache
def figures() -> dict[str, Any]:
    """`scores`, `by_task`, `scaling`, `ablations`, `ablations_by_task`, `normalization` and
    `nll_gap`, by task where the paper gives them so.
    """
    text = files("gemrl.evaluate.reproduce").joinpath("paper.json").read_text(encoding="utf-8")
    return json.loads(text)


def quoted(*path: str, form: str = ".1f") -> str:
    """One figure as text, such as `quoted("scores", task, "IQL")`; a dash where there is none."""
    found: Any = figures()
    for name in path:
        if not isinstance(found, dict) or name not in found:
            return "–"
        found = found[name]
    return "–" if found is None else format(found, form)


def columns(table: str, name: str) -> tuple[str, ...]:
    """A line of a table with the columns that ours have: score, audits and steps a second."""
    forms = {
        "score": ".1f",
        "violation": ".4f",
        "collapse_dist": ".3f",
        "support_z": ".2f",
        "steps_per_second": ",.0f",
    }
    return (name, *(quoted(table, name, key, form=form) for key, form in forms.items()))


def tasks() -> tuple[str, ...]:
    """The tasks of the paper's unified table."""
    return tuple(figures()["scores"])
