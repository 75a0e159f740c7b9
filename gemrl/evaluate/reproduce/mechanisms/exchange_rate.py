"""Whether standardizing the value term too makes one w_p serve all tasks. Validation rows only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemrl.data.tasks import task_named
from gemrl.decide.knobs import Knobs
from gemrl.evaluate.cells import Cell
from gemrl.evaluate.choose import score_of
from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.mechanisms.reading import Points, sign, verdict
from gemrl.evaluate.reproduce.select import last_step, pick, tasks_of
from gemrl.evaluate.reproduce.study import Study
from gemrl.evaluate.rows import Row
from gemrl.maths.statistics import Estimate, estimate

WEIGHTS = {
    "raw": (0.1, 0.2, 0.4, 1.0, 2.0),
    "zscore": (0.1, 0.25, 0.5, 1.0, 2.0, 4.0),
}
"""Constant w_p by the knob `value`."""
NAMES = {"raw": "value raw (GEM)", "zscore": "value z-scored"}


def settings(task: str, n: int) -> list[Knobs]:
    """Every weight of both ways to take the value term, at the suite's λ."""
    lam = task_named(task).lam
    return [
        Knobs(n=n, lam=lam, wp=weight, value=value)
        for value, weights in WEIGHTS.items()
        for weight in weights
    ]


def cells(study: Study) -> list[Cell]:
    """Both sweeps for every task and training seed, on validation seeds."""
    return [
        study.cell(task, "gem", seed, knobs, "validation")
        for task in study.budget.tasks
        for seed in study.seeds
        for knobs in settings(task, study.budget.sweep_n)
    ]


FEWEST_TASKS = 3
"""For a correlation over tasks."""

Scores = dict[str, dict[float, dict[str, Estimate]]]
"""Score by the knob `value`, weight and task."""
Swept = dict[str, dict[float, dict[str, list[Row]]]]
"""Rows likewise."""


def swept(rows: list[Row], values: Sequence[str] = tuple(WEIGHTS)) -> Swept:
    """The validation rows of the sweeps, of tasks that have all of them."""
    rows = pick(last_step(rows), protocol="validation")
    found: Swept = {value: {w: {} for w in WEIGHTS[value]} for value in values}
    for task in tasks_of(rows):
        of = [row for row in rows if row.task == task]
        for n in sorted({row.knobs["n"] for row in of}):
            wanted = [knobs for knobs in settings(task, n) if knobs.value in values]
            groups = [pick(of, protocol="validation", knobs=knobs) for knobs in wanted]
            if all(groups):
                for knobs, group in zip(wanted, groups, strict=True):
                    assert isinstance(knobs.wp, float)
                    found[knobs.value][knobs.wp][task] = group
    return found


def scores_of(rows: list[Row], values: Sequence[str] = tuple(WEIGHTS)) -> Scores:
    """Validation scores of the sweeps, of tasks that have all of them."""
    return {
        value: {w: {task: score_of(group) for task, group in groups.items()}
                for w, groups in by_weight.items()}
        for value, by_weight in swept(rows, values).items()
    }  # fmt: skip


def spreads_of(rows: list[Row]) -> dict[str, float]:
    """Of tasks with the sweep of raw values: the value term's standard deviation over a candidate
    set, in the mean over the steps of all weights.
    """
    by_task: dict[str, list[float]] = {}
    for groups in swept(rows, ("raw",))["raw"].values():
        for task, group in groups.items():
            known = [row.lcb_spread for row in group if row.lcb_spread is not None]
            by_task.setdefault(task, []).extend([float(np.mean(known))] if known else [])
    return {task: float(np.mean(each)) for task, each in by_task.items() if each}


@dataclass(frozen=True)
class Shared:
    """What one weight for all tasks costs, in one way to take the value term."""

    weight: float
    """The best in the mean over tasks."""
    score: float
    """Its mean score."""
    own_regret: Estimate
    """What it loses to each task's best weight of the same way."""
    regret: Estimate
    """What it loses to each task's best weight of both ways."""
    left_out: Estimate | None
    """The same where the weight is chosen on the other tasks; None with one task."""


def shared(scores: Scores, value: str) -> Shared:
    """The best single weight, and its regret."""
    table = _array(scores, value)
    best_of_both = np.max([_array(scores, v).max(axis=0) for v in scores], axis=0)
    best = int(table.mean(axis=1).argmax())
    left_out = None
    if table.shape[1] > 1:
        losses = []
        for task in range(table.shape[1]):
            others = np.delete(table, task, axis=1).mean(axis=1)
            losses.append(best_of_both[task] - table[int(others.argmax()), task])
        left_out = estimate(losses)
    return Shared(
        weight=WEIGHTS[value][best],
        score=float(table[best].mean()),
        own_regret=estimate(table.max(axis=0) - table[best]),
        regret=estimate(best_of_both - table[best]),
        left_out=left_out,
    )


def _array(scores: Scores, value: str) -> np.ndarray:
    """Mean scores [weights, tasks]."""
    tasks = list(scores[value][WEIGHTS[value][0]])
    return np.array([[scores[value][w][task].mean for task in tasks] for w in WEIGHTS[value]])


