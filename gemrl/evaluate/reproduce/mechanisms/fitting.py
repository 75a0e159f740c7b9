"""Mixtures fitted by weighted EM to actions of a single state whose distribution is known."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gemrl.maths.mixture import Mixture, log_joint, responsibilities

STEPS = 100
# As the networks' floor: without one a component shrinks onto a single action.
LOWEST_STD = 0.02


def fit(
    actions: Float[np.ndarray, "r n 1"], weights: Float[np.ndarray, "r n"], components: int
) -> Mixture:
    """For each of R datasets the mixture that maximizes the weighted likelihood.

    Components start at quantiles of the actions. With one component it is the Gaussian of maximum
    likelihood, in closed form.
    """
    places = (np.arange(components) + 0.5) / components
    means = np.quantile(actions[..., 0], places, axis=1).T[..., None]
    stds = np.broadcast_to(actions.std(axis=1, keepdims=True), means.shape)
    start = Mixture(
        jnp.full(means.shape[:2], -jnp.log(components)), jnp.asarray(means), jnp.asarray(stds)
    )
    return _expectation_maximization(start, jnp.asarray(actions), jnp.asarray(weights))


@jax.jit
@jax.vmap
def _expectation_maximization(
    start: Mixture, actions: Float[Array, "n 1"], weights: Float[Array, " n"]
) -> Mixture:
    """Weights multiply samples and never touch responsibilities: the guided EM of Eq. 36 and 41."""

    def step(_: Array, mixture: Mixture) -> Mixture:
        share = responsibilities(log_joint(mixture, actions)) * weights[:, None]
        # A component that lost its samples keeps its place with no weight.
        mass = jnp.maximum(jnp.sum(share, axis=0), 1e-9)
        means = share.T @ actions / mass[:, None]
        squares = jnp.sum(share[..., None] * (actions[:, None] - means) ** 2, axis=0)
        stds = jnp.maximum(jnp.sqrt(squares / mass[:, None]), LOWEST_STD)
        return Mixture(jnp.log(mass / jnp.sum(mass)), means, stds)

    return jax.lax.fori_loop(0, STEPS, step, start)


def two_modes(separation: float, width: float, heavier: float = 0.6) -> Mixture:
    """Two Gaussians of one width whose means lie `separation` apart, about zero."""
    return Mixture(
        jnp.log(jnp.array([heavier, 1 - heavier])),
        jnp.array([[-separation / 2], [separation / 2]]),
        jnp.full((2, 1), width),
    )


def datasets(truth: Mixture, repeats: int, samples: int) -> Float[np.ndarray, "r n 1"]:
    """Datasets drawn from a known distribution."""
    return np.asarray(truth.sample(0, repeats * samples)).reshape(repeats, samples, 1)
