"""AntMaze data made anew by D4RL's recipe, with a gait of our own in place of its trained policy.

A waypoint planner steers the gait along the shortest path of cells, from cell centre to cell
centre, with noise N(0, 0.2) on the actions, clipped again. An episode ends where its commanded goal
is reached, or after 1000 steps in every maze; a fallen ant stays where it fell until then. D4RL's
generator goes on to 1000 steps also from a reached goal, circling it.

Starts and goals, by the task's rule:

- fixed: the start and the goal of the evaluation;
- play: goals are the cells picked by hand in D4RL's generator, and the evaluation's own, which D4RL
  lacks in the medium maze; starts are random among the other free cells;
- diverse: both are random free cells.

The commanded point lies in its cell as the evaluation goal lies in its own, and a random start up
to a metre from its cell's centre, as in D4RL.

Rewards and terminals are relabelled to the evaluation goal as in the published v2 files: both are 1
wherever the position after the step lies within 0.5 of it, also when an ant only passes on its way
elsewhere. `timeouts` mark the last step of every whole episode, whatever ended it. `infos/goal` is
the commanded goal; `infos/qpos` and `infos/qvel` are of the state after the step, as in D4RL's
generator.
"""

from collections import deque
from itertools import count

import numpy as np

from gemrl.data.recipes.gait import walk
from gemrl.data.tasks import Task
from gemrl.envs.antmaze import JOINTS, POSITIONS, AntMaze
from gemrl.envs.grid import Cell, Maze, free_cells, shortest_paths
from gemrl.envs.simulator import GOAL_RADIUS
from gemrl.errors import TaskError
from gemrl.progress import Report, silent

EPISODE_STEPS = 1000
ACTION_NOISE = 0.2
START_NOISE = 1.0
# Near enough to a waypoint to turn to the next, and early enough not to overshoot a bend.
NEAR = 1.0
# Ants that walk together, which saves the gait's time. Each episode has its own seed, so the data
# does not depend on how many they are.
ANTS = 4


def start_and_goal_cells(task: Task) -> tuple[list[Cell], list[Cell]]:
    """Cells in which a task's episodes may start, and those to which they may be sent."""
    maze, free = task.grid, free_cells(task.grid)
    evaluation = _cell_at(maze, np.array(maze.goal))
    if task.goals == "diverse":
        return free, free
    if task.goals == "play":
        goals = sorted({*task.play_goals, evaluation})
        return [cell for cell in free if cell not in goals], goals
    if task.goals == "fixed" and maze.start:
        return [maze.start], [evaluation]
    raise TaskError(f"{task.name}: its table row does not say how starts and goals are paired")


def _cell_at(maze: Maze, position: np.ndarray) -> Cell:
    row, column = maze.cell_at(position)
    return int(row), int(column)


class Episode:
    """One walk from a start to a commanded goal, decided by the task and its seed alone."""

    def __init__(self, task: Task, seed: tuple[int, int]) -> None:
        maze = task.grid
        self.rng = np.random.default_rng(seed)
        starts, goals = start_and_goal_cells(task)
        cell = starts[self.rng.integers(len(starts))]
        goals = [goal for goal in goals if goal != cell]
        target = goals[self.rng.integers(len(goals))]
        self.start = maze.centre(cell)
        if task.goals != "fixed":
            self.start = self.start + self.rng.uniform(0, START_NOISE, 2)
        onward = shortest_paths(maze, target)
        self.path: list[np.ndarray] = []
        while cell != target:
            cell = onward[cell]
            self.path.append(maze.centre(cell))
        evaluation = np.array(maze.goal)
        self.goal = self.path[-1] + evaluation - maze.centre(_cell_at(maze, evaluation))
        self.path[-1] = self.goal
        self.noise = ACTION_NOISE * self.rng.standard_normal((EPISODE_STEPS, JOINTS))
        self.now = np.empty(0)
        self.observations: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []
        self.over = False

    def __len__(self) -> int:
        return len(self.actions)

    def direction(self) -> np.ndarray:
        """Unit vector to the next waypoint."""
        if len(self.path) > 1 and np.linalg.norm(self.path[0] - self.now[:2]) < NEAR:
            del self.path[0]
        away = self.path[0] - self.now[:2]
        return away / max(float(np.linalg.norm(away)), 1e-6)

    def see(self, observation: np.ndarray) -> None:
        """Take in where the ant is: at its goal or out of time, the episode is over."""
        self.now = observation
        self.observations.append(observation.astype(np.float32))
        self.over = len(self) >= EPISODE_STEPS or bool(_near(self.observations[-1], self.goal))

    def rows(self) -> dict[str, np.ndarray]:
        """What happened so far, one row a step."""
        observations = np.array(self.observations)
        return {
            "observations": observations[:-1],
            "actions": np.array(self.actions),
            "next_observations": observations[1:],
            "timeouts": (np.arange(len(self)) == len(self) - 1) & self.over,
            "infos/goal": np.tile(self.goal.astype(np.float32), (len(self), 1)),
        }


def _near(observations: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """Which positions lie within the goal's radius?"""
    away = observations[..., :2] - np.asarray(goals, dtype=np.float64)
    return np.linalg.norm(away, axis=-1) <= GOAL_RADIUS


def make_antmaze(
    task: Task, steps: int, seed: int, report: Report = silent
) -> dict[str, np.ndarray]:
    """The arrays of an AntMaze dataset in D4RL's layout; `report` hears the steps done so far."""
    env = AntMaze(task, ANTS)
    numbers = count()
    # Episodes stand in the order of their numbers, which is not that in which they end.
    waiting: deque[Episode] = deque()

    def begin(row: int) -> Episode:
        episode = Episode(task, (seed, next(numbers)))
        env.place(row, episode.start, episode.rng)
        episode.see(env.observation(row))
        waiting.append(episode)
        return episode

    walking = [begin(row) for row in range(ANTS)]
    parts: list[dict[str, np.ndarray]] = []
    done = 0
    while done + len(waiting[0]) < steps:
        directions = np.array([episode.direction() for episode in walking])
        clock = np.array([len(episode) for episode in walking])
        actions = walk(np.array([episode.now for episode in walking]), directions, clock)
        actions += np.array([episode.noise[len(episode)] for episode in walking])
        # As they are stored, so that they lead from each stored state to the next.
        actions = np.clip(actions, -1.0, 1.0).astype(np.float32)
        for row, episode in enumerate(walking):
            env.advance(row, actions[row])
            episode.actions.append(actions[row])
            episode.see(env.observation(row))
            if episode.over:
                walking[row] = begin(row)
        while done < steps and waiting[0].over:
            done += len(waiting[0])
            parts.append(waiting.popleft().rows())
            report(min(done, steps))
    if done < steps:
        parts.append(waiting[0].rows())
    report(steps)

    joined = {name: np.concatenate([part[name] for part in parts])[:steps] for name in parts[0]}
    following = joined["next_observations"]
    at_goal = _near(following, np.array(task.grid.goal))
    return joined | {
        "rewards": at_goal.astype(np.float32),
        "terminals": at_goal,
        "infos/qpos": following[:, :POSITIONS],
        "infos/qvel": following[:, POSITIONS:],
    }


def success_rate(arrays: dict[str, np.ndarray]) -> float | None:
    """Share of the whole episodes whose commanded goal was reached; None where there are none."""
    ends = arrays["timeouts"]
    if not ends.any():
        return None
    return float(_near(arrays["next_observations"][ends], arrays["infos/goal"][ends]).mean())
