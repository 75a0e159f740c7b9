"""Maze2D as D4RL has it: a point mass in a maze of unit cells, seen in D4RL's own frame.

The observation is position and velocity; the goal is not observed. The centre of cell (i, j) is at
(i - 0.2, j - 0.2), where episodes start; the goal is at (i, j) itself. (D4RL's own code starts at
(i, j) too, 0.2 away from here along both axes and well inside the same cell.) Reward is 1 where the
position after the step lies within 0.5 of the goal, and an episode never ends before its horizon.
"""

import numpy as np

from gemrl.data.tasks import Task
from gemrl.envs.grid import Maze, free_cells
from gemrl.envs.simulator import MazeRows

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


class Maze2D(MazeRows):
    """A batch of Maze2D environments that step together, one row each."""

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task, count, maze_xml(task.grid))
        self._starts = np.array([task.grid.centre(cell) for cell in free_cells(task.grid)])

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Start an episode in each row: near the centre of a random free cell, hardly moving."""
        for row, seed in zip(range(len(self.data)), seeds, strict=True):
            rng = np.random.default_rng(int(seed))
            start = self._starts[rng.integers(len(self._starts))]
            position = start + rng.uniform(-0.1, 0.1, 2)
            self.set_state(row, position, 0.1 * rng.standard_normal(2))
        return self.observations()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Apply one action a row; returns observations, rewards and which rows have ended."""
        clipped = np.clip(actions, -1.0, 1.0)
        for data, action in zip(self.data, clipped, strict=True):
            # Several times faster than np.clip on arrays this small.
            data.qvel[:] = np.minimum(np.maximum(data.qvel, -MAX_SPEED), MAX_SPEED)
            data.ctrl[:] = action
            self._step(self.model, data)
        observations = self.observations()
        rewards = self.at_goal(observations).astype(np.float64)
        return observations, rewards, np.zeros(len(observations), dtype=bool)
