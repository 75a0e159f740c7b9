"""T4 and the extreme-value bound: how much the winner is overrated as N grows."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gemrl.evaluate.audit.measures import cross_fitted
from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.mechanisms.reading import (
    Record,
    by_task,
    difference,
    each,
    over_seeds,
    pick,
    points,
    sign,
    tasks_in,
    verdict,
    with_error,
)
from gemrl.evaluate.reproduce.mechanisms.seen import Effort, Seen
from gemrl.maths.statistics import Estimate

CONTROLLED, TRAINED = "T4 controlled", "T4 trained"
LAMS = (0.0, 1.0, 3.5)
COUNTS = (1, 4, 16, 64, 256, 1024, 4096)
CRITICS = 4
TRUE_STD = 0.5
"""Spread of the candidates' true values."""
FREQUENCIES = 16
CALM, WILD, WILD_SHARE = 0.5, 3.0, 0.2
"""Noise of a critic where some candidates are noisier than others, and how many are."""


class Noise(NamedTuple):
    """Errors of critics at candidates."""

    errors: np.ndarray
    """[M, C] Error of each critic."""
    sigma: float
    """The least σ for which the mean error is sub-Gaussian."""
    spread: np.ndarray | None = None
    """[C] The critics' true standard deviation, where the rule may know it."""


SETTINGS = {
    "independent": "independent, equal noise",
    "uneven": "a fifth of the candidates six times as noisy",
    "uneven, known": "the same, with the true spread in the bound",
    "shared": "half of the variance common to all critics",
    "smooth": "noise a smooth function of the action",
}


def noise(setting: str, count: int, rng: np.random.Generator) -> Noise:
    """Errors of critics for one state's candidates."""
    own = rng.normal(size=(CRITICS, count))
    mean = 1 / np.sqrt(CRITICS)
    if setting == "shared":
        common = rng.normal(size=count)
        return Noise(np.sqrt(0.5) * (own + common), float(np.sqrt(0.5 * (mean**2 + 1))))
    if setting == "smooth":
        actions = rng.normal(size=(count, 2))
        waves = actions @ rng.normal(size=(2, CRITICS * FREQUENCIES))
        a, b = rng.normal(size=(2, CRITICS, FREQUENCIES)) / np.sqrt(FREQUENCIES)
        waves = waves.reshape(count, CRITICS, FREQUENCIES)
        # Of cosines and sines together the variance is one at every action.
        return Noise((a * np.cos(waves) + b * np.sin(waves)).sum(axis=-1).T, mean)
    if setting == "independent":
        return Noise(own, mean)
    std = np.where(rng.uniform(size=count) < WILD_SHARE, WILD, CALM)
    return Noise(own * std, WILD * mean, std if setting == "uneven, known" else None)


def bound(sigma: float, count: int) -> float:
    """σ sqrt(2 log C): no less than the mean of the largest of C errors (Eq. 23, Eq. 81)."""
    return sigma * float(np.sqrt(2 * np.log(count)))


def controlled(effort: Effort) -> list[Record]:
    """What the winner's critics think of it beyond its true value."""
    records = []
    for setting in SETTINGS:
        found: dict[tuple[float, int], list[tuple[float, float]]] = {}
        rng = np.random.default_rng(0)
        sigma = 0.0
        for _ in range(effort.repeats):
            drawn = noise(setting, COUNTS[-1], rng)
            sigma = drawn.sigma
            truth = rng.normal(0, TRUE_STD, COUNTS[-1])
            for key, *values in _winners(truth, drawn):
                found.setdefault(key, []).append((values[0], values[1]))
        for (lam, n), values in found.items():
            over, value = np.array(values).T
            records.append(
                {"experiment": CONTROLLED, "setting": setting, "lam": lam, "n": n}
                | {"bound": bound(sigma, n)}
                | with_error("overestimate", over)
                | with_error("true_value", value)
            )
    return records


