"""GEM's decision at one state (Algorithm 1 of the paper), as pure functions.

Nothing here knows a method: it takes a proposal, a density and critics.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from gemrl.maths.audits import collapse_distance, violation
from gemrl.maths.mixture import (
    Mixture,
    barycenter,
    mode,
    sample_from_noise,
    sampling_noise,
    top_component,
)
from gemrl.maths.score import lcb, moments, score, standardize, top_k, top_k_mean, zscore
from gemrl.methods.protocol import Models


class Scales(NamedTuple):
    """Observation scaler and action bounds as arrays on the device."""

    obs_mean: Float[Array, " s"]
    obs_std: Float[Array, " s"]
    action_low: Float[Array, " a"]
    action_high: Float[Array, " a"]

    @property
    def middle(self) -> Float[Array, " a"]:
        """Centre of the action bounds."""
        return (self.action_low + self.action_high) / 2

    @property
    def half(self) -> Float[Array, " a"]:
        """Half the width of the action bounds."""
        return (self.action_high - self.action_low) / 2


class Shape(NamedTuple):
    """The knobs that decide what is computed; each combination is compiled once."""

    n: int
    k_smooth: int
    source: str
    anchor: str
    support: str
    value: str


def propose(
    actor: Mixture, behavior: Mixture | None, key: Key[Array, ""], shape: Shape, scales: Scales
) -> Float[Array, "c a"]:
    """The candidate set: an anchor and N samples of one source, clipped (Eq. 1, Eq. 7)."""
    parts = []
    if shape.anchor != "none":
        parts.append((mode if shape.anchor == "mode" else barycenter)(actor)[None])
    if shape.n > 0:
        source = {"actor": actor, "behavior": behavior, "unimodal": top_component(actor)}
        chosen = source[shape.source]
        assert chosen is not None  # The policy refuses this knob where it has no density.
        noise = sampling_noise(key, shape.n, actor.means.shape[-1])
        parts.append(sample_from_noise(chosen, *noise))
    return jnp.clip(jnp.concatenate(parts), scales.action_low, scales.action_high)


def decide_one(
    models: Models,
    scales: Scales,
    obs: Float[Array, " s"],
    key: Key[Array, ""],
    lam: Float[Array, ""],
    wp: Float[Array, ""],
    shape: Shape,
) -> dict[str, Array]:
    """The fields of a `Decision` at one state."""
    scaled = (obs - scales.obs_mean) / scales.obs_std
    actor = models.actor(scaled).affine(scales.half, scales.middle)
    density = models.behavior
    behavior = None if density is None else density(scaled).affine(scales.half, scales.middle)

    def support_of(action: Float[Array, "*c a"]) -> Float[Array, "*c"]:
        missing = jnp.full(action.shape[:-1], jnp.nan)
        return missing if behavior is None else behavior.log_prob(action)

    def distance_of(action: Float[Array, " a"]) -> Float[Array, ""]:
        missing = jnp.full((), jnp.nan)
        return missing if behavior is None else collapse_distance(action, behavior.means)

    candidates = propose(actor, behavior, key, shape, scales)
    q = critic_values(models, scales, scaled, candidates)
    value = lcb(q, lam) if models.critics else jnp.full(candidates.shape[:1], jnp.nan)
    log_support = support_of(candidates)
    support_z = zscore(log_support)

    ranked_value = zscore(value) if shape.value == "zscore" else value
    ranked_support = log_support if shape.support == "raw" else support_z
    # Without a density the weight is zero by rule, and 0 x NaN would hide the value.
    scores = ranked_value if behavior is None else score(ranked_value, ranked_support, wp)
    top = top_k(scores, shape.k_smooth)
    chosen = top[0]
    if shape.k_smooth == 1:
        action, executed_log_support = candidates[chosen], log_support[chosen]
        executed_z = support_z[chosen]
    else:
        # A mean of actions at a bound can pass it by rounding.
        action = jnp.clip(top_k_mean(candidates, top), scales.action_low, scales.action_high)
        executed_log_support = support_of(action)
        executed_z = standardize(executed_log_support, *moments(log_support))
    return {
        "action": action,
        "candidates": candidates,
        "q": q,
        "lcb": value,
        "log_support": log_support,
        "support_z": support_z,
        "score": scores,
        "chosen": chosen,
        "n_scored": jnp.asarray(candidates.shape[0]),
        "wp": wp,
        "violation": violation(support_z[chosen]),
        "collapse_dist": distance_of(candidates[chosen]),
        "executed_log_support": executed_log_support,
        "executed_support_z": executed_z,
        "executed_violation": violation(executed_z),
        "executed_collapse_dist": distance_of(action),
    }


def critic_values(
    models: Models, scales: Scales, scaled: Float[Array, " s"], actions: Float[Array, "c a"]
) -> Float[Array, "m c"]:
    """Q_i(s, a_j) of every critic, for actions in environment units."""
    if not models.critics:
        return jnp.zeros((0, actions.shape[0]))
    unit = (actions - scales.middle) / scales.half
    return jnp.stack([critic(scaled, unit) for critic in models.critics])


# Rows that are evaluated together: enough to fill a matrix product, few enough to stay in cache.
ROWS_TOGETHER = 1024


def decide_batch(
    models: Models,
    scales: Scales,
    obs: Float[Array, "b s"],
    keys: Key[Array, " b"],
    lam: Float[Array, ""],
    wp: Float[Array, " b"],
    shape: Shape,
) -> dict[str, Array]:
    """`decide_one` for each row, in blocks: faster than all at once, and with bounded memory."""
    if not models.critics:
        # Nothing heavy to evaluate, and the blocked map cannot carry an empty array of values.
        return jax.vmap(lambda o, k, w: decide_one(models, scales, o, k, lam, w, shape))(
            obs, keys, wp
        )
    block = max(1, ROWS_TOGETHER // (shape.n + 1))
    return jax.lax.map(
        lambda row: decide_one(models, scales, row[0], row[1], lam, row[2], shape),
        (obs, keys, wp),
        batch_size=min(block, obs.shape[0]),
    )
