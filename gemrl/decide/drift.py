"""A drift monitor: a sequential test that tells when new episodes are no longer like earlier ones.

An episode is summed up by one number for each gate: the mean score of its decisions. Its p-value is
its rank among all episodes before it. While episodes are exchangeable, these p-values are uniform
and independent, however strongly the steps within an episode hang together. The monitor bets
against that: its capital is a martingale that starts at 1, so the probability that it *ever*
reaches 1 / delta is at most delta (Ville's inequality).
"""

import bisect
import json
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gemrl.decide.gates import GATES
from gemrl.decide.verdict import Verdict
from gemrl.errors import ConfigError

# Exponents of the bets: the smaller, the more is staked on small p-values.
EXPONENTS = np.arange(0.1, 1.0, 0.1)
# Capital above this proves nothing more, and p-values below one over it neither: no overflow.
ENOUGH = 1e100


def bet(p: float) -> np.ndarray:
    """What a capital of 1 becomes at each exponent e: e p^(e - 1), which has the mean 1 over p."""
    return EXPONENTS * max(p, 1 / ENOUGH) ** (EXPONENTS - 1)


def rank_p(before: Sequence[float], value: float, uniform: float) -> float:
    """The smoothed rank of a value among sorted earlier ones: uniform if they are exchangeable.

    Ties, the value's own with itself among them, are broken by `uniform`, a draw from (0, 1].
    """
    above = len(before) - bisect.bisect_right(before, value)
    ties = len(before) - above - bisect.bisect_left(before, value) + 1
    return (above + uniform * ties) / (len(before) + 1)


