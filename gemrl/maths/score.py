"""The decision's score: a lower confidence bound on value plus support within the candidate set.

`M` is the number of critics and `C` the number of candidates, anchor included. Where only some of C
places hold candidates, as in a search that a deadline cut short, `among` says which.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

# Eq. 11: the paper's clamp on the standard deviation of a candidate set.
MIN_STD = 1e-6

# What a decision's key is folded with for draws among its candidates; samples have small numbers.
DRAW = 2**32 - 1


def lcb(q: Float[Array, "m c"], lam: Float[Array, ""] | float) -> Float[Array, " c"]:
    """Mean over the critics minus `lam` population standard deviations (Eq. 3, 8 and 9)."""
    return jnp.mean(q, axis=0) - lam * jnp.std(q, axis=0)


def moments(
    x: Float[Array, " c"], among: Bool[Array, " c"] | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and clamped population standard deviation over a candidate set (Eq. 11).

    Taken of differences to the first value: the mean of equal values is then exactly that value.
    """
    offset = x - x[0]
    mean, std = jnp.mean(offset, where=among), jnp.std(offset, where=among)
    return x[0] + mean, jnp.maximum(std, MIN_STD)


def standardize(
    x: Float[Array, "*c"], mean: Float[Array, ""], std: Float[Array, ""]
) -> Float[Array, "*c"]:
    """A value in standard deviations of a candidate set."""
    return (x - mean) / std


def zscore(x: Float[Array, " c"], among: Bool[Array, " c"] | None = None) -> Float[Array, " c"]:
    """Standardize within the candidate set (Eq. 2): zero for a single candidate.

    No value of C lies further than sqrt(C - 1) from the mean; rounding must not take it there.
    """
    count = x.shape[0] if among is None else jnp.sum(among)
    limit = jnp.sqrt(count - 1)
    return jnp.clip(standardize(x, *moments(x, among)), -limit, limit)


def score(
    value: Float[Array, " c"], support: Float[Array, " c"], wp: Float[Array, ""] | float
) -> Float[Array, " c"]:
    """Value plus `wp` times support (Eq. 4, Eq. 14)."""
    return value + wp * support


def draw_noise(key: Key[Array, ""], count: int) -> Float[Array, " c"]:
    """Standard Gumbel noise of candidates 0 to `count - 1`, that of c by the key and c alone."""
    drawing = jax.random.fold_in(key, jnp.uint32(DRAW))
    words = jax.vmap(lambda c: jax.random.key_data(jax.random.fold_in(drawing, c))[0])(
        jnp.arange(count)
    )
    # 23 bits and a half: with those a float32 is never 0 nor 1.
    uniform = ((words >> 9).astype(jnp.float32) + 0.5) * 2.0**-23
    return -jnp.log(-jnp.log(uniform))


def perturbed(
    scores: Float[Array, "*b c"],
    noise: Float[Array, "*b c"],
    temperature: Float[Array, "*#b #c"] | float,
) -> Float[Array, "*b c"]:
    """Scores whose highest is a draw in proportion to exp(score / temperature), Gumbel's noise
    given; the k highest are k draws without replacement.
    """
    return scores + temperature * noise


def top_k(
    scores: Float[Array, " c"], k: int, among: Bool[Array, " c"] | None = None
) -> Int[Array, " k"]:
    """Indices of the `min(k, C)` highest scores, best first; the lower index wins a tie."""
    # The sort takes -0.0 for less than 0.0; scores that are equal must tie.
    unsigned = jnp.where(scores == 0, 0.0, scores)
    held = unsigned if among is None else jnp.where(among, unsigned, -jnp.inf)
    return jax.lax.top_k(held, min(k, scores.shape[0]))[1]


def top_k_mean(
    actions: Float[Array, "c a"], top: Int[Array, " k"], among: Bool[Array, " c"] | None = None
) -> Float[Array, " a"]:
    """Mean of the best actions (Eq. 15, Eq. 78); with one, that action itself."""
    held = None if among is None else among[top][:, None]
    return jnp.mean(actions[top], axis=0, where=held)
