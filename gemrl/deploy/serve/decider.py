"""Requests decided together, each as it would be alone; gates and their ladder; timings.

Only the `fast` backend decides a row to the same bits whatever batch it is in, so only there
requests share a call. With the `jax` backend they are decided one after another.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemrl.decide.decision import Decision
from gemrl.decide.gates import Gates
from gemrl.decide.guard import Guard
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy
from gemrl.decide.search import CHUNK, Deadlines
from gemrl.deploy.serve.requests import Ask
from gemrl.errors import GemrlError, RefusedError

MANY_ROWS = 16


@dataclass(frozen=True, eq=False)
class Job:
    """A request on its way to a decision."""

    ask: Ask
    fallback: str | None = None
    """Why the anchor alone is to be decided, where it is: overload."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """A request and what was decided at each of its observations."""

    ask: Ask
    """With the knobs that were used."""
    decisions: list[Decision]
    fallback: str | None
    started: float
    """When deciding began, by `time.perf_counter()`."""
    finished: float
    refusal: RefusedError | None = None
    """Set where the guard refused: the decisions are known, and none is to be executed."""
    told: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)
    """Decisions as plain values, by their row, once somebody wanted them: see `answers.row`."""

    @property
    def is_large(self) -> bool:
        """Whether its answer is long, so that it is not made in the event loop."""
        return self.ask.detail or len(self.decisions) > MANY_ROWS


class Decider:
    """A policy with its gates, and a guard where the operator lets the gates act."""

    def __init__(
        self,
        policy: Policy,
        gates: Gates | None = None,
        alpha: float = 0.01,
        guard: Guard | None = None,
    ) -> None:
        self.policy = policy
        self.gates = gates
        self.alpha = alpha
        self.guard = guard
        self.shares_calls = policy.backend.name == "fast"

    def decide(self, jobs: Sequence[Job], deadlines: Deadlines) -> list[Outcome | GemrlError]:
        """Each job's outcome, or its own mistake.

        `deadlines` has an entry for each job; it counts where the request has a deadline.
        """
        started = time.perf_counter()
        found: dict[int, Outcome | GemrlError] = {}
        for places in self._groups(jobs):
            try:
                decided = self._decisions([jobs[place].ask for place in places], deadlines, places)
            except GemrlError as error:
                if len(places) == 1:
                    found[places[0]] = error
                    continue
                # One request's mistake must not become another's.
                for place in places:
                    alone = Deadlines(deadlines.at[[place]])
                    found[place] = self.decide([jobs[place]], alone)[0]
                continue
            for place, decisions in zip(places, decided, strict=True):
                found[place] = self._judged(jobs[place], decisions, started)
        return [found[place] for place in range(len(jobs))]

    def _groups(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Places of jobs that share a call: those with and those without a deadline apart."""
        every = range(len(jobs))
        if len(jobs) == 1 or not self.shares_calls:
            return [[place] for place in every]
        timed = [place for place in every if jobs[place].ask.deadline_ms is not None]
        untimed = [place for place in every if jobs[place].ask.deadline_ms is None]
        return [places for places in (timed, untimed) if places]

    def _decisions(
        self, asks: Sequence[Ask], deadlines: Deadlines, places: Sequence[int]
    ) -> list[list[Decision]]:
        """The decisions at each request's observations."""
        first = asks[0]
        timed = first.deadline_ms is not None
        sizes = [len(ask.rows) for ask in asks]
        if not self.shares_calls or sizes == [1]:
            return [[self._alone(first, row, deadlines, places[0]) for row in range(sizes[0])]]
        same = all(ask.knobs == first.knobs for ask in asks)
        each = [ask.knobs for ask, size in zip(asks, sizes, strict=True) for _ in range(size)]
        batch = self.policy.decide(
            np.concatenate([ask.rows for ask in asks]),
            first.knobs if same else each,
            seed=np.concatenate([ask.pairs for ask in asks]),
            t=np.concatenate([ask.steps for ask in asks]),
            deadline_ms=DeadlinesOf(deadlines, np.repeat(places, sizes)) if timed else None,
        )
        rows = iter(range(sum(sizes)))
        return [[batch.row(next(rows)) for _ in range(size)] for size in sizes]

    def _alone(self, ask: Ask, row: int, deadlines: Deadlines, place: int) -> Decision:
        until = None if ask.deadline_ms is None else DeadlinesOf(deadlines, [place])
        return self.policy.decide(ask.rows[row], ask.knobs, **ask.draw(row), deadline_ms=until)

    def _judged(self, job: Job, decisions: list[Decision], started: float) -> Outcome | GemrlError:
        """With the gates' word on each, and where they may act, what the guard makes of it."""
        refused: dict[int, RefusedError] = {}
        if self.gates is not None:
            judged = []
            for row, decision in enumerate(decisions):
                try:
                    judged.append(self._settled(job.ask, row, decision))
                except RefusedError as error:
                    refused[row] = error
                    judged.append(error.decision)
                except GemrlError as error:
                    return error
            decisions = judged
        refusal = _refusal(refused, len(decisions))
        return Outcome(job.ask, decisions, job.fallback, started, time.perf_counter(), refusal)

    def _settled(self, ask: Ask, row: int, decision: Decision) -> Decision:
        assert self.gates is not None
        verdict = self.gates.judge(ask.rows[row], decision, self.alpha)
        if self.guard is None or not verdict.flagged:
            return dataclasses.replace(decision, verdict=verdict)
        return self.guard.settle(ask.rows[row], decision, verdict, ask.knobs, **ask.draw(row))

    def warm_up(self, knobs: Sequence[Knobs], rows: int, most: int) -> None:
        """Compile all that requests with these knobs need: one shot, chunks, anchor, rungs.

        `most` is the largest n that a request may name.
        """
        policy, obs = self.policy, self.policy.spec.obs_mean[None]
        several = [1, rows] if self.shares_calls else [1]
        for one in knobs:
            for count in several:
                policy.decide(np.tile(obs, (count, 1)), one, t=0)
                policy.decide(np.tile(obs, (count, 1)), one, t=0, chunk=CHUNK)
            if self.shares_calls:
                # Requests may ask for more candidates than these knobs, and then chunks are used.
                policy.decide(obs, dataclasses.replace(one, n=2), t=0, chunk=1)
            if self.guard is not None:
                self.guard.warm_up(one, most)
        if policy.proposes_mixture:
            policy.actor(obs[0])
        if policy.models.behavior is not None:
            policy.behavior(obs[0])


def _refusal(refused: dict[int, RefusedError], rows: int) -> RefusedError | None:
    """The refusal of a request, which says which of its rows were refused."""
    if not refused:
        return None
    first = min(refused)
    if rows == 1:
        return refused[first]
    return RefusedError(
        f"{len(refused)} of {rows} observations were refused, the first in row {first}: "
        f"{refused[first]}",
        rows=sorted(refused),
    )


class DeadlinesOf(Deadlines):
    """The deadlines of some jobs, seen row by row: brought forward there, they are here too."""

    def __init__(self, jobs: Deadlines, places: Sequence[int] | np.ndarray) -> None:
        self.jobs = jobs
        self.places = np.asarray(places)

    def passed(self, rows: np.ndarray | None) -> np.ndarray:
        """Which of these rows (None: all) begin no chunk any more."""
        places = self.places if rows is None else self.places[rows]
        return self.jobs.at[places] <= time.perf_counter()
