"""One self-contained HTML page about trained runs, out of their rows, metrics and bundles."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import gemrl
from gemrl.data.dataset import Dataset
from gemrl.data.inspect import inspect
from gemrl.data.readers import load_dataset
from gemrl.data.tasks import Task, task_named
from gemrl.decide.knobs import Cosine, Knobs
from gemrl.decide.policy import Policy, load
from gemrl.errors import GemrlError
from gemrl.evaluate.choose import by_setting, choose
from gemrl.evaluate.rollouts import paths_file, read_paths
from gemrl.evaluate.rows import ROWS, Row, read_rows
from gemrl.evaluate.table import HEADINGS, LEGEND, Line, label_of, line, lines_of
from gemrl.learn.bundle import MANIFEST, load_manifest
from gemrl.learn.metrics import METRICS, read_metrics
from gemrl.pages import write_page

# The picture of candidates is drawn at the most divided of this many states of the data.
STATES_LOOKED_AT = 2000


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write the page and return its path."""
    return write_page("gemrl.evaluate", "report.html.jinja", out, lambda: contents(list(runs)))


def contents(runs: list[Path]) -> dict[str, Any]:
    """Everything the page shows."""
    policies = [load(run) for run in runs]
    policy, manifest = policies[0], policies[0].bundle.manifest
    task = task_named(manifest["task"]) if manifest["task"] else None
    rows = [row for run in runs for row in read_rows(run / ROWS)]
    test = [row for row in rows if row.protocol == "test"]
    validation = [row for row in rows if row.protocol == "validation" and row.method == "gem"]
    data = _dataset(policy)
    guarded = _guarded(test, validation)
    return {
        "version": gemrl.__version__,
        "task": manifest["task"] or "no benchmark task",
        "manifest": manifest,
        "config": json.dumps(manifest["config"], indent=2),
        "seeds": sorted({p.bundle.manifest["config"]["seed"] for p in policies}),
        "simulators": sorted({row.simulator for row in rows}),
        "environments": sorted({row.env_id for row in rows}),
        "episodes": _episodes(test),
        "headings": HEADINGS,
        "legend": LEGEND,
        "lines": [found.cells for found in lines_of(test)],
        "choices": _choices(validation),
        "guarded": guarded.describe(),
        "inspection": None if data is None else inspect(data),
        "pictures": _pictures(policy, runs, test, validation, data, task, guarded),
    }


def _guarded(test: Sequence[Row], validation: Sequence[Row]) -> Knobs:
    """The knobs of the pictures: those chosen on validation, else the first that were tested."""
    searches = [row for row in validation if row.knobs["n"] > 0 and row.knobs["wp"] != 0]
    if searches:
        return replace(choose(searches)[0].knobs, n=1024)
    tested = [Knobs.from_json(row.knobs) for row in test if row.method == "gem"]
    return next((knobs for knobs in tested if knobs.n > 0 and knobs.wp != 0), Knobs())


def _choices(validation: Sequence[Row]) -> list[tuple[str, str, bool]]:
    if not validation:
        return []
    chosen, choices = choose(validation)
    return [(c.knobs.describe(), str(c.score), c is chosen) for c in choices]


def _episodes(rows: Sequence[Row]) -> str:
    counts = {len({r.episode_seed for r in group}) for _, group in by_setting(rows)}
    return " to ".join(str(n) for n in sorted({min(counts), max(counts)})) if counts else "no"


def _dataset(policy: Policy) -> Dataset | None:
    """The policy's dataset where it can still be read and is still the same."""
    about = policy.bundle.manifest["dataset"]
    try:
        data = load_dataset(
            about["source"], task=policy.bundle.manifest["task"], **about.get("reading", {})
        )
    except GemrlError:  # Its reader may need an extra that is not installed here.
        return None
    return data if data.fingerprint == about["fingerprint"] else None


