"""A self-contained HTML page about a dataset: the findings on top, then pictures."""

from pathlib import Path
from typing import Any

import numpy as np

import gemrl
from gemrl import pages
from gemrl.data.dataset import Dataset
from gemrl.data.inspect.findings import meaning
from gemrl.data.inspect.probes import draw
from gemrl.data.inspect.words import number, some
from gemrl.data.tasks import TASKS

# Pictures of single rows show at most this many, drawn with a fixed seed.
SHOWN = 200_000
# Beyond this many action dimensions their histograms are rows of one picture.
SINGLE_HISTOGRAMS = 9
# Dimensions in one picture of ranges or shares.
PER_PICTURE = 30


def write_page(data: Dataset, report: dict[str, Any], out: Path) -> Path:
    """Write the page and return its path."""
    return pages.write_page(
        "gemrl.data.inspect", "page.html.jinja", out, lambda: contents(data, report)
    )


def contents(data: Dataset, report: dict[str, Any]) -> dict[str, Any]:
    """Everything the page shows."""
    lengths = np.diff(np.append(data.episode_starts, len(data)))
    return {
        "version": gemrl.__version__,
        "name": data.task or Path(data.source).name,
        "r": report,
        "meaning": meaning(report["ends"]),
        "number": number,
        "some": some,
        "shown": min(SHOWN, len(data)),
        "pictures": {
            "returns": [
                _histogram(data.episode_returns, "episodes by return", "return"),
                _histogram(lengths, "episodes by length", "rows"),
                *_rewards(data, report),
            ],
            "plane": _plane(data),
            "actions": _actions(data, report),
            "saturation": _saturation(report),
            "ranges": _ranges(report),
        },
    }


def _axes(width: float = 4.6, height: float = 2.6) -> tuple[Any, Any]:
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")


def _finished(figure: Any) -> str:
    from gemrl.evaluate.pictures import inline

    return inline(figure)


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)].astype(np.float64)


def _histogram(values: np.ndarray, title: str, label: str) -> str:
    from gemrl.evaluate.pictures import BLUE

    figure, axes = _axes()
    finite = _finite(values)
    if finite.size and np.ptp(finite) > 0:
        axes.hist(finite, bins=min(40, max(5, finite.size)), color=BLUE)
        axes.locator_params(axis="x", nbins=5)
    else:
        text = f"all {finite[0]:g}" if finite.size else "no finite value"
        axes.text(0.5, 0.5, text, ha="center", transform=axes.transAxes)
        axes.set_xticks([])
        axes.set_yticks([])
    axes.set_title(title)
    axes.set_xlabel(label)
    return _finished(figure)


def _rewards(data: Dataset, report: dict[str, Any]) -> list[str]:
    """Mean reward along the data, and returns of the episodes in their order."""
    from gemrl.evaluate.pictures import BLUE, ORANGE

    figure, axes = _axes()
    edges = np.linspace(0, len(data), min(100, len(data)) + 1).astype(int)[:-1]
    rewards = np.where(np.isfinite(data.rewards), data.rewards, 0).astype(np.float64)
    counts = np.add.reduceat(np.isfinite(data.rewards).astype(np.float64), edges)
    axes.plot(edges, np.add.reduceat(rewards, edges) / np.maximum(counts, 1), color=BLUE, lw=1.3)
    axes.set_title("mean reward along the data")
    axes.set_xlabel("row")
    axes.locator_params(axis="x", nbins=5)
    if len(data) >= 10_000:
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k")
    found = [_finished(figure)]
    if report["episodes"] > 1:
        figure, axes = _axes()
        at = draw(report["episodes"], 5000)
        size = 3 if len(at) > 200 else 6
        with np.errstate(invalid="ignore"):
            axes.plot(at, data.episode_returns[at], ".", color=ORANGE, ms=size, alpha=0.6)
        axes.set_title("returns in the order of the file")
        axes.set_xlabel("episode")
        found.append(_finished(figure))
    return found


