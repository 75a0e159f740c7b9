"""Episodes that a server remembers for policies that look back, so that clients need not."""

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from gemrl.decide.history import History
from gemrl.decide.policy import Policy
from gemrl.errors import RequestError

# An entry takes the numbers of a context: some kilobytes.
MOST = 10_000


class Step(NamedTuple):
    """An episode with what was decided in it last, whose reward is not known yet."""

    history: History
    obs: np.ndarray
    action: np.ndarray


class Histories:
    """What each episode has seen and done. The least recently used of too many are forgotten.

    Nothing changes before `decided` says that an action came of a request, so that one that was
    turned away can be sent again.
    """

    def __init__(self, policy: Policy, most: int = MOST) -> None:
        self.policy = policy
        self.most = most
        self._last: OrderedDict[str, Step] = OrderedDict()
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

    def now(self, episode: str | None, t: Any, reward: Any, target: Any) -> History:
        """The history at a request's step. An episode begins where it is unnamed, or at step 0."""
        if episode is None or not t:
            if t:
                raise RequestError(f"t = {t}: which steps came before? Name the episode")
            _require_no(reward)
            return History(self.policy, target_return=target)
        last = self._last.get(episode)
        known = 0 if last is None else int(last.history.steps[0]) + 1
        if last is None or t != known:
            raise RequestError(
                f"t = {t}: of this episode {known} steps are known, and a policy that looks back "
                "needs all of them in order; begin again with t = 0 or another name"
            )
        if target is not None:
            raise RequestError("target_return is asked for at an episode's first step")
        history = last.history.copy()
        history.add(last.obs, last.action, reward)
        return history

    def decided(self, episode: str, history: History, obs: np.ndarray, action: np.ndarray) -> None:
        """An action came of it."""
        self._last.pop(episode, None)
        self._last[episode] = Step(history, obs, action)
        if len(self._last) > self.most:
            self._last.popitem(last=False)
            self.forgotten += 1


def _require_no(reward: Any) -> None:
    if reward is not None:
        raise RequestError("reward is what the step before brought, and there was none")
