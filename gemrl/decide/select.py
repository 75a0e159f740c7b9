"""GEM's decision at one state (Algorithm 1 of the paper), as pure functions.

Nothing here knows a method: it takes a proposal, a density and critics.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from gemrl.decide.knobs import Knobs
from gemrl.maths.audits import collapse_distance, violation
from gemrl.maths.mixture import (
    Mixture,
    barycenter,
    mode,
    sample_from_noise,
    sampling_noise,
    top_component,
)
from gemrl.maths.score import (
    draw_noise,
    lcb,
    moments,
    perturbed,
    score,
    standardize,
    top_k,
    top_k_mean,
    zscore,
)
from gemrl.methods.networks import MixtureNet
from gemrl.methods.protocol import Models
from gemrl.methods.samplers import Sampler


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
    draws: bool
    """Whether a candidate is drawn, and not the best one taken."""

    @staticmethod
    def of(knobs: Knobs) -> "Shape":
        """The part of these knobs that decides what is computed."""
        return Shape(
            *(knobs.n, knobs.k_smooth, knobs.source, knobs.anchor, knobs.support, knobs.value),
            draws=knobs.temperature > 0,
        )

    @property
    def candidates(self) -> int:
        """C, the number of candidates, anchor included."""
        return self.n + (self.anchor != "none")


class Weights(NamedTuple):
    """The knobs that are numbers to a program, any of which it takes: [B] of a batch, or one of a
    state.
    """

    lam: Any
    wp: Any
    temperature: Any


class State(NamedTuple):
    """What does not depend on candidates: a state, its mixtures in environment units, its key."""

    scaled: Float[Array, "*b s"]
    """The observation as the networks see it."""
    actor: Mixture | None
    """None where the proposal is a sampler, which makes candidates of noise."""
    behavior: Mixture | None
    key: UInt32[Array, "*b 2"]
    """The key's two words, from which the noise of every candidate follows."""


class Scored(NamedTuple):
    """Candidates and what the networks say of them. A batch has a leading axis B."""

    candidates: Any
    """[c, A] Clipped to the bounds."""
    q: Any
    """[M, c] Each critic's value."""
    log_support: Any
    """[c] Log density under the behaviour mixture, NaN without one."""


def look(
    models: Models,
    scales: Scales,
    obs: Float[Array, " s"],
    seed: UInt32[Array, ""],
    row: UInt32[Array, ""],
) -> State:
    """Evaluate at one state all that does not depend on candidates."""
    scaled = (obs - scales.obs_mean) / scales.obs_std
    actor, behavior = (
        net(scaled).affine(scales.half, scales.middle) if isinstance(net, MixtureNet) else None
        for net in (models.actor, models.behavior)
    )
    return State(
        scaled,
        actor,
        behavior,
        jax.random.key_data(jax.random.fold_in(jax.random.key(seed), row)),
    )


def propose(
    models: Models,
    state: State,
    scales: Scales,
    source: str,
    anchor: str,
    first: Int[Array, ""] | int,
    count: int,
) -> Float[Array, "c a"]:
    """Candidates `first` to `first + count - 1`: an anchor, then samples of one source, clipped
    (Eq. 1, Eq. 7). Where there is an anchor it is candidate 0, and sample j is candidate j + 1.
    """
    key, sample = jax.random.wrap_key_data(state.key), first - (anchor != "none")
    is_anchor = (first + jnp.arange(count) == 0)[:, None] & (anchor != "none")
    if source == "actor" and isinstance(models.actor, Sampler):
        _, noise = sampling_noise(key, count, models.actor.noise_size, sample)
        unit = models.actor(state.scaled, jnp.where(is_anchor, 0.0, noise))
        candidates = unit * scales.half + scales.middle
        return jnp.clip(candidates, scales.action_low, scales.action_high)
    mixture = state.behavior if source == "behavior" else state.actor
    assert mixture is not None  # The policy refuses this knob where it has no such mixture.
    mixture = top_component(mixture) if source == "unimodal" else mixture
    noise = sampling_noise(key, count, len(scales.action_low), sample)
    candidates = sample_from_noise(mixture, *noise)
    if anchor != "none":
        candidates = jnp.where(is_anchor, _anchor(models, state, scales, anchor), candidates)
    return jnp.clip(candidates, scales.action_low, scales.action_high)


