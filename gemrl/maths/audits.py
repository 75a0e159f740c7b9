"""What is recorded of a decision or a model so that a person can judge it. Never used in a loss."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gemrl.maths.mixture import Mixture, top_component

# Section 4.1: an action more than two candidate-set standard deviations below the mean support.
VIOLATION_Z = -2.0


def violation(support_z: Float[Array, "*b"]) -> Bool[Array, "*b"]:
    """Is the action's support low within its candidate set? Impossible with fewer than six."""
    return support_z < VIOLATION_Z


def collapse_distance(
    action: Float[Array, "*b a"], means: Float[Array, "*b k a"]
) -> Float[Array, "*b"]:
    """Euclidean distance from an action to the nearest component mean (Section 4.1)."""
    return jnp.min(jnp.linalg.norm(means - action[..., None, :], axis=-1), axis=-1)


def nll_gap(
    mixture: Mixture, action: Float[Array, "*b a"]
) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
    """NLL of each action under the mixture, and how much worse its heaviest component is.

    The gap is NLL_top1 - NLL_gmm (Eq. 72 to 75). The gate weight is left out of the top component's
    density, as in the paper, so a negative gap is possible.
    """
    nll = -mixture.log_prob(action)
    return nll, -top_component(mixture).log_prob(action) - nll
