"""Who evaluates the networks of a decision: the seam between `policy.decide` and its backends.

`jax` evaluates densely and serves every policy. `fast` is compiled by numba, gives the same values
up to rounding in a fraction of the time, and serves the networks that it knows.
"""

import os
from typing import Any, Protocol

import numpy as np

from gemrl.decide.select import Scored, Shape, Weights
from gemrl.errors import KnobError
from gemrl.learn.spec import Spec
from gemrl.methods.protocol import Models

__all__ = ["Backend", "Scored", "Shape", "Weights", "backend_for", "seed_pairs"]

WANTED = ("auto", "jax", "fast")
VARIABLE = "GEMRL_BACKEND"


class Backend(Protocol):
    """What a decision asks for. Arrays are NumPy's: float32, whole numbers, truth values.

    `seeds` is uint32. Of shape () it gives row i the key `fold_in(key(seed), i)`; of shape [B] it
    gives each row `fold_in(key(seed_b), 0)`; of shape [B, 2] it holds each row's seed and number.
    """

    name: str
    """The name that a record carries."""

    def decide(
        self, obs: np.ndarray, seeds: np.ndarray, weights: Weights, shape: Shape
    ) -> dict[str, np.ndarray]:
        """One shot: all the fields of the record for observations [B, S] and weights [B]."""
        ...

    def begin(self, obs: np.ndarray, seeds: np.ndarray) -> Any:
        """What the networks say of each state before there are candidates."""
        ...

    def score(self, begun: Any, shape: Shape, first: int, count: int) -> Scored:
        """Candidates `first` to `first + count - 1` of each state; an anchor is candidate 0."""
        ...

    def rank(
        self, begun: Any, scored: Scored, weights: Weights, shape: Shape
    ) -> dict[str, np.ndarray]:
        """All the fields of the record, from the candidates scored so far."""
        ...


def seed_pairs(seeds: np.ndarray, rows: int) -> np.ndarray:
    """The seed and the number that make each row's key, [B, 2]."""
    if seeds.ndim == 2:
        return seeds
    pairs = np.zeros((rows, 2), np.uint32)
    pairs[:, 0] = seeds
    if seeds.ndim == 0 and rows > 1:
        pairs[:, 1] = np.arange(rows)
    return pairs


def wanted_backend(asked: str) -> str:
    """The backend asked for. The variable GEMRL_BACKEND (auto, jax or fast) speaks for "auto"."""
    said = os.environ.get(VARIABLE, "auto")
    for name, value in (("backend", asked), (VARIABLE, said)):
        if value not in WANTED:
            raise KnobError(f"{name} = {value!r}: must be one of {', '.join(WANTED)}")
    return said if asked == "auto" else asked


def backend_for(models: Models, spec: Spec, wanted: str = "auto") -> Backend:
    """The backend of this name; "auto" takes fast where it is installed and knows the networks.

    Which one it was, every record says.
    """
    name = wanted_backend(wanted)
    obstacle = None if name == "jax" else _fast_obstacle(models)
    if name == "fast" and obstacle is not None:
        raise KnobError(f"backend = 'fast': {obstacle}")
    if name == "jax" or obstacle is not None:
        from gemrl.decide.dense import JaxBackend

        return JaxBackend(models, spec)
    from gemrl.decide.fast.backend import FastBackend

    return FastBackend(models, spec)


def _fast_obstacle(models: Models) -> str | None:
    """Why the fast backend cannot serve these networks, if it cannot."""
    try:
        import numba  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        return f"numba cannot be imported ({error}); install it with pip install 'gemrl[fast]'"
    from gemrl.decide.fast.backend import serves

    if not serves(models):
        return (
            "it knows policies with critics, a behaviour density and two hidden layers of ReLU, "
            "and this one is another; use backend = 'jax'"
        )
    return None
