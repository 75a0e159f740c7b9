"""How strange a state is: minus its log density under a Gaussian mixture over training states.

The mixture has full covariances in the scaler's space. It was chosen by measurement, before
distances to the mean or to neighbours and before the networks' features: see docs/gates.md.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

COMPONENTS = 64
STATES = 20_000
ROUNDS = 40
# Added to each variance in the scaler's space, where the data's is 1. It keeps a dimension that
# never changes, or a component on few states, from a density without bound.
RIDGE = 1e-4
# A likelihood that grows by less than this, in nats a state, has converged.
CONVERGED = 1e-3
# Rows that are scored together, so that memory stays bounded.
ROWS_TOGETHER = 512


@dataclass(frozen=True, eq=False)
class StateDensity:
    """A fitted Gaussian mixture over states, which takes them as the environment gives them."""

    obs_mean: Float64[np.ndarray, " s"]
    """The scaler's mean."""
    obs_std: Float64[np.ndarray, " s"]
    """The scaler's standard deviation."""
    log_weights: Float64[np.ndarray, " k"]
    """Log weight of each component."""
    means: Float64[np.ndarray, "k s"]
    """Centre of each component, scaled."""
    factors: Float64[np.ndarray, "k s s"]
    """Lower triangular L of each component, with L L^T the inverse of its covariance."""

    def novelty(self, observations: np.ndarray) -> Float64[np.ndarray, " b"]:
        """Minus the log density of states [B, S], scaled; larger is stranger."""
        scaled = (np.asarray(observations, np.float64) - self.obs_mean) / self.obs_std
        blocks = np.split(scaled, range(ROWS_TOGETHER, len(scaled), ROWS_TOGETHER))
        mixture = (self.log_weights, self.means, self.factors)
        return np.concatenate([-_log_sum(log_joint(block, *mixture)) for block in blocks])


def log_joint(
    x: Float64[np.ndarray, "b s"],
    log_weights: Float64[np.ndarray, " k"],
    means: Float64[np.ndarray, "k s"],
    factors: Float64[np.ndarray, "k s s"],
) -> Float64[np.ndarray, "b k"]:
    """Log of w_k N(x; mean_k, (L_k L_k^T)^-1)."""
    whitened = (x[None] - means[:, None]) @ factors
    log_det = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    constant = log_weights + log_det - 0.5 * x.shape[1] * np.log(2 * np.pi)
    return (constant[:, None] - 0.5 * (whitened**2).sum(axis=2)).T


def fit_density(
    observations: np.ndarray,
    obs_mean: np.ndarray,
    obs_std: np.ndarray,
    seed: int,
    components: int = COMPONENTS,
) -> StateDensity:
    """Fit by expectation-maximization on at most `STATES` of the states [N, S]."""
    rng = np.random.default_rng(seed)
    mean, std = np.asarray(obs_mean, np.float64), np.asarray(obs_std, np.float64)
    rows = rng.choice(len(observations), min(STATES, len(observations)), replace=False)
    x = (np.asarray(observations[rows], np.float64) - mean) / std
    centres = x[_spread_out(x, min(components, len(x)), rng)]
    log_weights = np.full(len(centres), -np.log(len(centres)))
    factors = np.repeat(np.eye(x.shape[1])[None], len(centres), axis=0)
    before = -np.inf
    for _ in range(ROUNDS):
        joint = np.concatenate(
            [
                log_joint(block, log_weights, centres, factors)
                for block in np.split(x, range(ROWS_TOGETHER, len(x), ROWS_TOGETHER))
            ]
        )
        total = _log_sum(joint)
        if total.mean() - before < CONVERGED:
            break
        before = total.mean()
        log_weights, centres, factors = _maximize(x, np.exp(joint - total[:, None]))
    return StateDensity(mean, std, log_weights, centres, factors)


def _maximize(
    x: Float64[np.ndarray, "n s"], shares: Float64[np.ndarray, "n k"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, centres and factors from each state's shares in the components."""
    # One state of its own for each component: none can vanish.
    counts = shares.sum(axis=0)
    log_weights = np.log((counts + 1) / (counts + 1).sum())
    counts = np.maximum(counts, 1e-9)
    centres = (shares.T @ x) / counts[:, None]
    factors = np.empty((len(counts), x.shape[1], x.shape[1]))
    for k, count in enumerate(counts):
        away = x - centres[k]
        covariance = (away * shares[:, k : k + 1]).T @ away / count
        covariance[np.diag_indices_from(covariance)] += RIDGE
        factors[k] = np.linalg.cholesky(np.linalg.inv(covariance))
    return log_weights, centres, factors


def _spread_out(x: np.ndarray, count: int, rng: np.random.Generator) -> list[int]:
    """Rows to start from, each drawn in proportion to its squared distance to those before."""
    chosen = [int(rng.integers(len(x)))]
    distance = ((x - x[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < count and distance.sum() > 0:
        chosen.append(int(rng.choice(len(x), p=distance / distance.sum())))
        distance = np.minimum(distance, ((x - x[chosen[-1]]) ** 2).sum(axis=1))
    return chosen


def _log_sum(joint: Float64[np.ndarray, "b k"]) -> Float64[np.ndarray, " b"]:
    """Log of the sum of exponentials over the components."""
    top = joint.max(axis=1)
    return top + np.log(np.exp(joint - top[:, None]).sum(axis=1))
