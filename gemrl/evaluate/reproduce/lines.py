"""Columns that most tables share: score, violation, collapse, support z and steps a second."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gemrl.evaluate.reproduce.select import last_step, suites_of, tasks_of
from gemrl.evaluate.results import paired
from gemrl.evaluate.rows import Row
from gemrl.evaluate.table import FEWEST_FOR_VIOLATION, Line, line
from gemrl.maths.statistics import Estimate, clustered

COLUMNS = ("score", "violation", "collapse", "support z", "steps/s")
AUDITS = ("violation", "collapse_dist", "support_z", "steps_per_second")
FORMS = (".4f", ".3f", ".2f", ",.0f")
SIGNED = ("+.4f", "+.3f", "+.2f", "+,.0f")


@dataclass(frozen=True)
class Found:
    """Score and audits of one setting, of a task or of a suite."""

    score: Estimate
    audits: tuple[float | None, ...]
    """Violation, collapse distance, support z and steps a second."""

    @property
    def cells(self) -> list[str]:
        """As text."""
        return [str(self.score), *_texts(self.audits, FORMS)]


def _texts(values: Sequence[float | None], forms: Sequence[str]) -> list[str]:
    return ["–" if v is None else format(v, f) for v, f in zip(values, forms, strict=True)]


def of_task(rows: Sequence[Row]) -> Found:
    """A setting's figures in one task."""
    found = line("", rows)
    return Found(found.score, _audits(found))


def _audits(found: Line) -> tuple[float | None, ...]:
    possible = found.candidates >= FEWEST_FOR_VIOLATION
    values = [getattr(found, name) for name in AUDITS]
    return (values[0] if possible else None, *values[1:])


def of_suite(by_task: Sequence[Sequence[Row]]) -> Found:
    """A setting's figures in a suite: means over its tasks, the error between training seeds."""
    seeds = set.intersection(*({row.train_seed for row in rows} for rows in by_task))
    groups = [
        [float(np.mean([r.score for r in rows if r.train_seed == seed])) for rows in by_task]
        for seed in sorted(seeds)
    ]
    score = clustered([[float(np.mean(group))] for group in groups]) if groups else None
    audits = _means([_audits(line("", rows)) for rows in by_task])
    return Found(score or Estimate(float("nan"), float("nan"), 0), audits)


def _means(each: Sequence[tuple[float | None, ...]]) -> tuple[float | None, ...]:
    """The mean of each quantity; None where one of them is."""
    known = [[value for value in column if value is not None] for column in zip(*each, strict=True)]
    return tuple(float(np.mean(c)) if len(c) == len(each) else None for c in known)


@dataclass(frozen=True)
class Change:
    """What a setting does beside another on the same starts."""

    score: Estimate
    audits: tuple[float | None, ...]

    @property
    def cells(self) -> list[str]:
        """As text, with signs."""
        text = f"{self.score.mean:+.1f}"
        error = "" if np.isnan(self.score.stderr) else f" ± {self.score.stderr:.1f}"
        return [text + error, *_texts(self.audits, SIGNED)]


def change(rows: Sequence[Row], reference: Sequence[Row]) -> Change:
    """The setting's figures minus the reference's, in one task."""
    ours, theirs = _audits(line("", rows)), _audits(line("", reference))
    return Change(paired(rows, reference), _minus(ours, theirs))


def _minus(
    ours: Sequence[float | None], theirs: Sequence[float | None]
) -> tuple[float | None, ...]:
    return tuple(
        None if a is None or b is None else a - b for a, b in zip(ours, theirs, strict=True)
    )


def mean_change(changes: Sequence[Change]) -> Change:
    """The mean over tasks; the error is that between tasks."""
    score = clustered([[c.score.mean] for c in changes])
    return Change(score, _means([c.audits for c in changes]))


def label(rows: Sequence[Row], knobs: str) -> str:
    """What scores are scores of, in a sentence."""
    rows = last_step(rows)

    def each(name: str) -> str:
        return ", ".join(sorted({str(getattr(row, name)) for row in rows}))

    programs = sorted({program for row in rows for program in row.simulator.split(", ")})
    several = len({row.train_seed for row in rows}) > 1
    updates = " or ".join(f"{n:,}" for n in sorted({row.updates for row in rows}))
    counts = sorted({len({r.episode_seed for r in rows if r.task == t}) for t in tasks_of(rows)})
    files = {t: {r.data_fingerprint for r in rows if r.task == t} for t in tasks_of(rows)}
    mixed = ", ".join(task for task, found in files.items() if len(found) > 1)
    return (
        f"{each('data_origin').capitalize()} data; environments on {', '.join(programs)}; "
        f"last step, after {updates} updates; training seeds {each('train_seed')}; "
        f"{' to '.join(str(n) for n in dict.fromkeys([counts[0], counts[-1]]))} {each('protocol')} "
        f"episodes a seed; {knobs}. Scores are normalized, mean ± standard error between "
        f"{'training seeds' if several else 'episodes, which says nothing of other seeds'}."
        + (f" Not all policies of {mixed} were trained on the same file of data." if mixed else "")
    )


def by_suite_and_task(
    tasks: Sequence[str],
    rows_of: Callable[[str], Sequence[Row]],
) -> list[tuple[str, Found]]:
    """A line for each suite with more than one task, followed by lines for its tasks."""
    lines: list[tuple[str, Found]] = []
    for suite, members in suites_of(tasks).items():
        if len(members) > 1:
            lines.append((f"**{suite}**", of_suite([rows_of(task) for task in members])))
        lines += [(task, of_task(rows_of(task))) for task in members]
    return lines
