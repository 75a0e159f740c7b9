"""`nll-gap`: how much worse the heaviest component alone explains the data's actions."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.decide.policy import Policy, load
from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.mechanisms.reading import Record, over_seeds, pick, tasks_in
from gemrl.evaluate.reproduce.paper import figures
from gemrl.evaluate.reproduce.study import Study
from gemrl.learn.calibration import ROWS
from gemrl.maths import audits
from gemrl.maths.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "nll-gap"
PARTS = {"training": "training", "held_out": "held out"}
MODELS = {"actor": "actor", "behavior": "behaviour"}
TABLES = {"appendix_a": "paper, appendix A", "appendix_b": "paper, appendix B"}


def collect(study: Study) -> None:
    """What each bundle knows of its fit, and the gap's spread over rows."""
    records = study.records(NAME)
    for task in study.budget.tasks:
        data = None
        for seed in study.seeds:
            policy = load(study.policy(task, "gem", seed))
            if pick(records, task=task, seed=seed, bundle=policy.digest):
                continue
            data = data or study.dataset(task)
            records = [r for r in records if (r["task"], r["seed"]) != (task, seed)]
            records += measured(policy, data, task, seed)
            study.record(NAME, records)


def measured(policy: Policy, data: Dataset, task: str, seed: int) -> list[Record]:
    """Mean and median as the manifest has them, and the standard deviation over the same rows."""
    manifest = policy.bundle.manifest
    parts = dict(zip(PARTS, policy.bundle.split(data), strict=True))
    about = {
        "task": task,
        "seed": seed,
        "bundle": policy.digest,
        "updates": manifest["updates"]["main"],
        "data_origin": manifest["dataset"]["origin"],
        "components": manifest["config"]["components"],
        "log_std_min": manifest["config"]["log_std_min"],
    }
    return [
        about
        | {"model": model, "part": part}
        | {name: summary[name] for name in ("rows", "nll", "gap", "gap_median", "lowest_log_std")}
        | {"gap_std": _gap_std(getattr(policy, model), data, parts[part])}
        for model in MODELS
        for part, summary in manifest["calibration"][model].items()
    ]


def _gap_std(mixture_at: Any, data: Dataset, rows: np.ndarray) -> float:
    """Standard deviation of the gap over rows, which has no unit that scaling could change."""
    some = data.select(rows[np.linspace(0, len(rows) - 1, min(len(rows), ROWS)).astype(int)])
    _, gap = audits.nll_gap(mixture_at(some.observations), jnp.asarray(some.actions))
    return float(np.asarray(gap, np.float64).std())


def render(facts: Facts) -> Document:
    """A table for each model, the paper's two beside it, and a picture."""
    records = facts.records.get(NAME, [])
    document = Document("NLL gap: what the mixture's other components add")
    tasks = tasks_in(records)
    if not tasks:
        return document.add("Nothing has been measured yet.")
    document.add(
        "The gap is the negative log likelihood of the data's actions under the heaviest component "
        "alone minus that under the whole mixture, in nats. The mean is led by few rows on which "
        "the component is far off, and how far that can be is set by the floor of σ: read it "
        "beside the floor, and beside the median. The paper has two tables that disagree; it "
        "states neither floor nor the model that was measured.",
        _label(records),
    )
    for model, name in MODELS.items():
        document.add(_table(pick(records, model=model), name, tasks))
    return document.add(
        _quoted(),
        Plot(
            "Mean gap on training data (bars, error between training seeds) and the paper's values "
            "(marks); a gap of zero or below has no bar on this axis",
            _bars(records, tasks),
        ),
        *_findings(records, tasks),
    )


def _label(records: list[Record]) -> str:
    def each(name: str, form: str = "") -> str:
        return ", ".join(format(value, form) for value in sorted({r[name] for r in records}))

    return (
        f"{each('data_origin').capitalize()} data; last step, after {each('updates', ',')} "
        f"updates; {each('components')} components; floor of ln σ {each('log_std_min', 'g')}; "
        f"training seeds {each('seed')}; up to {max(r['rows'] for r in records):,} rows of each "
        "part. Mean ± standard error between training seeds."
    )


