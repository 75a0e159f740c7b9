"""Pictures for the report. Each is a function from data to an inline image; none reads a file."""

import base64
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Ellipse, Rectangle

from gemrl.decide.decision import Decision
from gemrl.envs.grid import Maze
from gemrl.envs.simulator import GOAL_RADIUS
from gemrl.maths.mixture import Mixture

BLUE, ORANGE, GREEN, RED, GREY = "#2563a8", "#c2570c", "#2c7a3f", "#b3261e", "#6b7280"

plt.rcParams.update(
    {
        "figure.dpi": 100,
        "savefig.dpi": 130,
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "axes.axisbelow": True,
    }
)


class Picture(NamedTuple):
    """An image for a page."""

    src: str
    alt: str
    """What it shows, for those who cannot see it."""
    chart: bool = False
    """Whether it is ink on nothing, which a dark page may turn light."""


def inline(figure: Figure, transparent: bool = False) -> str:
    """A figure as a data address for an <img>, and the figure closed.

    A transparent one is a chart, whose layout leaves nothing to be cut off.
    """
    buffer = io.BytesIO()
    ground = "none" if transparent else "white"
    cut = None if transparent else "tight"
    figure.savefig(buffer, format="png", bbox_inches=cut, facecolor=ground, transparent=transparent)
    plt.close(figure)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def draw_maze(axes: Axes, maze: Maze) -> None:
    """Walls and goal in observation terms."""
    size = maze.cell_size
    for i, j in np.argwhere(maze.walls):
        corner = maze.centre((i, j)) - size / 2
        axes.add_patch(Rectangle(tuple(corner), size, size, color="#d1d5db", zorder=1))
    axes.add_patch(Circle(maze.goal, GOAL_RADIUS, fill=False, color=GREEN, lw=1.5, zorder=4))
    # From centre to centre: half of the outer wall is enough to see.
    rows, columns = maze.walls.shape
    first, last = maze.centre((0, 0)), maze.centre((rows - 1, columns - 1))
    axes.set_xlim(first[0], last[0])
    axes.set_ylim(first[1], last[1])
    axes.set_aspect("equal")
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks([])


