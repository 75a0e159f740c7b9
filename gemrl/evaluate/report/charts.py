"""Charts of the page out of settings: every point with its error, never a mean alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from gemrl.decide.knobs import Cosine, Knobs
from gemrl.evaluate.pictures import BLUE, COLORS, GREEN, GREY, ORANGE, RED, Picture, inline
from gemrl.evaluate.report.settings import Headline, Setting
from gemrl.maths.statistics import Estimate, Profile

PALETTE = (BLUE, ORANGE, GREEN, RED, "#6d4aa8", "#0f766e", GREY)
AUDITS = (
    ("violation", "support violation rate"),
    ("collapse_dist", "collapse distance"),
    ("support_z", "mean support z"),
)


class Point(NamedTuple):
    """A measured number at a place of the horizontal axis."""

    x: float
    y: Estimate
    name: str
    """What the place is called."""


class Series(NamedTuple):
    """Points that belong together."""

    label: str
    points: Sequence[Point]
    color: str
    marker: str = "o-"


def chart(
    title: str, axis: str, series: Sequence[Series], *, named: bool = False, seeds: str
) -> Picture:
    """Points with error bars. With `named` the axis carries the points' names."""
    figure, axes = plt.subplots(figsize=(3.7, 3.0), layout="constrained")
    for each in series:
        axes.errorbar(
            [p.x for p in each.points],
            [p.y.mean for p in each.points],
            yerr=[p.y.stderr for p in each.points],
            fmt=each.marker,
            color=each.color,
            capsize=3,
            ms=9 if each.marker == "X" else 5,
            label=each.label,
        )
    if named:
        names = {p.x: p.name for each in series for p in each.points}
        axes.set_xticks(list(names), list(names.values()))
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel(axis)
    axes.set_title(f"{title}\n({seeds} seeds)", fontsize=10)
    said = "; ".join(
        f"{each.label}: " + ", ".join(f"{p.name}: {p.y:.3g}" for p in each.points)
        for each in series
    )
    return Picture(inline(figure, True), f"{title} against {axis}, {seeds} seeds. {said}", True)


def by_candidates(settings: Sequence[Setting], guarded: Knobs) -> list[Picture]:
    """Score, audits and speed against N at the headline's knobs, with the unguarded search."""
    line = {s.knobs.n: s for s in settings if _same_but_n(s.knobs, guarded)}
    line |= {s.knobs.n: s for s in settings if s.knobs.n == 0 and s.knobs.anchor == guarded.anchor}
    off = [s for s in settings if s.knobs.n > 0 and _same_but_n(s.knobs, replace(guarded, wp=0.0))]
    if len(line) < 2:
        return []
    places = sorted({*line, *(s.knobs.n for s in off)})

    def panel(title: str, of: Callable[[Setting], Estimate | None]) -> Picture | None:
        def points(found: Sequence[Setting]) -> list[Point]:
            values = [(s.knobs.n, of(s)) for s in found]
            return [Point(places.index(n), y, str(n)) for n, y in values if y is not None]

        series = [Series("guarded", points([line[n] for n in sorted(line)]), BLUE)]
        if off and guarded.wp != 0:
            series.append(Series("w_p = 0", points(off), RED, "X"))
        if not series[0].points:
            return None
        return chart(title, "candidates N", series, named=True, seeds="test")

    pictures = [
        panel("normalized score", lambda s: s.score),
        *(panel(title, lambda s, field=field: s.estimate(field)) for field, title in AUDITS),
        panel("steps a second", lambda s: _exact(s.steps_a_second)),
    ]
    return [picture for picture in pictures if picture is not None]


def _same_but_n(knobs: Knobs, other: Knobs) -> bool:
    return knobs == replace(other, n=knobs.n)


