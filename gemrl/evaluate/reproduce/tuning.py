"""`tuning`: what `gemrl tune` would have recommended from the data, beside the online sweep."""

from typing import Any

import numpy as np

from gemrl.data.tasks import task_named
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import load
from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.lines import label
from gemrl.evaluate.reproduce.select import CONSTANTS, pick
from gemrl.evaluate.reproduce.study import Facts, Study
from gemrl.evaluate.tune import Budget, grid_for, tune
from gemrl.evaluate.tune.regret import regret

NAME = "tuning"
WEIGHTS = tuple(sorted({*CONSTANTS, 1.0}))
"""Constant support weights that the sweep on validation seeds has too."""
BUDGET = Budget()
NAMED = ("best", "recommended", "default")


def collect(study: Study) -> None:
    """Ask each policy's data, then its validation rows how good the advice was."""
    rows = study.evaluate(study.sweep_cells())
    known = {record["bundle"]: record for record in study.records(NAME)}
    for task in study.budget.tasks:
        data = None
        for seed in study.seeds:
            policy = load(study.policy(task, "gem", seed))
            if policy.digest not in known:
                data = study.dataset(task) if data is None else data
                lam = task_named(task).lam
                grid = grid_for(policy, study.budget.sweep_n, (lam,), WEIGHTS)
                advice = tune(policy, data, grid, BUDGET, quiet=False)
                online = [row for row in rows if row.bundle == policy.digest]
                known[policy.digest] = _record(task, seed, advice, regret(advice, online))
                study.record(NAME, list(known.values()))


def _record(task: str, seed: int, advice: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What the table needs, as one flat line."""
    estimate = advice["estimate"]
    values = {Knobs.from_json(s["knobs"]).wp: s["value"] for s in advice["settings"]}
    return {
        "task": task,
        "seed": seed,
        "bundle": advice["run"]["bundle"],
        "protocol": found["protocol"],
        "held_out_episodes": advice["rows"]["episodes"],
        "reason": advice["recommendation"]["reason"],
        **{
            f"{name}_{key}": found[name] and found[name][key]
            for name in NAMED
            for key in ("score", "regret")
        },
        **{f"{name}_wp": found[name] and found[name]["knobs"]["wp"] for name in NAMED},
        "bad": found["bad"],
        "rank_correlation": found["rank_correlation"],
        "fits_agree": estimate and estimate["rank_correlation"],
        "values": [[wp, value["mean"]] for wp, value in values.items() if value],
        "scores": [[each["knobs"]["wp"], each["score"]] for each in found["online"]],
    }


def render(facts: Facts) -> Document:
    """Regret and rank correlation of the advice, by task and training seed."""
    document = Document("Knobs chosen from the data alone, judged online")
    records = facts.records.get(NAME, [])
    if not records:
        return document.add("No advice has been compared with a sweep yet.")
    tasks = {record["task"] for record in records}
    rows = [r for r in pick(facts.rows, protocol="validation") if r.task in tasks]
    document.add(
        f"Fitted Q evaluation on held-out episodes ranks w_p = {', '.join(map(str, WEIGHTS))} at "
        "the suite's λ, and recommends one where its gain over the suite's default is sure; the "
        "online sweep tells what that was worth. Regret is the best setting's score minus this "
        "one's; the best of several settings is best partly by luck.",
        *([label(rows, "every setting of the sweep")] if rows else []),
        _table(records),
        _words(records),
        Plot("Estimated value beside online score, both within the task's range", _figure(records)),
    )
    return document


def _table(records: list[dict[str, Any]]) -> Table:
    headings = (
        "task",
        "seed",
        "best online",
        "default, regret",
        "recommended, regret",
        "rank correlation",
        "between fits",
        "",
    )
    lines = [
        (
            r["task"],
            str(r["seed"]),
            f"w_p {r['best_wp']:g}: {r['best_score']:.1f}",
            _setting(r, "default"),
            _setting(r, "recommended"),
            "–" if r["rank_correlation"] is None else f"{r['rank_correlation']:+.2f}",
            "–" if r["fits_agree"] is None else f"{r['fits_agree']:+.2f}",
            "would have been bad" if r["bad"] else "",
        )
        for r in records
    ]
    return Table("Advice from the data and what it is worth, validation seeds", headings, lines)


def _setting(record: dict[str, Any], name: str) -> str:
    if record[f"{name}_wp"] is None:
        return "–"
    return f"w_p {record[f'{name}_wp']:g}: {record[f'{name}_regret']:.1f}"


def _words(records: list[dict[str, Any]]) -> str:
    """The findings, out of the numbers."""
    kept = sum(r["recommended_wp"] == r["default_wp"] for r in records)
    bad = sum(bool(r["bad"]) for r in records)
    known = [r["rank_correlation"] for r in records if r["rank_correlation"] is not None]
    regrets = [
        float(np.mean([r[f"{name}_regret"] for r in records if r[f"{name}_regret"] is not None]))
        for name in ("recommended", "default")
    ]
    return (
        f"Of {len(records)} policies, {len(records) - kept} got a recommendation and {kept} kept "
        f"the default; {bad} recommendation(s) would have been bad. Mean regret: {regrets[0]:.1f} "
        f"with the advice, {regrets[1]:.1f} with the suite's default."
        + (
            f" Mean rank correlation of estimated value and online score: {np.mean(known):+.2f}."
            if known
            else " There was too little held-out data to estimate any value."
        )
    )


def _figure(records: list[dict[str, Any]]) -> Any:
    """One pane a task: both curves against w_p, each scaled to [0, 1]."""
    from gemrl.evaluate.reproduce.plots import panels

    panes = []
    for task in dict.fromkeys(r["task"] for r in records):
        curves = {}
        for kind in ("values", "scores"):
            for r in records:
                if r["task"] == task and r[kind]:
                    points = np.array(sorted(r[kind]), dtype=float)
                    low, high = points[:, 1].min(), points[:, 1].max()
                    scaled = (points[:, 1] - low) / max(high - low, 1e-9)
                    name = {"values": "estimated", "scores": "online"}[kind]
                    nan = float("nan")
                    curves[f"{name}, seed {r['seed']}"] = [
                        (x, y, nan, nan) for x, y in zip(points[:, 0], scaled, strict=True)
                    ]
        panes.append((task, curves))
    return panels(panes, "w_p")
