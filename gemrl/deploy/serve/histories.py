"""Episodes that a server remembers for policies that look back, so that clients need not."""

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from gemrl.decide.history import History
from gemrl.decide.policy import Policy
from gemrl.errors import RequestError

# Of episodes, and of memory for what they have seen.
MOST = 10_000
MEMORY_BYTES = 256 * 2**20


class Step(NamedTuple):
    """An episode with what was decided in it last, whose reward is not known yet."""

    history: History
    """Before the step."""
    reward: float | None
    """What the step before it brought, as its request said."""
    obs: np.ndarray
    action: np.ndarray


class Histories:
    """What each episode has seen and done. The least recently used of too many are forgotten.

    An episode's steps are decided one after another, and none changes anything before an action
    has come of it, so that a request that was turned away can be sent again.
    """

    def __init__(self, policy: Policy, most: int | None = None) -> None:
        self.policy = policy
        of_one = policy.input_spec.obs_mean.nbytes
        self.most = min(MOST, max(1, MEMORY_BYTES // of_one)) if most is None else most
        self._last: OrderedDict[str, Step] = OrderedDict()
        self._asked: dict[str, tuple[History, float | None]] = {}
        """Of the episodes whose next step is being decided: what came before, and its reward."""
        self.forgotten = 0

    def first(self, rows: int, t: Any, reward: Any, target: Any) -> History:
        """The history of a batch of states, each the first of an episode of its own."""
        if t is not None and np.any(t):
            raise RequestError(
                "t: a batch's states are first steps of episodes; send an episode's steps one by "
                "one, with its name"
            )
        _require_no(reward)
        return History(self.policy, rows, target)

    def now(
        self, episode: str | None, t: int | None, obs: np.ndarray, reward: Any, target: Any
    ) -> History:
        """The history at step `t`, by default the one after those that are known.

        An episode begins where it is unnamed, new, or at step 0. The last step may come again as
        it was, for a client that has not got its answer.
        """
        if episode is None and t:
            raise RequestError(f"t = {t}: which steps came before? Name the episode")
        if episode in self._asked:
            raise RequestError("a step of this episode is being decided: wait for its answer")
        last = None if episode is None else self._last.get(episode)
        known = 0 if last is None else int(last.history.steps[0]) + 1
        t = known if t is None else t
        if t == 0:
            _require_no(reward)
            return History(self.policy, target_return=target)
        if last is None or t not in (known - 1, known):
            raise RequestError(
                f"t = {t}: of this episode {known} steps are known, and a policy that looks back "
                "needs all of them in order; begin again with t = 0 or another name"
            )
        if target is not None:
            raise RequestError("target_return is asked for at an episode's first step")
        history = last.history.copy()
        if t == known:
            history.add(last.obs, last.action, reward)
        elif reward != last.reward or not np.array_equal(obs, last.obs):
            raise RequestError(
                f"t = {t}: this step was decided with another observation or reward; send it again "
                f"as it was, or the next one, t = {known}"
            )
        return history

    def ask(self, episode: str, history: History, reward: float | None) -> None:
        """The step after this history is to be decided."""
        self._asked[episode] = history, reward

    def give_back(self, episode: str, history: History) -> None:
        """No action came of it."""
        if self._is_asked(episode, history):
            del self._asked[episode]

    def decided(self, episode: str, history: History, obs: np.ndarray, action: np.ndarray) -> None:
        """An action came of it, unless it was given back before."""
        if not self._is_asked(episode, history):
            return
        _, reward = self._asked.pop(episode)
        self._last.pop(episode, None)
        self._last[episode] = Step(history, reward, obs, action)
        if len(self._last) > self.most:
            self._last.popitem(last=False)
            self.forgotten += 1

    def _is_asked(self, episode: str, history: History) -> bool:
        return self._asked.get(episode, (None, None))[0] is history


def _require_no(reward: Any) -> None:
    if reward is not None:
        raise RequestError("reward is what the step before brought, and there was none")
