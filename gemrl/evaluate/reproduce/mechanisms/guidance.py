"""T2: whether the guided actor moves mass towards actions of high advantage, and how far."""

import jax.numpy as jnp
import numpy as np

from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.mechanisms.fitting import datasets, fit, two_modes
from gemrl.evaluate.reproduce.mechanisms.reading import (
    Record,
    by_task,
    difference,
    each,
    over_seeds,
    pick,
    points,
    sign,
    tasks_in,
    verdict,
    with_error,
)
from gemrl.evaluate.reproduce.mechanisms.seen import Effort, Seen
from gemrl.maths.expectile import guidance_weight
from gemrl.maths.mixture import Mixture
from gemrl.maths.statistics import Estimate, estimate

CONTROLLED, DECILES, SLOPE = "T2 controlled", "T2 deciles", "T2 slope"
BETAS = (1.0, 3.0, 10.0)
COMPONENTS = (1, 2, 8)
CAP = 100.0
SAMPLES = 64
"""Actions by which a state's mean weight is known."""


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Least-squares slope of y against x."""
    centred = x - x.mean()
    return float((centred * (y - y.mean())).sum() / (centred**2).sum())


def controlled(effort: Effort) -> list[Record]:
    """Two modes whose advantage is the action itself: the tilted density is a mixture again.

    The slope of log π - log μ against the logarithm of the weight is 1 where the fit is what
    tilting by exp(β A) predicts.
    """
    truth = two_modes(1.0, 0.15)
    training = datasets(truth, effort.datasets, effort.samples)
    fresh = np.asarray(truth.sample(1, 500))
    right = fresh[:, 0] > 0
    records = []
    for components in COMPONENTS:
        plain = _log_densities(fit(training, np.ones(training.shape[:2]), components), fresh)
        for beta in BETAS:
            weights = np.asarray(guidance_weight(jnp.asarray(training[..., 0]), beta, CAP))
            ratios = _log_densities(fit(training, weights, components), fresh) - plain
            moved = ratios[:, right].mean(axis=1) - ratios[:, ~right].mean(axis=1)
            predicted = np.log(np.asarray(guidance_weight(jnp.asarray(fresh[:, 0]), beta, CAP)))
            records.append(
                {"experiment": CONTROLLED, "components": components, "beta": beta}
                | with_error("moved", moved)
                | with_error("slope", [slope(predicted, found) for found in ratios])
            )
    return records


def _log_densities(fits: Mixture, actions: np.ndarray) -> np.ndarray:
    """Log density [R, N] of the same actions under each of R mixtures."""
    repeated = np.broadcast_to(actions, (len(fits.means), *actions.shape))
    return np.asarray(fits.log_prob(jnp.asarray(repeated)))


def trained(seen: Seen) -> list[Record]:
    """Actor against behaviour at held-out actions, by decile of advantage."""
    rows, gem = seen.transitions, seen.gem
    actor, density = gem.actor(rows.observations), gem.behavior(rows.observations)
    actions = jnp.asarray(rows.actions)
    ratio = np.asarray(actor.log_prob(actions)) - np.asarray(density.log_prob(actions))
    advantage, predicted = _tilt(seen)
    order = np.argsort(advantage)
    records: list[Record] = [
        {"experiment": DECILES, "decile": number, "advantage": float(advantage[part].mean())}
        | with_error("log_ratio", ratio[part])
        | with_error("predicted", predicted[part])
        | {"log_ratio_median": float(np.median(ratio[part]))}
        for number, part in enumerate(np.array_split(order, 10), start=1)
    ]
    return [
        *records,
        {"experiment": SLOPE, "rows": len(ratio), "beta": gem.bundle.manifest["config"]["beta"]}
        | _bootstrapped(predicted, ratio),
    ]


def _tilt(seen: Seen) -> tuple[np.ndarray, np.ndarray]:
    """Advantage of held-out actions, and log π - log μ as tilting by the weight predicts it.

    The prediction is log ω(s, a) - log E[ω(s, ·)] under the behaviour density. Critics are those
    that were trained, where training took their slowly following targets.
    """
    rows, gem = seen.transitions, seen.gem
    spec, config = gem.spec, gem.bundle.manifest["config"]
    drawn = gem.behavior(rows.observations).sample(seen.seed, SAMPLES)
    probed = jnp.concatenate([jnp.asarray(rows.actions)[:, None], drawn], axis=1)
    probed = np.asarray(jnp.clip(probed, spec.action_low, spec.action_high))
    assert gem.models.value is not None
    value = np.asarray(gem.models.value(jnp.asarray(seen.scaled(rows.observations))))
    advantage = gem.q_values(rows.observations, probed).min(axis=1) - value[:, None]
    weight = guidance_weight(jnp.asarray(advantage), config["beta"], config["weight_cap"])
    log_weight = np.log(np.asarray(weight, np.float64))
    return advantage[:, 0], log_weight[:, 0] - np.log(np.exp(log_weight[:, 1:]).mean(axis=1))


def _bootstrapped(x: np.ndarray, y: np.ndarray, repeats: int = 200) -> Record:
    """The slope, and its error by resampling rows."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(x), size=(repeats, len(x)))
    error = float(np.std([slope(x[rows], y[rows]) for rows in drawn], ddof=1))
    return {"slope": slope(x, y), "slope_error": error}


