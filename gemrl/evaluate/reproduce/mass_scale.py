"""`mass-scale`: score as the simulator's bodies become lighter or heavier than in the data."""

from collections.abc import Sequence

from gemrl.evaluate.cells import Cell
from gemrl.evaluate.reproduce.budget import BASELINES
from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.lines import COLUMNS, Found, by_suite_and_task, label
from gemrl.evaluate.reproduce.select import BASELINE, KnobsOf, last_step, pick, tasks_of
from gemrl.evaluate.reproduce.study import Study
from gemrl.evaluate.rows import Row

SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
NAMES = {"gem": "GEM", "iql": "IQL", "bc": "BC"}


def cells(study: Study, knobs_of: KnobsOf) -> list[Cell]:
    """Every method, task, seed and scale; GEM with few candidates, for its cost."""
    return [
        study.cell(
            task,
            method,
            seed,
            BASELINE if method in BASELINES else knobs_of(task, study.budget.sweep_n),
            mass_scale=scale,
        )
        for task in study.budget.tasks
        for method in NAMES
        for scale in SCALES
        for seed in study.seeds
    ]


def collect(study: Study) -> None:
    """Choose knobs where that is asked for, then evaluate."""
    study.evaluate(cells(study, study.knobs()))


def render(facts: Facts) -> Document:
    """By suite and by task: a table of scores, the audits beside, and a picture."""
    rows = last_step(facts.rows)
    n = facts.budget["sweep_n"]
    document = Document("Robustness to other masses")

    def of(task: str, method: str, scale: float) -> list[Row]:
        knobs = BASELINE if method in BASELINES else facts.knobs_of(task, n)
        return pick(rows, task=task, method=method, knobs=knobs, mass_scale=scale)

    shifted = tasks_of([row for row in rows if row.mass_scale != 1.0])
    tasks = [t for t in shifted if all(of(t, m, s) for m in NAMES for s in SCALES)]
    if not tasks:
        return document.add("No task has rows for every mass scale yet.")
    used = [row for t in tasks for m in NAMES for s in SCALES for row in of(t, m, s)]
    document.add(
        "Masses and inertias of the simulator's bodies are multiplied with the scale; networks and "
        f"knobs stay as they are. GEM decides with N = {n}. The paper shows this for GEM and BC "
        "as pictures without numbers, and says that AntMaze scores all but vanish there.",
        label(used, facts.knob_words),
    )
    found = {
        method: {
            scale: dict(by_suite_and_task(tasks, lambda task, m=method, s=scale: of(task, m, s)))
            for scale in SCALES
        }
        for method in NAMES
    }
    places = list(found["gem"][1.0])
    document.add(_scores(found, places), _audits(found, places))
    from gemrl.evaluate.reproduce.plots import panels

    panes = [(f"{place.strip('*')}\nnormalized score", _curves(found, place)) for place in places]
    return document.add(
        Plot("Score against mass scale, band: one standard error", panels(panes, "mass scale")),
        *(_finding(found, place) for place in places),
    )


Results = dict[str, dict[float, dict[str, Found]]]
"""Figures by method, scale and suite or task."""


def _scores(found: Results, places: Sequence[str]) -> Table:
    lines = [
        [place, name, *(str(found[method][scale][place].score) for scale in SCALES)]
        for place in places
        for method, name in NAMES.items()
    ]
    headings = ["", "method", *(f"× {scale:g}" for scale in SCALES)]
    return Table("Score by mass scale", headings, lines)


def _audits(found: Results, places: Sequence[str]) -> Table:
    lines = [
        [place, name, f"{scale:g}", *found[method][scale][place].cells]
        for place in places
        for method, name in NAMES.items()
        for scale in SCALES
    ]
    return Table("Audits, by GEM's behaviour density", ["", "method", "scale", *COLUMNS], lines)


def _curves(found: Results, place: str) -> dict[str, list[tuple[float, float, float, float]]]:
    curves = {}
    for method, name in NAMES.items():
        scores = [(scale, found[method][scale][place].score) for scale in SCALES]
        curves[name] = [(x, s.mean, s.mean - s.stderr, s.mean + s.stderr) for x, s in scores]
    return curves


def _finding(found: Results, place: str) -> str:
    """What the nominal score loses at the worst scale, for each method."""
    parts = []
    for method, name in NAMES.items():
        means = {scale: found[method][scale][place].score.mean for scale in SCALES}
        worst = min(means, key=lambda scale: means[scale])
        parts.append(f"{name} {means[1.0]:.1f} → {means[worst]:.1f} (× {worst:g})")
    best = {s: max(NAMES, key=lambda m: found[m][s][place].score.mean) for s in SCALES}
    ahead = sum(method == "gem" for method in best.values())
    return (
        f"{place.strip('*')}: from the nominal score to the worst scale: {'; '.join(parts)}. GEM "
        f"has the highest mean at {ahead} of {len(SCALES)} scales."
    )
