"""Pictures of an audit, each a function from the report to inline images."""

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from gemrl.evaluate.pictures import BLUE, GREEN, GREY, ORANGE, RED, inline


def reliability(found: dict[str, Any]) -> str:
    """How many logged actions lie below each quantile of the density's own samples."""
    figure, axes = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
    levels, below = 100 * np.array(found["levels"]), 100 * np.array(found["below"])
    band = 100 * found["chance_band"]
    axes.fill_between(levels, levels - band, levels + band, color=GREY, alpha=0.2, lw=0)
    axes.plot([0, 100], [0, 100], color=GREY, lw=1, label="as the density has it")
    axes.plot(levels, below, color=BLUE, lw=2, label="logged actions")
    at = 100 * found["largest_at"]
    axes.plot([at, at], [at, at + 100 * found["largest_deviation"]], color=RED, lw=2)
    axes.plot([], [], color=RED, lw=2, label=f"furthest off: {found['largest_deviation']:+.1%}")
    axes.set(xlim=(0, 100), ylim=(0, 100), aspect="equal")
    axes.set_xlabel("quantile of the density's own log μ, %")
    axes.set_ylabel("logged actions below it, %")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return inline(figure)


QUANTITIES = (("violation", "violation"), ("collapse_dist", "collapse distance"))


def heat_maps(report: dict[str, Any]) -> list[str]:
    """Violation and collapse over N and w_p, a pair of pictures for each λ."""
    grid = report["grid"]
    return [
        _heat_map(report, np.array(grid[name]), i, f"{title}, λ = {lam:g}")
        for i, lam in enumerate(grid["lam"])
        for name, title in QUANTITIES
    ]


def _heat_map(report: dict[str, Any], values: np.ndarray, lam_at: int, title: str) -> str:
    """One slice of values [N, L, P], coloured alike for every λ, with the knobs given framed."""
    grid, knobs = report["grid"], report["knobs"]
    largest = max(float(values.max()), 1e-9)
    size = (1.0 + 0.46 * len(grid["wp"]), 1.1 + 0.34 * len(grid["n"]))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    axes.imshow(values[:, lam_at], cmap="Oranges", vmin=0, vmax=largest, aspect="auto")
    for (row, column), value in np.ndenumerate(values[:, lam_at]):
        color = "white" if value > 0.6 * largest else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=9, color=color)
    if grid["lam"][lam_at] == knobs["lam"] and knobs["n"] in grid["n"]:
        weight = grid["wp"].index(report["value_scale"]["wp"])
        corner = (weight - 0.5, grid["n"].index(knobs["n"]) - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, color=BLUE, lw=2.5, clip_on=False))
    _ticks(axes, grid)
    axes.set_title(title, fontsize=10)
    return inline(figure)


def _ticks(axes: Axes, grid: dict[str, Any]) -> None:
    axes.set_xticks(range(len(grid["wp"])), [f"{wp:g}" for wp in grid["wp"]], fontsize=8)
    axes.set_yticks(range(len(grid["n"])), [str(n) for n in grid["n"]], fontsize=8)
    axes.set_xlabel("support weight w_p", fontsize=9)
    axes.set_ylabel("candidates N", fontsize=9)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def usage(name: str, found: dict[str, Any]) -> str:
    """Each component's share of the gates' weight and of the logged actions."""
    at = np.arange(len(found["usage"]))
    figure, axes = plt.subplots(figsize=(4.6, 2.6), layout="constrained")
    axes.bar(at - 0.2, 100 * np.array(found["usage"]), 0.4, color=BLUE, label="weight in the gate")
    share = 100 * np.array(found["responsibility"])
    axes.bar(at + 0.2, share, 0.4, color=ORANGE, label="logged actions explained")
    for dead in found["dead"]:
        axes.text(dead, 0, " dead", rotation=90, ha="center", va="bottom", color=RED, fontsize=9)
    axes.axhline(100 / len(at), color=GREY, lw=1, ls="--")
    axes.set_xticks(at)
    axes.set_xlabel("component")
    axes.set_ylabel("%")
    axes.set_title(name, fontsize=10)
    axes.grid(axis="x", visible=False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return inline(figure)


def disagreement(found: dict[str, Any]) -> str:
    """Histograms of the critics' standard deviation at logged, candidate and random actions."""
    figure, axes = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
    edges = np.array(found["edges"])
    for kind, color in (("random", RED), ("candidates", ORANGE), ("logged", BLUE)):
        of = found["kinds"][kind]
        shares = 100 * np.array(of["histogram"])
        axes.stairs(shares, edges, color=color, lw=1.6, label=kind)
        axes.stairs(shares, edges, color=color, fill=True, alpha=0.12)
        axes.axvline(of["spread_median"], color=color, lw=1.2, ls="--")
    axes.set_xscale("log")
    axes.set_xlabel("standard deviation over the critics")
    axes.set_ylabel("% of the actions")
    axes.legend(frameon=False, fontsize=9)
    return inline(figure)


def values(found: dict[str, Any]) -> str:
    """How much more candidates and random actions are worth than the logged one, in quantiles."""
    figure, axes = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
    axes.axhline(0, color=BLUE, lw=1.6, label="logged action")
    kinds = (("candidates", ORANGE), ("random", RED))
    for at, (kind, color) in enumerate(kinds):
        low, middle, high = found["kinds"][kind]["over_logged"].values()
        errors = [[middle - low], [high - middle]]
        axes.errorbar(at, middle, yerr=errors, fmt="o", color=color, capsize=8, ms=8, lw=2)
    axes.set_xticks(range(len(kinds)), [kind for kind, _ in kinds])
    axes.set_xlim(-0.6, len(kinds) - 0.4)
    axes.set_ylabel("value over the logged action's")
    axes.grid(axis="x", visible=False)
    axes.legend(frameon=False, fontsize=9)
    return inline(figure)


def curse(found: dict[str, Any], rule: str, title: str) -> str:
    """The chosen action's value by the critics that chose it and by the others, against N."""
    curve = found["rules"][rule]
    figure, axes = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
    at = np.arange(len(found["n"]))
    axes.fill_between(at, curve["other_q"], curve["selecting_q"], color=RED, alpha=0.12, lw=0)
    axes.plot(at, curve["selecting_q"], "o-", color=RED, ms=4, label="Q by the critics that choose")
    axes.plot(at, curve["other_q"], "o-", color=BLUE, ms=4, label="Q by the others")
    axes.plot(
        at, curve["selecting_lcb"], ":", color=GREEN, lw=1.6, label="lower bound that was ranked"
    )
    axes.set_xticks(at, ["anchor" if n == 0 else str(n) for n in found["n"]])
    axes.set_xlabel("candidates N")
    axes.set_ylabel("value")
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    return inline(figure)
