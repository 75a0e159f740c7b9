"""Draw what each knob does to a decision of a trained policy, for docs/decisions.md.

    python tools/knob_pictures.py RUN DATASET OUTDIR [--wp 0.4]

RUN must have critics, a behaviour density and two action dimensions. At one held-out state the
candidates are drawn over the landscape of the lower bound (LCB) and of the behaviour density
(log μ), a panel for each value of a knob; curves show the audits against w_p and N over many
held-out states. Of a thousand states two are drawn, instructive ones and not typical: where w_p
changes the choice most (N, w_p, λ), and where the actor is most divided (k_smooth, source, anchor).
Nothing is random: the same policy gives the same pictures.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

import gemrl
from gemrl.data.dataset import Dataset
from gemrl.decide.decision import Decision
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy
from gemrl.evaluate.audit import audit
from gemrl.evaluate.pictures import BLUE, GREEN, GREY, ORANGE, RED
from gemrl.evaluate.rerank import rerank

STATES = 1000
POINTS = 81  # of the landscape, along each action dimension
DEPTH = 12.0  # nats below the peak at which the picture of log μ ends
COLORS = 64  # of a picture's palette, which keeps it small
DPI = 105
WEIGHTS = (0, 0.1, 0.4, 2)  # of the picture of w_p


@dataclass(frozen=True)
class Scene:
    """One state, and the landscapes over its action plane."""

    policy: Policy
    obs: np.ndarray
    axes: tuple[np.ndarray, np.ndarray]
    q: np.ndarray
    """[M, P, P] Each critic's value on the grid."""
    log_support: np.ndarray
    """[P, P]"""

    @staticmethod
    def of(policy: Policy, obs: np.ndarray) -> "Scene":
        """The landscapes at a state."""
        low, high = policy.spec.action_low, policy.spec.action_high
        x, y = (np.linspace(a, b, POINTS) for a, b in zip(low, high, strict=True))
        plane = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
        q = policy.q_values(obs, plane).reshape(-1, POINTS, POINTS)
        log_support = np.asarray(policy.behavior(obs).log_prob(jnp.asarray(plane)))
        return Scene(policy, obs, (x, y), q, log_support.reshape(POINTS, POINTS))

    def lcb(self, knobs: Knobs) -> np.ndarray:
        """The lower bound on the grid."""
        return self.q.mean(axis=0) - knobs.lam * self.q.std(axis=0)

    def support(self, knobs: Knobs) -> np.ndarray:
        """Log density on the grid, cut off far below its peak."""
        return np.maximum(self.log_support, self.log_support.max() - DEPTH)

    def score(self, knobs: Knobs) -> np.ndarray:
        """What is ranked, with support standardized by the candidates that there are."""
        held = self.decide(knobs).log_support
        z = (self.support(knobs) - held.mean()) / max(held.std(), 1e-6)
        return self.lcb(knobs) + float(knobs.wp) * z  # pyright: ignore[reportArgumentType]

    def decide(self, knobs: Knobs) -> Decision:
        """The decision at this state."""
        return self.policy.decide(self.obs, knobs, seed=0)


Landscape = Callable[[Scene, Knobs], np.ndarray]
LCB = ("over the lower bound (LCB)", Scene.lcb, "YlGnBu")
SUPPORT = ("over the density (log μ)", Scene.support, "YlOrBr")
SCORE = ("over the score", Scene.score, "Greens")
Row = tuple[str, Landscape, str]


def tempted(policy: Policy, observations: np.ndarray, knobs: Knobs) -> Scene:
    """The state where each step of w_p changes the choice most, well within the bounds."""
    record = policy.decide(observations, replace(knobs, n=256), seed=0)
    counts = np.array([record.candidates.shape[1]])
    lam, weights = np.array([knobs.lam], np.float32), np.array(WEIGHTS, np.float32)
    found = rerank(record.q, record.log_support, counts, lam, weights)
    actions = record.candidates[np.arange(len(observations)), np.asarray(found.chosen)[0, 0]]
    steps = np.linalg.norm(np.diff(actions, axis=0), axis=-1).min(axis=0)
    low, high = policy.spec.action_low, policy.spec.action_high
    inside = ((record.candidates > low) & (record.candidates < high)).all(axis=-1).mean(axis=1)
    return Scene.of(policy, observations[np.argmax(steps * inside)])


