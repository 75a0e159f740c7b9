"""Pictures for the report. Each is a function from data to an inline image; none reads a file."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Ellipse, Rectangle

from gemrl.data.tasks import Maze
from gemrl.decide.decision import Decision
from gemrl.envs.maze2d import BODY_ORIGIN, GOAL_RADIUS
from gemrl.evaluate.table import Line
from gemrl.maths.mixture import Mixture

BLUE, ORANGE, GREEN, RED, GREY = "#2563a8", "#c2570c", "#2c7a3f", "#b3261e", "#6b7280"

plt.rcParams.update(
    {
        "figure.dpi": 100,
        "savefig.dpi": 160,
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "axes.axisbelow": True,
    }
)


def inline(figure: Figure) -> str:
    """A figure as a data address for an <img>, and the figure closed."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", facecolor="white")
    plt.close(figure)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def draw_maze(axes: Axes, maze: Maze) -> None:
    """Walls and goal in observation terms."""
    edge = 0.5 - BODY_ORIGIN
    for i, row in enumerate(maze.cells):
        for j, cell in enumerate(row):
            if cell == "#":
                axes.add_patch(Rectangle((i + edge, j + edge), 1, 1, color="#d1d5db", zorder=1))
    axes.add_patch(Circle(maze.goal, GOAL_RADIUS, fill=False, color=GREEN, lw=1.5, zorder=4))
    axes.set_xlim(edge, edge + len(maze.cells))
    axes.set_ylim(edge, edge + len(maze.cells[0]))
    axes.set_aspect("equal")
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks([])


def data_map(maze: Maze, observations: np.ndarray, rewards: np.ndarray) -> str:
    """Where the data goes in the maze."""
    figure, axes = plt.subplots(figsize=(4.6, 4.2))
    draw_maze(axes, maze)
    shape = (len(maze.cells), len(maze.cells[0]))
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    counts, _, _ = np.histogram2d(
        observations[:, 0],
        observations[:, 1],
        bins=[20 * n for n in shape],
        range=[[left, right], [bottom, top]],
    )
    share = np.ma.masked_equal(counts.T / len(observations), 0)
    image = axes.imshow(
        share,
        origin="lower",
        extent=(left, right, bottom, top),
        cmap="viridis",
        zorder=2,
        norm=LogNorm(),
    )
    figure.colorbar(image, ax=axes, label="share of the transitions", shrink=0.8)
    axes.set_title(f"{len(observations):,} transitions, {np.mean(rewards != 0):.1%} rewarded")
    return inline(figure)


def paths(maze: Maze, groups: Sequence[tuple[str, np.ndarray]]) -> str:
    """Trajectories [T, E, S] of several decision rules from the same starts, side by side."""
    figure, grid = plt.subplots(
        1, len(groups), figsize=(3.5 * len(groups), 3.9), squeeze=False, layout="constrained"
    )
    for axes, (title, observations) in zip(grid[0], groups, strict=True):
        draw_maze(axes, maze)
        for episode in range(observations.shape[1]):
            x, y = observations[:, episode, 0], observations[:, episode, 1]
            axes.plot(x, y, color=BLUE, alpha=0.35, lw=0.9, zorder=3)
            axes.plot(x[0], y[0], "o", color=ORANGE, ms=4, zorder=5)
            axes.plot(x[-1], y[-1], "s", color=RED, ms=3.5, zorder=5)
        axes.set_title(title, fontsize=10)
    return inline(figure)


def candidates(
    panels: Sequence[tuple[str, Decision]],
    actor: Mixture,
    behavior: Mixture,
    bounds: tuple[np.ndarray, np.ndarray],
) -> str:
    """The candidates of one state in the action plane, coloured by score (the paper's Figure 1)."""
    figure, grid = plt.subplots(
        1, len(panels), figsize=(5.1 * len(panels), 5.4), squeeze=False, layout="constrained"
    )
    for axes, (title, decision) in zip(grid[0], panels, strict=True):
        order = np.argsort(decision.score)
        points = decision.candidates[order]
        image = axes.scatter(
            points[:, 0], points[:, 1], c=decision.score[order], s=9, cmap="viridis", zorder=3
        )
        _ellipses(axes, behavior, GREY, "behaviour")
        _ellipses(axes, actor, ORANGE, "actor")
        anchor = decision.candidates[0]
        axes.plot(*anchor[:2], "D", color="white", mec="black", ms=9, zorder=6, label="anchor")
        axes.plot(
            *decision.action[:2], "*", color=RED, mec="white", ms=19, zorder=7, label="executed"
        )
        low, high = bounds
        pad = 0.12 * (high - low)
        axes.add_patch(
            Rectangle(
                (low[0], low[1]), *(high - low)[:2], fill=False, ls=":", color="black", zorder=2
            )
        )
        axes.set_xlim(low[0] - pad[0], high[0] + pad[0])
        axes.set_ylim(low[1] - pad[1], high[1] + pad[1])
        axes.set_aspect("equal")
        axes.set_xlabel("action, first dimension")
        axes.set_ylabel("action, second dimension")
        axes.set_title(title, fontsize=10)
        figure.colorbar(image, ax=axes, label="score", shrink=0.7)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return inline(figure)