def _winners(truth: np.ndarray, drawn: Noise) -> Iterator[tuple[tuple[float, int], float, float]]:
    """Overestimate and true value of the winner for each λ and number of candidates."""
    values = truth + drawn.errors
    mean = values.mean(axis=0)
    spread = values.std(axis=0) if drawn.spread is None else drawn.spread
    for lam in LAMS:
        lower = mean - lam * spread
        for n in COUNTS:
            best = int(np.argmax(lower[:n]))
            yield (lam, n), float(mean[best] - truth[best]), float(truth[best])


def trained(seen: Seen) -> list[Record]:
    """Choose with half of the critics, judge with the other half: what choosing promised and what
    of it others see.
    """
    q, log_support = seen.candidates
    if q.shape[1] < 2:
        return []
    counts = np.array([0, *seen.counts])
    records = []
    for lam in LAMS:
        for wp in (0.0, seen.task.wp_end):
            words = {"support": "zscore", "value": "raw"}
            found = cross_fitted(q, log_support, counts + 1, lam, wp, words)
            over = found["selecting_q"] - found["other_q"]
            gain = found["other_q"] - found["other_q"][:, :1]
            for i, n in enumerate(counts.tolist()):
                records.append(
                    {"experiment": TRAINED, "lam": lam, "wp": wp, "n": n}
                    | {"value_std": float(q.mean(axis=1)[:, : n + 1].std(axis=1).mean())}
                    | with_error("overestimate", over[:, i])
                    | with_error("gain", gain[:, i])
                )
    return records


def chapter(document: Document, records: list[Record]) -> None:
    """What T4 says, and what was found."""
    document.add(
        "## T4 and the extreme-value bound: the winner is overrated, more so with more candidates",
        "The paper: the maximum over more candidates picks larger errors, by up to σ √(2 ln C) for "
        "C candidates with σ-sub-Gaussian errors, and the lower confidence bound counters it. The "
        'paper calls this growth "at least on the order of √(log N)" and so reads an upper bound '
        "as a growth rate: errors that hang together from candidate to candidate grow by less, as "
        "the smooth setting below shows.",
    )
    if known := pick(records, experiment=CONTROLLED):
        document.add(*_controlled(known))
    if found := pick(records, experiment=TRAINED):
        document.add(*_trained(found))


def _controlled(records: list[Record]) -> list[str | Table | Plot]:
    from gemrl.evaluate.reproduce.plots import panels

    few, many = 64, COUNTS[-1]
    lines, panes = [], []
    for setting, name in SETTINGS.items():
        of = pick(records, setting=setting)
        for lam in LAMS:
            at = {n: pick(of, lam=lam, n=n) for n in (few, many)}
            lines.append(
                [
                    name,
                    f"{lam:g}",
                    *(f"{over_seeds(at[n], 'overestimate'):.2f}" for n in (few, many)),
                    f"{at[many][0]['bound']:.2f}",
                    *(f"{over_seeds(at[n], 'true_value'):.2f}" for n in (few, many)),
                ]
            )
        curves = {f"λ = {lam:g}": points(pick(of, lam=lam), "n", "overestimate") for lam in LAMS}
        limit = [(r["n"], r["bound"], np.nan, np.nan) for r in pick(of, lam=0.0)]
        panes.append((f"{setting}\noverestimate", curves | {"bound σ √(2 ln C)": limit}))
    return [
        Table(
            f"{CRITICS} critics with known errors: the winner's overestimate and its true value, "
            f"mean ± standard error (true values have standard deviation {TRUE_STD:g})",
            [
                "errors",
                "λ",
                f"overestimate, C = {few}",
                f"C = {many}",
                f"bound, C = {many}",
                f"true value, C = {few}",
                f"C = {many}",
            ],
            lines,
        ),
        Plot(
            "The winner's overestimate against the number of candidates C",
            panels(panes, "C", log=True),
        ),
        *_bound_findings(records, few, many),
    ]


