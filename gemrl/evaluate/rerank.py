"""Other knobs for candidates that were scored before: no network is evaluated again.

A decision's record holds each critic's value and the log support of every candidate. All that λ and
w_p change follows from these. So does a smaller N: its candidates are a prefix of a larger N's.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gemrl.maths.score import lcb, score, top_k, zscore


class Reranked(NamedTuple):
    """What each setting chooses at each state: N counts, L values of λ, P of w_p, B states."""

    chosen: Int[Array, "n l p b"]
    """Index of the top candidate."""
    lcb: Float[Array, "n l p b"]
    """Its lower confidence bound."""
    support_z: Float[Array, "n l p b"]
    """Its support within the candidate set; NaN without a density."""


@partial(jax.jit, static_argnames=("support", "value"))
def rerank(
    q: Float[Array, "b m c"],
    log_support: Float[Array, "b c"] | None,
    counts: Int[Array, " n"],
    lams: Float[Array, " l"],
    wps: Float[Array, " p"],
    *,
    support: str = "zscore",
    value: str = "raw",
) -> Reranked:
    """The top of the first `count` candidates at every state, for every count, λ and w_p.

    A count has the anchor in it. `support` and `value` are the knobs of these names. Without a
    density there is no support to weigh, and every w_p gives the same.
    """

    def one(q: Array, log_support: Array | None, among: Array, lam: Array, wp: Array) -> Reranked:
        bound = lcb(q, lam)
        ranked = zscore(bound, among) if value == "zscore" else bound
        support_z = jnp.full(bound.shape, jnp.nan)
        if log_support is not None:
            support_z = zscore(log_support, among)
            ranked = score(ranked, log_support if support == "raw" else support_z, wp)
        chosen = top_k(ranked, 1, among)[0]
        return Reranked(chosen, bound[chosen], support_z[chosen])

    at_states = jax.vmap(one, (0, 0, None, None, None))
    with_weights = jax.vmap(at_states, (None, None, None, None, 0))
    with_bounds = jax.vmap(with_weights, (None, None, None, 0, None))
    places = jnp.arange(q.shape[-1])
    # One count after the other, which bounds the memory.
    return jax.lax.map(lambda n: with_bounds(q, log_support, places < n, lams, wps), counts)
