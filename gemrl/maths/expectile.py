"""Expectile regression and the advantage weight built on it."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def expectile_loss(delta: Float[Array, "*b"], expectile: float) -> Float[Array, "*b"]:
    """|expectile - 1{delta < 0}| delta^2  (Eq. 65).

    Its minimizer satisfies E[|expectile - 1{delta < 0}| delta] = 0; Eq. 67 of the paper leaves out
    the absolute value.
    """
    return jnp.where(delta < 0, 1 - expectile, expectile) * delta**2


def guidance_weight(advantage: Float[Array, "*b"], beta: float, cap: float) -> Float[Array, "*b"]:
    """min(exp(beta A), cap)  (Eq. 41, Eq. 69); the cap comes before exp, which cannot overflow."""
    # Capped twice: exp(log(cap)) may miss the cap by rounding.
    return jnp.minimum(jnp.exp(jnp.minimum(beta * advantage, jnp.log(cap) + 1)), cap)
