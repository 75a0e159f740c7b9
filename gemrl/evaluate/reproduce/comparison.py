"""Every method that a study has trained, as its own paper deploys it, beside GEM and the data."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.data.tasks import TASKS, task_named
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import own_knobs
from gemrl.errors import DataError
from gemrl.evaluate.cells import Cell
from gemrl.evaluate.choose import is_published, published_knobs, score_of
from gemrl.evaluate.reproduce.budget import BASELINES, WITHOUT_CRITICS
from gemrl.evaluate.reproduce.document import Table
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.lines import label
from gemrl.evaluate.reproduce.paper import quoted
from gemrl.evaluate.reproduce.select import (
    BASELINE,
    chosen_knobs,
    last_step,
    pick,
    sweep_rows,
)
from gemrl.evaluate.reproduce.study import DIVERGED, SETTINGS, Study
from gemrl.evaluate.rows import Row
from gemrl.learn.bundle import MANIFEST, load_manifest
from gemrl.learn.spec import Spec
from gemrl.maths.statistics import (
    interquartile_mean,
    normalized_score,
    stratified_bootstrap,
)
from gemrl.methods import METHODS

DATA = "data"
"""Name of the records with the data's own returns."""
TITLES = {
    "gem": "GEM", "iql": "IQL", "bc": "BC", "td3bc": "TD3+BC", "awac": "AWAC", "cql": "CQL",
    "rebrac": "ReBRAC", "sacn": "SAC-N", "edac": "EDAC", "dt": "DT", "idql": "IDQL",
    "diffusionql": "Diffusion-QL", "fql": "FQL", "ifql": "IFQL", "ssar": "SSAR",
}  # fmt: skip
"""How the paper's tables write each method."""


def own_rows(rows: Iterable[Row], method: str, task: str | None = None) -> list[Row]:
    """The test rows of a method's own deployment."""
    found = pick(rows, task=task, method=method)
    own = [row for row in found if is_published(method, Knobs.from_json(row.knobs))]
    heats: dict[tuple[str, int, int], set[float]] = {}
    for row in own:
        key = row.task, row.train_seed, row.updates
        heats.setdefault(key, set()).add(row.knobs["temperature"])
    for (of, seed, _), found in heats.items():
        if len(found) > 1:
            raise DataError(
                f"rows of {method} on {of}, seed {seed}, have the temperatures "
                f"{', '.join(f'{heat:g}' for heat in sorted(found))}: keep those of one"
            )
    return own


def own_cell(study: Study, task: str, method: str, seed: int) -> Cell:
    """A method as its own paper deploys it, audited by GEM's density where it has critics.

    Own rules have w_p = 0, so that the density changes no decision.
    """
    if method in (*BASELINES, *WITHOUT_CRITICS):
        return study.cell(task, method, seed, published_knobs(method))
    density = study.density(task, seed)
    cell = study.cell(task, method, seed, published_knobs(method), density=density)
    trained = all((run / MANIFEST).exists() for run in (cell.run, density))
    if cell.knobs.temperature == 0 or not trained:
        return cell
    # With the density values are in the units of its rewards.
    spec = Spec.from_json(load_manifest(density)["spec"])
    return replace(cell, knobs=own_knobs(load_manifest(cell.run), spec))


def collect(study: Study) -> None:
    """Each method's own deployment on test seeds, and what the data's episodes return."""
    if not study.others:
        return
    study.evaluate(
        own_cell(study, task, method, seed)
        for task in study.budget.tasks
        for method, seed in study.others_of(task)
    )
    study.record_data(DATA, lambda study, task: data_record(task, study.dataset(task)))


def data_record(task: str, data: Dataset) -> dict[str, object]:
    """The data's own normalized score, by what its task says that compares with a return."""
    found, returns = task_named(task), data.episode_returns
    if found.data_score == "rate":
        returns = found.horizon * data.rewards.astype(np.float64)
    elif found.data_score == "success":
        returns = (returns > 0).astype(np.float64)
    return {
        "task": task,
        "episodes": len(data.episode_returns),
        "by": found.data_score,
        "mean": normalized_score(float(np.mean(returns)), *found.reference),
    }


