"""A trained policy as a person uses it: observations in, decisions out, in environment units."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from gemrl.data.tasks import TASKS
from gemrl.decide.backend import Backend, Shape, Weights, backend_for, wanted_backend
from gemrl.decide.checks import finite_float32, observations, whole_numbers
from gemrl.decide.decision import Decision
from gemrl.decide.dense import scales_of
from gemrl.decide.history import PACKED, History, context_spec, contexts_at
from gemrl.decide.knobs import MAX_CANDIDATES, Knobs, whole_number
from gemrl.decide.search import CHUNK, Asked, Deadlines, block_of, joined, search, split
from gemrl.decide.select import Scales, critic_values
from gemrl.decide.verdict import SEARCH
from gemrl.errors import KnobError, ObservationError
from gemrl.learn.bundle import Bundle, config_from_json, load_bundle, manifest_digest
from gemrl.learn.spec import Spec
from gemrl.maths.mixture import Mixture
from gemrl.methods import method_named
from gemrl.methods.context import Context
from gemrl.methods.networks import MixtureNet, rescaled
from gemrl.methods.protocol import Models

RULES = ("own", "gem")


class Policy:
    """A proposal, and where the method has them critics and a behaviour density.

    `backend` says who evaluates the networks: "jax", "fast" (numba, the extra `gemrl[fast]`), or
    "auto", which takes fast where it is installed and knows the networks. The environment variable
    GEMRL_BACKEND (auto, jax or fast) speaks for "auto".
    """

    def __init__(self, bundle: Bundle, backend: str = "auto") -> None:
        self.bundle = bundle
        self.models: Models = bundle.models
        self.spec = bundle.spec
        self.context = _context_of(bundle)
        self._scales = scales_of(self.spec)
        self._wanted = backend
        # Asked at every decision, and slow to ask of the models.
        self._has_critics = bool(self.models.critics)
        self._has_density = self.models.behavior is not None
        if wanted_backend(backend) != "auto":
            # One that was asked for by name fails now, not at the first decision.
            _ = self.backend

    @cached_property
    def backend(self) -> Backend:
        """Who evaluates the networks of a decision."""
        return backend_for(self.models, self.input_spec, self._wanted)

    @cached_property
    def input_spec(self) -> Spec:
        """How the networks' inputs are scaled: observations, or contexts where it looks back."""
        return self.spec if self.context is None else context_spec(self.spec, self.context)

    @property
    def method(self) -> str:
        """Name of the method that trained it."""
        return self.bundle.manifest["method"]

    @property
    def digest(self) -> str:
        """SHA-256 that names this policy."""
        return self.bundle.digest

    @cached_property
    def default_knobs(self) -> Knobs:
        """What `decide` uses where no knobs are given."""
        return self.knobs_for(self.bundle.manifest["task"])

    def knobs_for(self, task: str | None, decide: str = "own") -> Knobs:
        """The knobs of a rule: the method's own, or GEM's (`decide="gem"`) for a task's suite."""
        if decide not in RULES:
            raise KnobError(f"decide = {decide!r}: must be one of {', '.join(RULES)}")
        searches = bool(self.models.critics) and self.models.behavior is not None
        if decide == "gem" and not searches:
            raise KnobError(
                f"decide = 'gem' needs critics and a behaviour density, and this policy of method "
                f"{self.method!r} lacks one: with critics, give it the density of a GEM run "
                "(--behavior RUN, or with_density in Python)"
            )
        own = own_knobs(self.bundle.manifest, self.spec) if decide == "own" else None
        if own is not None:
            return own
        if not searches:
            return Knobs(n=0, wp=0.0)
        known = TASKS.get(task or "")
        return Knobs() if known is None else Knobs(lam=known.lam, wp=known.wp_end)

    def decide(
        self,
        obs: Any,
        knobs: Knobs | Sequence[Knobs] | None = None,
        *,
        seed: int | np.ndarray = 0,
        t: int | np.ndarray | None = None,
        deadline_ms: float | np.ndarray | Deadlines | None = None,
        chunk: int | None = None,
        history: History | None = None,
    ) -> Decision:
        """Choose an action for an observation [S], or one each for a batch [B, S].

        `knobs` may be a list with those of each row. `seed` decides the candidates: row i of a
        batch draws with `fold_in(key(seed), i)`, and an array of seeds gives each row what it would
        get alone; of shape [B, 2] it holds each row's seed and the i to draw as. With one backend
        candidates are the same bit for bit whatever the batch, and a mixture's also whatever n and
        chunk; values computed from them agree up to rounding. `t` is the episode's step, for a
        schedule of the support weight.

        With `chunk` the candidates are scored so many at a time. With `deadline_ms` no chunk (of
        128, where `chunk` does not say) begins later than so many milliseconds after the call.
        The first chunk, which has the anchor, is always scored; the record holds what was scored.
        The rows of a batch may have deadlines of their own: an array, or `Deadlines`.
        The first call of its kind compiles, and can be late for that: see `warm_up`.

        The same seed makes the same noise: where samples are executed or drawn (`temperature`),
        give each step of an episode a seed of its own.

        A policy that looks back (`policy.context`) is told of the episode so far by `history`;
        without one, the observation is an episode's first.
        """
        rows, single = self._rows(obs)
        rows = contexts_at(self, rows, single, history)
        deadlines = deadline_ms
        if deadlines is not None and not isinstance(deadlines, Deadlines):
            deadlines = Deadlines.after(deadlines, len(rows))
        if chunk is not None:
            chunk = whole_number("chunk", chunk, 1, MAX_CANDIDATES)
        elif deadlines is not None:
            chunk = CHUNK
        each = self._checked_knobs(knobs, len(rows), single)
        shapes = [Shape.of(knobs) for knobs in each]
        ways = [(shape, block_of(shape, chunk), shape.candidates) for shape in shapes]
        return self._decide(rows, single, each, ways, seed, t, deadlines)

    def warm_up(self, knobs: Knobs | None = None, batch: int = 1, chunk: int | None = None) -> None:
        """Compile what decisions with these knobs need, so that the first is as fast as the rest.

        `batch` is the number of observations in a call. For decisions with a deadline give their
        chunk: 128, where they name none.
        """
        batch = whole_number("batch", batch, 1, 2**31 - 1)
        self.decide(np.tile(self.spec.obs_mean, (batch, 1)), knobs, t=0, chunk=chunk)

    def replay(
        self,
        obs: Any,
        record: Decision | dict[str, Any],
        knobs: Knobs | Sequence[Knobs] | None = None,
        *,
        seed: int | np.ndarray = 0,
        t: int | np.ndarray | None = None,
        history: History | None = None,
    ) -> Decision:
        """Decide again as a record says it was done: bit for bit the same, given the same call.

        `record` is a `Decision` or its `to_json`. The chunks that were scored before a deadline are
        scored again, whatever the clock says. Where a guard put another action in place of the
        search's, it is the search that is made again.
        """
        record = record if isinstance(record, Decision) else Decision.from_json(record)
        if record.digest != self.digest:
            raise KnobError(
                f"the record is of policy {record.digest[:16]}, and this is {self.digest[:16]}: "
                "load the policy that made it"
            )
        if record.backend != self.backend.name:
            raise KnobError(
                f"the record was made with backend {record.backend!r}, and this policy decides "
                f"with {self.backend.name!r}: load it with backend={record.backend!r}"
            )
        again = self.decide_again(
            obs,
            knobs,
            seed=seed,
            t=t,
            block=record.block,
            n_scored=record.n_scored,
            history=history,
        )
        same = np.array_equal(again.candidates, record.candidates, equal_nan=True)
        close = np.allclose(again.lcb, record.lcb, rtol=1e-3, atol=1e-3, equal_nan=True)
        chosen = all(
            np.array_equal(getattr(again, name), getattr(record, name)) for name in ("wp", "chosen")
        )
        searched = np.asarray(record.rung == SEARCH)[..., None]
        acted = again.action.shape == record.action.shape and np.array_equal(
            np.where(searched, again.action, 0), np.where(searched, record.action, 0)
        )
        if not (same and close and chosen and acted):
            raise KnobError(
                "the record was made with another observation, seed, step or other knobs: it "
                "cannot be replayed from these"
            )
        return again

    def decide_again(
        self,
        obs: Any,
        knobs: Knobs | Sequence[Knobs] | None = None,
        *,
        seed: int | np.ndarray = 0,
        t: int | np.ndarray | None = None,
        block: Any,
        n_scored: Any,
        history: History | None = None,
    ) -> Decision:
        """Decide with as many candidates, so many at a time, as a record's `n_scored` and `block`
        say, whatever the clock says.
        """
        rows, single = self._rows(obs)
        rows = contexts_at(self, rows, single, history)
        blocks, limits = np.atleast_1d(block, n_scored)
        if (np.ndim(n_scored) == 0) != single or len(blocks) != len(rows):
            raise KnobError(
                f"the record has {len(blocks)} decisions, and there are {len(rows)} observations"
            )
        each = self._checked_knobs(knobs, len(rows), single)
        if len(each) == 1:
            each = each * len(rows)
        ways = [(Shape.of(k), int(b), int(n)) for k, b, n in zip(each, blocks, limits, strict=True)]
        for shape, of_one, limit in ways:
            if not (1 <= of_one <= shape.candidates and of_one <= limit <= shape.candidates):
                raise KnobError(
                    f"the record has {limit} candidates, scored {of_one} at a time, and these "
                    f"knobs ask for {shape.candidates}: give the knobs that it was made with"
                )
        return self._decide(rows, single, each, ways, seed, t, None)

    @property
    def proposes_mixture(self) -> bool:
        """Whether the proposal is a Gaussian mixture; others make candidates of noise."""
        return isinstance(self.models.actor, MixtureNet)

    def actor(self, obs: Any) -> Mixture:
        """The proposal at an observation, in environment units."""
        if not isinstance(self.models.actor, MixtureNet):
            raise KnobError(f"the proposal of method {self.method!r} is no Gaussian mixture")
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
        values = finite_float32("actions", candidates)
        return np.asarray(_values(self.models, self._scales, rows, values))[0 if single else ...]

    def audited_by(self, other: "Policy") -> "Policy":
        """This policy's proposal with another's critics and density, so that its decisions carry
        the same audits. What it executes at n = 0 does not change.
        """
        for policy in (self, other):
            policy.require_no_context("an audit by another policy")
        models = dataclasses.replace(other.models, actor=self.models.actor)
        self._require_same_inputs(other)
        bundle = dataclasses.replace(self.bundle, models=models, spec=other.spec)
        return Policy(bundle, self._wanted)

    def with_density(self, other: "Policy") -> "Policy":
        """This policy with another's behaviour density, so that GEM's rule can execute it.

        Its values are brought to the units of the other's rewards, in which w_p weighs support.
        """
        self.require_no_context("another policy's density")
        if other.models.behavior is None:
            raise KnobError(f"a policy of method {other.method!r} has no behaviour density")
        if self.models.behavior is not None:
            raise KnobError(
                f"a policy of method {self.method!r} has a behaviour density of its own"
            )
        self._require_same_inputs(other)
        scale = other.spec.reward_scale
        critics = rescaled(self.models.critics, scale / self.spec.reward_scale)
        models = dataclasses.replace(self.models, critics=critics, behavior=other.models.behavior)
        digest = digest_with_density(self.bundle.manifest, other.digest)
        manifest = self.bundle.manifest | {"density": other.digest, "digest": digest}
        spec = dataclasses.replace(self.spec, reward_scale=scale)
        return Policy(Bundle(models, spec, manifest), self._wanted)

    def _require_same_inputs(self, other: "Policy") -> None:
        if not self.spec.has_inputs_of(other.spec):
            raise KnobError(
                "the two policies scale their inputs differently: train both on one dataset with "
                "the same seed and holdout, which decide the rows that the scaler is of"
            )

    def require_no_context(self, what: str) -> None:
        """Refuse what looks at states one by one, where the policy decides from a history."""
        if self.context is not None:
            raise KnobError(
                f"{what} looks at states one by one, and a policy of method {self.method!r} "
                "decides from an episode's history: use policy.decide with history=..."
            )

    def require_models(self, knobs: Knobs) -> None:
        """Refuse knobs that ask for critics or a density which the policy does not have."""
        if not self.proposes_mixture:
            for name, word in (("source", "unimodal"), ("anchor", "barycenter")):
                if getattr(knobs, name) == word:
                    raise KnobError(
                        f"{name} = {word!r}: the proposal of method {self.method!r} is no mixture"
                    )
        if not self._has_critics:
            for name in ("n", "temperature"):
                if getattr(knobs, name) > 0:
                    raise KnobError(
                        f"{name} = {getattr(knobs, name)}: method {self.method!r} has no critics; "
                        f"{name} must be 0"
                    )
        if not self._has_density:
            if knobs.source == "behavior":
                raise KnobError(
                    f"source = 'behavior': method {self.method!r} has no behaviour density"
                )
            if knobs.wp != 0:
                raise KnobError(
                    f"wp = {knobs.wp!r}: method {self.method!r} has no behaviour density; wp must "
                    "be 0"
                )

    def _decide(
        self,
        rows: np.ndarray,
        single: bool,
        each: Sequence[Knobs],
        ways: Sequence[tuple[Shape, int, int]],
        seed: int | np.ndarray,
        t: int | np.ndarray | None,
        deadlines: Deadlines | None,
    ) -> Decision:
        """Decide with the knobs and the shape, block and limit of each row, or those of all."""
        batch = len(rows)
        seeds = whole_numbers("seed", seed, batch, 2**32, pairs=True).astype(np.uint32)
        steps = None if t is None else whole_numbers("t", t, batch, 2**31)
        if len(each) == 1:
            weights = Weights(
                np.full(batch, each[0].lam, np.float32),
                each[0].weight_at(steps, batch),
                np.full(batch, each[0].temperature, np.float32),
            )
            asked = [Asked(None, rows, seeds, weights, *ways[0])]
        else:
            at = np.broadcast_to(0 if steps is None else steps, (batch,))
            wp = [
                knobs.weight_at(None if steps is None else step, 1)[0]
                for knobs, step in zip(each, at, strict=True)
            ]
            numbers = ([k.lam for k in each], wp, [k.temperature for k in each])
            weights = Weights(*(np.array(one, np.float32) for one in numbers))
            asked = split(rows, seeds, weights, ways)
        asked, results = search(self.backend, asked, deadlines)
        for group, result in zip(asked, results, strict=True):
            self._require_finite(group.rows, result)
            result["block"] = np.full(len(group.obs), group.block, np.int32)
        fields = joined(asked, results)
        if single:
            fields = {name: values[0] for name, values in fields.items()}
        return Decision(**fields, backend=self.backend.name, digest=self.digest)

    def _checked_knobs(
        self, knobs: Knobs | Sequence[Knobs] | None, rows: int, single: bool
    ) -> list[Knobs]:
        """The knobs of each row, or those of all as the only ones."""
        knobs = self.default_knobs if knobs is None else knobs
        if isinstance(knobs, Knobs):
            self.require_models(knobs)
            return [knobs]
        if not isinstance(knobs, list | tuple) or not all(isinstance(k, Knobs) for k in knobs):
            raise KnobError(f"knobs = {knobs!r}: must be gemrl.Knobs, or a list of them")
        if single:
            raise KnobError("knobs is a list: a single observation takes one gemrl.Knobs")
        if len(knobs) != rows:
            raise KnobError(
                f"knobs has {len(knobs)} entries: must be {rows}, one for each observation"
            )
        for one in set(knobs):
            self.require_models(one)
        return list(knobs)

    def _mixture(self, net: MixtureNet, obs: Any) -> Mixture:
        rows, single = self._rows(obs)
        mixture = _mixture(net, self._scales, rows)
        return jax.tree.map(lambda x: np.asarray(x)[0 if single else ...], mixture)

    def _rows(self, obs: Any) -> tuple[np.ndarray, bool]:
        """The observation as rows of float32, and whether it was a single one."""
        rows = observations(obs, self.spec.obs_dim)
        return (rows[None], True) if rows.ndim == 1 else (rows, False)

    def _require_finite(self, rows: np.ndarray | None, result: dict[str, np.ndarray]) -> None:
        """Refuse a state so far from the data that the networks overflow."""
        action = result["action"]
        scores = result["score"] if self._has_critics else action
        if np.isfinite(action).all() and np.isfinite(scores).all():
            return
        overflown = ~(np.isfinite(scores).all(axis=1) & np.isfinite(action).all(axis=1))
        row = int(np.argmax(overflown))
        raise ObservationError(
            f"the observation in row {row if rows is None else rows[row]} is so large that scores "
            "are not finite any more; it cannot be of the kind that the policy was trained on"
        )


