"""T1: where a single Gaussian puts its mean when the actions have two modes."""

import jax.numpy as jnp
import numpy as np

from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.mechanisms.fitting import datasets, fit, two_modes
from gemrl.evaluate.reproduce.mechanisms.reading import (
    Record,
    by_task,
    over_seeds,
    pick,
    points,
    sign,
    tasks_in,
    verdict,
    with_error,
)
from gemrl.evaluate.reproduce.mechanisms.seen import Effort, Seen
from gemrl.maths.audits import collapse_distance
from gemrl.maths.mixture import Mixture
from gemrl.maths.statistics import Estimate

CONTROLLED, TRAINED = "T1 controlled", "T1 trained"
WIDTH = 0.1
SEPARATIONS = (0, 1, 2, 3, 4, 6, 8)
"""Distances between the modes, in standard deviations of a mode."""
FITS = {
    "likelihood": "one Gaussian, maximum likelihood",
    "reverse": "one Gaussian, reverse KL",
    "mixture": "mixture's heaviest component",
}
ACTIONS = {
    "bc": "BC's mean",
    "behavior mode": "mode of the behaviour mixture",
    "iql": "IQL's mean",
    "anchor": "GEM's anchor",
}
UNIMODAL = ("bc", "iql")
SAMPLES = 256
WEAK = 0.05
"""An action is weakly supported if less than this share of draws is less dense than it."""


def controlled(effort: Effort) -> list[Record]:
    """Fits to samples of two modes, further and further apart."""
    records = []
    for separation in SEPARATIONS:
        truth = two_modes(separation * WIDTH, WIDTH)
        samples = datasets(truth, effort.datasets, effort.samples)
        even = np.ones(samples.shape[:2])
        found = {
            "likelihood": fit(samples, even, 1).mode(),
            "mixture": fit(samples, even, 2).mode(),
            "reverse": np.array([[reverse_projection(truth)]]),
        }
        best = float(jnp.max(truth.log_prob(truth.means)))
        for name, action in found.items():
            # A distribution of one dimension has its mean between modes or on one.
            distance = np.abs(np.asarray(action) - np.asarray(truth.means)[:, 0]).min(axis=-1)
            density = np.asarray(truth.log_prob(jnp.asarray(action))) - best
            records.append(
                {"experiment": CONTROLLED, "fit": name, "separation": separation}
                | with_error("log_density", density)
                | with_error("distance", distance / WIDTH)
            )
    return records


def reverse_projection(truth: Mixture) -> float:
    """Mean of the Gaussian q with the least KL(q || truth), by search over a grid."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    edge = float(np.abs(truth.means).max()) + WIDTH
    means, stds = np.meshgrid(np.linspace(-edge, edge, 241), np.geomspace(0.5, 8, 49) * WIDTH)
    at = means[..., None] + stds[..., None] * nodes
    log_truth = np.asarray(truth.log_prob(jnp.asarray(at[..., None])))
    # The entropy of q is log std and a constant.
    divergence = -np.log(stds) - (log_truth * weights).sum(axis=-1) / weights.sum()
    return float(means.ravel()[np.argmin(divergence)])


def trained(seen: Seen) -> list[Record]:
    """Support of each policy's deterministic action at held-out states."""
    obs = seen.transitions.observations
    density = seen.gem.behavior(obs)
    actions = {
        "bc": seen.baselines["bc"].actor(obs).mode(),
        "behavior mode": density.mode(),
        "iql": seen.baselines["iql"].actor(obs).mode(),
        "anchor": seen.gem.actor(obs).mode(),
    }
    spec = seen.gem.spec
    drawn = jnp.clip(density.sample(seen.seed, SAMPLES), spec.action_low, spec.action_high)
    densities = np.asarray(density.log_prob(drawn))
    records = []
    for name, action in actions.items():
        distance = collapse_distance(jnp.asarray(action), jnp.asarray(density.means))
        support = np.asarray(density.log_prob(jnp.asarray(action)))
        rank = (densities < support[:, None]).mean(axis=1)
        records.append(
            {"experiment": TRAINED, "action": name, "states": len(obs)}
            | with_error("log_density", support)
            | with_error("rank", rank)
            | with_error("weak", rank < WEAK)
            | with_error("distance", np.asarray(distance))
        )
    return records


