"""A trained policy beside states of its data that training never saw."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.data.tasks import Task
from gemrl.decide.gates import split_of
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy, load
from gemrl.evaluate.reproduce.budget import BASELINES
from gemrl.evaluate.reproduce.study import Study

# Candidates of the states that are decided together.
TOGETHER = 2**17


@dataclass(frozen=True)
class Effort:
    """How much the experiments look at."""

    states: int = 256
    """Held-out states at which candidates are scored."""
    transitions: int = 2_000
    """Held-out transitions whose densities are compared."""
    repeats: int = 200
    """Repetitions of a choice whose truth is known."""
    datasets: int = 20
    """Datasets of a fit whose truth is known."""
    samples: int = 1_000
    """Actions of such a dataset."""
    episodes: int = 20
    """Validation episodes of a rollout, where the budget has as many."""


class Candidates(NamedTuple):
    """Candidates of several states, the anchor first, and what the networks say of them."""

    q: np.ndarray
    """[B, M, C] Each critic's value."""
    log_support: np.ndarray
    """[B, C] Log density under the behaviour mixture."""


@dataclass(frozen=True)
class Seen:
    """GEM of one training seed, its baselines, and its dataset."""

    study: Study
    task: Task
    seed: int
    data: Dataset
    effort: Effort

    @cached_property
    def gem(self) -> Policy:
        """The policy itself."""
        return load(self.study.policy(self.task.name, "gem", self.seed))

    @cached_property
    def baselines(self) -> dict[str, Policy]:
        """The unimodal policies that were trained beside it, by method."""
        return {
            method: load(self.study.policy(self.task.name, method, self.seed))
            for method in BASELINES
        }

    @cached_property
    def transitions(self) -> Dataset:
        """Random transitions of held-out episodes."""
        return self.data.select(self._rows(self.effort.transitions))

    @cached_property
    def candidates(self) -> Candidates:
        """Candidates at random held-out states: twice as many as the tables have."""
        states = self.data.observations[self._rows(self.effort.states)]
        n = 2 * self.study.budget.n
        size = min(len(states), max(1, TOGETHER // (n + 1)))
        found = []
        for first in range(0, len(states), size):
            # Each size of batch is compiled once, so the last one is filled up, and cut afterwards.
            at = np.minimum(np.arange(first, first + size), len(states) - 1)
            decided = self.gem.decide(states[at], Knobs(n=n), seed=at)
            real = min(size, len(states) - first)
            found.append((decided.q[:real], decided.log_support[:real]))
        q, log_support = zip(*found, strict=True)
        return Candidates(np.concatenate(q), np.concatenate(log_support))

    @property
    def counts(self) -> list[int]:
        """Numbers of candidates beside the anchor, of which each set is a prefix of the next."""
        largest = 2 * self.study.budget.n
        return sorted({n for n in (1, 4, 16, 64, 256, 1024, 2048) if n < largest} | {largest})

    def scaled(self, observations: np.ndarray) -> np.ndarray:
        """Observations as the networks see them."""
        spec = self.gem.spec
        return (observations - spec.obs_mean) / spec.obs_std

    def _rows(self, count: int) -> np.ndarray:
        _, held = split_of(self.gem, self.data)
        rng = np.random.default_rng([self.seed, count])
        return np.sort(rng.choice(held, min(count, len(held)), replace=False))
