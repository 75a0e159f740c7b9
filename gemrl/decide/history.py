"""What a policy that looks back is told of an episode so far, and how it comes to see it."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from gemrl.decide.checks import finite_float32, observations
from gemrl.decide.knobs import whole_number
from gemrl.errors import KnobError, ObservationError
from gemrl.learn.rows import RowsAsRead, RowsWithContext
from gemrl.learn.spec import Spec
from gemrl.methods.context import Context, Steps, pack

if TYPE_CHECKING:
    from gemrl.data.dataset import Dataset
    from gemrl.decide.policy import Policy

PACKED = "packed contexts"
"""In the manifest of a policy in memory: its observations are contexts. See `seeing_contexts`."""


class History:
    """What was seen, done and received so far, in one episode or in several that step together.

        history = gemrl.History(policy)
        decision = policy.decide(obs, history=history)
        ...  # Execute decision.action.
        history.add(obs, decision.action, reward)

    With `episodes` every array has a leading axis of that length. `target_return` is what to ask
    for, in the task's own rewards: one number, or one for each episode; without it, what the
    policy's settings say. It needs no retraining, and `to_go` may be set on the way.
    """

    def __init__(
        self, policy: "Policy", episodes: int | None = None, target_return: Any = None
    ) -> None:
        context: Context | None = getattr(policy, "context", None)
        if context is None:
            raise KnobError(_looks_not_back(getattr(policy, "method", repr(policy))))
        self.digest = policy.digest
        self.episodes = episodes
        rows = 1 if episodes is None else whole_number("episodes", episodes, 1, 2**31 - 1)
        self._context, self._spec = context, policy.spec
        target = self._context.target_return if target_return is None else target_return
        if target is None:
            raise KnobError(
                "target_return is in neither the policy's settings nor the call: say which return "
                "to ask for, in the task's own rewards"
            )
        self._to_go = np.broadcast_to(_finite("target_return", target, rows), (rows,)).copy()
        self._number = np.zeros(rows, np.int64)
        # Places before the first step hold what the scaler makes zeros of, as in training.
        blank = policy.input_spec.obs_mean
        self._past = np.tile(blank.reshape(self._context.length, -1), (rows, 1, 1))

    def __len__(self) -> int:
        return len(self._past)

    @property
    def to_go(self) -> np.ndarray:
        """[E] What is asked for from here on: the target less rewards received. Set it whole."""
        return _to_read(self._to_go)

    @to_go.setter
    def to_go(self, value: Any) -> None:
        self._to_go = np.broadcast_to(_finite("to_go", value, len(self)), (len(self),)).copy()

    @property
    def steps(self) -> np.ndarray:
        """[E] How many steps were noted."""
        return _to_read(self._number)

    def add(self, obs: Any, action: Any, reward: Any = None) -> None:
        """Note a step: what was seen, what was done then, and what came of it.

        The return to go falls by the reward; where none is known it stays.
        """
        seen, done = self._rows(obs), self._actions(action)
        fallen = 0.0 if reward is None else _finite("reward", reward, len(self))
        left = _finite("what is left to ask for after the reward", self.to_go - fallen, len(self))
        self._past = np.concatenate([self._past[:, 1:], self._step(seen, done)], axis=1)
        self._number = self._number + 1
        self._to_go = left

    def contexts(self, obs: Any) -> np.ndarray:
        """The packed context [E, K x step] of a decision at the present observations."""
        # What will be done is not known, and the network does not look there.
        middle = np.broadcast_to(self._spec.action_middle, (len(self), self._spec.action_dim))
        steps = np.concatenate([self._past[:, 1:], self._step(self._rows(obs), middle)], axis=1)
        return steps.reshape(len(self), -1)

    def copy(self) -> "History":
        """The same history, which goes its own way from here."""
        copied = object.__new__(History)
        copied.__dict__.update(self.__dict__)  # No array in it is ever written to.
        return copied

    def rows(self, episodes: np.ndarray) -> "History":
        """A history of some of the episodes, which goes its own way from here."""
        part = self.copy()
        part.episodes = len(episodes)
        part._to_go, part._number = self._to_go[episodes], self._number[episodes]
        part._past = self._past[episodes]
        return part

    def _step(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        """The present step of each episode, packed, [E, 1, step]."""
        present = np.ones(len(self))
        steps = Steps(self.to_go, obs, action, self._number, present)
        return pack(Steps(*(values[:, None] for values in steps)))[:, None]

    def _rows(self, obs: Any) -> np.ndarray:
        rows = observations(obs, self._spec.obs_dim)
        wanted = (self._spec.obs_dim,) if self.episodes is None else (len(self), self._spec.obs_dim)
        if rows.shape != wanted:
            raise ObservationError(
                f"the observation has shape {rows.shape}, and the history is of "
                f"{'one episode' if self.episodes is None else f'{len(self)} episodes'}: must be "
                f"{list(wanted)}"
            )
        return rows.reshape(len(self), -1)

    def _actions(self, action: Any) -> np.ndarray:
        spec = self._spec
        wanted = (spec.action_dim,) if self.episodes is None else (len(self), spec.action_dim)
        try:
            given = np.asarray(action)
        except ValueError as error:
            raise ObservationError(f"the action: must be an array {list(wanted)}") from error
        if given.shape != wanted:
            raise ObservationError(f"the action has shape {given.shape}: must be {list(wanted)}")
        # Training clips the data's actions too.
        actions = finite_float32("the action", given).reshape(len(self), -1)
        return np.clip(actions, spec.action_low, spec.action_high)


def context_spec(spec: Spec, context: Context) -> Spec:
    """The scaler of packed contexts, in place of that of observations.

    A network sees returns over their scale, observations and actions scaled as ever, and the rest
    as it is.
    """
    places = (context.length, 1)
    zeros, ones = np.zeros(context.length), np.ones(context.length)
    mean = Steps(
        zeros, np.tile(spec.obs_mean, places), np.tile(spec.action_middle, places), zeros, zeros
    )
    std = Steps(
        ones * context.return_scale,
        np.tile(spec.obs_std, places),
        np.tile(spec.action_half, places),
        ones,
        ones,
    )
    return dataclasses.replace(spec, obs_mean=pack(mean), obs_std=pack(std))


def contexts_at(
    policy: "Policy", rows: np.ndarray, single: bool, history: History | None
) -> np.ndarray:
    """What the policy's networks are given at observations [B, S], in environment units."""
    if policy.context is None:
        if history is not None:
            raise KnobError(_looks_not_back(policy.method))
        return rows
    if history is None:
        history = History(policy, None if single else len(rows))
    if not isinstance(history, History) or history.digest != policy.digest:
        raise KnobError("history: must be a gemrl.History of this very policy")
    return history.contexts(rows[0] if single else rows)