def _exact(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(value, math.nan, 1)


Sweep = list[list[Setting]]
"""Settings that differ in λ and w_p alone: by λ, each in the order of w_p."""


def sweeps_of(settings: Sequence[Setting]) -> list[Sweep]:
    """The largest sweep of constant weights and that of schedules, where w_p varies at all."""
    groups: dict[tuple[Knobs, bool], list[Setting]] = {}
    for s in settings:
        if s.knobs.n > 0:
            rest = replace(s.knobs, wp=0.0, lam=0.0)
            scheduled = isinstance(s.knobs.wp, Cosine)
            groups.setdefault((rest, scheduled), []).append(s)
            if s.knobs.wp == Cosine.start:  # The schedule that ends where it begins.
                groups.setdefault((rest, True), []).append(s)
    found = []
    for kind in (False, True):
        members = [group for (_, scheduled), group in groups.items() if scheduled == kind]
        sweep = _lines(max(members, key=len, default=[]))
        if sweep:
            found.append(sweep)
    return found


def _lines(settings: Sequence[Setting]) -> Sweep:
    lams = sorted({s.knobs.lam for s in settings})
    lines = [sorted((s for s in settings if s.knobs.lam == lam), key=weight) for lam in lams]
    return [line for line in lines if len(line) > 1]


def weight(setting: Setting) -> float:
    """The support weight; the last one of a schedule."""
    wp = setting.knobs.wp
    return wp.end if isinstance(wp, Cosine) else wp


def by_weight(lines: Sweep, seeds: str) -> list[Picture]:
    """Score and audits against the support weight, a line for each λ."""
    scheduled = any(isinstance(s.knobs.wp, Cosine) for line in lines for s in line)
    axis = "last w_p of a schedule from 1" if scheduled else "constant support weight w_p"

    def panel(title: str, field: str) -> Picture | None:
        series = []
        for line, color in zip(lines, PALETTE, strict=False):
            points = [
                Point(weight(s), y, f"{weight(s):g}")
                for s in line
                if (y := s.estimate(field)) is not None
            ]
            series.append(Series(f"λ {line[0].knobs.lam:g}", points, color))
        return chart(title, axis, series, seeds=seeds) if any(s.points for s in series) else None

    fields = (("score", "normalized score"), *AUDITS[:2])
    panels = [panel(title, field) for field, title in fields]
    return [picture for picture in panels if picture is not None]


def frontier(lines: Sweep, seeds: str) -> Picture | None:
    """Score against violation as the support weight varies."""
    figure, axes = plt.subplots(figsize=(5.4, 3.8), layout="constrained")
    said, labels = [], []
    for line, color in zip(lines, PALETTE, strict=False):
        points = [(s, y) for s in line if (y := s.estimate("violation")) is not None]
        axes.errorbar(
            [y.mean for _, y in points],
            [s.score.mean for s, _ in points],
            xerr=[y.stderr for _, y in points],
            yerr=[s.score.stderr for s, _ in points],
            fmt="o-",
            color=color,
            capsize=2,
            lw=1.2,
            label=f"λ {line[0].knobs.lam:g}",
        )
        labels.append([(y.mean, s.score.mean, f"{weight(s):g}") for s, y in points])
        said += [f"w_p {weight(s):g}: violation {y:.3f}, score {s.score}" for s, y in points]
    if not said:
        plt.close(figure)
        return None
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=8)
    for line in labels:
        _name_points(axes, line)
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel("support violation rate")
    axes.set_ylabel("normalized score")
    axes.set_title(f"score against violation, by w_p ({seeds} seeds)", fontsize=10)
    return Picture(inline(figure, True), "Score against violation. " + "; ".join(said), True)


def _name_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Names beside points; one name for neighbours whose names would lie on each other."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    placed: list[tuple[float, float, list[str]]] = []
    for x, y, name in points:
        close = [
            names
            for at_x, at_y, names in placed
            if abs(x - at_x) < 0.06 * (right - left) and abs(y - at_y) < 0.06 * (top - bottom)
        ]
        if close:
            close[0].append(name)
        else:
            placed.append((x, y, [name]))
    for x, y, names in placed:
        text = ", ".join(names)
        axes.annotate(text, (x, y), (6, 5), textcoords="offset points", fontsize=8)


def along(
    headlines: Sequence[Headline], settings: Sequence[Setting], field: str, title: str, axis: str
) -> Picture | None:
    """Score of each method's headline knobs against `updates` or `mass_scale`, where it varies."""
    series = []
    for head in headlines:
        same = [
            s
            for s in settings
            if (s.method, s.knobs) == (head.setting.method, head.setting.knobs)
            # Policies on the way may have rows of some seeds only, which were chosen.
            and s.seeds == head.setting.seeds
            and (field == "updates" or s.updates == head.setting.updates)
            and (field == "mass_scale" or s.mass_scale == 1.0)
        ]
        same.sort(key=lambda s: getattr(s, field))
        points = [Point(getattr(s, field), s.score, f"{getattr(s, field):g}") for s in same]
        if len(points) > 1:
            color = COLORS.get(head.setting.method, GREY)
            series.append(Series(head.setting.method.upper(), points, color))
    return chart(title, axis, series, seeds="test") if series else None


def profiles(found: Sequence[tuple[str, Profile]]) -> Picture:
    """Share of runs above each score, with bands."""
    figure, axes = plt.subplots(figsize=(5.4, 3.8), layout="constrained")
    said = []
    for method, profile in found:
        color = COLORS.get(method, GREY)
        axes.plot(profile.thresholds, profile.share, color=color, label=method.upper())
        axes.fill_between(profile.thresholds, profile.low, profile.high, color=color, alpha=0.15)
        half = profile.share[len(profile.share) // 2]
        at = profile.thresholds[len(profile.thresholds) // 2]
        said.append(f"{method.upper()}: {half:.0%} above {at:.0f}")
    axes.legend(frameon=False, fontsize=9)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("normalized score τ")
    axes.set_ylabel("share of runs above τ")
    axes.set_title("performance profile (test seeds)", fontsize=10)
    return Picture(inline(figure, True), "Performance profile. " + "; ".join(said), True)
