"""Maze2D data by D4RL's recipe: one endless trajectory of a waypoint controller.

A random free cell is the target; a shortest path over the grid gives waypoints at the centres of
cells; `clip(10 (waypoint - x) - v)` plus noise N(0, 0.5), clipped again, moves towards one until
within 0.1 of it. (Whether the published files have the noise is not recorded; without it the data
would hold one action a state. D4RL's own controller aims at the points (i, j) of cells, 0.2 from
their centres along both axes, and draws waypoints up to 0.2 away from them.) Rewards are relabelled
to the evaluation goal on the *current* observation, one step off against the environment's, as in
the published files; `timeouts` mark a reached target.
"""

from collections import deque

import numpy as np

from gemrl.data.tasks import Task
from gemrl.envs.grid import Cell, Maze, free_cells, shortest_paths
from gemrl.envs.maze2d import Maze2D
from gemrl.envs.simulator import GOAL_RADIUS
from gemrl.progress import Report, silent

REACHED = 0.1
ACTION_NOISE = 0.5


class WaypointController:
    """Follows the shortest path to a target cell, waypoint by waypoint."""

    def __init__(self, maze: Maze) -> None:
        cells = free_cells(maze)
        self._onward = {target: shortest_paths(maze, target) for target in cells}
        self._centres = {cell: maze.centre(cell) for cell in cells}
        self._path: deque[np.ndarray] = deque()

    def plan(self, position: np.ndarray, target: Cell) -> None:
        """Lay waypoints from the position's cell, left out, to the target's centre."""
        cell = min(self._centres, key=lambda c: float(np.sum((self._centres[c] - position) ** 2)))
        onward = self._onward[target]
        self._path = deque([self._centres[target]] if cell == target else [])
        while cell != target:
            cell = onward[cell]
            self._path.append(self._centres[cell])

    def act(self, position: np.ndarray, velocity: np.ndarray) -> tuple[np.ndarray, bool]:
        """The action before noise, and whether the target is reached."""
        error = self._path[0] - position
        reached = bool(error @ error < REACHED**2)
        if reached and len(self._path) > 1:
            self._path.popleft()
            reached = False
        return np.minimum(np.maximum(10.0 * error - velocity, -1.0), 1.0), reached


def make_maze2d(
    task: Task, steps: int, seed: int, report: Report = silent
) -> dict[str, np.ndarray]:
    """The arrays of a Maze2D dataset in D4RL's layout; `report` hears the steps done so far."""
    rng = np.random.default_rng(seed)
    maze = task.grid
    cells = free_cells(maze)
    env = Maze2D(task, 1)
    controller = WaypointController(maze)
    observations = np.empty((steps + 1, 4))
    actions = np.empty((steps, 2))
    timeouts = np.zeros(steps, dtype=bool)

    observation = env.reset(rng.integers(2**32, size=1))[0]
    controller.plan(observation[:2], cells[rng.integers(len(cells))])
    noise = rng.standard_normal((steps, 2)) * ACTION_NOISE
    for step in range(steps):
        observations[step] = observation
        wanted, reached = controller.act(observation[:2], observation[2:])
        actions[step] = np.minimum(np.maximum(wanted + noise[step], -1.0), 1.0)
        timeouts[step] = reached
        if reached:
            controller.plan(observation[:2], cells[rng.integers(len(cells))])
        observation = env.step(actions[step : step + 1])[0][0]
        if step % 1000 == 999:
            report(step + 1)
    observations[steps] = observation
    report(steps)

    at_goal = np.linalg.norm(observations[:-1, :2] - maze.goal, axis=1) <= GOAL_RADIUS
    return {
        "observations": observations[:-1].astype(np.float32),
        "actions": actions.astype(np.float32),
        "rewards": at_goal.astype(np.float32),
        "next_observations": observations[1:].astype(np.float32),
        "terminals": np.zeros(steps, dtype=bool),
        "timeouts": timeouts,
    }
