"""`scaling`: score, audits and steps a second against the number of candidates."""

from collections.abc import Sequence

from gemrl.evaluate.cells import Cell
from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.lines import COLUMNS, Found, by_suite_and_task, label
from gemrl.evaluate.reproduce.paper import columns
from gemrl.evaluate.reproduce.select import KnobsOf, last_step, pick, tasks_of
from gemrl.evaluate.reproduce.study import Study
from gemrl.evaluate.rows import Row

COUNTS = (0, 1, 64, 1024, 2048)
PANES = ("normalized score", "violation", "collapse distance", "support z", "steps a second")


def test_cells(study: Study, knobs_of: KnobsOf) -> list[Cell]:
    """Every number of candidates, task and seed."""
    return [
        study.cell(task, "gem", seed, knobs_of(task, n))
        for task in study.budget.tasks
        for n in COUNTS
        for seed in study.seeds
    ]


def collect(study: Study) -> None:
    """Choose knobs where that is asked for, then evaluate."""
    study.evaluate(test_cells(study, study.knobs()))


def render(facts: Facts) -> Document:
    """By suite and by task, with the paper's aggregate beside."""
    rows = last_step(facts.rows)
    knobs_of = facts.knobs_of
    tasks = [
        task
        for task in facts.tasks
        if all(pick(rows, task=task, knobs=knobs_of(task, n)) for n in COUNTS)
    ]
    document = Document("Scaling with the number of candidates")
    if not tasks:
        return document.add("No task has rows for every number of candidates yet.")
    used = [r for t in tasks for n in COUNTS for r in pick(rows, task=t, knobs=knobs_of(t, n))]
    document.add(
        "The same trained policies with more and more candidates beside the anchor; 0 is the "
        "anchor alone. A violation is impossible with fewer than six candidates.",
        label(used, facts.knob_words),
    )
    found = {
        n: by_suite_and_task(
            tasks, lambda task, n=n: pick(rows, task=task, knobs=knobs_of(task, n))
        )
        for n in COUNTS
    }
    lines = [
        (name, str(n), *dict(found[n])[name].cells) for name, _ in found[COUNTS[0]] for n in COUNTS
    ]
    document.add(
        Table("By suite and task", ("", "N", *COLUMNS), lines),
        Table(
            "The paper, all its tasks together (quoted; published data, 10⁶ updates)",
            ("N", *COLUMNS),
            [columns("scaling", str(n)) for n in COUNTS],
        ),
    )
    document.add(_shares(used))
    names = [name for name, _ in found[COUNTS[0]]]
    panes = [
        (title, {name.strip("*"): _points(found, name, i) for name in names})
        for i, title in enumerate(PANES)
    ]
    from gemrl.evaluate.reproduce.plots import panels

    return document.add(Plot("Against the number of candidates N", panels(panes, "N", log=True)))


def _shares(rows: Sequence[Row]) -> Table | None:
    """Where the time went, by task and N; None for rows that do not tell."""
    if any(row.wall_seconds is None for row in rows):
        return None
    lines = []
    for task in tasks_of(rows):
        for n in COUNTS:
            group = [row for row in rows if row.task == task and row.knobs["n"] == n]
            wall, decide, simulate = (
                sum(getattr(row, name) for row in group)
                for name in ("wall_seconds", "decide_seconds", "simulate_seconds")
            )
            rest = wall - decide - simulate
            shares = [f"{part / wall:.0%}" for part in (decide, simulate, rest)]
            lines.append((task, str(n), *shares))
    return Table("Share of the time", ("task", "N", "decisions", "simulator", "the rest"), lines)


def _points(
    found: dict[int, list[tuple[str, Found]]], name: str, quantity: int
) -> list[tuple[float, float, float, float]]:
    """A curve of the score (quantity 0) or of an audit."""
    points = []
    for n, lines in found.items():
        entry = dict(lines)[name]
        if quantity == 0:
            mean, error = entry.score.mean, entry.score.stderr
            points.append((n, mean, mean - error, mean + error))
        else:
            value = entry.audits[quantity - 1]
            at = float("nan") if value is None else value
            points.append((n, at, float("nan"), float("nan")))
    return points
