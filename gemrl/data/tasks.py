"""The task table: everything that depends on a task's name, and the only place that may."""

from dataclasses import dataclass

from gemrl.errors import TaskError


@dataclass(frozen=True)
class Maze:
    """A maze of unit cells: `#` is a wall. The goal is a point in observation terms."""

    cells: tuple[str, ...]
    goal: tuple[float, float]


@dataclass(frozen=True)
class RewardTransform:
    """What training makes of a reward: `scale * reward + shift`."""

    scale: float = 1.0
    shift: float = 0.0


@dataclass(frozen=True)
class Task:
    """One benchmark task."""

    name: str
    suite: str
    env_id: str
    maze: Maze
    horizon: int
    """Steps of an evaluation episode."""
    reference: tuple[float, float]
    """Returns that normalize to 0 and 100."""
    reference_origin: str
    published_steps: int
    """Transitions in the published dataset."""
    episodes: int
    """Evaluation episodes a cell."""
    rewards: RewardTransform
    obs_dim: int
    action_dim: int
    action_low: float = -1.0
    action_high: float = 1.0


_UMAZE = Maze(
    ("#####", "#   #", "### #", "#   #", "#####"),
    goal=(1.0, 1.0),
)
_MEDIUM = Maze(
    (
        "########",
        "#  ##  #",
        "#  #   #",
        "##   ###",
        "#  #   #",
        "# #  # #",
        "#   #  #",
        "########",
    ),
    goal=(6.0, 6.0),
)
_LARGE = Maze(
    (
        "############",
        "#    #     #",
        "# ## # # # #",
        "#      #   #",
        "# #### ### #",
        "#  # #     #",
        "## # # # ###",
        "#  #   #   #",
        "############",
    ),
    goal=(7.0, 9.0),
)
_D4RL = "D4RL, d4rl/infos.py"


def _maze2d(
    name: str, maze: Maze, horizon: int, reference: tuple[float, float], steps: int
) -> Task:
    return Task(
        name=name,
        suite="maze2d",
        env_id=f"gemrl/{name}",
        maze=maze,
        horizon=horizon,
        reference=reference,
        reference_origin=_D4RL,
        published_steps=steps,
        episodes=100,
        rewards=RewardTransform(),
        obs_dim=4,
        action_dim=2,
    )


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _maze2d("maze2d-umaze-v1", _UMAZE, 300, (23.85, 161.86), 1_000_000),
        _maze2d("maze2d-medium-v1", _MEDIUM, 600, (13.13, 277.39), 2_000_000),
        _maze2d("maze2d-large-v1", _LARGE, 800, (6.7, 273.99), 4_000_000),
    )
}


def task_named(name: str) -> Task:
    """The task of that name."""
    if name not in TASKS:
        raise TaskError(f"unknown task {name!r}; known tasks: {', '.join(TASKS)}")
    return TASKS[name]
