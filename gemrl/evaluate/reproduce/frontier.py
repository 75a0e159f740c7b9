"""`frontier`: score against violation as w_p varies, at one number of candidates."""

from dataclasses import replace

from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.lines import COLUMNS, by_suite_and_task, label
from gemrl.evaluate.reproduce.select import last_step, pick
from gemrl.evaluate.reproduce.study import Study
from gemrl.evaluate.rows import Row

WEIGHTS = (0.0, 0.1, 0.4, 1.0, 3.0)


def collect(study: Study) -> None:
    """Constant weights at the task's λ."""
    knobs_of = study.knobs()
    study.evaluate(
        study.cell(task, "gem", seed, replace(knobs_of(task, study.budget.n), wp=weight))
        for task in study.budget.tasks
        for weight in WEIGHTS
        for seed in study.seeds
    )


def render(facts: Facts) -> Document:
    """A line for each weight, and the frontier as a picture."""
    rows = last_step(facts.rows)

    def of(task: str, weight: float) -> list[Row]:
        return pick(rows, task=task, knobs=replace(facts.knobs_of(task, facts.n), wp=weight))

    tasks = [t for t in facts.tasks if all(of(t, weight) for weight in WEIGHTS)]
    document = Document(f"Score against violation as w_p varies, N = {facts.n}")
    if not tasks:
        return document.add("No task has rows for every weight yet.")
    document.add(
        "The support weight alone is changed; it is constant through an episode.",
        label([r for t in tasks for w in WEIGHTS for r in of(t, w)], facts.knob_words),
    )
    found = {w: by_suite_and_task(tasks, lambda task, w=w: of(task, w)) for w in WEIGHTS}
    names = [name for name, _ in found[WEIGHTS[0]]]
    document.add(
        Table(
            "By suite and task",
            ("", "w_p", *COLUMNS),
            [(name, f"{w:g}", *dict(found[w])[name].cells) for name in names for w in WEIGHTS],
        )
    )
    from gemrl.evaluate.reproduce.plots import curves

    groups = {}
    for name in names:
        points = []
        for weight in WEIGHTS:
            entry = dict(found[weight])[name]
            share = entry.audits[0]
            if share is not None:
                mean, error = entry.score.mean, entry.score.stderr
                points.append((share, mean, mean - error, mean + error))
        groups[name.strip("*")] = points
    figure = curves(groups, "violation: share of steps", "normalized score")
    return document.add(
        Plot("Each curve runs through w_p = " + ", ".join(f"{w:g}" for w in WEIGHTS), figure)
    )