def _bound_findings(records: list[Record], few: int, many: int) -> list[str]:
    above = [r for r in records if r["n"] > 1 and r["overestimate"] > r["bound"]]
    growth = {
        setting: difference(
            pick(records, setting=setting, lam=0.0, n=many),
            pick(records, setting=setting, lam=0.0, n=few),
            "overestimate",
        )
        for setting in SETTINGS
    }

    def of(setting: str, lam: float) -> list[Record]:
        return pick(records, setting=setting, lam=lam, n=many)

    def off(setting: str, lam: float) -> Estimate:
        return difference(of(setting, 0.0), of(setting, lam), "overestimate")

    def worth(setting: str, lam: float) -> Estimate:
        return difference(of(setting, lam), of(setting, 0.0), "true_value")

    return [
        "The bound: "
        + verdict(
            -1 if above else 1,
            f"the mean overestimate is above it in {len(above)} of "
            f"{len([r for r in records if r['n'] > 1])} cases",
        ),
        f"Growth from C = {few} to {many} without pessimism: "
        + "; ".join(f"{SETTINGS[s]} {found:+.2f}" for s, found in growth.items())
        + ".",
        *(
            f"What λ = {lam:g} takes off the overestimate at C = {many}, and what it adds to the "
            "winner's true value: "
            + "; ".join(
                f"{SETTINGS[s]} {off(s, lam):+.2f} and {worth(s, lam):+.2f}" for s in SETTINGS
            )
            + "."
            for lam in LAMS[1:]
        ),
        "That the lower bound reduces the overestimate where the critics' spread tells which "
        "candidates are noisy: "
        + verdict(
            sign(off("uneven", 1.0)),
            f"with uneven noise λ = 1 takes off {off('uneven', 1.0):.2f}, and where half of the "
            f"error is common to all critics {off('shared', 1.0):.2f}",
        ),
    ]


def _rule(lam: float, wp: float) -> str:
    return f"λ {lam:g}, w_p {wp:g}" if wp else f"λ {lam:g}, no support"


def _trained(records: list[Record]) -> list[str | Table | Plot]:
    from gemrl.evaluate.reproduce.plots import panels

    lines, panes, grows, helps = [], [], {}, {}
    for task in tasks_in(records):
        of = pick(records, task=task)
        counts = sorted(each(of, "n"))
        few, many = min(counts[1:], key=lambda n: abs(n - 64)), counts[-1]
        rules = sorted({(r["lam"], r["wp"]) for r in of})
        for lam, wp in rules:
            at = {n: pick(of, lam=lam, wp=wp, n=n) for n in (few, many)}
            lines.append([task, _rule(lam, wp)])
            for name in ("overestimate", "gain"):
                lines[-1] += [f"{over_seeds(at[n], name):.3f}" for n in (few, many)]
            lines[-1].append(f"{over_seeds(at[many], 'value_std'):.3f}")
        for name, title in (
            ("overestimate", "overestimate"),
            ("gain", "gain that other critics see"),
        ):
            curves = {_rule(*r): points(pick(of, lam=r[0], wp=r[1]), "n", name) for r in rules}
            panes.append((f"{task}\n{title}", curves))
        plain = {n: pick(of, lam=0.0, wp=0.0, n=n) for n in (few, many)}
        careful = pick(of, lam=1.0, wp=0.0, n=many)
        grows[task] = difference(plain[many], plain[few], "overestimate")
        helps[task] = difference(plain[many], careful, "overestimate")
    return [
        "Trained critics have no known truth. Half of them choose among candidates at held-out "
        "states and the other half judges the choice, both ways round. Errors that all critics "
        "share, from the same data and targets, stay unseen: the true overestimate is larger.",
        Table(
            "Mean value by the critics that chose minus that by the others, and the others' gain "
            "over the anchor, in units of value",
            [
                "task",
                "rule",
                "overestimate, small N",
                "largest N",
                "gain, small N",
                "largest N",
                "standard deviation of value over candidates",
            ],
            lines,
        ),
        Plot("Cross-fitted overestimate and gain against N", panels(panes, "N", log=True)),
        "That the overestimate grows with N (by how much): " + by_task(grows, form="+.4f"),
        "That λ = 1 makes it smaller at the largest N (by how much): "
        + by_task(helps, form="+.4f"),
    ]
