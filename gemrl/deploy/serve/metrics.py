"""Counts and times in Prometheus' format."""

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gemrl.decide.verdict import Verdict
from gemrl.deploy.serve import answers
from gemrl.deploy.serve.decider import Outcome

SECONDS = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
CANDIDATES = (1, 2, 17, 65, 129, 257, 513, 1025, 2049, 4097)

Values = dict[str, dict[str, float]]
"""Counts that others keep: name, then label value (empty where there is none) and number."""


class Metrics:
    """What the server counts. `others` gives counts and `gauges` levels that are kept elsewhere."""

    def __init__(self, others: Callable[[], Values], gauges: Callable[[], Values]) -> None:
        self.registry = CollectorRegistry()
        make: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(
            "gemrl_requests", "Answers by way and status", ["way", "status"], **make
        )
        self._answers: dict[tuple[str, int], Counter] = {}
        self.decisions = Counter("gemrl_decisions", "Observations decided", **make)
        self.fallbacks = Counter(
            "gemrl_fallbacks", "Executed actions that are not the search's", ["to"], **make
        )
        self.flags = Counter("gemrl_gate_flags", "Decisions that a gate flagged", ["gate"], **make)
        self.flagged = Counter("gemrl_flagged", "Decisions that the gates flagged together", **make)
        self.violations = Counter(
            "gemrl_violations", "Executed actions with support z below -2", **make
        )
        self.seconds = Histogram(
            "gemrl_seconds", "From a request's arrival to its decision", buckets=SECONDS, **make
        )
        self.deciding = Histogram(
            "gemrl_deciding_seconds", "Deciding alone", buckets=SECONDS, **make
        )
        self.scored = Histogram(
            "gemrl_scored_candidates", "Candidates scored", buckets=CANDIDATES, **make
        )
        self.registry.register(_Kept(others, CounterMetricFamily))
        self.registry.register(_Kept(gauges, GaugeMetricFamily))
        self.counts = {"decisions": 0, "errors": 0, "fallbacks": 0, "flagged": 0}

    def answered(self, way: str, status: int) -> None:
        """An answer of any kind was given; a good one from any thread."""
        if (way, status) not in self._answers:
            self._answers[way, status] = self.requests.labels(way, str(status))
        self._answers[way, status].inc()
        if 400 <= status != 503:
            self.counts["errors"] += 1

    def decided(self, outcome: Outcome) -> None:
        """A request was decided and answered."""
        rows = len(outcome.decisions)
        self.decisions.inc(rows)
        self.counts["decisions"] += 0 if outcome.ask.detail else rows
        self.seconds.observe(outcome.finished - outcome.ask.arrived)
        self.deciding.observe(outcome.finished - outcome.started)
        for decision in outcome.decisions:
            self.scored.observe(int(decision.n_scored))
            if decision.executed_violation:
                self.violations.inc()
            rung = outcome.fallback or answers.rung(decision)
            if rung != "search":
                self.fallbacks.labels("anchor" if rung == "overload" else rung).inc()
                self.counts["fallbacks"] += 1
            verdict = decision.verdict
            if not isinstance(verdict, Verdict):
                continue
            if verdict.flagged:
                self.flagged.inc()
                self.counts["flagged"] += 1
            for gate, flag in verdict.flags.items():
                if flag:
                    self.flags.labels(gate).inc()

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


class _Kept:
    """Counts that other parts keep, read when Prometheus asks."""

    def __init__(self, values: Callable[[], Values], kind: type) -> None:
        self.values = values
        self.kind = kind

    def collect(self) -> Iterable[Metric]:
        for name, by_label in self.values().items():
            labels = [] if "" in by_label else ["of"]
            family = self.kind(f"gemrl_{name}", name.replace("_", " "), labels=labels)
            for label, value in by_label.items():
                family.add_metric([label] if labels else [], value)
            yield family
