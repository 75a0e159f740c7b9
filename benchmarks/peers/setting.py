"""What every contender trains on: sizes, settings and the dataset."""

from typing import NamedTuple

import numpy as np

OBSERVATION, ACTION = 17, 6
BATCH, HIDDEN, COMPONENTS = 256, (256, 256), 8
ROWS = 100_000

# gemrl's defaults, said here once so that peers without gemrl use them too.
LEARNING_RATE, DISCOUNT, EXPECTILE, BETA, WEIGHT_CAP, POLYAK = 3e-4, 0.99, 0.7, 3.0, 100.0, 0.005
GATE_ENTROPY, LOG_STD_MIN, LOG_STD_MAX = 0.01, -3.0, 0.0


class Transitions(NamedTuple):
    """A dataset as arrays of 32-bit floats; `mask` is 0 at a terminal."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    mask: np.ndarray


def transitions(rows: int = ROWS) -> Transitions:
    """Random transitions: how fast an update is does not depend on what they say."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((rows + 1, OBSERVATION), dtype=np.float32)
    return Transitions(
        obs=obs[:-1],
        action=rng.uniform(-1, 1, (rows, ACTION)).astype(np.float32),
        reward=rng.standard_normal(rows, dtype=np.float32),
        next_obs=obs[1:],
        mask=(rng.uniform(size=rows) > 0.001).astype(np.float32),
    )
