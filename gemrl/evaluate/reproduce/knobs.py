"""`knobs`: λ × w_p_end on validation seeds, the setting chosen, and its score on test seeds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gemrl.decide.knobs import Cosine
from gemrl.evaluate.bandit import score_by_budget
from gemrl.evaluate.choose import Choice, by_setting, choose
from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.lines import label, of_task
from gemrl.evaluate.reproduce.select import (
    KNOB_WORDS,
    chosen_knobs,
    last_step,
    paper_knobs,
    pick,
    sweep_rows,
    tasks_of,
)
from gemrl.evaluate.reproduce.study import Study
from gemrl.evaluate.rows import Row
from gemrl.maths.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Spent = list[tuple[str, list[Estimate]]]
"""Of each task, the score at each budget."""
BUDGETS = (1, 5, 10, 20, 50, 100, 200)
"""Online episodes after which the choice is looked at."""


def collect(study: Study) -> None:
    """The sweep, then the chosen setting and the paper's on test seeds."""
    chosen, n = study.chosen(), study.budget.n
    study.evaluate(
        study.cell(task, "gem", seed, knobs)
        for task in study.budget.tasks
        for knobs in (chosen(task, n), paper_knobs(task, n))
        for seed in study.seeds
    )


def render(facts: Facts) -> Document:
    """A table a task, and the choice with its test score beside the paper's setting."""
    rows = last_step(facts.rows)
    document = Document("Knobs chosen on validation seeds")
    tasks = [task for task in tasks_of(rows) if sweep_rows(rows, task)]
    if not tasks:
        return document.add("No task has rows of a sweep yet.")
    validation = [row for task in tasks for row in sweep_rows(rows, task)]
    document.add(
        "λ × w_p_end with w_p falling from 1 to w_p_end along a cosine, and constant w_p at the "
        "suite's λ, for trained networks that stay as they are.",
        label(validation, "every setting of the sweep"),
    )
    lines = []
    for task in tasks:
        chosen, choices = choose(sweep_rows(rows, task))
        tested = pick(rows, task=task, knobs=chosen_knobs(rows, task, facts.n))
        paper = pick(rows, task=task, knobs=paper_knobs(task, facts.n))
        lines.append(
            (
                task,
                chosen.knobs.describe(),
                str(chosen.score),
                str(of_task(tested).score) if tested else "–",
                paper_knobs(task, facts.n).describe(),
                str(of_task(paper).score) if paper else "–",
            )
        )
        document.add(_grid(task, choices))
    headings = (
        "task",
        "chosen",
        "its validation score",
        f"its test score, N = {facts.n}",
        "the paper's for the suite",
        "its test score",
    )
    summary = Table("The setting chosen for each task, and the paper's", headings, lines)
    document.parts.insert(2, summary)
    if test := pick(rows):
        document.parts.insert(3, label(test, KNOB_WORDS["chosen"]))
    spent = [(task, _spent(sweep_rows(rows, task))) for task in tasks]
    return document.add(*_budget([found for found in spent if found[1]]))


def _grid(task: str, choices: Sequence[Choice]) -> Table:
    """A task's settings by λ and weight."""
    best = max(choices, key=lambda choice: choice.score.mean)
    lines = []
    for choice in choices:
        wp = choice.knobs.wp
        weight = f"1 → {wp.end:g}" if isinstance(wp, Cosine) else f"{wp:g}"
        mark = " ← chosen" if choice is best else ""
        lines.append((f"{choice.knobs.lam:g}", weight, f"{choice.score}{mark}"))
    return Table(f"{task}, N = {best.knobs.n}, validation seeds", ("λ", "w_p", "score"), lines)


def _spent(rows: list[Row]) -> list[Estimate]:
    """Score of the setting that a bandit holds best after so many online episodes.

    Episodes with even seeds are what the bandit sees; those with odd seeds tell the score.
    """
    settings = by_setting(rows)
    seen = [[r.score for r in group if r.episode_seed % 2 == 0] for _, group in settings]
    told = [[r.score for r in group if r.episode_seed % 2 == 1] for _, group in settings]
    if not all(seen) or not all(told):
        return []
    truth = [sum(scores) / len(scores) for scores in told]
    return score_by_budget(seen, truth, BUDGETS, np.random.default_rng(0))


def _budget(spent: Spent) -> list[str | Table | Plot]:
    if not spent:
        return []
    headings = ("task", *(f"{count} episodes" for count in BUDGETS))
    lines = [(task, *map(str, found)) for task, found in spent]
    return [
        "What choosing costs: a UCB rule spends online episodes on the settings of the sweep, and "
        "the score is that of the setting it holds best by then. It sees validation episodes with "
        "even seeds; the score is told on those with odd seeds.",
        Table("Score against the number of online episodes spent on choosing", headings, lines),
        Plot("Score against the number of online episodes spent on choosing", _lines(spent)),
    ]


def _lines(spent: Spent) -> "Figure":
    from gemrl.evaluate.reproduce.plots import curves

    return curves(
        {
            task: [
                (count, each.mean, each.mean - each.stderr, each.mean + each.stderr)
                for count, each in zip(BUDGETS, found, strict=True)
            ]
            for task, found in spent
        },
        "online episodes spent",
        "normalized score",
        log=True,
    )
