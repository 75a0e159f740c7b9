"""The top of the page: every task and method in one table, and methods over all tasks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemrl.evaluate.report import charts
from gemrl.evaluate.report.gather import OURS, Subject
from gemrl.evaluate.report.settings import Headline, headlines
from gemrl.evaluate.report.tables import Cell, Table, number, words
from gemrl.maths.statistics import (
    Interval,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)

PROFILE_POINTS = 101

Heads = dict[str, Headline]


def overview(subjects: Sequence[Subject]) -> dict[str, Any] | None:
    """Scores by task and method, and over tasks; None where nothing was tested."""
    found = [(subject, headlines(subject.task, subject.rows)) for subject in subjects]
    found = [(subject, heads) for subject, heads in found if heads]
    if not found:
        return None
    methods = sorted({m for _, heads in found for m in heads}, key=lambda m: (m == OURS, m))
    common = [heads for _, heads in found if set(heads) == set(methods)]
    several = len(common) > 1
    return {
        "scores": _scores(found, methods),
        "links": [list(subjects).index(subject) for subject, _ in found],
        "over_tasks": _over_tasks(common, methods) if common else None,
        "tasks": len(common),
        "left_out": len(found) - len(common),
        "profile": _profile(common, methods) if several else None,
        "seeds": sorted({len(h.setting.seeds) for _, heads in found for h in heads.values()}),
    }


def _scores(found: Sequence[tuple[Subject, Heads]], methods: Sequence[str]) -> Table:
    others = [m for m in methods if m != OURS] if OURS in methods else []
    headings = (
        "task",
        *(m.upper() for m in methods),
        *(f"P(GEM > {m.upper()})" for m in others),
        "training seeds",
        "data",
        "updates",
        "GEM's knobs",
    )
    lines = []
    for subject, heads in found:
        ours = heads.get(OURS)
        origins = {row.data_origin for head in heads.values() for row in head.setting.rows}
        updates = sorted({head.setting.updates for head in heads.values()})
        seeds = sorted({len(head.setting.seeds) for head in heads.values()})
        lines.append(
            [
                words(subject.name),
                *(number(heads[m].setting.score if m in heads else None) for m in methods),
                *(number(_better(ours, heads.get(m)), ".2f") for m in others),
                Cell(" to ".join(map(str, _ends(seeds))), float(seeds[-1])),
                words(", ".join(sorted(origins))),
                Cell(" to ".join(f"{n:,}" for n in _ends(updates)), float(updates[-1])),
                words("–" if ours is None else f"{ours.setting.knobs.describe()}; {ours.protocol}"),
            ]
        )
    return Table("Normalized score on test seeds, by task and method", headings, lines)


def _ends(values: Sequence[int]) -> list[int]:
    return sorted({values[0], values[-1]})


def _better(ours: Headline | None, other: Headline | None) -> Interval | None:
    if ours is None or other is None:
        return None
    return probability_of_improvement([ours.setting.runs], [other.setting.runs])


def _runs(common: Sequence[Heads], method: str) -> list[list[float]]:
    return [heads[method].setting.runs for heads in common]


def _mean_of_tasks(groups: Sequence[np.ndarray]) -> float:
    return float(np.mean([np.mean(runs) for runs in groups]))


def _over_tasks(common: Sequence[Heads], methods: Sequence[str]) -> Table:
    lines = []
    for method in methods:
        runs = _runs(common, method)
        better = None
        if OURS in methods and method != OURS:
            better = probability_of_improvement(_runs(common, OURS), runs)
        lines.append(
            [
                words(method.upper()),
                number(stratified_bootstrap(runs, _mean_of_tasks)),
                number(stratified_bootstrap(runs, interquartile_mean)),
                number(better, ".2f"),
                number(sum(map(len, runs)), "d"),
            ]
        )
    headings = ("method", "mean", "interquartile mean", "P(GEM is better)", "runs")
    return Table("Methods over all tasks, on test seeds", headings, lines)


def _profile(common: Sequence[Heads], methods: Sequence[str]) -> Any:
    scores = np.concatenate([runs for m in methods for runs in _runs(common, m)])
    # The axis goes from 0, or the lowest score below it, to 100 or the highest score above it.
    thresholds = np.linspace(min(0.0, scores.min()), max(100.0, scores.max()), PROFILE_POINTS)
    found = [(m, performance_profile(_runs(common, m), thresholds)) for m in methods]
    return charts.profiles(found)
