"""Plots of the reproductions: functions from numbers to figures."""

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from gemrl.evaluate.pictures import BLUE, GREEN, GREY, ORANGE, RED, plt

STYLES = ("-", "--", ":")
COLORS = (
    BLUE,
    ORANGE,
    GREEN,
    RED,
    GREY,
    "#7c3aed",
    "#0e7490",
    "#a16207",
    "#be185d",
    "#65a30d",
    "#1f2937",
)

Points = Sequence[tuple[float, float, float, float]]
"""Points of a curve: x, y and the ends of y's interval."""


def curves(
    groups: Mapping[str, Points],
    x_label: str,
    y_label: str,
    *,
    log: bool = False,
    marks: bool = True,
) -> Figure:
    """Curves with bands; with `log` the axis is logarithmic and 0 stands beside 1."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    draw(axes, groups, x_label, y_label, log=log, marks=marks)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def panels(
    panes: Sequence[tuple[str, Mapping[str, Points]]], x_label: str, *, log: bool = False
) -> Figure:
    """One pane a quantity, with the same curves in each."""
    columns = min(2, len(panes))
    rows = ceil(len(panes) / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.1 * rows), squeeze=False)
    for axes, (title, groups) in zip(grid.flat, panes, strict=False):
        draw(axes, groups, x_label, title, log=log)
    for axes in grid.flat[len(panes) :]:
        axes.set_visible(False)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.tight_layout()
    figure.legend(
        handles,
        labels,
        frameon=False,
        fontsize=8,
        ncols=min(3, max(1, len(labels))),
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
    )
    return figure


def draw(
    axes: Axes,
    groups: Mapping[str, Points],
    x_label: str,
    y_label: str,
    *,
    log: bool,
    marks: bool = True,
) -> None:
    """Curves with bands into one pane."""
    seen: set[float] = set()
    for number, (name, points) in enumerate(groups.items()):
        color = COLORS[number % len(COLORS)]
        style = STYLES[number // len(COLORS) % len(STYLES)]  # A colour's second line is dashed.
        x, y, low, high = np.array(points, dtype=float).T
        place = np.log2(np.maximum(x, 0.5)) if log else x
        mark = "o" if marks else ""
        axes.plot(place, y, style, marker=mark, ms=3.5, lw=1.5, color=color, label=name)
        known = np.isfinite(low) & np.isfinite(high)
        axes.fill_between(place[known], low[known], high[known], color=color, alpha=0.15, lw=0)
        seen |= set(x)
    if log:
        ticks = sorted(seen)
        axes.set_xticks([np.log2(max(x, 0.5)) for x in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda at, _: f"{0 if at < -0.5 else round(2**at):g}")
        )
        axes.tick_params(axis="x", labelsize=7, labelrotation=30)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)


def bars(
    names: Sequence[str],
    groups: Mapping[str, Sequence[tuple[float, float]]],
    y_label: str,
    *,
    zero: bool = False,
) -> Figure:
    """Bars with standard errors: for each name one bar of every group."""
    figure, axes = plt.subplots(figsize=(max(6.4, 0.34 * len(names) * (len(groups) + 1)), 3.8))
    width = 0.8 / len(groups)
    for i, (color, (label, values)) in enumerate(zip(COLORS * 9, groups.items(), strict=False)):
        heights, errors = np.array(values, dtype=float).T
        at = np.arange(len(names)) - 0.4 + width * (i + 0.5)
        axes.bar(at, heights, width, color=color, label=label)
        known = np.isfinite(errors)  # One seed has no error to draw.
        axes.errorbar(at[known], heights[known], errors[known], fmt="none", ecolor="black", lw=0.8)
    if zero:
        axes.axhline(0, color="black", lw=0.8)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axes.set_ylabel(y_label)
    if len(groups) > 1:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
