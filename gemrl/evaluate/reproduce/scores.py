"""`scores`: every method we have on every task, by suite, with the paper's table beside it."""

from collections.abc import Sequence

import numpy as np

from gemrl.decide.knobs import Knobs
from gemrl.evaluate.cells import Cell
from gemrl.evaluate.choose import score_of
from gemrl.evaluate.reproduce import comparison
from gemrl.evaluate.reproduce.budget import BASELINES
from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.lines import label, of_suite
from gemrl.evaluate.reproduce.paper import GEM_UNIFIED, figures, quoted
from gemrl.evaluate.reproduce.select import (
    BASELINE,
    KnobsOf,
    chosen_knobs,
    last_step,
    paper_knobs,
    pick,
    suites_of,
    sweep_rows,
    tasks_of,
)
from gemrl.evaluate.reproduce.study import Study
from gemrl.evaluate.rows import Row
from gemrl.maths.statistics import (
    Interval,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)

NAMES = {"bc": "BC", "iql": "IQL", "gem": "GEM"}
ANCHOR, PAPER, CHOSEN = "GEM, anchor alone", "GEM, paper's knobs", "GEM, chosen knobs"


def collect(study: Study) -> None:
    """Baselines, GEM's anchor, and GEM with the paper's and the chosen knobs on test seeds; then
    the policies on the way, on validation seeds, and the best of them on test seeds.
    """
    if study.budget.gem:
        _collect_three(study)
    comparison.collect(study)


def _collect_three(study: Study) -> None:
    """Baselines and GEM; then the policies on the way."""
    chosen, n = study.chosen(), study.budget.n
    study.evaluate(
        study.cell(task, method, seed, knobs)
        for task in study.budget.tasks
        for method, knobs in (
            *((method, BASELINE) for method in BASELINES),
            ("gem", chosen(task, 0)),
            ("gem", paper_knobs(task, n)),
            ("gem", chosen(task, n)),
        )
        for seed in study.seeds
    )
    _collect_best(study, chosen)


def _collect_best(study: Study, knobs_of: KnobsOf) -> None:
    """Snapshots of every method on validation seeds; where the last is not the best, test that."""
    budget = study.budget
    steps = range(study.snapshot_every, budget.steps, study.snapshot_every)

    def cells(task: str, method: str, seed: int, protocol: str) -> list[tuple[int, Cell]]:
        n = budget.sweep_n if protocol == "validation" else budget.n
        knobs = knobs_of(task, n) if method == "gem" else BASELINE
        return [
            (
                at,
                study.cell(task, method, seed, knobs, protocol, updates=_or_last(at, budget.steps)),
            )
            for at in (*steps, budget.steps)
        ]

    every = [
        (task, method, seed)
        for task in budget.tasks
        for method in ("gem", *BASELINES)
        for seed in study.seeds
    ]
    rows = study.evaluate(c for key in every for _, c in cells(*key, "validation"))
    tests = []
    for key in every:
        seen = knobs_of(key[0], budget.sweep_n) if key[1] == "gem" else BASELINE
        at = best_step(rows, *key, seen) or budget.steps
        tests += [cell for updates, cell in cells(*key, "test") if updates == at]
    study.evaluate(tests)


def _or_last(at: int, last: int) -> int | None:
    return None if at == last else at


def best_step(rows: Sequence[Row], task: str, method: str, seed: int, knobs: Knobs) -> int | None:
    """Updates after which a training's policy scored best on validation seeds with these knobs."""
    means: dict[int, list[float]] = {}
    for row in pick(rows, task=task, method=method, protocol="validation", knobs=knobs):
        if row.train_seed == seed:
            means.setdefault(row.updates, []).append(row.score)
    return max(means, key=lambda at: (float(np.mean(means[at])), at), default=None)


def render(facts: Facts) -> Document:
    """Scores by suite and task, statistics over all tasks, and the paper's table as quoted."""
    rows = last_step(facts.rows)
    tasks = [t for t in tasks_of(pick(rows)) if sweep_rows(rows, t) and _columns(rows, t, facts.n)]
    document = Document("Scores")
    if not tasks:
        return document.add(
            "No task has rows of GEM, IQL and BC in every column yet.", *comparison.render(facts)
        )
    found = {task: _columns(rows, task, facts.n) for task in tasks}
    used = [row for columns in found.values() for group in columns.values() for row in group]
    names = list(next(iter(found.values())))
    lines = []
    for suite, members in suites_of(tasks).items():
        lines += [
            (task, *(str(score_of(found[task][name])) for name in names), *_quotes(task))
            for task in members
        ]
        if len(members) > 1:
            means = [str(of_suite([found[t][name] for t in members]).score) for name in names]
            lines.append((f"**{suite}, mean**", *means, "", "", "", ""))
    quotes = ("IQL, paper", "GEM, unified table", "GEM, by task", "GEM, ablation table")
    headings = ("task", *names, *(f"{quote} (quoted)" for quote in quotes))
    document.add(
        label(used, f"N = {facts.n} where not said; chosen knobs: by task on validation seeds"),
        "The quoted columns are the paper's, on the published data after 10⁶ updates; it gives "
        "three different columns for GEM. They are not comparable with ours figure by figure.",
        Table("Normalized scores on test seeds", headings, lines),
        *_statistics(found, names),
        *_best(facts.rows, tasks, facts),
        _quoted_table(tasks),
        *comparison.render(facts),
    )
    return document