def render(facts: Facts) -> list[str | Table]:
    """A table of tasks and methods; nothing where no method beside the first three was trained."""
    rows = last_step(facts.rows)
    methods = [name for name in METHODS if name not in ("gem", "iql", "bc")]
    of_methods = {name: own_rows(rows, name) for name in methods}
    lost = diverged(facts)
    methods = [name for name in methods if of_methods[name] or name in {m for _, m in lost}]
    if not methods:
        return []
    shown = {row.task for name in methods for row in of_methods[name]} | {t for t, _ in lost}
    tasks = [task for task in TASKS if task in shown]
    names = ["bc", "iql", *methods, "gem"]
    found = {
        task: {name: _of_method(rows, task, name, facts.n) for name in names} for task in tasks
    }
    data = {record["task"]: record for record in facts.records.get(DATA, [])}
    lines = [
        (
            task,
            f"{data[task]['mean']:.1f}" if task in data else "–",
            *(_cell(found[task][name], task, name, lost.get((task, name), [])) for name in names),
        )
        for task in tasks
    ]
    own_ways = "each method as its own paper deploys it; GEM with chosen knobs"
    used = [row for columns in found.values() for group in columns.values() for row in group]
    return [
        "## Every method",
        *([label(used, own_ways)] if used else []),
        "In brackets the paper's figure for the method, quoted: published data, 10⁶ updates. "
        "The column of the data has its own: the mean return of its episodes in locomotion, the "
        "mean reward over an evaluation's horizon in Maze2D, and the share of episodes that "
        "reach the goal in AntMaze. With one seed the error is between its episodes.",
        Table(
            "Normalized scores on test seeds",
            ("task", DATA, *(TITLES[name] for name in names)),
            lines,
        ),
        *_as_long(facts, found, methods),
        *other_settings(facts, (*((row.task, row.method) for row in used), *lost)),
        *diverged_words(lost),
        *_below_both(found, {task: record["mean"] for task, record in data.items()}),
        # Where all others diverged, nobody has anything to compare.
        *_over_tasks({t: of for t, of in found.items() if any(of[m] for m in methods)}, names),
    ]


def _of_method(rows: Sequence[Row], task: str, method: str, n: int) -> list[Row]:
    """Test rows of a method's own deployment; GEM's with the knobs that were chosen."""
    if method == "gem" and not sweep_rows(rows, task):
        return []
    if method != "gem":
        return own_rows(rows, method, task)
    return pick(rows, task=task, method=method, knobs=chosen_knobs(rows, task, n))


def _as_long(
    facts: Facts, found: dict[str, dict[str, list[Row]]], methods: Sequence[str]
) -> list[Table]:
    """GEM and what is trained with it after as many updates as the others had, where these had
    fewer and policies were kept on the way.
    """
    tables = []
    longest = {task: max((r.updates for r in of["gem"]), default=0) for task, of in found.items()}
    for count in sorted({r.updates for of in found.values() for m in methods for r in of[m]}):
        lines = []
        had = [
            t for t, of in found.items() if any(r.updates == count for m in methods for r in of[m])
        ]
        for task in (task for task in had if longest[task] > count):
            chosen = chosen_knobs(facts.rows, task, facts.budget["sweep_n"])
            on_the_way = [row for row in facts.rows if row.updates == count]
            groups = [
                pick(on_the_way, task=task, method=name, protocol="validation", knobs=knobs)
                for name, knobs in (("bc", BASELINE), ("iql", BASELINE), ("gem", chosen))
            ]
            if all(groups):
                lines.append((task, *(str(score_of(rows)) for rows in groups)))
        if lines:
            caption = (
                f"After {count:,} updates, as many as the others, on validation seeds; GEM with "
                f"the knobs chosen at its last step, N = {facts.budget['sweep_n']}"
            )
            tables.append(Table(caption, ("task", "BC", "IQL", "GEM"), lines))
    return tables