def _ellipses(axes: Axes, mixture: Mixture, color: str, label: str) -> None:
    """Each component at two standard deviations, as strong as its weight."""
    for weight, mean, std in zip(
        np.exp(mixture.log_weights), mixture.means, mixture.stds, strict=True
    ):
        axes.add_patch(
            Ellipse(
                (mean[0], mean[1]),
                4 * std[0],
                4 * std[1],
                fill=False,
                color=color,
                lw=0.8 + 3 * weight,
                alpha=float(0.25 + 0.75 * weight),
                zorder=4,
            )
        )
    axes.plot([], [], color=color, lw=2, label=f"{label} components, 2σ")


def budget(lines: Sequence[tuple[int, Line]], unguarded: Line | None) -> str:
    """Score and audits against the number of candidates."""
    figure, grid = plt.subplots(1, 4, figsize=(12.5, 3.1), layout="constrained")
    ticks = range(len(lines))
    names = [str(n) for n, _ in lines]
    found = [line for _, line in lines]
    grid[0].errorbar(
        ticks,
        [x.score.mean for x in found],
        yerr=[x.score.stderr for x in found],
        marker="o",
        color=BLUE,
        capsize=3,
    )
    for axes, name in zip(grid[1:], ("violation", "collapse_dist", "support_z"), strict=True):
        axes.plot(ticks, [getattr(x, name) for x in found], marker="o", color=BLUE)
    if unguarded is not None:
        last = [len(lines) - 1]
        grid[0].plot(last, [unguarded.score.mean], "X", color=RED, ms=9)
        for axes, name in zip(grid[1:], ("violation", "collapse_dist", "support_z"), strict=True):
            axes.plot(last, [getattr(unguarded, name)], "X", color=RED, ms=9)
        grid[0].plot([], [], "X", color=RED, label="w_p = 0")
        grid[0].legend(frameon=False, fontsize=9)
    titles = ("normalized score", "support violation rate", "collapse distance", "mean support z")
    for axes, title in zip(grid, titles, strict=True):
        axes.set_xticks(list(ticks), names)
        axes.set_xlabel("candidates N")
        axes.set_title(title, fontsize=10)
    return inline(figure)


def support_sweep(points: Sequence[tuple[float, Line]]) -> str:
    """Score and violation against the support weight, on validation seeds."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.1), layout="constrained")
    weights = [weight for weight, _ in points]
    found = [line for _, line in points]
    left.errorbar(
        weights,
        [x.score.mean for x in found],
        yerr=[x.score.stderr for x in found],
        marker="o",
        color=BLUE,
        capsize=3,
    )
    left.set_title("normalized score, validation seeds", fontsize=10)
    right.plot(weights, [x.violation for x in found], marker="o", color=RED)
    right.set_title("support violation rate", fontsize=10)
    for axes in (left, right):
        axes.set_xlabel("support weight w_p")
    return inline(figure)


CURVES = (
    ("critic/loss", "critic loss"),
    ("value/loss", "value loss"),
    ("critic/mean", "mean Q"),
    ("critic/std", "spread of the critics"),
    ("actor/nll", "actor NLL"),
    ("actor/gate_entropy", "gate entropy"),
    ("actor/weight", "advantage weight"),
    ("behavior/nll", "behaviour NLL"),
)


def training_curves(runs: Sequence[tuple[str, list[dict[str, Any]]]]) -> str:
    """Training metrics of each run against updates of their phase."""
    figure, grid = plt.subplots(2, 4, figsize=(12.5, 5.2), layout="constrained")
    for axes, (name, title) in zip(grid.flat, CURVES, strict=True):
        for label, metrics in runs:
            seen = [(m["update"], m[name]) for m in metrics if name in m]
            if seen:
                axes.plot(*zip(*seen, strict=True), lw=1.2, label=label)
        axes.set_title(title, fontsize=10)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    return inline(figure)
