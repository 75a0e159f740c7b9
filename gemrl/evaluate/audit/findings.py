"""What is worth knowing of an audit's numbers, in sentences."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

Level = Literal["warning", "note"]
Said = Iterator[tuple[Level, str, str]]
"""Level, the report's key that a finding is about, and its text."""

# From here on a person is warned.
MISCALIBRATED = 0.1
"""Largest distance of the reliability curve from the diagonal: one held-out action in ten is not
where the density has it."""
OFTEN_VIOLATED = 0.05
"""Share of the states at which the knobs choose an action of low support. Drawn from the
candidates at random it would be a few in a hundred."""
BLIND = 0.6
"""How often critics disagree more about a random action than about the logged one. One half is
chance."""
MOSTLY_CURSE = 0.5
"""Share of the promised gain that critics which did not choose see as well."""
OUT_OF_SCALE = 10.0
"""Factor between w_p and the spread of values from which one of the two decides alone."""

ALIKE = "All learn from the same data: mistakes that they share stay hidden"

TITLES = {"actor": "the actor", "behavior": "the behaviour density"}


def findings(report: dict[str, Any], health: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Warnings first, then notes. `health` is what training warns of."""
    said = [("warning", topic.partition("/")[0], text) for topic, text in health]
    for look in (_rows, _missing, _dead, _calibration, _violation, _critics, _curse, _scale):
        said += look(report)
    said.sort(key=lambda finding: finding[0] != "warning")
    return [{"level": level, "about": about, "text": text} for level, about, text in said]


def _rows(report: dict[str, Any]) -> Said:
    if report["rows"]["part"] == "training":
        yield (
            "warning",
            "rows",
            "nothing was held out, so all of this is about rows that the policy was trained on, "
            "and flatters it: train with --holdout 0.05 on data of several episodes",
        )


def _missing(report: dict[str, Any]) -> Said:
    models, method = report["models"], report["run"]["method"]
    if not models["behavior"]:
        yield (
            "note",
            "models",
            f"method {method!r} has no behaviour density: there is no support to calibrate or to "
            "weigh, and no violation or collapse",
        )
    if models["critics"] == 0:
        yield (
            "note",
            "models",
            f"method {method!r} has no critics: there is nothing to search with, only the anchor",
        )
    if models["critics"] == 1:
        yield "note", "models", "one critic cannot disagree with itself: neither spread nor curse"


def _dead(report: dict[str, Any]) -> Said:
    for name, found in report["components"].items():
        if found["dead"]:
            which = ", ".join(map(str, found["dead"]))
            yield (
                "note",
                "components",
                f"{TITLES[name]} has {len(found['dead'])} dead of {len(found['usage'])} "
                f"components (number {which}): hardly a candidate comes from them",
            )


def _calibration(report: dict[str, Any]) -> Said:
    found = report["calibration"]
    if found is None:
        return
    off, at = found["largest_deviation"], found["largest_at"]
    part = report["rows"]["part"].replace(" ", "-")
    if abs(off) < max(MISCALIBRATED, found["chance_band"]):
        return
    meaning = (
        "it is too sure of itself, and its support is too strict"
        if off > 0
        else "it is wider than the data, and its support is too lenient"
    )
    yield (
        "warning",
        "calibration",
        f"support is off: {at + off:.0%} of the {part} actions lie where the "
        f"density expects {at:.0%} of them, below its {at:.0%} quantile; {meaning}",
    )


def _violation(report: dict[str, Any]) -> Said:
    decided, grid = report["decisions"][-1], report["grid"]
    found = decided["violation"]
    if grid is None or found is None or found <= OFTEN_VIOLATED:
        return
    knobs = decided["knobs"]
    rates = grid["violation"][grid["n"].index(knobs["n"])][grid["lam"].index(knobs["lam"])]
    safe = [wp for wp, rate in zip(grid["wp"], rates, strict=True) if rate <= OFTEN_VIOLATED]
    mend = (
        f"w_p = {safe[0]:g} would keep it below {OFTEN_VIOLATED:.0%}"
        if safe
        else f"no w_p up to {grid['wp'][-1]:g} mends it"
    )
    yield (
        "warning",
        "decisions",
        f"the search chooses actions of low support at {found:.0%} of the states: {mend}",
    )


def _critics(report: dict[str, Any]) -> Said:
    found = report["disagreement"]
    if found is None:
        return
    logged, random = (found["kinds"][kind] for kind in ("logged", "random"))
    ratio = random["spread_median"] / max(logged["spread_median"], 1e-12)
    if found["told_apart"] < BLIND:
        yield (
            "warning",
            "disagreement",
            f"the critics hardly see what is off the data: they disagree more about a random "
            f"action than about the logged one in {found['told_apart']:.0%} of the cases, where "
            "50% is chance; pessimism (λ) guards little here, support has to",
        )
    else:
        yield (
            "note",
            "disagreement",
            f"the critics disagree {ratio:.2g} times as much about random actions as about logged "
            f"ones, and more in {found['told_apart']:.0%} of the cases: pessimism (λ) sees "
            "something of what is off the data",
        )


def _curse(report: dict[str, Any]) -> Said:
    found = report["winners_curse"]
    if found is None:
        return
    names = {"value": "by value alone", "knobs": "by the knobs given"}
    for rule, curve in found["rules"].items():
        promised = curve["selecting_q"][-1] - curve["selecting_q"][0]
        kept = curve["other_q"][-1] - curve["other_q"][0]
        share = curve["kept_share"]
        start = "the anchor" if found["n"][0] == 0 else f"N = {found['n'][0]}"
        if share is None:
            yield (
                "note",
                "winners_curse",
                f"choosing {names[rule]} among {found['n'][-1]} does not raise value over {start}: "
                f"by {promised:+.3g} in the eyes of the critics that choose",
            )
            continue
        yield (
            "warning" if share < MOSTLY_CURSE else "note",
            "winners_curse",
            f"choosing {names[rule]} among {found['n'][-1]} promises {promised:+.3g} over {start}; "
            f"critics that did not choose see {kept:+.3g} of it ({share:.0%}). {ALIKE}",
        )


def _scale(report: dict[str, Any]) -> Said:
    found = report["value_scale"]
    spread, wp = found["lcb_std"], found["wp"]
    words = report["knobs"]
    plain = words["value"] == "raw" and words["support"] == "zscore"
    if spread is None or wp == 0 or not report["models"]["behavior"] or not plain:
        return
    ratio = wp / max(spread, 1e-12)
    balanced = 1 / OUT_OF_SCALE < ratio < OUT_OF_SCALE
    meaning = "" if balanced else (": support alone decides" if ratio > 1 else ": value decides")
    yield (
        "note" if balanced else "warning",
        "value_scale",
        f"w_p = {wp:g} is {ratio:.2g} times the spread of the lower bound over a candidate set "
        f"({spread:.3g} in units of reward times {found['reward_scale']:.3g}){meaning}",
    )