def _pictures(
    policy: Policy,
    runs: list[Path],
    test: list[Row],
    validation: list[Row],
    data: Dataset | None,
    task: Task | None,
    guarded: Knobs,
) -> dict[str, Any]:
    from gemrl.evaluate import pictures

    names = ("data", "candidates", "budget", "sweep", "paths", "curves")
    found: dict[str, Any] = dict.fromkeys(names)
    if data is not None and task is not None and task.maze is not None:
        found["data"] = pictures.data_map(task.maze, data.observations, data.rewards)
    complete = policy.models.behavior is not None and policy.models.critics
    if data is not None and complete and data.action_dim > 1:
        found |= _candidates(policy, data, guarded)
    scaling, unguarded = _scaling(test, guarded)
    if len(scaling) > 1:
        found["budget"] = pictures.budget(scaling, unguarded)
    sweep = [
        (knobs.wp, line("", group))
        for knobs, group in by_setting(validation)
        if not isinstance(knobs.wp, Cosine)
    ]
    if len(sweep) > 1:
        found["sweep"] = pictures.support_sweep(sorted(sweep, key=lambda point: point[0]))
    if task is not None and task.maze is not None:
        groups = _paths(runs, test, guarded)
        if groups:
            found["paths"] = pictures.paths(task.maze, groups)
    metrics = [
        (load_manifest(folder)["method"], read_metrics(folder))
        for run in runs
        for folder in (run, *sorted(run.glob("baselines/*")))
        if (folder / METRICS).exists() and (folder / MANIFEST).exists()
    ]
    if metrics:
        found["curves"] = pictures.training_curves(metrics)
    return found


def _candidates(policy: Policy, data: Dataset, guarded: Knobs) -> dict[str, Any]:
    """The candidates at the state where the actor's two heaviest components differ most."""
    from gemrl.evaluate import pictures

    at = np.linspace(0, len(data) - 1, min(STATES_LOOKED_AT, len(data))).astype(int)
    actor = policy.actor(data.observations[at])
    weights = np.exp(actor.log_weights)
    second, first = np.argsort(weights, axis=1)[:, -2:].T if weights.shape[1] > 1 else (0, 0)
    rows = np.arange(len(at))
    apart = np.linalg.norm(actor.means[rows, first] - actor.means[rows, second], axis=1)
    chosen = int(np.argmax(apart * weights[rows, second]))
    obs = data.observations[at[chosen]]
    t = 0 if isinstance(guarded.wp, Cosine) else None
    panels = [
        (title, policy.decide(obs, knobs, seed=0, t=t))
        for title, knobs in (
            (f"guarded: {guarded.describe()}", guarded),
            ("support switched off: w_p 0", replace(guarded, wp=0.0)),
        )
    ]
    decisions = [decision for _, decision in panels]
    return {
        "candidates": pictures.candidates(
            panels,
            policy.actor(obs),
            policy.behavior(obs),
            (policy.spec.action_low, policy.spec.action_high),
        ),
        "state": ", ".join(f"{x:.2f}" for x in obs),
        "state_z": [f"{float(d.chosen_support_z):+.2f}" for d in decisions],
        "state_collapse": [f"{float(d.collapse_dist):.2f}" for d in decisions],
    }


def _scaling(rows: Sequence[Row], guarded: Knobs) -> tuple[list[tuple[int, Line]], Line | None]:
    """GEM's lines by number of candidates at the chosen knobs, and the unguarded search's."""
    by_n: dict[int, Line] = {}
    unguarded = None
    for knobs, group in by_setting([row for row in rows if row.method == "gem"]):
        if knobs.n == 0 or knobs == replace(guarded, n=knobs.n):
            by_n[knobs.n] = line(str(knobs.n), group)
        elif knobs == replace(guarded, n=knobs.n, wp=0.0):
            unguarded = line("w_p = 0", group)
    return sorted(by_n.items()), unguarded


def _paths(runs: list[Path], rows: Sequence[Row], guarded: Knobs) -> list[tuple[str, np.ndarray]]:
    """Paths of the first run's policies: a baseline, the anchor, GEM and the unguarded search."""
    wanted = [
        ("iql", 0, None),
        ("gem", 0, None),
        ("gem", guarded.n, guarded.wp),
        ("gem", guarded.n, 0.0),
    ]
    found = []
    for method, n, wp in wanted:
        for row in rows:
            knobs = Knobs.from_json(row.knobs)
            file = paths_file(runs[0], row.cell)
            if row.method == method and knobs.n == n and wp in (None, knobs.wp) and file.exists():
                found.append((label_of(method, knobs), read_paths(file)))
                break
    return found
