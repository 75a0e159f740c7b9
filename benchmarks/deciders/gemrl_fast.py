"""gemrl's decision with its fast backend, through the interface that people use."""

from collections.abc import Callable
from functools import cache

import numpy as np

from deciders.policies import load_policy, states_of
from deciders.worker import LAMBDA, WEIGHT

BACKEND = "fast"


@cache
def policy_of(dimensions: int, backend: str):  # noqa: ANN201 (gemrl is not imported here)
    """A policy, once."""
    return load_policy(dimensions, backend)


def maker(backend: str) -> Callable[[int, int, int], Callable[[int], None]]:
    """What makes this backend's contender."""

    def make(dimensions: int, n: int, batch: int) -> Callable[[int], None]:
        import gemrl

        policy, states = policy_of(dimensions, backend), states_of(dimensions)
        knobs = gemrl.Knobs(n=n, lam=LAMBDA, wp=WEIGHT)
        rows = np.arange(batch) % len(states)

        def decide(number: int) -> None:
            if batch == 1:
                policy.decide(states[number % len(states)], knobs, seed=number)
            else:
                policy.decide(states[rows], knobs, seed=number)

        return decide

    return make


make = maker(BACKEND)