def _table(records: list[Record], name: str, tasks: list[str]) -> Table:
    lines = []
    for task in tasks:
        for part, words in PARTS.items():
            found = pick(records, task=task, part=part)
            if found:
                numbers = [f"{over_seeds(found, f):.2f}" for f in ("gap", "gap_median", "gap_std")]
                floor = min(r["lowest_log_std"] for r in found)
                lines.append(
                    [task, words, *numbers, f"{over_seeds(found, 'nll'):.2f}", f"{floor:g}"]
                    + [_of_paper(table, task) for table in TABLES]
                )
    headings = ["task", "rows", "mean gap", "median", "standard deviation over rows", "NLL"]
    headings += ["least ln σ", *TABLES.values()]
    return Table(f"Gap of the {name} mixture, paper's figures quoted", headings, lines)


def _of_paper(table: str, task: str) -> str:
    found = figures()["nll_gap"][table].get(task)
    return "–" if found is None else f"{found['mean']:g} ± {found['std']:g}"


def _quoted() -> Table:
    tables = figures()["nll_gap"]
    tasks = list(dict.fromkeys([*tables["appendix_a"], *tables["appendix_b"]]))
    lines = [[task, *(_of_paper(table, task) for table in TABLES)] for task in tasks]
    return Table("The paper's two tables, quoted: mean ± std", ["task", *TABLES.values()], lines)


def _bars(records: list[Record], tasks: list[str]) -> "Figure":
    from gemrl.evaluate.reproduce.plots import COLORS, plt

    figure, axes = plt.subplots(figsize=(max(6.4, 1.1 * len(tasks)), 3.8))
    places = np.arange(len(tasks))
    for i, (model, name) in enumerate(MODELS.items()):
        found = [
            over_seeds(pick(records, task=t, model=model, part="training"), "gap") for t in tasks
        ]
        heights = np.array([gap.mean if gap.mean > 0 else np.nan for gap in found])
        at = places - 0.2 + 0.4 * i
        axes.bar(at, heights, 0.36, color=COLORS[i], label=f"{name}, ours")
        errors = np.array([gap.stderr for gap in found])
        known = np.isfinite(errors) & np.isfinite(heights)
        axes.errorbar(at[known], heights[known], errors[known], fmt="none", ecolor="black", lw=1)
    for table, mark in zip(TABLES, ("D", "X"), strict=True):
        quoted = figures()["nll_gap"][table]
        at = [i for i, task in enumerate(tasks) if task in quoted]
        means = [quoted[tasks[i]]["mean"] for i in at]
        stds = [quoted[tasks[i]]["std"] for i in at]
        color = COLORS[2 + list(TABLES).index(table)]
        axes.errorbar(
            at, means, stds, fmt=mark, color=color, mec="white", ms=9, label=TABLES[table]
        )
    axes.set_yscale("log")
    axes.set_ylim(bottom=axes.get_ylim()[0] / 2)
    axes.set_xlim(-0.7, len(tasks) - 0.3)
    axes.set_xticks(places, tasks, rotation=30, ha="right", fontsize=8)
    axes.set_ylabel("mean NLL gap, nats")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _findings(records: list[Record], tasks: list[str]) -> list[str]:
    """In how many tasks the gap is positive, by mean and by median, and which table is nearer."""
    said = []
    for model, name in MODELS.items():
        of = {
            field: [
                over_seeds(pick(records, task=t, model=model, part="training"), field)
                for t in tasks
            ]
            for field in ("gap", "gap_median")
        }
        positive = {field: sum(e.mean > 0 for e in found) for field, found in of.items()}
        said.append(
            f"The {name} mixture's gap on training data is positive in {positive['gap']} of "
            f"{len(tasks)} tasks by its mean and in {positive['gap_median']} by its median."
        )
    nearer = dict.fromkeys(TABLES, 0)
    compared = 0
    for task in tasks:
        ours = over_seeds(pick(records, task=task, model="actor", part="training"), "gap")
        away = {t: _log_distance(ours, figures()["nll_gap"][t].get(task)) for t in TABLES}
        if all(distance is not None for distance in away.values()):
            compared += 1
            nearer[min(away, key=lambda t: away[t] or 0.0)] += 1
    if compared:
        counts = ", ".join(f"{TABLES[t]} {count}" for t, count in nearer.items())
        said.append(
            f"Of {compared} tasks in both of the paper's tables, the actor's mean gap is nearer, "
            f"as a ratio, to: {counts}."
        )
    return said


def _log_distance(ours: Estimate, quoted: dict[str, float] | None) -> float | None:
    if quoted is None or ours.mean <= 0:
        return None
    return abs(float(np.log(ours.mean / quoted["mean"])))