def _plane(data: Dataset) -> str | None:
    """Where the data goes in the first two dimensions of the observation."""
    from matplotlib.colors import LogNorm

    from gemrl.evaluate.pictures import draw_maze

    if data.obs_dim < 2:
        return None
    points = data.observations[draw(len(data), SHOWN), :2].astype(np.float64)
    points = points[np.isfinite(points).all(axis=1)]
    if len(points) == 0:
        return None
    figure, axes = _axes(4.6, 4.2)
    task = TASKS.get(data.task or "")
    if task is not None and task.maze is not None:
        draw_maze(axes, task.maze)
        limits = [axes.get_xlim(), axes.get_ylim()]
    else:
        limits = [_wide(*ends) for ends in np.quantile(points, [0.001, 0.999], axis=0).T]
        axes.set_xlabel("observation 0")
        axes.set_ylabel("observation 1")
    counts, _, _ = np.histogram2d(points[:, 0], points[:, 1], bins=100, range=limits)
    if counts.any():
        axes.imshow(
            np.ma.masked_equal(counts.T, 0),
            origin="lower",
            extent=(*limits[0], *limits[1]),
            aspect=axes.get_aspect(),
            norm=LogNorm(vmin=0.5),
            cmap="viridis",
            zorder=2,
        )
    axes.set_title("rows by the first two dimensions")
    return _finished(figure)


