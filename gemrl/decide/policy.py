"""A trained policy as a person uses it: observations in, decisions out, in environment units."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from gemrl.data.tasks import TASKS
from gemrl.decide.decision import Decision
from gemrl.decide.knobs import Knobs
from gemrl.decide.select import Scales, Shape, critic_values, decide_batch
from gemrl.errors import KnobError, ObservationError
from gemrl.learn.bundle import Bundle, load_bundle
from gemrl.maths.mixture import Mixture, row_keys
from gemrl.methods.networks import MixtureNet
from gemrl.methods.protocol import Models


class Policy:
    """A proposal, and where the method has them critics and a behaviour density."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.models: Models = bundle.models
        self.spec = bundle.spec
        self._scales = Scales(
            *(
                jnp.asarray(getattr(self.spec, name))
                for name in ("obs_mean", "obs_std", "action_low", "action_high")
            )
        )

    @property
    def method(self) -> str:
        """Name of the method that trained it."""
        return self.bundle.manifest["method"]

    @property
    def digest(self) -> str:
        """SHA-256 that names this policy."""
        return self.bundle.digest

    @property
    def default_knobs(self) -> Knobs:
        """What `decide` uses where no knobs are given."""
        return self.knobs_for(self.bundle.manifest["task"])

    def knobs_for(self, task: str | None) -> Knobs:
        """The paper's knobs for a task's suite, and no more than the models can serve."""
        if not self.models.critics or self.models.behavior is None:
            return Knobs(n=0, wp=0.0)
        known = TASKS.get(task or "")
        return Knobs() if known is None else Knobs(lam=known.lam, wp=known.wp_end)

    def decide(
        self,
        obs: Any,
        knobs: Knobs | None = None,
        *,
        seed: int | np.ndarray = 0,
        t: int | np.ndarray | None = None,
    ) -> Decision:
        """Choose an action for an observation [S], or one each for a batch [B, S].

        `seed` decides the candidates: row i of a batch draws with `fold_in(key(seed), i)`, and an
        array of seeds gives each row what it would get alone. Noise is the same bit for bit
        whatever the batch and n; values computed from it agree up to rounding. `t` is the episode's
        step, for a schedule of the support weight.
        """
        knobs = self.default_knobs if knobs is None else knobs
        if not isinstance(knobs, Knobs):
            raise KnobError(f"knobs = {knobs!r}: must be gemrl.Knobs")
        self._require_models(knobs)
        rows, single = self._rows(obs)
        steps = None if t is None else _whole_numbers("t", t, len(rows), 2**31)
        result = _decide(
            self.models,
            self._scales,
            rows,
            _keys(seed, len(rows)),
            np.float32(knobs.lam),
            knobs.weight_at(steps, len(rows)),
            shape=Shape(*(getattr(knobs, name) for name in Shape._fields)),
        )
        decision = Decision(**{name: np.asarray(value) for name, value in result.items()})
        self._require_finite(decision)
        return decision.row(0) if single else decision

    def actor(self, obs: Any) -> Mixture:
        """The proposal at an observation, in environment units."""
        return self._mixture(self.models.actor, obs)

    def behavior(self, obs: Any) -> Mixture:
        """The behaviour density at an observation, in environment units."""
        if self.models.behavior is None:
            raise KnobError(f"a policy of method {self.method!r} has no behaviour density")
        return self._mixture(self.models.behavior, obs)

    def q_values(self, obs: Any, actions: Any) -> np.ndarray:
        """Each critic's value: obs [S] and actions [C, A] give [M, C]; a batch gives [B, M, C]."""
        rows, single = self._rows(obs)
        given = np.asarray(actions)
        candidates = given[None] if single else given
        fits = candidates.ndim == 3 and len(candidates) == len(rows)
        if not fits or candidates.shape[2] != self.spec.action_dim:
            batch = "" if single else f"{len(rows)}, "
            raise ObservationError(
                f"actions have shape {given.shape}: must be [{batch}C, {self.spec.action_dim}]"
            )
        values = _finite_float32("actions", candidates)
        return np.asarray(_values(self.models, self._scales, rows, values))[0 if single else ...]

    def audited_by(self, other: "Policy") -> "Policy":
        """This policy's proposal with another's critics and density, so that its decisions carry
        the same audits. What it executes at n = 0 does not change.
        """
        models = dataclasses.replace(other.models, actor=self.models.actor)
        if self.spec.to_json() != other.spec.to_json():
            raise KnobError("the two policies scale their inputs differently: train on one dataset")
        return Policy(dataclasses.replace(self.bundle, models=models))

    def _mixture(self, net: MixtureNet, obs: Any) -> Mixture:
        rows, single = self._rows(obs)
        mixture = _mixture(net, self._scales, rows)
        return jax.tree.map(lambda x: np.asarray(x)[0 if single else ...], mixture)

    def _rows(self, obs: Any) -> tuple[np.ndarray, bool]:
        """The observation as rows of float32, and whether it was a single one."""
        try:
            given = np.asarray(obs)
        except ValueError as error:
            raise ObservationError(
                f"the observation is not an array of numbers: {error}"
            ) from error
        size = self.spec.obs_dim
        if given.ndim not in (1, 2) or given.shape[-1] != size or given.shape[0] == 0:
            raise ObservationError(
                f"the observation has shape {given.shape}: must be [{size}], or [B, {size}] with "
                "at least one row"
            )
        rows = _finite_float32("the observation", given)
        return (rows[None], True) if given.ndim == 1 else (rows, False)

    def _require_finite(self, decision: Decision) -> None:
        """Refuse a state so far from the data that the networks overflow."""
        scores = decision.score if self.models.critics else decision.action
        overflown = ~(np.isfinite(scores).all(axis=1) & np.isfinite(decision.action).all(axis=1))
        if overflown.any():
            raise ObservationError(
                f"the observation in row {int(np.argmax(overflown))} is so large that scores are "
                "not finite any more; it cannot be of the kind that the policy was trained on"
            )

    def _require_models(self, knobs: Knobs) -> None:
        if not self.models.critics and knobs.n > 0:
            raise KnobError(f"n = {knobs.n}: method {self.method!r} has no critics; n must be 0")
        if self.models.behavior is None:
            if knobs.source == "behavior":
                raise KnobError(
                    f"source = 'behavior': method {self.method!r} has no behaviour density"
                )
            if knobs.wp != 0:
                raise KnobError(
                    f"wp = {knobs.wp!r}: method {self.method!r} has no behaviour density; wp must "
                    "be 0"
                )


