"""The audit's statistics, as functions of arrays. B states, C candidates, M critics."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gemrl.evaluate.rerank import rerank
from gemrl.learn.health import DEAD_WEIGHT
from gemrl.maths.mixture import gate_entropy

# Where the reliability curve is read.
LEVELS = np.linspace(0, 1, 101)
# Bins of a histogram of critics' standard deviations.
BINS = 40


def ranks(logged: np.ndarray, sampled: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Where a value [B] stands among samples [B, N]: 0 is below all of them, 1 above.

    Uniform between 0 and 1 where the value is drawn as the samples are. `ties`, uniform numbers
    [B], decide the place among equal values, which actions at a bound have.
    """
    below = (sampled < logged[:, None]).sum(axis=1)
    equal = (sampled == logged[:, None]).sum(axis=1)
    return (below + ties * (equal + 1)) / (sampled.shape[1] + 1)


def reliability(found: np.ndarray, samples: int) -> dict[str, Any]:
    """How often ranks fall below each level, and where that is furthest from the level itself."""
    below = np.searchsorted(np.sort(found), LEVELS, side="right") / len(found)
    furthest = int(np.argmax(np.abs(below - LEVELS)))
    return {
        "rows": len(found),
        "samples": samples,
        "levels": LEVELS.tolist(),
        "below": below.tolist(),
        "largest_deviation": float(below[furthest] - LEVELS[furthest]),
        "largest_at": float(LEVELS[furthest]),
        # Kolmogorov's 95% band for independent rows. Those of one episode are not independent.
        "chance_band": float(1.358 / np.sqrt(len(found))),
    }


def components(log_weights: np.ndarray, responsibilities: np.ndarray) -> dict[str, Any]:
    """How a mixture [B, K] uses its components, by its gates and by the logged actions."""
    usage = np.exp(log_weights.astype(np.float64)).mean(axis=0)
    entropy = float(np.mean(gate_entropy(jnp.asarray(log_weights))))
    return {
        "usage": usage.tolist(),
        "responsibility": responsibilities.astype(np.float64).mean(axis=0).tolist(),
        "dead": np.flatnonzero(usage < DEAD_WEIGHT / len(usage)).tolist(),
        "gate_entropy": entropy,
        "effective": float(np.exp(entropy)),
    }


def disagreement(q: dict[str, np.ndarray]) -> dict[str, Any]:
    """Critics' spread and values at actions of several kinds, each [B, M, C].

    `told_apart` is how often a random action's spread is above the logged action's at the same
    state; one half is blindness. `over_logged` are quantiles of the value over the logged action's.
    """
    spread = {name: values.std(axis=1, dtype=np.float64) for name, values in q.items()}
    value = {name: values.mean(axis=1, dtype=np.float64) for name, values in q.items()}
    edges = _log_edges(np.concatenate([values.ravel() for values in spread.values()]))
    kinds = {
        name: {
            "spread_mean": float(values.mean()),
            "spread_median": float(np.median(values)),
            "value_mean": float(value[name].mean()),
            "over_logged": _quantiles(value[name] - value["logged"]),
            # The few outside are counted in the outermost bins.
            "histogram": _shares(np.clip(values, edges[0], edges[-1]), edges),
        }
        for name, values in spread.items()
    }
    apart = spread["random"] > spread["logged"]
    return {"kinds": kinds, "edges": edges.tolist(), "told_apart": float(apart.mean())}


def _quantiles(values: np.ndarray) -> dict[str, float]:
    return {str(q): float(np.quantile(values, q)) for q in (0.1, 0.5, 0.9)}


def _shares(values: np.ndarray, edges: np.ndarray) -> list[float]:
    return (np.histogram(values, edges)[0] / values.size).tolist()


def _log_edges(values: np.ndarray) -> np.ndarray:
    """Edges of bins that are evenly wide in the logarithm, about nearly all of the values."""
    positive = values[values > 0]
    low, high = np.quantile(positive, [0.001, 0.999]) if positive.size else (0.5, 1.0)
    return np.geomspace(low, max(high, 1.01 * low), BINS + 1)


def cross_fitted(
    q: np.ndarray,
    log_support: np.ndarray | None,
    counts: np.ndarray,
    lam: float,
    wp: float,
    words: dict[str, str],
) -> dict[str, np.ndarray]:
    """What half of the critics choose among the first `counts` candidates and think of it, and
    what the other half thinks: [B, N] each.

    Both ways round, and averaged. So an action that no critic chose, such as the anchor, has the
    same value on both sides, and all of the difference comes from choosing.
    """
    even, odd = np.arange(q.shape[1])[::2], np.arange(q.shape[1])[1::2]
    found: dict[str, list[np.ndarray]] = {"selecting_q": [], "selecting_lcb": [], "other_q": []}
    one = np.ones(1, np.float32)
    for selecting, other in ((even, odd), (odd, even)):
        ranked = rerank(q[:, selecting], log_support, counts, lam * one, wp * one, **words)
        chosen = np.asarray(ranked.chosen)[:, 0, 0].T
        for name, critics in (("selecting_q", selecting), ("other_q", other)):
            mean = q[:, critics].mean(axis=1)
            found[name].append(np.take_along_axis(mean, chosen, axis=1))
        found["selecting_lcb"].append(np.asarray(ranked.lcb)[:, 0, 0].T)
    return {name: np.mean(both, axis=0) for name, both in found.items()}


def kept_share(selecting: Sequence[float], other: Sequence[float]) -> float | None:
    """Share of the last entry's gain over the first that the critics that did not choose see."""
    promised = selecting[-1] - selecting[0]
    return (other[-1] - other[0]) / promised if promised > 0 else None