def _wide(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis, drawn apart where there is nothing between them."""
    if high - low > 1e-6 * max(abs(low), abs(high)):
        return low, high
    pad = max(0.5, 1e-3 * abs(low))
    return low - pad, high + pad


def _edges(report: dict[str, Any], dim: int) -> np.ndarray:
    """Bin edges of an action: its bounds and, where they lie outside, its values."""
    column = report["action_dims"][dim]
    ends = [report["action_low"][dim], report["action_high"][dim], column["min"], column["max"]]
    ends = [end for end in ends if end is not None] or [0.0]
    low, high = _wide(min(ends), max(ends))
    return np.linspace(low - 0.02 * (high - low), high + 0.02 * (high - low), 51)


def _actions(data: Dataset, report: dict[str, Any]) -> list[str]:
    """Histograms of the action's dimensions between their bounds."""
    from gemrl.evaluate.pictures import BLUE, RED

    sample = data.actions[draw(len(data), SHOWN)]
    if data.action_dim > SINGLE_HISTOGRAMS:
        return [
            _heat(sample, report, range(start, min(start + PER_PICTURE, data.action_dim)))
            for start in range(0, data.action_dim, PER_PICTURE)
        ]
    images = []
    for dim in range(data.action_dim):
        figure, axes = _axes(3.4, 2.4)
        edges = _edges(report, dim)
        counts, _ = np.histogram(_finite(sample[:, dim]), bins=edges)
        axes.stairs(100 * counts / max(counts.sum(), 1), edges, fill=True, color=BLUE)
        for bound in (report["action_low"][dim], report["action_high"][dim]):
            if bound is not None:
                axes.axvline(bound, color=RED, lw=1.2, ls="--")
        axes.set_title(f"action {dim}")
        axes.set_ylabel("% of rows")
        images.append(_finished(figure))
    return images


def _heat(sample: np.ndarray, report: dict[str, Any], dims: range) -> str:
    """One row a dimension, darker where more actions are; 0 and 1 are the bounds."""
    from gemrl.evaluate.pictures import RED

    low, high = (np.array(report[name], dtype=np.float64) for name in ("action_low", "action_high"))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        unit = (sample - low) / (high - low)
    inside = unit[np.isfinite(unit)]
    reach = np.quantile(inside, [0.0005, 0.9995]) if inside.size else (0, 1)
    left, right = min(-0.05, reach[0]), max(1.05, reach[1])
    table = np.stack(
        [
            np.histogram(_finite(unit[:, dim]), bins=60, range=(left, right))[0] / len(sample)
            for dim in dims
        ]
    )
    figure, axes = _axes(4.6, 0.9 + 0.19 * len(dims))
    axes.imshow(
        np.sqrt(table),
        extent=(left, right, dims[-1] + 0.5, dims[0] - 0.5),
        aspect="auto",
        cmap="Blues",
        interpolation="nearest",
    )
    for bound in (0, 1):
        axes.axvline(bound, color=RED, lw=1.2, ls="--")
    axes.set_xticks([0, 0.5, 1], ["lower bound", "middle", "upper bound"])
    _dimension_ticks(axes, list(dims))
    axes.set_title("actions by dimension")
    return _finished(figure)


def _saturation(report: dict[str, Any]) -> list[str]:
    """Share of each action dimension at its bounds and outside them."""
    from gemrl.evaluate.pictures import BLUE, ORANGE, RED

    images = []
    for start in range(0, report["action_dim"], PER_PICTURE):
        dims = report["action_dims"][start : start + PER_PICTURE]
        at = np.array([c["dim"] for c in dims])
        low, high = (100 * np.array([c[name] for c in dims]) for name in ("at_low", "at_high"))
        figure, axes = _axes(*_size(len(dims)))
        axes.barh(at, low, color=BLUE, label="lower bound or below")
        axes.barh(at, high, left=low, color=ORANGE, label="upper bound or above")
        outside = np.array([100 * c["outside"] / report["rows"] for c in dims])
        if outside.any():
            out = outside > 0
            axes.plot(
                outside[out], at[out], "|", color=RED, ms=9, mew=2, label="outside the bounds"
            )
        _dimension_ticks(axes, at.tolist())
        axes.set_ylim(at[-1] + 0.6, at[0] - 0.6)
        axes.set_xlim(0, max(1.0, 1.05 * float(np.max(np.maximum(low + high, outside)))))
        axes.set_xlabel("% of rows")
        axes.set_title("actions at their bounds")
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
        images.append(_finished(figure))
    return images


def _ranges(report: dict[str, Any]) -> list[str]:
    """Each observation dimension's whole range, its middle 98% and its median."""
    from gemrl.evaluate.pictures import BLUE, GREY, ORANGE

    images = []
    for start in range(0, report["observation_dim"], PER_PICTURE):
        dims = report["observation_dims"][start : start + PER_PICTURE]
        figure, axes = _axes(4.6, 1.5 + 0.19 * len(dims))
        at = [c["dim"] for c in dims]
        for c in dims:
            if c["min"] is None or c["median"] is None:
                continue
            axes.plot([c["min"], c["max"]], [c["dim"]] * 2, color=GREY, lw=1)
            axes.plot([c["q01"], c["q99"]], [c["dim"]] * 2, color=BLUE, lw=4.5)
            axes.plot(c["median"], c["dim"], "|", color=ORANGE, ms=9, mew=2)
        ends = [abs(c[name]) for c in dims for name in ("min", "max") if c[name] is not None]
        widths = [c["q99"] - c["q01"] for c in dims if c["q99"] is not None]
        if ends and max(ends) > 30 * max(np.median(widths), 1e-12):
            axes.set_xscale("symlog", linthresh=max(float(np.median(widths)), 1e-9))
            axes.tick_params(axis="x", labelsize=8, rotation=45)
        for color, width, text in (
            (GREY, 1, "whole range"),
            (BLUE, 4.5, "middle 98%"),
            (ORANGE, 2, "median"),
        ):
            axes.plot([], [], color=color, lw=width, label=text)
        _dimension_ticks(axes, at)
        axes.set_ylim(at[-1] + 0.6, at[0] - 0.6)
        axes.set_title("observations by dimension")
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        images.append(_finished(figure))
    return images


def _size(dims: int) -> tuple[float, float]:
    """As the histograms beside it where there are few dimensions, else as high as they need."""
    return (3.4, 2.4) if dims <= 5 else (4.6, 1.5 + 0.19 * dims)


def _dimension_ticks(axes: Any, dims: list[int]) -> None:
    axes.set_yticks(dims, [str(dim) for dim in dims], fontsize=8)
    axes.set_ylabel("dimension")
    axes.grid(axis="y", visible=False)