def _columns(rows: Sequence[Row], task: str, n: int) -> dict[str, list[Row]]:
    """The rows of each column; nothing where one of them has none."""
    settings: list[tuple[str, str, Knobs]] = [
        *((NAMES[method], method, BASELINE) for method in reversed(BASELINES)),
        (ANCHOR, "gem", chosen_knobs(rows, task, 0)),
        (PAPER, "gem", paper_knobs(task, n)),
        (CHOSEN, "gem", chosen_knobs(rows, task, n)),
    ]
    found = {
        name: pick(rows, task=task, method=method, knobs=knobs) for name, method, knobs in settings
    }
    return found if all(found.values()) else {}


def _quotes(task: str) -> tuple[str, str, str, str]:
    return (
        quoted("scores", task, "IQL"),
        quoted("scores", task, GEM_UNIFIED),
        quoted("by_task", task, "score"),
        quoted("ablations_by_task", task, "gem"),
    )


def _runs(found: dict[str, dict[str, list[Row]]], name: str) -> list[list[float]]:
    """Mean score of each training seed, by task."""
    groups = []
    for columns in found.values():
        scores: dict[int, list[float]] = {}
        for row in columns[name]:
            scores.setdefault(row.train_seed, []).append(row.score)
        groups.append([float(np.mean(each)) for each in scores.values()])
    return groups


def _statistics(
    found: dict[str, dict[str, list[Row]]], names: list[str]
) -> list[str | Table | Plot]:
    """Interquartile means, probability of improvement and performance profiles over all tasks."""
    runs = {name: _runs(found, name) for name in names}
    lines = []
    for name in names:
        flat = [score for group in runs[name] for score in group]
        middle = stratified_bootstrap(runs[name], interquartile_mean)
        against = ["–" if name == CHOSEN else _percent(runs[CHOSEN], runs[name])]
        lines.append((name, f"{np.mean(flat):.1f}", str(middle), *against))
    scores = np.concatenate([np.ravel(group) for groups in runs.values() for group in groups])
    thresholds = np.linspace(scores.min() - 1, scores.max() + 1, 101)
    profiles = {}
    for name in names:
        profiles[name] = list(zip(*performance_profile(runs[name], thresholds), strict=True))
    from gemrl.evaluate.reproduce.plots import curves

    return [
        Table(
            f"Over {len(found)} tasks, a run being one training seed on one task; 95 % intervals "
            "from a bootstrap stratified by task",
            ("", "mean", "interquartile mean", f"P({CHOSEN} is better), %"),
            lines,
        ),
        Plot(
            "Performance profiles: share of runs above a score, with 95 % bands",
            curves(profiles, "normalized score", "share of runs above", marks=False),
        ),
    ]


def _percent(first: list[list[float]], second: list[list[float]]) -> str:
    shares = probability_of_improvement(first, second)
    return format(Interval(*(100 * share for share in shares)), ".0f")


def _best(rows: Sequence[Row], tasks: Sequence[str], facts: Facts) -> list[Table]:
    """The last policy of a training beside the one that was best on validation seeds."""
    lines = []
    for task in tasks:
        cells = [task]
        for method in (*reversed(BASELINES), "gem"):
            knobs = chosen_knobs(rows, task, facts.n) if method == "gem" else BASELINE
            sweep_n = facts.budget["sweep_n"]
            seen = chosen_knobs(rows, task, sweep_n) if method == "gem" else BASELINE
            groups = _best_rows(rows, task, method, seen, knobs)
            last = pick(last_step(rows), task=task, method=method, knobs=knobs)
            cells += [str(score_of(last)), str(score_of(groups)) if groups else "–"]
        lines.append(tuple(cells))
    headings = ["task"]
    for method in (*reversed(BASELINES), "gem"):
        headings += [f"{NAMES[method]}, last", f"{NAMES[method]}, best"]
    caption = (
        "Last step, and the best of the checkpoints as validation seeds have it; both on test seeds"
    )
    return [Table(caption, headings, lines)]


def _best_rows(rows: Sequence[Row], task: str, method: str, seen: Knobs, knobs: Knobs) -> list[Row]:
    """Test rows of each seed's best policy; `seen` are the knobs that validation saw it with."""
    found: list[Row] = []
    for seed in {row.train_seed for row in pick(rows, task=task, method=method)}:
        at = best_step(rows, task, method, seed, seen)
        of_seed = [
            row
            for row in pick(rows, task=task, method=method, knobs=knobs)
            if row.train_seed == seed and row.updates == at
        ]
        if not of_seed:
            return []
        found += of_seed
    return found


def _quoted_table(tasks: Sequence[str]) -> Table:
    """The paper's unified table for these tasks."""
    methods = list(dict.fromkeys(m for row in figures()["scores"].values() for m in row))
    lines = [
        (task, *(quoted("scores", task, method) for method in methods))
        for task in tasks
        if task in figures()["scores"]
    ]
    caption = (
        "The paper's unified table (quoted; its columns for TD3+BC, AWAC, CQL, IQL, ReBRAC, SAC-N, "
        "EDAC and DT are CORL's published last scores)"
    )
    return Table(caption, ("task", *methods), lines)
