"""Maze2D as D4RL has it: a point mass in a maze of unit cells, seen in D4RL's own frame.

The observation is position and velocity; the goal is not observed. D4RL puts what stands in cell
(i, j) at the point (i, j), a start as well as a goal, while the cell's walls are centred on
(i - 0.2, j - 0.2). Reward is 1 where the position after the step lies within 0.5 of the goal, and
an episode never ends before its horizon.
"""

import numpy as np

from gemrl.data.tasks import Task
from gemrl.envs.grid import Maze, free_cells
from gemrl.envs.simulator import load_mujoco

GOAL_RADIUS = 0.5
MAX_SPEED = 5.0
PARTICLE_RADIUS = 0.1
# Where the body stands in the world, whose wall (i, j) is centred on (i + 1, j + 1).
BODY_ORIGIN = 1.2


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


class Maze2D:
    """A batch of Maze2D environments that step together, one row each."""

    def __init__(self, task: Task, count: int) -> None:
        mujoco = load_mujoco()
        self.task = task
        self.version = f"mujoco {mujoco.__version__}"
        self.model = mujoco.MjModel.from_xml_string(maze_xml(task.grid))
        self.models = [self.model]
        self.data = [mujoco.MjData(self.model) for _ in range(count)]
        self._step = mujoco.mj_step
        self._reset = mujoco.mj_resetData
        self._forward = mujoco.mj_forward
        self._starts = np.array(free_cells(task.grid), dtype=np.float64)
        self._goal = np.array(task.grid.goal)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Start an episode in each row: near the point of a random free cell, hardly moving."""
        for data, seed in zip(self.data, seeds, strict=True):
            rng = np.random.default_rng(int(seed))
            self._reset(self.model, data)
            start = self._starts[rng.integers(len(self._starts))]
            data.qpos[:] = start + rng.uniform(-0.1, 0.1, 2)
            data.qvel[:] = 0.1 * rng.standard_normal(2)
            self._forward(self.model, data)
        return self.observations()

    def set_state(self, row: int, position: np.ndarray, velocity: np.ndarray) -> None:
        """Put one environment into a given state."""
        data = self.data[row]
        self._reset(self.model, data)
        data.qpos[:], data.qvel[:] = position, velocity
        self._forward(self.model, data)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Apply one action a row; returns observations, rewards and which rows have ended."""
        clipped = np.clip(actions, -1.0, 1.0)
        for data, action in zip(self.data, clipped, strict=True):
            # Several times faster than np.clip on arrays this small.
            data.qvel[:] = np.minimum(np.maximum(data.qvel, -MAX_SPEED), MAX_SPEED)
            data.ctrl[:] = action
            self._step(self.model, data)
        observations = self.observations()
        return observations, self.rewards(observations), np.zeros(len(observations), dtype=bool)

    def observations(self) -> np.ndarray:
        """Position and velocity of each row."""
        return np.array([np.concatenate([data.qpos, data.qvel]) for data in self.data])

    def rewards(self, observations: np.ndarray) -> np.ndarray:
        """1 where the position lies within the goal's radius."""
        distance = np.linalg.norm(observations[:, :2] - self._goal, axis=1)
        return (distance <= GOAL_RADIUS).astype(np.float64)
