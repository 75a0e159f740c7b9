"""The last decisions, for the page."""

import dataclasses
import threading
import time
from collections import deque
from typing import Any

import numpy as np

from gemrl.decide.decision import Decision
from gemrl.decide.policy import Policy
from gemrl.deploy.serve import answers
from gemrl.deploy.serve.decider import Outcome

KEPT = 256
CLOUD = 512
LATENCIES = 2_000


class Live:
    """Keeps the last decisions: the event loop writes, and threads read for the page."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.last = 0
        self._lock = threading.Lock()
        self._lines: deque[dict[str, Any]] = deque(maxlen=KEPT)
        # Of the newest alone, since candidates take memory.
        self._newest: tuple[int, Outcome] | None = None
        self._seconds: deque[float] = deque(maxlen=LATENCIES)

    def keep(self, outcome: Outcome) -> None:
        """Remember a decision."""
        line = _line(self.last + 1, time.time(), outcome)
        with self._lock:
            self.last += 1
            self._lines.append(line)
            self._newest = (self.last, outcome)
            self._seconds.append(outcome.finished - outcome.ask.arrived)

    def since(self, after: int) -> dict[str, Any]:
        """The decisions with a larger number, and the newest one's candidates."""
        with self._lock:
            lines, newest, seconds = list(self._lines), self._newest, list(self._seconds)
        return {
            "last": self.last if newest is None else newest[0],
            "decisions": [line for line in lines if line["id"] > after],
            "cloud": None if newest is None or newest[0] <= after else self._cloud(*newest),
            "latency_ms": None if not seconds else _quantiles(seconds),
        }

    def _cloud(self, number: int, outcome: Outcome) -> dict[str, Any]:
        decision, obs = outcome.decisions[-1], outcome.ask.rows[-1]
        chosen, count = int(decision.chosen), int(decision.n_scored)
        shown = np.arange(min(count, CLOUD))
        if chosen >= CLOUD:
            shown[-1] = chosen
        fields = answers.detail(_some(decision, shown), self.policy, obs)
        return fields | {
            "id": number,
            "chosen": int(np.flatnonzero(shown == chosen)[0]),
            "anchor": None if outcome.ask.knobs.anchor == "none" else 0,
            "action": answers.plain(decision.action),
        }


def _some(decision: Decision, shown: np.ndarray) -> Decision:
    """The decision with some of its candidates."""
    return dataclasses.replace(
        decision,
        **{
            name: getattr(decision, name)[shown]
            for name in ("candidates", "score", "lcb", "support_z", "log_support")
        },
    )


def _line(number: int, moment: float, outcome: Outcome) -> dict[str, Any]:
    """One decision in short; the last row of a batch stands for it."""
    ask, row = outcome.ask, answers.row(outcome, len(outcome.decisions) - 1)
    audit, gates = row["audit"], row["gates"]
    executed = audit["executed"]
    return {
        "id": number,
        "time": moment,
        "source": ask.source,
        "rows": len(ask.rows),
        "episode": ask.episode,
        "t": ask.t if ask.t is None or ask.single else int(ask.steps[-1]),
        "action": row["action"],
        "anchor": row["anchor"],
        "n": ask.knobs.n,
        "n_scored": row["n_scored"],
        "wp": row["wp"],
        **{name: audit["chosen"][name] for name in answers.AUDITS[1:]},
        **{f"executed_{name}": executed[name] for name in answers.AUDITS[1:]},
        "flagged": None if gates is None else gates["flagged"],
        "flags": None if gates is None else gates["flags"],
        "rung": row["rung"],
        "fallback": outcome.fallback,
        **answers.timings(outcome),
    }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    found = np.quantile(seconds, (0.5, 0.9, 0.99)) * 1e3
    return {name: round(float(q), 4) for name, q in zip(("p50", "p90", "p99"), found, strict=True)}