def _anchor(models: Models, state: State, scales: Scales, anchor: str) -> Float[Array, " a"]:
    """The deterministic action of the proposal."""
    if isinstance(models.actor, Sampler):
        unit = models.actor(state.scaled, jnp.zeros(models.actor.noise_size))
        return unit * scales.half + scales.middle
    assert state.actor is not None
    return (mode if anchor == "mode" else barycenter)(state.actor)


def score_candidates(
    models: Models, scales: Scales, state: State, candidates: Float[Array, "c a"]
) -> Scored:
    """Evaluate critics and density at the candidates of one state."""
    return Scored(
        candidates,
        critic_values(models, scales, state.scaled, candidates),
        _support(state, candidates),
    )


def critic_values(
    models: Models, scales: Scales, scaled: Float[Array, " s"], actions: Float[Array, "c a"]
) -> Float[Array, "m c"]:
    """Q_i(s, a_j) of every critic, for actions in environment units."""
    if not models.critics:
        return jnp.zeros((0, actions.shape[0]))
    unit = (actions - scales.middle) / scales.half
    return jnp.stack([critic(scaled, unit) for critic in models.critics])


def rank(
    scales: Scales,
    state: State,
    scored: Scored,
    count: Int[Array, ""] | int,
    weights: Weights,
    shape: Shape,
) -> dict[str, Array]:
    """The fields of a `Decision` at one state, from the first `count` of the scored places."""
    candidates, q, log_support = scored
    lam, wp, temperature = weights
    among = jnp.arange(candidates.shape[0]) < count
    value = lcb(q, lam) if q.shape[0] else jnp.full(log_support.shape, jnp.nan)
    support_z = zscore(log_support, among)

    ranked_value = zscore(value, among) if shape.value == "zscore" else value
    ranked_support = log_support if shape.support == "raw" else support_z
    # Without a density the weight is zero by rule, and 0 x NaN would hide the value.
    scores = ranked_value if state.behavior is None else score(ranked_value, ranked_support, wp)
    ranked = scores
    if shape.draws:
        noise = draw_noise(jax.random.wrap_key_data(state.key), candidates.shape[0])
        ranked = perturbed(scores, noise, temperature)
    top = top_k(ranked, shape.k_smooth, among)
    chosen = top[0]
    if shape.k_smooth == 1:
        action, executed_log_support = candidates[chosen], log_support[chosen]
        executed_z = support_z[chosen]
    else:
        # A mean of actions at a bound can pass it by rounding.
        mean = top_k_mean(candidates, top, among)
        action = jnp.clip(mean, scales.action_low, scales.action_high)
        executed_log_support = _support(state, action)
        executed_z = standardize(executed_log_support, *moments(log_support, among))
    return {
        "action": action,
        "candidates": candidates,
        "q": q,
        "lcb": value,
        "log_support": log_support,
        "support_z": support_z,
        "score": scores,
        "chosen": chosen,
        "n_scored": jnp.asarray(count),
        "wp": wp,
        "violation": violation(support_z[chosen]),
        "collapse_dist": _distance(state, candidates[chosen]),
        "executed_log_support": executed_log_support,
        "executed_support_z": executed_z,
        "executed_violation": violation(executed_z),
        "executed_collapse_dist": _distance(state, action),
    }


def _support(state: State, action: Float[Array, "*c a"]) -> Float[Array, "*c"]:
    if state.behavior is None:
        return jnp.full(action.shape[:-1], jnp.nan)
    return state.behavior.log_prob(action)


def _distance(state: State, action: Float[Array, " a"]) -> Float[Array, ""]:
    if state.behavior is None:
        return jnp.full((), jnp.nan)
    return collapse_distance(action, state.behavior.means)
