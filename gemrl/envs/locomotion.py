"""Hopper, HalfCheetah and Walker2d as Gymnasium has them under the `-v4` names.

D4RL's v2 files come from the same physics; `-v5` changed a friction of Walker2d and the rewards.
An episode ends where the robot falls (never for HalfCheetah).
"""

import warnings
from typing import Any

import numpy as np

from gemrl.data.tasks import Task
from gemrl.envs.simulator import load_gymnasium, load_mujoco
from gemrl.errors import ConfigError


class GymRows:
    """A batch of one Gymnasium environment with vectors in and out, one row each."""

    def __init__(self, env_id: str, count: int) -> None:
        gymnasium = load_gymnasium()
        if count < 1:
            raise ConfigError(f"count = {count}: must be at least 1")
        self.version = f"mujoco {load_mujoco().__version__}, gymnasium {gymnasium.__version__}"
        self._envs = [_bare_env(gymnasium, env_id) for _ in range(count)]
        spaces = (self._envs[0].observation_space, self._envs[0].action_space)
        if not all(isinstance(s, gymnasium.spaces.Box) and len(s.shape) == 1 for s in spaces):
            raise ConfigError(f"environment {env_id}: observations and actions must be vectors")
        self.obs_dim, self.action_dim = (space.shape[0] for space in spaces)
        self.action_low, self.action_high = spaces[1].low, spaces[1].high
        if not np.isfinite([self.action_low, self.action_high]).all():
            raise ConfigError(f"environment {env_id}: its action bounds are not finite")
        self.horizon: int | None = gymnasium.spec(self._envs[0].spec.id).max_episode_steps
        self.models = [env.model for env in self._envs if hasattr(env, "model")]
        self._observations = np.zeros((count, self.obs_dim))
        self._ended = np.zeros(count, dtype=bool)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Start an episode in each row: the robot's first pose with a little noise."""
        for row, seed in zip(range(len(self._envs)), seeds, strict=True):
            self.restart(row, int(seed))
        return self._observations.copy()

    def restart(self, row: int, seed: int) -> np.ndarray:
        """Start an episode in one row; returns its first observation."""
        self._ended[row] = False
        self._observations[row] = self._envs[row].reset(seed=seed)[0]
        return self._observations[row].copy()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Apply one action a row; returns observations, rewards and which rows have ended."""
        rewards = np.zeros(len(self._envs))
        clipped = np.clip(actions, self.action_low, self.action_high)
        for row in np.flatnonzero(~self._ended):
            observation, rewards[row], ended, _, _ = self._envs[row].step(clipped[row])
            self._observations[row] = observation
            self._ended[row] = ended
        return self._observations.copy(), rewards, self._ended.copy()


class Locomotion(GymRows):
    """A batch of a locomotion task's environments that step together."""

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task.env_id, count)
        self.task = task


def _bare_env(gymnasium: Any, env_id: str) -> Any:
    """A Gymnasium environment without its wrappers: horizons and bounds are kept elsewhere."""
    mujoco = load_mujoco()
    level = gymnasium.logger.min_level
    # Both libraries advise against the -v4 files, which are the task.
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return gymnasium.make(env_id, disable_env_checker=True).unwrapped
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"environment {env_id!r} cannot be made: {error}") from error
    finally:
        gymnasium.logger.min_level = level
        mujoco.set_mju_user_warning(None)