class DriftMonitor:
    """Watches a stream of episodes and raises an alarm when it drifts.

    With probability at least 1 - `delta` there is never an alarm while episodes are exchangeable.
    Each gate has an equal part of `delta`. Give the decisions' verdicts with `add` and say
    `end_episode`, or give a whole episode's scores with `episode`. Earlier episodes that are known
    to be good go in with `learn`: the more of them, the sooner a drift is seen.
    """

    def __init__(self, delta: float = 0.01, gates: Sequence[str] = GATES, seed: int = 0) -> None:
        if not (isinstance(delta, (int, float)) and 0 < delta < 1):
            raise ConfigError(f"delta = {delta!r}: must be a number between 0 and 1")
        if isinstance(gates, str) or not gates or len(set(gates)) < len(gates):
            raise ConfigError(f"gates = {tuple(gates)}: must name at least one, and none twice")
        self.delta = float(delta)
        self.gates = tuple(gates)
        if not isinstance(seed, numbers.Integral) or seed < 0:
            raise ConfigError(f"seed = {seed!r}: must be a whole number of at least 0")
        self.seed = int(seed)
        self.step = 0
        """P-values of each gate that have been bet on."""
        self.alarm: dict[str, Any] | None = None
        """The first alarm: its `step`, counted from 1, and its `gate`."""
        self._before: dict[str, list[float]] = {name: [] for name in self.gates}
        self._capital = {name: np.zeros(len(EXPONENTS)) for name in self.gates}
        self._sums = dict.fromkeys(self.gates, 0.0)
        self._decisions = 0

    @property
    def threshold(self) -> float:
        """The capital at which a gate raises the alarm."""
        return len(self.gates) / self.delta

    @property
    def capital(self) -> dict[str, float]:
        """Each gate's capital, which was 1 at the start: large where drift is evident."""
        idle = 1 / (self.step + 1)
        return {name: idle + float(bets.mean()) for name, bets in self._capital.items()}

    def add(self, verdict: Verdict) -> None:
        """Take one decision of the episode under way."""
        if np.ndim(verdict.joint_p) != 0:
            raise ConfigError(
                "the verdict is of a batch: a monitor follows one episode at a time; collect the "
                "scores of each row and give them with episode(...)"
            )
        scores = self._means(verdict.scores)
        self._sums = {name: total + scores[name] for name, total in self._sums.items()}
        self._decisions += 1

    def end_episode(self) -> bool:
        """Rank the episode whose decisions were added and bet; is there an alarm by now?"""
        if self._decisions == 0:
            raise ConfigError("no decision was added since the last episode ended")
        means = {name: total / self._decisions for name, total in self._sums.items()}
        self._sums, self._decisions = dict.fromkeys(self.gates, 0.0), 0
        return self._rank(means)

    def episode(self, scores: Mapping[str, np.ndarray]) -> bool:
        """Take a whole episode, the gates' scores of its decisions; is there an alarm by now?"""
        return self._rank(self._means(scores))

    def learn(self, scores: Mapping[str, np.ndarray]) -> None:
        """Take a whole episode that is known to be good, without betting on it."""
        if self.step:
            raise ConfigError("learn comes before the first episode that is bet on")
        for name, mean in self._means(scores).items():
            bisect.insort(self._before[name], mean)

    def update(self, p_values: Mapping[str, float]) -> bool:
        """Bet on p-values of one's own, which must be independent; is there an alarm by now?

        The chance of a change is spread over all moments: of the capital, 1 / (k (k + 1)) starts
        to bet at step k. So a change after a long quiet time is met by capital that has lost
        nothing yet.
        """
        for name in self.gates:
            p = p_values.get(name)
            if not isinstance(p, numbers.Real) or not 0 < p <= 1:
                raise ConfigError(f"the p-value of {name} is {p!r}: must be in (0, 1]")
        self.step += 1
        share = 1 / (self.step * (self.step + 1))
        for name in self.gates:
            grown = (self._capital[name] + share) * bet(float(p_values[name]))
            self._capital[name] = np.minimum(grown, ENOUGH)
        richest = max(self.gates, key=lambda name: self.capital[name])
        if self.alarm is None and self.capital[richest] >= self.threshold:
            self.alarm = {"step": self.step, "gate": richest}
        return self.alarm is not None

    def _means(self, scores: Mapping[str, np.ndarray]) -> dict[str, float]:
        missing = [name for name in self.gates if name not in scores or np.size(scores[name]) == 0]
        if missing:
            raise ConfigError(
                f"there are no scores for {', '.join(missing)}: where a policy has fewer gates, "
                "make the monitor with gates=gates.names"
            )
        means = {}
        for name in self.gates:
            try:
                means[name] = float(np.mean(np.asarray(scores[name], np.float64)))
            except (TypeError, ValueError) as error:
                raise ConfigError(f"the scores of {name} are no numbers: {error}") from error
            if math.isnan(means[name]):
                raise ConfigError(f"a score of {name} is not a number")
        return means

    def _rank(self, means: Mapping[str, float]) -> bool:
        # One draw for each episode and gate, whatever was asked of the monitor before.
        draws = 1 - np.random.default_rng([self.seed, self.step]).random(len(self.gates))
        p_values = {}
        for name, draw in zip(self.gates, draws, strict=True):
            p_values[name] = rank_p(self._before[name], means[name], float(draw))
            bisect.insort(self._before[name], means[name])
        return self.update(p_values)

    def to_json(self) -> dict[str, Any]:
        """The whole state in plain values: a monitor made from it goes on as this one would."""
        return {
            "delta": self.delta,
            "gates": list(self.gates),
            "seed": self.seed,
            "step": self.step,
            "alarm": self.alarm,
            "before": self._before,
            "capital": {name: bets.tolist() for name, bets in self._capital.items()},
            "sums": self._sums,
            "decisions": self._decisions,
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "DriftMonitor":
        """The reverse of `to_json`."""
        try:
            state = json.loads(json.dumps(values))
            monitor = DriftMonitor(state["delta"], state["gates"], state["seed"])
            monitor.step, monitor.alarm = int(state["step"]), state["alarm"]
            monitor._decisions = int(state["decisions"])
            for name in monitor.gates:
                monitor._before[name] = sorted(float(x) for x in state["before"][name])
                capital = np.array(state["capital"][name], dtype=np.float64)
                if capital.shape != EXPONENTS.shape or not (capital >= 0).all():
                    raise ValueError(f"the capital of {name} must be {len(EXPONENTS)} numbers")
                monitor._capital[name] = capital
                monitor._sums[name] = float(state["sums"][name])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not the state of a drift monitor: {error}") from error
        return monitor