def load(run: str | Path) -> Policy:
    """The policy of a run folder."""
    return Policy(load_bundle(run))


_decide = partial(jax.jit, static_argnames="shape")(decide_batch)


@jax.jit
def _values(models: Models, scales: Scales, obs: Array, actions: Array) -> Array:
    scaled = (obs - scales.obs_mean) / scales.obs_std
    return jax.lax.map(lambda row: critic_values(models, scales, *row), (scaled, actions))


@jax.jit
def _mixture(net: MixtureNet, scales: Scales, obs: Array) -> Mixture:
    return net((obs - scales.obs_mean) / scales.obs_std).affine(scales.half, scales.middle)


def _keys(seed: int | np.ndarray, rows: int) -> Key[Array, " b"]:
    if np.ndim(seed) == 0:
        return _row_keys(_whole_numbers("seed", seed, 1, 2**32).astype(np.uint32)[0], rows)
    return _first_row_keys(_whole_numbers("seed", seed, rows, 2**32).astype(np.uint32))


_row_keys = partial(jax.jit, static_argnums=1)(row_keys)


@jax.jit
def _first_row_keys(seeds: Array) -> Key[Array, " b"]:
    """Each row's key as if it were row 0 of a batch of its own."""
    return jax.vmap(lambda seed: row_keys(seed, 1)[0])(seeds)


def _whole_numbers(name: str, value: Any, rows: int, limit: int) -> np.ndarray:
    """`value` as integers for each row, checked."""
    given = np.asarray(value)
    if given.dtype.kind not in "iu" or given.shape not in ((), (rows,)):
        raise KnobError(
            f"{name} = {value!r}: must be a whole number, or an array of {rows}, one for each row"
        )
    if (given < 0).any() or (given >= limit).any():
        raise KnobError(f"{name} = {value!r}: must lie from 0 to {limit - 1}")
    return np.broadcast_to(given, (rows,))


def _finite_float32(name: str, given: np.ndarray) -> np.ndarray:
    if given.dtype.kind not in "fiu":
        raise ObservationError(f"{name} has type {given.dtype}: must be numbers")
    with np.errstate(over="ignore"):
        values = given.astype(np.float32)
    if not np.isfinite(values).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ObservationError(f"{name} holds {given[place]} at {list(place)}: must be finite")
    return values
