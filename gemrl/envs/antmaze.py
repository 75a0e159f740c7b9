"""AntMaze as D4RL has it: an eight-joint ant in a maze of 4 m cells, seen in D4RL's own frame.

The observation is the ant's 15 positions, x and y first, and its 14 velocities; the goal is not
observed. x runs along a row's columns and y along the rows, from the centre of the start cell.
Reward is 1 where the position after the step lies within 0.5 of the goal, and that ends the
episode. A fallen ant stays fallen: its episode goes on to the horizon.

D4RL draws a new goal for each v2 episode, up to 1.5 m off its cell's centre in x and y, which the
policy does not see. Here the goal stays at the mean of that draw, the point to which the data's
rewards are labelled, so that a success is the same event in the data and in the evaluation.
"""

import numpy as np

from gemrl.data.tasks import Task
from gemrl.envs.grid import Maze
from gemrl.envs.simulator import MazeRows

WALL_HEIGHT = 2.0
TIME_STEP = 0.02
FRAME_SKIP = 5
TORQUE = 30.0
POSITIONS, VELOCITIES, JOINTS = 15, 14, 8

# The direction of each leg from the torso, in the order of the joints.
LEGS = ((1, 1), (-1, 1), (-1, -1), (1, -1))
# The leg that each pair of actions (hip, ankle) moves.
ACTION_LEGS = (3, 0, 1, 2)


def maze_xml(maze: Maze) -> str:
    """The MuJoCo model of an ant in a maze, with D4RL's physical constants."""
    half = maze.cell_size / 2
    centres = [
        maze.centre((i, j))
        for i, row in enumerate(maze.cells)
        for j, cell in enumerate(row)
        if cell == "#"
    ]
    walls = "".join(
        f'<geom type="box" size="{half} {half} {WALL_HEIGHT / 2}" pos="{x} {y} {WALL_HEIGHT / 2}"'
        ' conaffinity="1"/>'
        for x, y in centres
    )
    legs = "".join(_leg_xml(leg, *direction) for leg, direction in enumerate(LEGS))
    motors = "".join(
        f'<motor joint="{joint}_{leg}" gear="{TORQUE}" ctrlrange="-1 1" ctrllimited="true"/>'
        for leg in ACTION_LEGS
        for joint in ("hip", "ankle")
    )
    return f"""
    <mujoco>
      <compiler inertiafromgeom="true" angle="degree"/>
      <option timestep="{TIME_STEP}" integrator="RK4"/>
      <default>
        <joint limited="true" armature="1" damping="1"/>
        <geom density="5" friction="1 0.5 0.5" condim="3" margin="0.01" solref="0.02 1"
              solimp="0.8 0.8 0.01" contype="1" conaffinity="0"/>
      </default>
      <worldbody>
        <geom type="plane" size="40 40 40" conaffinity="1"/>
        {walls}
        <body name="torso" pos="0 0 0.75">
          <joint type="free" limited="false" armature="0" damping="0" margin="0.01"/>
          <geom type="sphere" size="0.25"/>
          {legs}
        </body>
      </worldbody>
      <actuator>{motors}</actuator>
    </mujoco>
    """


def _leg_xml(leg: int, x: int, y: int) -> str:
    """A leg of three capsules towards (x, y); turning its ankle by 30 to 70 degrees lowers it."""
    short, long = f"{0.2 * x} {0.2 * y} 0", f"{0.4 * x} {0.4 * y} 0"
    low, high = sorted((30 * x, 70 * x))
    return f"""
    <body>
      <geom type="capsule" size="0.08" fromto="0 0 0 {short}"/>
      <body pos="{short}">
        <joint name="hip_{leg}" axis="0 0 1" range="-30 30"/>
        <geom type="capsule" size="0.08" fromto="0 0 0 {short}"/>
        <body pos="{short}">
          <joint name="ankle_{leg}" axis="{-x * y} 1 0" range="{low} {high}"/>
          <geom type="capsule" size="0.08" fromto="0 0 0 {long}"/>
        </body>
      </body>
    </body>
    """


class AntMaze(MazeRows):
    """A batch of AntMaze environments that step together, one row each."""

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task, count, maze_xml(task.grid))
        self._ended = np.zeros(count, dtype=bool)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Start an episode in each environment: the start cell's centre and a little noise."""
        for row, (_, seed) in enumerate(zip(self.data, seeds, strict=True)):
            self.place(row, np.zeros(2), np.random.default_rng(int(seed)))
        return self.observations()

    def place(self, row: int, position: np.ndarray, rng: np.random.Generator) -> None:
        """Put one row's ant at a position, standing up, with the noise of D4RL's resets."""
        qpos = self.model.qpos0 + rng.uniform(-0.1, 0.1, POSITIONS)
        qpos[:2] += position
        self.set_state(row, qpos, 0.1 * rng.standard_normal(VELOCITIES))

    def set_state(self, row: int, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Put one row into a given state; its episode has not ended."""
        upright = np.array(qpos, dtype=np.float64)
        # The noise of a reset leaves no unit quaternion, and only a step would make it one.
        upright[3:7] /= np.linalg.norm(upright[3:7])
        super().set_state(row, upright, qvel)
        self._ended[row] = False

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Apply one action a row; returns observations, rewards and which rows have ended."""
        going = ~self._ended
        for row in np.flatnonzero(going).tolist():
            self.advance(row, actions[row])
        observations = self.observations()
        at_goal = self.at_goal(observations) & going
        self._ended |= at_goal
        return observations, at_goal.astype(np.float64), self._ended.copy()

    def advance(self, row: int, action: np.ndarray) -> None:
        """Apply one action to one row, wherever its goal lies."""
        data = self.data[row]
        # Several times faster than np.clip on arrays this small.
        data.ctrl[:] = np.minimum(np.maximum(action, -1.0), 1.0)
        self._step(self.model, data, FRAME_SKIP)