def _context_of(bundle: Bundle) -> Context | None:
    """How far back the method looks, by the settings that it was trained with."""
    name = bundle.manifest["method"]
    context = method_named(name).context
    if context is None or PACKED in bundle.manifest:
        return None
    return context(config_from_json(name, bundle.manifest["config"]))


def own_knobs(manifest: dict[str, Any], spec: Spec) -> Knobs | None:
    """The knobs with which a method's own paper executes a policy, where it has a rule of its own.

    A paper's temperature is of values in units of its own rewards; the policy's are in its spec's.
    """
    deploy = method_named(manifest["method"]).deploy
    if deploy is None:
        return None
    knobs, config = Knobs(**deploy), config_from_json(manifest["method"], manifest["config"])
    scale = spec.reward_scale / config.value_scale
    return dataclasses.replace(knobs, temperature=scale * knobs.temperature)


def digest_with_density(manifest: dict[str, Any], density: str) -> str:
    """The digest of a policy with another's density."""
    return manifest_digest(manifest | {"density": density})


def load(run: str | Path, backend: str = "auto", *, behavior: str | Path | None = None) -> Policy:
    """The policy of a run folder; with `behavior`, with the behaviour density of that run.

    For `backend` see `Policy`.
    """
    if behavior is None:
        return Policy(load_bundle(run), backend)
    # Which backends can serve it is known once it has its density.
    own, other = (Policy(load_bundle(folder), "jax") for folder in (run, behavior))
    return Policy(own.with_density(other).bundle, backend)


@jax.jit
def _values(models: Models, scales: Scales, obs: Array, actions: Array) -> Array:
    scaled = (obs - scales.obs_mean) / scales.obs_std
    return jax.lax.map(lambda row: critic_values(models, scales, *row), (scaled, actions))


@jax.jit
def _mixture(net: MixtureNet, scales: Scales, obs: Array) -> Mixture:
    return net((obs - scales.obs_mean) / scales.obs_std).affine(scales.half, scales.middle)