def seeing_contexts(policy: "Policy") -> "Policy":
    """The policy with packed contexts for observations, so that each decision stands alone.

    One that looks at the present state alone is given back as it is.
    """
    if policy.context is None:
        return policy
    manifest = policy.bundle.manifest | {PACKED: True}
    bundle = dataclasses.replace(policy.bundle, spec=policy.input_spec, manifest=manifest)
    return type(policy)(bundle, policy.backend.name)


def logged_inputs(policy: "Policy", data: "Dataset", rows: np.ndarray) -> np.ndarray:
    """What the policy's networks are given at rows of a dataset, in environment units: their
    observations, or the contexts that end there, with the returns that followed.
    """
    if policy.context is None:
        return data.observations[rows]
    every = np.arange(len(data))
    single = RowsAsRead(data, every, policy.spec)
    contexts = RowsWithContext(single, data, every, policy.context).gather(rows)[:, single.width :]
    return contexts * policy.input_spec.obs_std + policy.input_spec.obs_mean


def _looks_not_back(method: str) -> str:
    return f"history: a policy of method {method!r} looks at the present state alone; give it none"


def _to_read(values: np.ndarray) -> np.ndarray:
    """The same values, which cannot be written to: that would not reach the history."""
    values = values.view()
    values.flags.writeable = False
    return values


def _finite(name: str, value: Any, rows: int) -> np.ndarray:
    """Numbers, one for all episodes or one for each."""
    try:
        given = np.asarray(value)
    except ValueError:  # Lists of different lengths.
        given = np.asarray(None)
    # Networks see 32 bits of it; whole numbers beyond 64 bits are objects to NumPy.
    finite = given.dtype.kind in "fiu" and bool((np.abs(given) <= np.finfo(np.float32).max).all())
    if given.shape not in ((), (rows,)) or not finite:
        shown = "no number" if given.dtype.kind == "O" else f"{value!r:.64}"
        raise KnobError(
            f"{name} = {shown}: must be a finite number of usual size, or an array of {rows}, "
            "one an episode"
        )
    return given.astype(np.float64)
