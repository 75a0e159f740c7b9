"""`tuning`: what `gemrl tune` would have recommended from the data, beside the online sweep."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemrl.data.tasks import task_named
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import load
from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.lines import label
from gemrl.evaluate.reproduce.select import CONSTANTS, last_step, pick
from gemrl.evaluate.reproduce.study import Study
from gemrl.evaluate.rows import Row
from gemrl.evaluate.tune import Budget, grid_for, tune
from gemrl.evaluate.tune.regret import regret

NAME = "tuning"
WEIGHTS = tuple(sorted({*CONSTANTS, 1.0}))
"""Constant support weights that the sweep on validation seeds has too."""
BUDGET = Budget()
NAMED = ("best", "recommended", "default")


def collect(study: Study) -> None:
    """Ask each policy's data; what the advice was worth, the rows of the sweep tell."""
    study.evaluate(study.sweep_cells())
    n = study.budget.sweep_n
    known = {(record["bundle"], record["n"]): record for record in study.records(NAME)}
    for task in study.budget.tasks:
        data = None
        for seed in study.seeds:
            policy = load(study.policy(task, "gem", seed))
            if (policy.digest, n) not in known:
                data = study.dataset(task) if data is None else data
                grid = grid_for(policy, n, (task_named(task).lam,), WEIGHTS)
                advice = tune(policy, data, grid, BUDGET, quiet=False)
                known[policy.digest, n] = _record(task, seed, advice)
                study.record(NAME, list(known.values()))


def _record(task: str, seed: int, advice: dict[str, Any]) -> dict[str, Any]:
    """The advice as one flat line."""
    recommended, default = (
        Knobs.from_json(each) for each in (advice["recommendation"]["knobs"], advice["default"])
    )
    return {
        "task": task,
        "seed": seed,
        "bundle": advice["run"]["bundle"],
        "n": default.n,
        "lam": default.lam,
        "reason": advice["recommendation"]["reason"],
        "recommended_wp": recommended.wp,
        "default_wp": default.wp,
        "fits_agree": advice["estimate"] and advice["estimate"]["rank_correlation"],
        "values": [
            [s["knobs"]["wp"], s["value"] and s["value"]["mean"]] for s in advice["settings"]
        ],
    }


def judged(record: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any] | None:
    """The advice with what the rows of the sweep say of it; None where there are none."""

    def knobs(wp: float) -> dict[str, Any]:
        return Knobs(n=record["n"], lam=record["lam"], wp=wp).to_json()

    own = [row for row in rows if row.bundle == record["bundle"]]
    if not own:
        return None
    advice = {
        "default": knobs(record["default_wp"]),
        "recommendation": {"knobs": knobs(record["recommended_wp"])},
        "settings": [
            {"knobs": knobs(wp), "value": None if value is None else {"mean": value}}
            for wp, value in record["values"]
        ],
    }
    found = regret(advice, own)
    scores = {
        f"{name}_{key}": found[name] and found[name][key]
        for name in NAMED
        for key in ("score", "regret")
    }
    return {
        **record,
        **scores,
        "best_wp": found["best"]["knobs"]["wp"],
        "bad": found["bad"],
        "rank_correlation": found["rank_correlation"],
        "scores": [[each["knobs"]["wp"], each["score"]] for each in found["online"]],
    }


def render(facts: Facts) -> Document:
    """Regret and rank correlation of the advice, by task and training seed."""
    document = Document("Knobs chosen from the data alone, judged online")
    rows = pick(last_step(facts.rows), protocol="validation")
    every = [judged(record, rows) for record in facts.records.get(NAME, [])]
    records = [record for record in every if record is not None]
    if not records:
        return document.add("No advice has been compared with a sweep yet.")
    tasks = {record["task"] for record in records}
    document.add(
        f"Fitted Q evaluation on held-out episodes ranks w_p = {', '.join(map(str, WEIGHTS))} at "
        "the suite's λ, and recommends one where its gain over the suite's default is sure; the "
        "online sweep tells what that was worth. Regret is the best setting's score minus this "
        "one's; the best of several settings is best partly by luck.",
        label([row for row in rows if row.task in tasks], "every setting of the sweep"),
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
                known = [point for point in r[kind] if point[1] is not None]
                if r["task"] == task and known:
                    points = np.array(sorted(known), dtype=float)
                    low, high = points[:, 1].min(), points[:, 1].max()
                    scaled = (points[:, 1] - low) / max(high - low, 1e-9)
                    name = {"values": "estimated", "scores": "online"}[kind]
                    nan = float("nan")
                    curves[f"{name}, seed {r['seed']}"] = [
                        (x, y, nan, nan) for x, y in zip(points[:, 0], scaled, strict=True)
                    ]
        panes.append((task, curves))
    return panels(panes, "w_p")