def chapter(document: Document, rows: list[Row]) -> None:
    """What was asked, and what was found."""
    scores = scores_of(rows)
    tasks = list(scores["raw"][WEIGHTS["raw"][0]])
    _by_spread(document, rows)
    document.add(
        "## T3, further: does one w_p serve all tasks?",
        "Support is standardized and value is not, so that w_p means another trade where rewards "
        'have another scale. With value="zscore" both terms are in standard deviations of the '
        "candidate set. Regret is what the best single weight loses to each task's own best; "
        "scores are normalized, on validation seeds, and each best is the highest of several noisy "
        "means.",
    )
    if not tasks:
        document.add("No task has both sweeps yet.")
        return
    found = {value: shared(scores, value) for value in WEIGHTS}
    document.add(
        *(_by_task(scores, value, tasks) for value in WEIGHTS),
        Table(
            f"One weight for {len(tasks)} task{'s' * (len(tasks) > 1)}",
            [
                "value term",
                "best single w_p",
                "mean score",
                "regret to the same way's best",
                "regret to the best of both",
                "the same, w_p chosen on other tasks",
            ],
            [
                [
                    NAMES[value],
                    f"{one.weight:g}",
                    f"{one.score:.1f}",
                    str(one.own_regret),
                    str(one.regret),
                    "–" if one.left_out is None else str(one.left_out),
                ]
                for value, one in found.items()
            ],
        ),
        _plot(scores, tasks),
        _finding(scores, found, tasks),
    )


def _by_spread(document: Document, rows: list[Row]) -> None:
    """Whether the weight that a task wants goes with the spread of its value term."""
    from gemrl.evaluate.tune.estimate import rank_correlation

    scores, spreads = scores_of(rows, ("raw",)), spreads_of(rows)
    if len(spreads) < FEWEST_TASKS or list(spreads) != list(scores["raw"][WEIGHTS["raw"][0]]):
        return
    single = shared(scores, "raw")
    table = _array(scores, "raw")
    best = [WEIGHTS["raw"][place] for place in table.argmax(axis=0)]
    chosen = WEIGHTS["raw"].index(single.weight)
    lines = [
        [task, f"{spreads[task]:.2f}", f"{weight:g}", f"{table[:, column].max():.1f}",
         f"{table[chosen, column]:.1f}"]
        for column, (task, weight) in enumerate(zip(spreads, best, strict=True))
    ]  # fmt: skip
    found = rank_correlation(np.array(list(spreads.values())), np.array(best))
    goes = "–" if found is None else f"{found:+.2f}"
    document.add(
        "## T3, further: does the useful w_p follow the spread of the value term?",
        "Support has a standard deviation of 1 over a candidate set, and value has that of the "
        "table, in reward units. Were the trade between the two all that mattered, the best "
        "constant w_p would go with it.",
        Table(
            f"Validation scores by constant w_p, {NAMES['raw']}",
            ["task", "spread of value", "best w_p", "its score", f"score at {single.weight:g}"],
            lines,
        ),
        f"Rank correlation of spread and best weight over {len(lines)} tasks: {goes}. The best "
        f"single weight, {single.weight:g}, has {single.score:.1f} in the mean and loses "
        f"{single.own_regret} to each task's own best.",
    )


def _by_task(scores: Scores, value: str, tasks: list[str]) -> Table:
    lines = [
        [f"{weight:g}", *(str(scores[value][weight][task]) for task in tasks)]
        for weight in WEIGHTS[value]
    ]
    return Table(f"Validation score by constant w_p, {NAMES[value]}", ["w_p", *tasks], lines)


def _plot(scores: Scores, tasks: list[str]) -> Plot:
    from gemrl.evaluate.reproduce.plots import COLORS, plt

    figure, grid = plt.subplots(1, 2, figsize=(9.2, 3.6), sharey=True)
    for axes, (value, weights) in zip(grid, WEIGHTS.items(), strict=True):
        for color, task in zip(COLORS * 9, tasks, strict=False):
            points: Points = [(w, *_around(scores[value][w][task])) for w in weights]
            x, y, low, high = np.array(points).T
            axes.plot(x, y, marker="o", ms=3.5, lw=1.5, color=color, label=task)
            axes.fill_between(x, low, high, color=color, alpha=0.15, lw=0)
        axes.set_xscale("log")
        axes.set_xticks(weights, [f"{w:g}" for w in weights])
        axes.minorticks_off()
        axes.set_xlabel("constant w_p")
        axes.set_title(NAMES[value], fontsize=10)
    grid[0].set_ylabel("normalized score, validation")
    grid[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    return Plot("Score against constant w_p, band: one standard error", figure)


def _around(found: Estimate) -> tuple[float, float, float]:
    return found.mean, found.mean - found.stderr, found.mean + found.stderr


def _finding(scores: Scores, found: dict[str, Shared], tasks: list[str]) -> str:
    raw, zscored = found["raw"], found["zscore"]
    if len(tasks) == 1:
        best = {value: max(_array(scores, value)[:, 0]) for value in WEIGHTS}
        return (
            "Undecided: with one task there is nothing to serve together. Its best score is "
            f"{best['raw']:.1f} with the value as it is and {best['zscore']:.1f} with it "
            "standardized."
        )
    best = np.max([_array(scores, value).max(axis=0) for value in WEIGHTS], axis=0)
    lost = {
        value: best - _array(scores, value)[WEIGHTS[value].index(one.weight)]
        for value, one in found.items()
    }
    saved = estimate(lost["raw"] - lost["zscore"])
    return "That one w_p serves all tasks better with a standardized value term: " + verdict(
        sign(saved),
        f"the best single weight loses {zscored.regret} to each task's best, where with the value "
        f"as it is it loses {raw.regret}; the difference is {saved} (error between tasks)",
    )
