"""Maze2D as D4RL has it: a point mass in a maze of unit cells, seen in D4RL's own frame.

The observation is position and velocity; the goal is not observed. The centre of cell (i, j) is at
(i - 0.2, j - 0.2). Reward is 1 where the position after the step lies within 0.5 of the goal, and
an episode never ends before its horizon.
"""

from importlib import import_module
from typing import Any

import numpy as np

from gemrl.data.tasks import Maze, Task
from gemrl.errors import MissingExtraError

GOAL_RADIUS = 0.5
MAX_SPEED = 5.0
PARTICLE_RADIUS = 0.1
# The body stands at (1.2, 1.2) of the world, whose wall (i, j) is centred on (i + 1, j + 1).
BODY_ORIGIN = 1.2


def cell_centre(cell: tuple[int, int]) -> np.ndarray:
    """Centre of a cell in observation terms."""
    return np.array(cell, dtype=np.float64) + 1 - BODY_ORIGIN


def free_cells(maze: Maze) -> list[tuple[int, int]]:
    """Cells that are not walls, row by row."""
    return [(i, j) for i, row in enumerate(maze.cells) for j, cell in enumerate(row) if cell != "#"]


def inside_wall(maze: Maze, positions: np.ndarray) -> np.ndarray:
    """For each position [..., 2]: does the point lie in a wall or beyond the maze?"""
    walls = np.array([[cell == "#" for cell in row] for row in maze.cells])
    index = np.floor(positions + BODY_ORIGIN - 0.5).astype(int)
    beyond = (index < 0).any(axis=-1) | (index >= walls.shape).any(axis=-1)
    clipped = np.clip(index, 0, np.array(walls.shape) - 1)
    return beyond | walls[clipped[..., 0], clipped[..., 1]]


def maze_xml(maze: Maze) -> str:
    """The MuJoCo model of a maze, with D4RL's physical constants."""
    walls = "".join(
        f'<geom type="box" size="0.5 0.5 0.2" pos="{i + 1} {j + 1} 0" contype="1"/>'
        for i, row in enumerate(maze.cells)
        for j, cell in enumerate(row)
        if cell == "#"
    )
    return f"""
    <mujoco>
      <compiler inertiafromgeom="true" angle="radian"/>
      <option timestep="0.01" gravity="0 0 0" iterations="20" integrator="Euler"/>
      <default>
        <joint damping="1"/>
        <geom friction="0.5 0.1 0.1" density="1000" margin="0.002" condim="1"
              contype="2" conaffinity="1"/>
      </default>
      <worldbody>
        <geom type="plane" size="40 40 0.25" pos="0 0 -0.1" contype="1" conaffinity="0"/>
        {walls}
        <body pos="{BODY_ORIGIN} {BODY_ORIGIN} 0">
          <geom type="sphere" size="{PARTICLE_RADIUS}" contype="1"/>
          <joint name="x" type="slide" axis="1 0 0"/>
          <joint name="y" type="slide" axis="0 1 0"/>
        </body>
      </worldbody>
      <actuator>
        <motor joint="x" ctrlrange="-1 1" ctrllimited="true" gear="100"/>
        <motor joint="y" ctrlrange="-1 1" ctrllimited="true" gear="100"/>
      </actuator>
    </mujoco>
    """


def load_mujoco() -> Any:
    """MuJoCo's module, which training does without."""
    try:
        return import_module("mujoco")
    except ImportError as error:
        raise MissingExtraError("this needs MuJoCo, which is not installed: gemrl[eval]") from error


class Maze2D:
    """A batch of Maze2D environments that step together, one row each."""

    def __init__(self, task: Task, count: int) -> None:
        mujoco = load_mujoco()
        self.task = task
        self.version = f"mujoco {mujoco.__version__}"
        self._step = mujoco.mj_step
        self._reset = mujoco.mj_resetData
        self._forward = mujoco.mj_forward
        self._model = mujoco.MjModel.from_xml_string(maze_xml(task.maze))
        self._data = [mujoco.MjData(self._model) for _ in range(count)]
        self._starts = np.array([cell_centre(cell) for cell in free_cells(task.maze)])
        self._goal = np.array(task.maze.goal)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Start an episode in each environment: a random free cell and a small random velocity."""
        for data, seed in zip(self._data, seeds, strict=True):
            rng = np.random.default_rng(int(seed))
            self._reset(self._model, data)
            start = self._starts[rng.integers(len(self._starts))]
            data.qpos[:] = start + rng.uniform(-0.1, 0.1, 2)
            data.qvel[:] = 0.1 * rng.standard_normal(2)
            self._forward(self._model, data)
        return self.observations()

    def set_state(self, row: int, position: np.ndarray, velocity: np.ndarray) -> None:
        """Put one environment into a given state."""
        data = self._data[row]
        self._reset(self._model, data)
        data.qpos[:], data.qvel[:] = position, velocity
        self._forward(self._model, data)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Apply one action a row; returns observations and rewards."""
        clipped = np.clip(actions, -1.0, 1.0)
        for data, action in zip(self._data, clipped, strict=True):
            # Several times faster than np.clip on arrays this small.
            data.qvel[:] = np.minimum(np.maximum(data.qvel, -MAX_SPEED), MAX_SPEED)
            data.ctrl[:] = action
            self._step(self._model, data)
        observations = self.observations()
        return observations, self.rewards(observations)

    def observations(self) -> np.ndarray:
        """Position and velocity of each row."""
        return np.array([np.concatenate([data.qpos, data.qvel]) for data in self._data])

    def rewards(self, observations: np.ndarray) -> np.ndarray:
        """1 where the position lies within the goal's radius."""
        distance = np.linalg.norm(observations[:, :2] - self._goal, axis=1)
        return (distance <= GOAL_RADIUS).astype(np.float64)