Lost = dict[tuple[str, str], list[dict[str, Any]]]
"""Records of trainings that diverged, by task and method."""


def diverged(facts: Facts) -> Lost:
    """The trainings that diverged."""
    lost: Lost = {}
    for record in facts.records.get(DIVERGED, []):
        lost.setdefault((record["task"], record["method"]), []).append(record)
    return lost


def diverged_words(lost: Lost) -> list[str]:
    """How the trainings that diverged did so."""
    told = [
        f"{TITLES[method]} on {task}, seed {record['seed']} ({record['why']})"
        for (task, method), records in lost.items()
        for record in records
    ]
    return [f"Diverged, and so without a policy: {'; '.join(told)}."] if told else []


def other_settings(facts: Facts, shown: Iterable[tuple[str, str]]) -> list[str]:
    """What was trained otherwise than the method's own settings for the task say, of the pairs of
    task and method that are shown.
    """
    given = {
        (record["task"], record["method"]): record["settings"]
        for record in facts.records.get(SETTINGS, [])
    }
    told = []
    for task, method in dict.fromkeys(shown):
        own = METHODS[method].config.for_task(task)
        changes = [
            f"{name} {value} instead of {getattr(own, name)}"
            for name, value in given.get((task, method), {}).items()
        ]
        if changes:
            told.append(f"{TITLES[method]} on {task} ({', '.join(changes)})")
    return [f"With other settings than their own: {', '.join(told)}."] if told else []


def _below_both(found: dict[str, dict[str, list[Row]]], data: dict[str, float]) -> list[str]:
    """Which methods do worse than copying the data: a mistake of ours until shown otherwise."""
    known = [task for task in found if task in data and found[task]["bc"]]
    if not known:
        return []
    below = [
        f"{TITLES[name]} on {task}"
        for task in known
        for name, rows in found[task].items()
        if rows and score_of(rows).mean < min(data[task], score_of(found[task]["bc"]).mean)
    ]
    words = ", ".join(below) or "none"
    where = "" if len(known) == len(found) else f", of {', '.join(known)}"
    return [f"Below both the data's own episodes and behaviour cloning{where}: {words}."]


def _cell(rows: Sequence[Row], task: str, method: str, lost: Sequence[dict[str, Any]]) -> str:
    if not rows and not lost:
        return "–"
    published = quoted("scores", task, "GEM(OURS)" if method == "gem" else TITLES[method])
    seeds = {row.train_seed for row in rows}
    marked = "diverged"
    if rows:
        marked = f"{score_of(rows)}" + ("" if len(seeds) > 1 else " (one seed)")
        marked += f" ({len(lost)} more diverged)" if lost else ""
    return marked + ("" if published == "–" else f" [{published}]")


def _over_tasks(found: dict[str, dict[str, list[Row]]], names: Sequence[str]) -> list[Table]:
    """Interquartile means over the tasks, of the methods that have rows on each of them.

    Of the training seeds that all tasks have, so that each task counts the same.
    """
    lines = []
    for name in names:
        by_task: list[dict[int, list[float]]] = []
        for columns in found.values():
            scores: dict[int, list[float]] = {}
            for row in columns[name]:
                scores.setdefault(row.train_seed, []).append(row.score)
            by_task.append(scores)
        common = sorted(set.intersection(*map(set, by_task))) if by_task else []
        if not common:
            continue
        runs = [[float(np.mean(scores[seed])) for seed in common] for scores in by_task]
        flat = [score for group in runs for score in group]
        middle = stratified_bootstrap(runs, interquartile_mean)
        lines.append((TITLES[name], f"{np.mean(flat):.1f}", str(middle), str(len(flat))))
    several = f"these {len(found)} tasks" if len(found) > 1 else "this task"
    caption = f"Over {several}, of the methods and seeds that have rows on all; 95 % intervals"
    return (
        [Table(caption, ("method", "mean", "interquartile mean", "runs"), lines)] if lines else []
    )
