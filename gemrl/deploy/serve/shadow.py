"""A second policy that decides on the same requests and never acts; differences are counted."""

import queue
import sys
import threading
from collections.abc import Sequence

import numpy as np

from gemrl.decide.decision import Decision
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy
from gemrl.deploy.serve.decider import Outcome
from gemrl.errors import ConfigError

WAITING = 64


class Shadow:
    """Compares another policy's actions with those executed, in a thread of its own.

    Where it cannot keep up it leaves requests out, and counts them.
    """

    def __init__(self, policy: Policy, beside: Policy, tolerance: float) -> None:
        """Actions differ where a dimension is apart by more than `tolerance` of its range."""
        mine, others = policy.spec, beside.spec
        if (mine.obs_dim, mine.action_dim) != (others.obs_dim, others.action_dim):
            raise ConfigError(
                f"the shadow policy takes {mine.obs_dim} and gives {mine.action_dim} numbers, and "
                f"the one that is served {others.obs_dim} and {others.action_dim}"
            )
        self.policy = policy
        self.tolerance = tolerance
        self.range = others.action_high - others.action_low
        self.compared = 0
        self.different = 0
        self.left_out = 0
        self.failed = 0
        self.largest = 0.0
        self._queue: queue.Queue[tuple[Outcome, np.ndarray] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name="shadow", daemon=True)
        self._thread.start()

    def compare(self, outcome: Outcome) -> None:
        """Queue a request to be decided by the shadow too; a refused one executes nothing."""
        if outcome.refusal is not None:
            return
        try:
            actions = np.stack([decision.action for decision in outcome.decisions])
            self._queue.put_nowait((outcome, actions))
        except queue.Full:
            self.left_out += 1

    def warm_up(self, knobs: Sequence[Knobs]) -> None:
        """Compile what decisions with these knobs need."""
        for one in knobs:
            self.policy.decide(self.policy.spec.obs_mean, one, t=0)

    def _decided(self, outcome: Outcome) -> Decision:
        """The shadow's decision among as many candidates as were scored before the deadline."""
        ask, decisions = outcome.ask, outcome.decisions
        return self.policy.decide_again(
            ask.rows,
            ask.knobs,
            seed=ask.pairs,
            t=ask.steps,
            block=np.array([decision.block for decision in decisions]),
            n_scored=np.array([decision.n_scored for decision in decisions]),
        )

    def close(self) -> None:
        """Finish what waits."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            outcome, executed = item
            try:
                found = self._decided(outcome)
            except Exception as error:
                # A state that the other policy cannot decide, or a defect; neither may end this.
                if not self.failed:
                    print(f"gemrl: the shadow policy failed: {error}", file=sys.stderr)
                self.failed += 1
                continue
            apart = float((np.abs(found.action - executed) / self.range).max())
            self.compared += 1
            self.different += apart > self.tolerance
            self.largest = max(self.largest, apart)
