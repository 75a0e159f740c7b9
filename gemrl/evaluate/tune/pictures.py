"""Pictures of a comparison of settings, each a function from the report to an inline image."""

from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from gemrl.evaluate.pictures import BLUE, GREEN, GREY, ORANGE, RED, inline

COLORS = (BLUE, ORANGE, GREEN, RED, GREY)


def gains(report: dict[str, Any]) -> str:
    """Gain over the default against the support weight, with its bounds, a line for each λ."""
    figure, axes = plt.subplots(figsize=(5.6, 3.6), layout="constrained")
    groups = _by_lam(report)
    for number, (lam, settings) in enumerate(groups.items()):
        # Side by side where several λ have the same weight.
        at = [i + 0.12 * (number - (len(groups) - 1) / 2) for i in range(len(settings))]
        means = [s["difference"]["mean"] for s in settings]
        below = [s["difference"]["mean"] - s["difference"]["low"] for s in settings]
        color = COLORS[number % len(COLORS)]
        axes.errorbar(
            at, means, yerr=below, marker="o", capsize=3, color=color, lw=1.4, label=f"λ = {lam:g}"
        )
        _mark(axes, report, list(zip(at, means, settings, strict=True)))
    axes.axhline(0, color=GREY, lw=1, ls="--")
    _weights(axes, report)
    axes.set_ylabel("value, minus the default's")
    axes.legend(frameon=False, fontsize=9)
    return inline(figure)


def frontier(report: dict[str, Any]) -> str:
    """The critics' value of what is chosen against its support, one line for each λ."""
    figure, axes = plt.subplots(figsize=(5.6, 3.6), layout="constrained")
    for number, (lam, settings) in enumerate(_by_lam(report).items()):
        x = [s["frontier"]["support_z"] for s in settings]
        y = [s["frontier"]["value"] for s in settings]
        color = COLORS[number % len(COLORS)]
        axes.plot(x, y, marker="o", color=color, lw=1.4, label=f"λ = {lam:g}")
        _mark(axes, report, list(zip(x, y, settings, strict=True)))
        if number == 0:
            for xi, yi, s in zip(x, y, settings, strict=True):
                axes.annotate(
                    f"{s['knobs']['wp']:g}",
                    (xi, yi),
                    textcoords="offset points",
                    xytext=(-5, -12),
                    ha="right",
                    fontsize=8,
                    color=GREY,
                )
    axes.set_xlabel("support z of the chosen action (numbers: w_p)")
    axes.set_ylabel("critics' mean value")
    axes.legend(frameon=False, fontsize=9)
    return inline(figure)


AUDITS = (
    ("critic_std", "disagreement of the critics"),
    ("violation", "violation"),
    ("uncovered", "share beyond the log"),
)


def audits(report: dict[str, Any]) -> list[str]:
    """Disagreement, violation and what lies beyond the log, against the support weight."""
    images = []
    for name, title in AUDITS:
        figure, axes = plt.subplots(figsize=(3.8, 2.9), layout="constrained")
        for number, (lam, settings) in enumerate(_by_lam(report).items()):
            heights = [s["frontier"][name] for s in settings]
            color = COLORS[number % len(COLORS)]
            axes.plot(heights, marker="o", ms=4, color=color, lw=1.4, label=f"λ = {lam:g}")
        axes.set_ylim(bottom=0)
        _weights(axes, report)
        axes.set_title(title, fontsize=10)
        axes.legend(frameon=False, fontsize=8)
        images.append(inline(figure))
    return images


def _by_lam(report: dict[str, Any]) -> dict[float, list[dict[str, Any]]]:
    groups: dict[float, list[dict[str, Any]]] = {}
    for setting in report["settings"]:
        groups.setdefault(setting["knobs"]["lam"], []).append(setting)
    return groups


def _mark(axes: Axes, report: dict[str, Any], points: list[tuple[float, float, Any]]) -> None:
    """A ring around the default, a star on the recommended setting."""
    for x, y, setting in points:
        if setting["default"]:
            axes.plot(x, y, "o", mfc="none", mec="black", ms=12, zorder=5)
        if setting["knobs"] == report["recommendation"]["knobs"]:
            axes.plot(x, y, "*", color=RED, mec="white", ms=16, zorder=6)


def _weights(axes: Axes, report: dict[str, Any]) -> None:
    weights = [f"{s['knobs']['wp']:g}" for s in next(iter(_by_lam(report).values()))]
    axes.set_xticks(range(len(weights)), weights)
    axes.set_xlabel("support weight w_p")
