"""What the environments share: an interface of rows that step together, MuJoCo, masses."""

from importlib import import_module
from typing import Any, Protocol

import numpy as np

from gemrl.data.tasks import Task
from gemrl.errors import ConfigError, MissingExtraError

GOAL_RADIUS = 0.5


class Env(Protocol):
    """A batch of environments of one task, one row each, so that a policy decides for all at once.

    A row whose episode has ended stands still: it keeps its observation and earns nothing. The
    task's horizon is the caller's to keep.
    """

    task: Task
    version: str
    """Simulator and its version, as rows tell it."""
    models: list[Any]
    """The MuJoCo models behind the rows, which may share one."""

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Start an episode in each row, decided by its seed alone; returns observations [E, S]."""
        ...

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Apply actions [E, A]; returns observations, rewards [E] and which rows have ended [E]."""
        ...


def load_mujoco() -> Any:
    """MuJoCo's module, which training does without."""
    return _load("mujoco", "MuJoCo")


def load_gymnasium() -> Any:
    """Gymnasium's module, which has the locomotion environments."""
    _load("imageio", "Gymnasium's MuJoCo support")
    return _load("gymnasium", "Gymnasium")


def _load(module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"this needs {name}, which is not installed: gemrl[eval]"
        ) from error


class MazeRows:
    """Bodies in copies of one maze, one row each, seen as positions and velocities."""

    def __init__(self, task: Task, count: int, xml: str) -> None:
        mujoco = load_mujoco()
        self.task = task
        self.version = f"mujoco {mujoco.__version__}"
        self.model = mujoco.MjModel.from_xml_string(xml)
        self.models = [self.model]
        self.data = [mujoco.MjData(self.model) for _ in range(count)]
        self._step = mujoco.mj_step
        self._reset = mujoco.mj_resetData
        self._forward = mujoco.mj_forward
        self._goal = np.array(task.grid.goal)

    def set_state(self, row: int, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Put one row into a given state."""
        data = self.data[row]
        self._reset(self.model, data)
        data.qpos[:], data.qvel[:] = qpos, qvel
        self._forward(self.model, data)

    def observation(self, row: int) -> np.ndarray:
        """Positions and velocities of one row."""
        return np.concatenate([self.data[row].qpos, self.data[row].qvel])

    def observations(self) -> np.ndarray:
        """Positions and velocities of each row."""
        return np.array([self.observation(row) for row in range(len(self.data))])

    def at_goal(self, observations: np.ndarray) -> np.ndarray:
        """Which positions lie within the goal's radius?"""
        return np.linalg.norm(observations[..., :2] - self._goal, axis=-1) <= GOAL_RADIUS


class MassScale:
    """Scales the masses and inertias of a MuJoCo model, always from the originals it started with.

    MuJoCo keeps constants that follow from masses, and they are computed anew; reset afterwards.
    """

    def __init__(self, model: Any) -> None:
        self._mujoco = load_mujoco()
        self._model = model
        self._mass = model.body_mass.copy()
        self._inertia = model.body_inertia.copy()

    def set(self, scale: float) -> None:
        """Make every body `scale` times as heavy as in the original model."""
        if not (np.isfinite(scale) and scale > 0):
            raise ConfigError(f"mass scale = {scale!r}: must be a finite number above 0")
        self._model.body_mass[:] = self._mass * scale
        self._model.body_inertia[:] = self._inertia * scale
        # On data of its own: the computation moves a simulation to the model's first pose.
        self._mujoco.mj_setConst(self._model, self._mujoco.MjData(self._model))
