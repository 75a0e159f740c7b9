"""What a method that looks back is given: the last steps of an episode, packed as a row of numbers.

Training cuts such contexts from the data, and a decision makes one of an episode's history. Both
pack them here, so that a network sees the same in both.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32


class Context(NamedTuple):
    """How far back a method looks, and the return that it asks for."""

    length: int
    """Steps, the present one included."""
    return_scale: float
    """What returns are divided by before a network sees them."""
    target_return: float | None
    """What an episode asks for at its start; None where the settings do not say."""


class Steps(NamedTuple):
    """Steps of an episode in their order, K to a context; NumPy's arrays or JAX's."""

    to_go: Any
    """[..., K] What the episode returns from the step on."""
    obs: Any
    """[..., K, S]"""
    action: Any
    """[..., K, A]"""
    number: Any
    """[..., K] The step's number in its episode, from 0."""
    present: Any
    """[..., K] 1 for a step, 0 for a place before the episode's first."""


def step_width(obs_dim: int, action_dim: int) -> int:
    """Numbers of a packed step."""
    return obs_dim + action_dim + 3


def pack(steps: Steps) -> Float32[np.ndarray, "*b kw"]:
    """Steps as one row a context."""
    single = (steps.to_go, steps.number, steps.present)
    to_go, number, present = (np.asarray(values)[..., None] for values in single)
    columns = (to_go, steps.obs, steps.action, number, present)
    packed = np.concatenate(columns, axis=-1, dtype=np.float32)
    return packed.reshape(*packed.shape[:-2], -1)


def unpack(packed: Any, obs_dim: int, action_dim: int) -> Steps:
    """The reverse of `pack`."""
    steps = packed.reshape(*packed.shape[:-1], -1, step_width(obs_dim, action_dim))
    edges = np.cumsum([0, 1, obs_dim, action_dim, 1, 1]).tolist()
    to_go, obs, action, number, present = (
        steps[..., start:stop] for start, stop in itertools.pairwise(edges)
    )
    return Steps(to_go[..., 0], obs, action, number[..., 0], present[..., 0])
