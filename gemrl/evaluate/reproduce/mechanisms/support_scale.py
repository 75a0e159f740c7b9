"""T3: what one support weight means from state to state and for other numbers of candidates."""

import numpy as np

from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.mechanisms.reading import (
    Record,
    by_task,
    difference,
    each,
    over_seeds,
    pick,
    points,
    tasks_in,
)
from gemrl.evaluate.reproduce.mechanisms.seen import Seen
from gemrl.evaluate.rerank import rerank
from gemrl.maths.score import MIN_STD

TRAINED = "T3 states"
MODES = {
    "raw": ("raw", "raw"),
    "zscore": ("zscore", "raw"),
    "both": ("zscore", "zscore"),
}
"""Knobs `support` and `value` of each way to score."""
NAMES = {
    "raw": "support raw",
    "zscore": "support z-scored (GEM)",
    "both": "support and value z-scored",
}
WEIGHTS = (0.1, 0.4, 1.0)
"""w_p of GEM's score; other ways have the weight that contributes as much in the mean state."""


def trained(seen: Seen) -> list[Record]:
    """Scale and say of the support term, for each way to score, N and weight."""
    q, log_support = seen.candidates
    lam = seen.task.lam
    bound = q.mean(axis=1) - lam * q.std(axis=1)
    counts = [n for n in seen.counts if n >= min(64, seen.counts[-1] // 4)]
    # A user fixes a weight once, at the smallest N.
    scales = _stds(log_support, counts[0]), _stds(bound, counts[0])
    records = []
    for mode in MODES:
        for wp in WEIGHTS:
            weight = _matched(mode, wp, *scales)
            chosen = _choices(q, log_support, counts, lam, weight, mode)
            for i, n in enumerate(counts):
                spread = 1.0 if mode != "raw" else _stds(log_support, n)
                against = 1.0 if mode == "both" else _stds(bound, n)
                records.append(
                    {"experiment": TRAINED, "mode": mode, "wp": wp, "weight": weight, "n": n}
                    | _say(weight * spread * np.ones(len(q)), against)
                    | _changes(chosen[:, i], log_support[:, : n + 1])
                )
    return records


def _stds(values: np.ndarray, n: int) -> np.ndarray:
    """Standard deviation over each state's first candidates."""
    return np.maximum(values[:, : n + 1].std(axis=1, dtype=np.float64), MIN_STD)


def _matched(mode: str, wp: float, support_std: np.ndarray, value_std: np.ndarray) -> float:
    """The weight that contributes in the mean state what `wp` does to GEM's score."""
    if mode == "raw":
        return wp / float(support_std.mean())
    return wp / float(value_std.mean()) if mode == "both" else wp


def _choices(
    q: np.ndarray,
    log_support: np.ndarray,
    counts: list[int],
    lam: float,
    weight: float,
    mode: str,
) -> np.ndarray:
    """Chosen candidates [P, N, B] for no weight, half of it, itself, double, and nothing else."""
    support, value = MODES[mode]
    weights = np.array([0, weight / 2, weight, 2 * weight, 1e6], np.float32)
    found = rerank(
        q,
        log_support,
        np.array(counts) + 1,
        np.array([lam], np.float32),
        weights,
        support=support,
        value=value,
    )
    return np.moveaxis(np.asarray(found.chosen)[:, 0], 0, 1)


def _say(contribution: np.ndarray, value_std: np.ndarray | float) -> Record:
    """The term's scale, and its leverage: how large it is beside the value term."""
    leverage = contribution / value_std
    return {
        "scale": float(contribution.mean()),
        "scale_cv": float(contribution.std() / contribution.mean()),
        "leverage": float(np.exp(np.log(leverage).mean())),
        # As a factor: states one standard deviation from the middle differ by it.
        "leverage_factor": float(np.exp(np.log(leverage).std())),
    }


def _changes(chosen: np.ndarray, log_support: np.ndarray) -> Record:
    """What the weight does to the choice, from [P, B] choices."""
    value_only, half, itself, double, support_only = chosen
    states = np.arange(len(log_support))
    rank = (log_support < log_support[states, itself][:, None]).mean(axis=1)
    return {
        "changed": float((half != double).mean()),
        "ignored": float((itself == value_only).mean()),
        "overruled": float((itself == support_only).mean()),
        "rank": float(rank.mean()),
        "rank_spread": float(rank.std()),
    }


COLUMNS = {
    "scale": "scale",
    "scale_cv": "its variation over states",
    "leverage_factor": "leverage varies by a factor of",
    "changed": "choice changes from w_p / 2 to 2 w_p",
    "ignored": "value alone decides",
    "overruled": "support alone decides",
    "rank": "support rank of the choice",
    "rank_spread": "its spread over states",
}


def chapter(document: Document, records: list[Record]) -> None:
    """What T3 says, and what was found."""
    document.add(
        "## T3: z-scores give w_p one meaning across states and N",
        "The paper: standardizing log support within the candidate set makes w_p a stable exchange "
        "rate. That the standardized term has standard deviation w_p everywhere is its definition. "
        "What is measured is what this buys: how much its leverage (its standard deviation over "
        "that of the value term) still varies from state to state, how often w_p has a say in the "
        "choice, and whether the choice's support rank stays where it was as N grows. Raw support "
        "gets the weight that contributes as much in the mean state at the smallest N.",
    )
    found = pick(records, experiment=TRAINED)
    if found:
        document.add(*_trained(found))


def _trained(records: list[Record]) -> list[str | Table | Plot]:
    from gemrl.evaluate.reproduce.plots import panels

    counts, middle = sorted(each(records, "n")), 0.4
    lines, steadier, across = [], {}, {}
    for task in tasks_in(records):
        of = pick(records, task=task, wp=middle)
        for mode, name in NAMES.items():
            for n in (counts[0], counts[-1]):
                here = pick(of, mode=mode, n=n)
                numbers = [f"{over_seeds(here, field):.2f}" for field in COLUMNS]
                lines.append([task, name, str(n), *numbers])
        raw, zscored = (pick(of, mode=mode, n=counts[-1]) for mode in ("raw", "zscore"))
        steadier[task] = difference(raw, zscored, "leverage_factor")
        drifts = {mode: _drift(of, mode, counts) for mode in MODES}
        across[task] = difference(drifts["raw"], drifts["zscore"], "drift")
    panes = [
        (title, _curves(records, field, middle))
        for field, title in (
            ("scale", "scale of the support term"),
            ("leverage_factor", "leverage varies by a factor of"),
            ("changed", "choice changes, w_p / 2 to 2 w_p"),
            ("rank", "support rank of the choice"),
        )
    ]
    return [
        Table(
            f"At held-out states, w_p = {middle:g}, the suite's λ: means over training seeds",
            ["task", "score", "N", *COLUMNS.values()],
            lines,
        ),
        Plot(f"The support term against N, w_p = {middle:g}", panels(panes, "N", log=True)),
        "That z-scores make the leverage of w_p vary less from state to state than raw support "
        "does (by how much the factor is smaller): " + by_task(steadier),
        "That the support rank of the choice drifts less with N under z-scores (by how much): "
        + by_task(across, form="+.3f"),
    ]


def _drift(records: list[Record], mode: str, counts: list[int]) -> list[Record]:
    """How much the support rank moves between the smallest and the largest N, by seed."""
    few, many = (pick(records, mode=mode, n=n) for n in (counts[0], counts[-1]))
    return [
        {"seed": a["seed"], "drift": abs(b["rank"] - a["rank"])}
        for a, b in zip(few, many, strict=True)
    ]


def _curves(records: list[Record], field: str, wp: float) -> dict[str, list]:
    tasks = tasks_in(records)
    return {
        f"{task}: {name}" if len(tasks) > 1 else name: points(
            pick(records, task=task, mode=mode, wp=wp), "n", field
        )
        for task in tasks
        for mode, name in NAMES.items()
    }