def divided(policy: Policy, observations: np.ndarray) -> Scene:
    """The state where the actor's two heaviest components lie furthest apart for their weight."""
    actor = policy.actor(observations)
    weights = np.exp(actor.log_weights)
    second, first = np.argsort(weights, axis=1)[:, -2:].T
    states = np.arange(len(observations))
    apart = np.linalg.norm(actor.means[states, first] - actor.means[states, second], axis=1)
    return Scene.of(policy, observations[np.argmax(apart * weights[states, second])])


def knob_picture(
    scene: Scene, panels: Sequence[tuple[str, Knobs]], rows: Sequence[Row] = (LCB, SUPPORT)
) -> Figure:
    """A column for each setting, a row for each landscape."""
    figure, grid = plt.subplots(
        len(rows),
        len(panels),
        figsize=(2.35 * len(panels) + 0.3, 2.3 * len(rows) + 0.75),
        layout="constrained",
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for row, (label, landscape, colors) in enumerate(rows):
        for column, (title, knobs) in enumerate(panels):
            axes = grid[row][column]
            draw_panel(axes, scene, knobs, landscape(scene, knobs), colors)
            if row == 0:
                axes.set_title(title, fontsize=11)
        grid[row][0].set_ylabel(label, fontsize=10)
    smooth = any(knobs.k_smooth > 1 for _, knobs in panels)
    marks = [
        ("o", GREY, 4, "candidates", True),
        ("o", ORANGE, 5, "the k best", smooth),
        ("D", "white", 7, "anchor", True),
        ("*", RED, 14, "executed", True),
    ]
    shown = [
        Line2D([], [], ls="", marker=m, color=c, mec="black", mew=0.5, ms=s, label=text)
        for m, c, s, text, there in marks
        if there
    ]
    figure.legend(handles=shown, loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw_panel(axes: Axes, scene: Scene, knobs: Knobs, landscape: np.ndarray, colors: str) -> None:
    """The candidates of one setting over a landscape, and what is executed."""
    decision = scene.decide(knobs)
    axes.contourf(*scene.axes, landscape, levels=14, cmap=colors, zorder=1)
    anchors = int(knobs.anchor != "none")
    cloud = decision.candidates[anchors:]
    size = 14 if len(cloud) <= 64 else 3
    axes.scatter(*cloud.T, s=size, color="#404650", lw=0, zorder=3)
    if knobs.k_smooth > 1:
        best = decision.candidates[np.argsort(-decision.score)[: knobs.k_smooth]]
        axes.scatter(*best.T, s=12, color=ORANGE, ec="black", lw=0.3, zorder=4)
    if anchors:
        axes.plot(*decision.candidates[0], "D", color="white", mec="black", ms=7, zorder=5)
    axes.plot(*decision.action, "*", color=RED, mec="white", ms=17, zorder=6)
    z = float(decision.executed_support_z)
    note = f"z {z:+.1f}".replace("-", "−") if len(decision.candidates) > 1 else "no set, no z"
    axes.text(
        0.1,
        0.1,
        note,
        transform=axes.transAxes,
        fontsize=9,
        zorder=7,
        bbox={"facecolor": "white", "alpha": 0.85, "lw": 0, "pad": 2},
    )
    # Room for what lies at a bound.
    pads = [0.07 * (ticks[-1] - ticks[0]) for ticks in scene.axes]
    axes.set_xlim(scene.axes[0][0] - pads[0], scene.axes[0][-1] + pads[0])
    axes.set_ylim(scene.axes[1][0] - pads[1], scene.axes[1][-1] + pads[1])
    axes.set_aspect("equal")
    axes.set_xticks(scene.axes[0][[0, POINTS // 2, -1]])
    axes.set_yticks(scene.axes[1][[0, POINTS // 2, -1]])
    axes.spines[:].set_visible(False)
    axes.grid(False)
    axes.tick_params(labelsize=8, length=0)


def curves(policy: Policy, data: Dataset, knobs: Knobs) -> Figure:
    """Violation, collapse and the chosen candidate's support against w_p and against N."""
    grid = audit(policy, data, knobs, states=STATES)["grid"]
    lam = grid["lam"].index(knobs.lam)
    quantities = (
        ("violation", "support violation rate"),
        ("collapse_dist", "distance to the nearest\nbehaviour mean"),
        ("support_z", "chosen support z"),
    )
    shades = [GREY, BLUE, GREEN, ORANGE, RED]
    figure, panels = plt.subplots(2, 3, figsize=(9.6, 5.6), layout="constrained")
    weights = [wp for wp in (0.0, 0.05, 0.2, 0.4, 1.0) if wp in grid["wp"]]
    for column, (name, title) in enumerate(quantities):
        values = np.array(grid[name])[:, lam]
        by_weight, by_n = panels[0][column], panels[1][column]
        ticks = range(len(grid["wp"]))
        for i, n in enumerate(grid["n"]):
            by_weight.plot(ticks, values[i], "o-", ms=3.5, color=shades[i % 5], label=f"N = {n}")
        by_weight.set_xticks(ticks, [f"{wp:g}" for wp in grid["wp"]], fontsize=8)
        by_weight.set_xlabel("support weight w_p")
        for shade, wp in zip(reversed(shades), weights, strict=False):
            line = values[:, grid["wp"].index(wp)]
            by_n.plot(range(len(line)), line, "o-", ms=3.5, color=shade, label=f"w_p = {wp:g}")
        by_n.set_xticks(range(len(grid["n"])), [str(n) for n in grid["n"]])
        by_n.set_xlabel("candidates N")
        by_weight.set_title(title, fontsize=10)
    for axes in panels[:, 0]:
        axes.set_ylim(top=1.3 * axes.get_ylim()[1])
        axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture with a small palette."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, facecolor="white")
    plt.close(figure)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    print(f"{path}  {path.stat().st_size / 1000:.0f} kB")


@dataclass(frozen=True)
class Picture:
    """One knob's picture: its panels, and the landscapes under them."""

    panels: Sequence[tuple[str, Knobs]]
    rows: Sequence[Row] = (LCB, SUPPORT)
    divided: bool = False
    """Whether it is drawn at the divided state."""


def pictures(base: Knobs) -> dict[str, Picture]:
    """The picture of each knob."""

    def vary(name: str, values: Sequence[object], **fixed: object) -> list[tuple[str, Knobs]]:
        shown = {"lam": "λ", "wp": "w_p", "n": "N", "k_smooth": "k"}.get(name, name)
        changes = [{**fixed, name: value} for value in values]
        return [(f"{shown} = {c[name]}", replace(base, **c)) for c in changes]

    return {
        "n": Picture(vary("n", [0, 16, 64, 1024])),
        "wp": Picture(vary("wp", WEIGHTS), (LCB, SUPPORT, SCORE)),
        "lam": Picture(vary("lam", [0, 1, 4, 16], wp=0.05)),
        "k_smooth": Picture(vary("k_smooth", [1, 16, 64, 256]), divided=True),
        "source": Picture(vary("source", ["actor", "behavior", "unimodal"]), divided=True),
        "anchor": Picture(vary("anchor", ["mode", "barycenter", "none"], n=16), divided=True),
    }


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description="Draw what each knob does to a decision.")
    parser.add_argument("run", help="folder of a trained run")
    parser.add_argument("dataset", help="the dataset it was trained on")
    parser.add_argument("out", type=Path, help="folder for the pictures")
    parser.add_argument("--wp", type=float, default=0.4, help="support weight of the other knobs")
    args = parser.parse_args()
    policy = gemrl.load(args.run)
    if policy.models.behavior is None or not policy.models.critics or policy.spec.action_dim != 2:
        raise SystemExit("the policy must have critics, a density and two action dimensions")
    manifest = policy.bundle.manifest
    data = gemrl.load_dataset(args.dataset, task=manifest["task"])
    config = manifest["config"]
    base = Knobs(wp=args.wp)
    held = data.split_episodes(config["holdout"], config["seed"])[1]
    observations = data.observations[held[:: max(1, len(held) // STATES)]]
    scenes = tempted(policy, observations, base), divided(policy, observations)
    for scene in scenes:
        print("state", np.round(scene.obs.astype(float), 3).tolist())
    for name, picture in pictures(base).items():
        figure = knob_picture(scenes[picture.divided], picture.panels, picture.rows)
        save(figure, args.out / f"knob-{name}.png")
    save(curves(policy, data, base), args.out / "knob-curves.png")


if __name__ == "__main__":
    main()
