"""Scores of novelty that were measured against one another; `gemrl.decide.novelty` has the winner.

Each is a function of a policy, training states and a generator, and gives a function from states to
scores, larger where stranger.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemrl.decide.novelty import fit_density
from gemrl.decide.policy import Policy

Score = Callable[[np.ndarray], np.ndarray]
Space = Callable[[Policy, np.ndarray], np.ndarray]
FITTED_ON = 20_000


def scaled(policy: Policy, observations: np.ndarray) -> np.ndarray:
    """States in the scaler's space."""
    return (observations - policy.spec.obs_mean) / policy.spec.obs_std


def actor_features(policy: Policy, observations: np.ndarray) -> np.ndarray:
    """The actor's last hidden layer."""
    x = jnp.asarray(scaled(policy, observations))
    for layer in policy.models.actor.net.layers[:-1]:
        x = jax.nn.relu(layer(x))
    return np.asarray(x)


def critic_features(policy: Policy, observations: np.ndarray) -> np.ndarray:
    """The first critic's last hidden layer at the anchor."""
    spec, critic = policy.spec, policy.models.critics[0]
    action = (np.asarray(policy.actor(observations).mode()) - spec.action_middle) / spec.action_half
    x = critic.from_state(jnp.asarray(scaled(policy, observations))) + action @ critic.from_action
    x = jax.nn.relu(x)
    for layer in critic.net.layers[:-1]:
        x = jax.nn.relu(layer(x))
    return np.asarray(x)


def mahalanobis(space: Space) -> Any:
    """Distance to the mean, in units of the covariance."""

    def fit(policy: Policy, training: np.ndarray, rng: np.random.Generator) -> Score:
        x = space(policy, training[rng.choice(len(training), FITTED_ON)]).astype(np.float64)
        mean, covariance = x.mean(axis=0), np.cov(x.T)
        # Hidden units that are never on have no variance.
        covariance[np.diag_indices_from(covariance)] += 1e-4 * np.trace(covariance) / len(mean)
        factor = np.linalg.cholesky(np.linalg.inv(covariance))
        return lambda states: np.linalg.norm((space(policy, states) - mean) @ factor, axis=1)

    return fit


def neighbour(space: Space, k: int, count: int) -> Any:
    """Distance to the k-th nearest of `count` training states."""

    def fit(policy: Policy, training: np.ndarray, rng: np.random.Generator) -> Score:
        known = space(policy, training[rng.choice(len(training), count, replace=False)])

        def score(states: np.ndarray) -> np.ndarray:
            found = []
            for x in np.array_split(space(policy, states), -(-len(states) // 256)):
                square = (x**2).sum(1)[:, None] + (known**2).sum(1) - 2 * x @ known.T
                found.append(np.partition(square, k - 1, axis=1)[:, k - 1])
            return np.concatenate(found)

        return score

    return fit


def mixture(components: int) -> Any:
    """Minus the log density under a Gaussian mixture over scaled states."""

    def fit(policy: Policy, training: np.ndarray, rng: np.random.Generator) -> Score:
        scaler = (policy.spec.obs_mean, policy.spec.obs_std)
        return fit_density(training, *scaler, seed=0, components=components).novelty

    return fit


SCORES = {
    "Mahalanobis, states": mahalanobis(scaled),
    "1st neighbour of 5,000, states": neighbour(scaled, 1, 5_000),
    "5th neighbour of 5,000, states": neighbour(scaled, 5, 5_000),
    "1st neighbour of 20,000, states": neighbour(scaled, 1, 20_000),
    "Mahalanobis, actor's features": mahalanobis(actor_features),
    "1st neighbour of 5,000, actor's features": neighbour(actor_features, 1, 5_000),
    "Mahalanobis, a critic's features": mahalanobis(critic_features),
    "1st neighbour of 5,000, a critic's features": neighbour(critic_features, 1, 5_000),
    "mixture of 8, states": mixture(8),
    "mixture of 64, states": mixture(64),
}
