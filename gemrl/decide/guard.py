"""A guard: what to do where the gates flag a decision. It goes down a ladder, row by row."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemrl.decide.decision import Decision
from gemrl.decide.gates import Gates
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy
from gemrl.decide.verdict import RUNGS, SEARCH, Verdict
from gemrl.errors import ConfigError, KnobError, ObservationError, RefusedError
from gemrl.maths.audits import collapse_distance, violation
from gemrl.maths.score import moments, standardize

Controller = Callable[[np.ndarray], np.ndarray]


class Guard:
    """A policy behind gates, with a ladder of things to do where they flag its decision.

    The rungs: `smaller_n` searches among that many candidates, the first of the same set; `anchor`
    takes the anchor alone; `behavior` takes the mode of the behaviour density; `controller` asks
    the user's own controller, a function from observations [B, S] to actions [B, A]; `refuse`
    raises `RefusedError`. Without `ladder` it is all of them that there are, in this order.

    A decision is flagged where the gates together flag it at the rate `alpha`. The first rung whose
    own action support and spread do not flag is executed. Novelty is the state's, and no action
    mends it: where it is flagged, the ladder is entered at the rung `on_novelty`, and those before
    are passed over. It is the anchor by default, or the first rung after it that the ladder has.
    The controller's action is executed whatever the gates say, and so is the ladder's last rung.
    """

    def __init__(
        self,
        policy: Policy,
        gates: Gates,
        alpha: float = 0.01,
        ladder: Sequence[str] | None = None,
        on_novelty: str | None = None,
        controller: Controller | None = None,
        smaller_n: int = 64,
    ) -> None:
        policy.require_no_context("a guard")
        gates.require_policy(policy)
        missing = {"controller": controller is None, "behavior": policy.models.behavior is None}
        if ladder is None:
            ladder = [rung for rung in RUNGS if not missing.get(rung, False)]
        self.policy = policy
        self.gates = gates
        self.alpha = gates.require_alpha(alpha)
        self.ladder = _checked(ladder, [rung for rung, lacks in missing.items() if lacks])
        self.on_novelty = _entry(self.ladder, on_novelty)
        self.controller = controller
        if controller is not None and not callable(controller):
            raise ConfigError(f"controller = {controller!r}: must be a function of observations")
        self.smaller_n = Knobs(n=smaller_n, anchor="none").n

    def decide(
        self,
        obs: Any,
        knobs: Knobs | None = None,
        *,
        seed: int | np.ndarray = 0,
        t: int | np.ndarray | None = None,
        deadline_ms: float | None = None,
        chunk: int | None = None,
    ) -> Decision:
        """Decide as the policy does, and go down the ladder where the gates flag it.

        Deadline and chunk are the search's; a rung takes its own time. The record keeps the
        search's candidates and scores. `action` and the fields whose names start with `executed`
        are of what is executed; `verdict` says why, and on which rung.
        """
        knobs = self.policy.default_knobs if knobs is None else knobs
        if not isinstance(knobs, Knobs):
            raise KnobError(f"knobs = {knobs!r}: a guard takes one gemrl.Knobs for all rows")
        try:
            given = np.asarray(obs)
        except ValueError as error:
            raise ObservationError(f"the observation is no array of numbers: {error}") from error
        rows = given[None] if given.ndim == 1 else given
        decision = self.policy.decide(
            rows, knobs, seed=seed, t=t, deadline_ms=deadline_ms, chunk=chunk
        )
        verdict = self.gates.judge(rows, decision, self.alpha)
        return self._settled(rows, decision, verdict, knobs, seed, t, single=given.ndim == 1)

    def settle(
        self,
        obs: np.ndarray,
        decision: Decision,
        verdict: Verdict,
        knobs: Knobs,
        *,
        seed: int | np.ndarray = 0,
        t: int | np.ndarray | None = None,
    ) -> Decision:
        """What to execute where the policy's decision and the gates' verdict are there already.

        `obs`, `knobs`, `seed` and `t` are those that the decision was made with.
        """
        if obs.ndim == 2:
            return self._settled(obs, decision, verdict, knobs, seed, t, single=False)
        batch = decision.as_batch()
        return self._settled(obs[None], batch, verdict.as_batch(), knobs, seed, t, single=True)

    def warm_up(self, knobs: Knobs, most: int | None = None) -> None:
        """Compile what the rungs need at one observation, so that the first use is not late.

        With `most` for every number of candidates up to it. The user's controller is not asked.
        """
        for size in _sizes(knobs.n if most is None else most):
            _moments(np.zeros((1, size), np.float32), np.ones(1, np.int32))
        obs = self.policy.spec.obs_mean[None]
        decision = self.policy.decide(obs, knobs, t=0)
        verdict = self.gates.judge(obs, decision, self.alpha)
        executed = _Executed(decision, verdict)
        for rung in self.ladder:
            if rung not in ("controller", "refuse"):
                actions = self.actions_of(rung, obs, knobs, t=0)
                said = self._verdict(obs, actions, verdict.scores["novelty"])
                executed.take(rung, np.ones(1, bool), actions, said)
        self._record(executed, obs, decision, verdict, single=True)

    def _settled(
        self,
        rows: np.ndarray,
        decision: Decision,
        verdict: Verdict,
        knobs: Knobs,
        seed: int | np.ndarray,
        t: int | np.ndarray | None,
        single: bool,
    ) -> Decision:
        """The record with what is executed; a refusal where a row has nothing to execute."""
        executed = _Executed(decision, verdict)
        if verdict.flagged.any():
            self._go_down(executed, rows, knobs, seed, t)
        result = self._record(executed, rows, decision, verdict, single)
        refused = np.flatnonzero(executed.rung == "refuse")
        if len(refused):
            raise _refusal(refused, verdict, result)
        return result

    def _go_down(
        self,
        executed: "_Executed",
        rows: np.ndarray,
        knobs: Knobs,
        seed: int | np.ndarray,
        t: int | np.ndarray | None,
    ) -> None:
        """Settle each flagged row on a rung."""
        waiting = executed.verdict.flagged
        novel = executed.verdict.adjusted["novelty"] <= self.alpha
        entry = self.ladder.index(self.on_novelty)
        for place, rung in enumerate(self.ladder):
            able = waiting if place >= entry else waiting & ~novel
            if not able.any():
                continue
            if rung == "refuse":
                executed.refuse(able)
                return
            # For the whole batch, since the candidates of a row follow from its place there.
            actions = self.actions_of(rung, rows, knobs, seed=seed, t=t)
            verdict = self._verdict(rows, actions, executed.verdict.scores["novelty"])
            if rung not in ("controller", self.ladder[-1]):
                able = able & ~self._unlike(verdict)
            executed.take(rung, able, actions, verdict)
            waiting = waiting & ~able

    def actions_of(
        self,
        rung: str,
        rows: np.ndarray,
        knobs: Knobs,
        *,
        seed: int | np.ndarray = 0,
        t: int | np.ndarray | None = None,
    ) -> np.ndarray:
        """The action of a rung in each row."""
        spec = self.policy.spec
        if rung == "behavior":
            return np.clip(self.policy.behavior(rows).mode(), spec.action_low, spec.action_high)
        if rung == "controller":
            assert self.controller is not None  # The ladder was checked.
            actions = _controlled(self.controller, rows, spec.action_dim)
            return np.clip(actions, spec.action_low, spec.action_high)
        if rung == "anchor":
            anchor = "mode" if knobs.anchor == "none" else knobs.anchor
            smaller = dataclasses.replace(knobs, n=0, anchor=anchor)
        else:
            smaller = dataclasses.replace(knobs, n=min(knobs.n, self.smaller_n))
        return self.policy.decide(rows, smaller, seed=seed, t=t).action

    def _verdict(self, rows: np.ndarray, actions: np.ndarray, novelty: np.ndarray) -> Verdict:
        """The gates' word on actions from anywhere."""
        scores = {"novelty": novelty}
        if "support" in self.gates.names:
            support = self.policy.behavior(rows).log_prob(jnp.asarray(actions))
            scores["support"] = -np.asarray(support, np.float64)
        if "spread" in self.gates.names:
            q = self.policy.q_values(rows, actions[:, None])
            scores["spread"] = q[..., 0].std(axis=1, dtype=np.float64)
        return self.gates.verdict_of(scores, self.alpha)

    def _unlike(self, verdict: Verdict) -> np.ndarray:
        """Do support or spread flag the action?"""
        unlike = np.zeros(verdict.joint_p.shape, bool)
        for name, p in verdict.adjusted.items():
            if name != "novelty":
                unlike |= p <= self.alpha
        return unlike

    def _record(
        self,
        executed: "_Executed",
        rows: np.ndarray,
        decision: Decision,
        verdict: Verdict,
        single: bool,
    ) -> Decision:
        """The decision with what is executed."""
        fields: dict[str, np.ndarray] = {"action": executed.actions}
        changed = executed.rung != SEARCH
        if changed.any() and self.policy.models.behavior is not None:
            fields |= self._audits(executed, rows, decision, changed)
        verdict = dataclasses.replace(
            verdict, rung=executed.rung, executed_joint_p=executed.joint_p
        )
        record = dataclasses.replace(decision, **fields)
        if single:
            record, verdict = record.row(0), verdict[0]
        return dataclasses.replace(record, verdict=verdict)

    def _audits(
        self, executed: "_Executed", rows: np.ndarray, decision: Decision, changed: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Support and collapse of the executed action, beside the search's candidates."""
        behavior, actions = self.policy.behavior(rows), jnp.asarray(executed.actions)
        support = behavior.log_prob(actions)
        counts = np.broadcast_to(decision.n_scored, len(rows))
        z = standardize(support, *_moments(_filled(decision.log_support), counts))
        found = {
            "executed_log_support": support,
            "executed_support_z": z,
            "executed_violation": violation(z),
            "executed_collapse_dist": collapse_distance(actions, behavior.means),
        }
        return {
            name: np.where(changed, values, getattr(decision, name))
            for name, values in found.items()
        }


@jax.jit
def _moments(log_support: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and deviation of the first `counts` of each row's places."""
    among = jnp.arange(log_support.shape[1]) < counts[:, None]
    return jax.vmap(moments)(log_support, among)


def _filled(log_support: np.ndarray) -> np.ndarray:
    """With places up to a power of two, so that few sizes are compiled."""
    count = log_support.shape[1]
    return np.pad(log_support, ((0, 0), (0, _sizes(count - 1)[-1] - count)))


def _sizes(n: int) -> list[int]:
    """The powers of two up to the first that holds n candidates and an anchor."""
    return [2**power for power in range(n.bit_length() + 1)]


class _Executed:
    """What each row of a batch executes: at first the search's action."""

    def __init__(self, decision: Decision, verdict: Verdict) -> None:
        self.verdict = verdict
        self.actions = np.array(decision.action)
        self.rung = np.full(len(self.actions), SEARCH, dtype=object)
        self.joint_p = np.array(verdict.joint_p)

    def take(self, rung: str, rows: np.ndarray, actions: np.ndarray, verdict: Verdict) -> None:
        """Execute a rung's actions in some rows."""
        self.actions[rows], self.rung[rows] = actions[rows], rung
        self.joint_p[rows] = verdict.joint_p[rows]

    def refuse(self, rows: np.ndarray) -> None:
        """Execute nothing in some rows: NaN, so that nobody does by mistake."""
        self.actions[rows], self.rung[rows] = np.nan, "refuse"
        self.joint_p[rows] = np.nan


def _refusal(refused: np.ndarray, verdict: Verdict, decision: Decision) -> RefusedError:
    first = refused[0]
    values = ", ".join(f"{name} {p[first]:.2g}" for name, p in verdict.p.items())
    return RefusedError(
        f"refused {len(refused)} of {len(verdict.joint_p)} decisions at alpha = "
        f"{verdict.alpha:g}, the first in row {first} with p-values {values}: its state or action "
        "is unlike the data, and no rung of the ladder was like it",
        rows=refused,
        decision=decision,
    )


def _checked(ladder: Sequence[str], missing: Sequence[str]) -> tuple[str, ...]:
    """A ladder that can be gone down."""
    for rung in ladder:
        if rung not in RUNGS:
            raise KnobError(f"ladder has {rung!r}: must be of {', '.join(RUNGS)}")
        if rung in missing:
            reason = {
                "controller": "give its function as controller=...",
                "behavior": "the policy has no behaviour density",
            }
            raise ConfigError(f"ladder has {rung!r}: {reason[rung]}")
    if not ladder or "refuse" in ladder[:-1] or len(set(ladder)) < len(ladder):
        raise KnobError(
            f"ladder = {tuple(ladder)}: must have a rung, none of them twice, and refuse last"
        )
    return tuple(ladder)


def _entry(ladder: tuple[str, ...], on_novelty: str | None) -> str:
    """The rung at which a novel state enters the ladder."""
    if on_novelty is None:
        after = [rung for rung in ladder if RUNGS.index(rung) >= RUNGS.index("anchor")]
        return (after or ladder)[0]
    if on_novelty not in ladder:
        raise KnobError(f"on_novelty = {on_novelty!r}: must be of the ladder {', '.join(ladder)}")
    return on_novelty


def _controlled(controller: Controller, rows: np.ndarray, action_dim: int) -> np.ndarray:
    """The controller's actions; anything else than actions is refused."""
    try:
        actions = np.asarray(controller(rows.copy()), np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the controller gave no array of numbers: {error}") from error
    if actions.shape != (len(rows), action_dim) or not np.isfinite(actions).all():
        raise ConfigError(
            f"the controller gave an array of shape {actions.shape}: must be finite actions of "
            f"shape {(len(rows), action_dim)}"
        )
    return actions
