"""Rows as a table that a person understands."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemrl.decide.knobs import Knobs
from gemrl.evaluate.choose import score_of
from gemrl.evaluate.rows import Row
from gemrl.maths.statistics import Estimate

# With fewer candidates than this none can lie two standard deviations below their mean.
FEWEST_FOR_VIOLATION = 6


@dataclass(frozen=True)
class Line:
    """One line of the table: a setting, its score and its audits."""

    label: str
    score: Estimate
    violation: float | None
    collapse_dist: float | None
    support_z: float | None
    steps_per_second: float | None
    candidates: int

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The line as text."""
        possible = self.candidates >= FEWEST_FOR_VIOLATION
        return (
            self.label,
            str(self.score),
            _text(self.violation, ".3f") if possible else "–",
            _text(self.collapse_dist, ".3f"),
            _text(self.support_z, "+.2f"),
        )


HEADINGS = ("decision", "score", "violation", "collapse", "support z")
LEGEND = (
    "score: normalized (0 = random policy, 100 = D4RL's reference controller), mean ± standard "
    "error",
    "violation: share of steps whose chosen action has support z below -2 within its candidates; "
    "– where fewer than six candidates make it impossible",
    "collapse: distance from the chosen action to the nearest component mean of the behaviour "
    "density",
    "support z: support of the chosen action in standard deviations of its candidate set",
)


def line(label: str, rows: Sequence[Row]) -> Line:
    """Summarize the rows of one setting over episodes and training seeds."""
    knobs = rows[0].knobs
    return Line(
        label=label,
        score=score_of(rows),
        violation=_mean(rows, "violation"),
        collapse_dist=_mean(rows, "collapse_dist"),
        support_z=_mean(rows, "support_z"),
        steps_per_second=steps_per_second(rows),
        candidates=knobs["n"] + (knobs["anchor"] != "none"),
    )


def steps_per_second(rows: Sequence[Row]) -> float | None:
    """Environment steps of all episodes that step together, over the time they took."""
    taken = [row.wall_seconds for row in rows if row.wall_seconds is not None]
    if len(taken) < len(rows):
        return None
    return sum(row.length for row in rows) / max(sum(taken), 1e-9)


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [getattr(row, name) for row in rows]
    return None if any(value is None for value in values) else float(np.mean(values))


def _text(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


METHOD_NAMES = {"bc": "behaviour cloning (unimodal)", "iql": "IQL (unimodal actor)", "gem": "GEM"}


def label_of(method: str, knobs: Knobs) -> str:
    """What a method does with these knobs, in a few words."""
    name = METHOD_NAMES.get(method, method)
    if knobs.n == 0:
        return f"{name}, anchor alone (N = 0)" if method == "gem" else name
    if knobs.wp == 0:
        return f"{name}, unguarded search ({knobs.describe()})"
    return f"{name}, {knobs.describe()}"


def sort_key(method: str, knobs: Knobs) -> tuple[bool, str, bool, int, str]:
    """Baselines first, then by candidates; the unguarded search last."""
    unguarded = knobs.n > 0 and knobs.wp == 0
    return (method == "gem", method, unguarded, knobs.n, knobs.describe())


def settings_of(rows: Sequence[Row]) -> list[tuple[str, Knobs, list[Row]]]:
    """Rows by method and knobs, in an order that reads well."""
    groups: dict[tuple[str, Knobs], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.method, Knobs.from_json(row.knobs)), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: sort_key(*item[0]))
    return [(method, knobs, found) for (method, knobs), found in ordered]


def lines_of(rows: Sequence[Row]) -> list[Line]:
    """A line for each method and setting of knobs, in an order that reads well."""
    return [line(label_of(m, knobs), found) for m, knobs, found in settings_of(rows)]