def chapter(document: Document, records: list[Record]) -> None:
    """What T2 says, and what was found."""
    document.add(
        "## T2: guidance moves mass towards actions of high advantage",
        "The paper: weights exp(βA) make the actor fit better actions harder. If the fit were "
        "perfect, log π(a|s) - log μ(a|s) would be the logarithm of the weight over its mean at "
        "that state: a slope of 1. A smaller slope means that less mass moved than was asked for.",
    )
    if known := pick(records, experiment=CONTROLLED):
        document.add(*_controlled(known))
    if found := pick(records, experiment=DECILES):
        document.add(*_trained(found, pick(records, experiment=SLOPE)))


def _controlled(records: list[Record]) -> list[str | Table | Plot]:
    lines = [
        [
            f"{record['components']}",
            f"{record['beta']:g}",
            f"{over_seeds([record], 'moved'):+.2f}",
            f"{over_seeds([record], 'slope'):.2f}",
        ]
        for record in records
    ]
    one, several = (
        pick(records, components=k, beta=3.0)[0] for k in (COMPONENTS[0], COMPONENTS[-1])
    )
    moved = Estimate(several["moved"], several["moved_error"] or float("nan"), 1)
    return [
        Table(
            "Two modes, the right one with the higher advantage: what guided EM changes in the log "
            "density of the right mode's actions against the left's, and the slope",
            ["components", "β", "right minus left, nats", "slope (1 = exact tilting)"],
            lines,
        ),
        verdict(
            sign(moved),
            f"at β = 3 a mixture of {several['components']} moves {several['moved']:.2f} nats "
            f"towards the better mode with a slope of {several['slope']:.2f}; one Gaussian's slope "
            f"is {one['slope']:.2f}",
        ),
    ]


def _trained(records: list[Record], slopes: list[Record]) -> list[str | Table | Plot]:
    from gemrl.evaluate.reproduce.plots import panels

    lines, rises, fits, panes = [], {}, {}, []
    for task in tasks_in(records):
        of = pick(records, task=task)
        first, last = (pick(of, decile=d) for d in (1, 10))
        rise, asked = (difference(last, first, name) for name in ("log_ratio", "predicted"))
        fitted = over_seeds(pick(slopes, task=task), "slope")
        upper = estimate([_decile_slope(pick(of, seed=seed)) for seed in each(of, "seed")])
        found = (over_seeds(first, "log_ratio"), over_seeds(last, "log_ratio"), rise, asked)
        lines.append([task, *(f"{number:.2f}" for number in (*found, fitted, upper))])
        rises[task], fits[task] = rise, fitted
        curves = {
            "measured": points(of, "decile", "log_ratio"),
            "tilting by exp(βA) predicts": points(of, "decile", "predicted"),
        }
        panes.append((f"{task}\nlog π - log μ", curves))
    return [
        Table(
            "Held-out actions: mean log π - log μ in the lowest and highest decile of advantage, "
            "its rise, the rise that tilting predicts, the slope of measured on predicted over all "
            "actions, and over the means of all deciles but the lowest",
            [
                "task",
                "lowest decile",
                "highest",
                "rise",
                "predicted rise",
                "slope",
                "slope without the lowest",
            ],
            lines,
        ),
        Plot("Actor against behaviour by decile of advantage", panels(panes, "decile")),
        "That the log ratio rises with advantage: " + by_task(rises),
        "That it rises by less than tilting by exp(βA) predicts (a slope below 1 over all "
        "actions): " + by_task(fits, 1.0, below=True, form=".2f"),
    ]


def _decile_slope(records: list[Record]) -> float:
    """Slope of measured on predicted over the means of the deciles above the lowest."""
    upper = [record for record in records if record["decile"] > 1]
    x, y = (np.array([record[name] for record in upper]) for name in ("predicted", "log_ratio"))
    return slope(x, y)