def chapter(document: Document, records: list[Record]) -> None:
    """What T1 says, and what was found."""
    known, found = pick(records, experiment=CONTROLLED), pick(records, experiment=TRAINED)
    document.add(
        "## T1: a single Gaussian can put its mean between the modes",
        "The paper: where good actions lie in separate groups, a unimodal fit may centre on the "
        "empty space between them, an action that the data hardly supports. It speaks of reverse "
        "KL here, but it is maximum likelihood (forward KL), by which behaviour cloning and IQL "
        "fit, that averages modes; reverse KL settles on one. Both are shown.",
    )
    if known:
        document.add(*_controlled(known))
    if found:
        document.add(*_trained(found))


def _controlled(records: list[Record]) -> list[str | Table | Plot]:
    from gemrl.evaluate.reproduce.plots import panels

    lines = []
    for separation in SEPARATIONS:
        at = {r["fit"]: r for r in pick(records, separation=separation)}
        lines.append(
            [
                str(separation),
                *(f"{at[name]['log_density']:.2f}" for name in FITS),
                *(f"{at[name]['distance']:.2f}" for name in FITS),
            ]
        )
    fits = ("one Gaussian", "reverse KL", "mixture")
    headings = ["separation", *(f"log density, {name}" for name in fits)]
    headings += [f"distance, {name}" for name in fits]
    panes = [
        (title, {FITS[name]: points(pick(records, fit=name), "separation", field) for name in FITS})
        for field, title in (
            ("log_density", "log density below the best mode's"),
            ("distance", "distance to the nearest mode"),
        )
    ]
    last = {r["fit"]: r for r in pick(records, separation=SEPARATIONS[-1])}
    gap = last["mixture"]["log_density"] - last["likelihood"]["log_density"]
    error = np.hypot(
        last["mixture"]["log_density_error"] or 0, last["likelihood"]["log_density_error"] or 0
    )
    return [
        Table(
            "Two modes (weights 0.6 and 0.4): true log density at the centre of the one Gaussian "
            "of maximum likelihood, of that with the least reverse KL, and of the mixture's "
            "heaviest component, relative to the best mode; and the distance to the nearest mode. "
            "Lengths in standard deviations of a mode",
            headings,
            lines,
        ),
        Plot("The fitted centre as two modes move apart", panels(panes, "separation")),
        verdict(
            sign(Estimate(gap, float(error), 1)),
            f"with modes {SEPARATIONS[-1]} standard deviations apart, the maximum-likelihood mean "
            f"lies {last['likelihood']['distance']:.1f} from the nearest and is "
            f"{gap:.1f} nats less dense than the mixture's choice; reverse KL's mean lies "
            f"{last['reverse']['distance']:.1f} from a mode",
        ),
    ]


def _trained(records: list[Record]) -> list[str | Table | Plot]:
    from gemrl.evaluate.reproduce.plots import bars

    lines, ranks, weak_shares = [], {}, {}
    shares: dict[str, list[tuple[float, float]]] = {name: [] for name in ACTIONS}
    tasks = tasks_in(records)
    for task in tasks:
        of = {name: pick(records, task=task, action=name) for name in ACTIONS}
        for name, what in ACTIONS.items():
            weak = over_seeds(of[name], "weak")
            shares[name].append((100 * weak.mean, 100 * weak.stderr))
            fields = ("log_density", "rank", "weak", "distance")
            lines.append([task, what, *(f"{over_seeds(of[name], f):.3f}" for f in fields)])
        for name in UNIMODAL:
            key = f"{task}, {ACTIONS[name]}"
            ranks[key] = over_seeds(of[name], "rank")
            weak_shares[key] = over_seeds(of[name], "weak")
    return [
        Table(
            "Trained policies at held-out states: support of the deterministic action under the "
            "behaviour density. Rank: share of draws from that density at the same state that are "
            f"less dense, 0.5 for a typical draw. Weak: a rank below {WEAK:g}, as {WEAK:.0%} of "
            "the draws have. BC's mean and the behaviour mixture are fitted to the same data, "
            "IQL's and GEM's actor to the same data with the same weights",
            ["task", "action", "log density", "rank", "weak", "distance to a mean"],
            lines,
        ),
        Plot(
            "Share of held-out states whose deterministic action is weakly supported",
            bars(tasks, {ACTIONS[n]: v for n, v in shares.items()}, "weakly supported, %"),
        ),
        "That a unimodal mean is less supported than a typical action of the data (a rank below "
        "0.5): " + by_task(ranks, 0.5, below=True, form=".2f"),
        f"That it is weakly supported more often than the {WEAK:.0%} of such actions in the data "
        "themselves: " + by_task(weak_shares, WEAK, form=".1%"),
    ]