def data_map(maze: Maze, observations: np.ndarray, rewards: np.ndarray) -> Picture:
    """Where the data goes in the maze."""
    figure, axes = plt.subplots(figsize=(4.6, 4.2))
    draw_maze(axes, maze)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    counts, _, _ = np.histogram2d(
        observations[:, 0],
        observations[:, 1],
        bins=[round(20 * width / maze.cell_size) for width in (right - left, top - bottom)],
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
    title = f"{len(observations):,} transitions, {np.mean(rewards != 0):.1%} rewarded"
    axes.set_title(title)
    return Picture(inline(figure), f"Where the data goes in the maze: {title}")


def paths(maze: Maze, groups: Sequence[tuple[str, np.ndarray]]) -> list[Picture]:
    """Trajectories [T, E, S] of several decision rules from the same starts, a picture each."""
    images = []
    for title, observations in groups:
        figure, axes = plt.subplots(figsize=(3.9, 4.1), layout="constrained")
        draw_maze(axes, maze)
        for episode in range(observations.shape[1]):
            x, y = observations[:, episode, 0], observations[:, episode, 1]
            axes.plot(x, y, color=BLUE, alpha=0.35, lw=1, zorder=3)
            axes.plot(x[0], y[0], "o", color=ORANGE, ms=5, zorder=5)
            axes.plot(x[-1], y[-1], "s", color=RED, ms=4, zorder=5)
        axes.set_title(title, fontsize=9, wrap=True)
        images.append(Picture(inline(figure), f"Paths in the maze: {title}"))
    return images


def candidates(
    panels: Sequence[tuple[str, Decision]],
    actor: Mixture,
    behavior: Mixture,
    bounds: tuple[np.ndarray, np.ndarray],
) -> list[Picture]:
    """The candidates of one state in the action plane, coloured by score (the paper's Figure 1).

    Of more than two dimensions the two are shown in which the first panel's candidates differ most.
    """
    spread = panels[0][1].candidates.std(axis=0)
    plane = np.sort(np.argsort(-spread, kind="stable")[:2])
    low, high = (bound[plane] for bound in bounds)
    pad = 0.12 * (high - low)
    images = []
    for title, decision in panels:
        figure, axes = plt.subplots(figsize=(5.2, 5.6), layout="constrained")
        order = np.argsort(decision.score)
        x, y = decision.candidates[order][:, plane].T
        image = axes.scatter(x, y, c=decision.score[order], s=10, cmap="viridis", zorder=3)
        _ellipses(axes, behavior, plane, "black", "behaviour components (2σ, × mean)", "--")
        _ellipses(axes, actor, plane, ORANGE, "actor components (2σ)", "-")
        means = np.asarray(behavior.means)[:, plane].T
        axes.plot(*means, "x", color="black", ms=6, zorder=5)
        anchor, chosen = decision.candidates[[0, int(decision.chosen)]][:, plane]
        executed = decision.action[plane]
        axes.plot(*anchor, "D", color="white", mec="black", ms=9, zorder=6, label="anchor")
        axes.plot(*chosen, "o", mfc="none", mec=RED, mew=2, ms=17, zorder=6, label="chosen")
        axes.plot(*executed, "*", color=RED, mec="white", ms=16, zorder=7, label="executed")
        axes.add_patch(Rectangle((low[0], low[1]), *(high - low), fill=False, ls=":", zorder=2))
        axes.set_xlim(low[0] - pad[0], high[0] + pad[0])
        axes.set_ylim(low[1] - pad[1], high[1] + pad[1])
        axes.set_aspect("equal" if np.allclose(*(high - low)) else "auto")
        axes.set_xlabel(f"action, dimension {plane[0] + 1}")
        axes.set_ylabel(f"action, dimension {plane[1] + 1}")
        axes.set_title(title, fontsize=10)
        figure.colorbar(image, ax=axes, label="score", shrink=0.7)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
        nearest = f"{float(decision.collapse_dist):.2f} from the nearest behaviour mean"
        z = f"support z {float(decision.chosen_support_z):+.2f}"
        alt = f"{len(x)} candidates, {title}: the chosen one has {z} and lies {nearest}"
        images.append(Picture(inline(figure), alt))
    return images


def _ellipses(
    axes: Axes, mixture: Mixture, plane: np.ndarray, color: str, label: str, style: str
) -> None:
    """Each component at two standard deviations, as strong as its weight."""
    means, stds = (np.asarray(values)[:, plane] for values in (mixture.means, mixture.stds))
    for weight, mean, std in zip(np.exp(mixture.log_weights), means, stds, strict=True):
        strength = float(weight)
        axes.add_patch(
            Ellipse(
                (mean[0], mean[1]),
                4 * std[0],
                4 * std[1],
                fill=False,
                color=color,
                ls=style,
                lw=1 + 2 * strength,
                alpha=0.15 + 0.85 * strength,
                zorder=4,
            )
        )
    axes.plot([], [], color=color, ls=style, lw=2, label=label)


CURVES = (
    ("behavior/nll", "behaviour NLL"),
    ("critic/loss", "critic loss"),
    ("value/loss", "value loss"),
    ("critic/mean", "mean Q"),
    ("critic/std", "spread of the critics"),
    ("actor/nll", "actor NLL"),
    ("actor/gate_entropy", "gate entropy"),
    ("actor/weight", "advantage weight"),
)
COLORS = {"gem": BLUE, "iql": ORANGE, "bc": GREEN}


def training_curves(runs: Sequence[tuple[str, list[dict[str, Any]]]]) -> list[Picture]:
    """Training metrics of each method's runs against their updates, a picture each."""
    images = []
    for name, title in CURVES:
        figure, axes = plt.subplots(figsize=(3.6, 2.7), layout="constrained")
        for method, metrics in runs:
            seen = [(m["update"], m[name]) for m in metrics if name in m]
            if seen:
                color = COLORS.get(method, GREY)
                labelled = method in {line.get_label() for line in axes.lines}
                axes.plot(
                    *zip(*seen, strict=True),
                    lw=1.2,
                    color=color,
                    label="_" if labelled else method,
                )
        if not axes.lines:
            plt.close(figure)
            continue
        axes.legend(frameon=False, fontsize=9)
        axes.set_title(title, fontsize=10)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k")
        images.append(Picture(inline(figure, True), f"{title} against updates", True))
    return images
