"""The task table: everything that depends on a task's name, and the only place that may."""

from dataclasses import dataclass, field, replace
from typing import Literal

from gemrl.envs.grid import Cell, Maze
from gemrl.errors import TaskError

Level = Literal["replay", "medium", "expert"]
Goals = Literal["fixed", "play", "diverse"]
DataScore = Literal["episodes", "rate", "success"]


@dataclass(frozen=True)
class RewardTransform:
    """What training makes of a reward: `scale * reward + shift`."""

    scale: float = 1.0
    shift: float = 0.0
    return_range: float | None = None
    """Where given, the scale that makes best minus worst episode return this number instead."""


@dataclass(frozen=True)
class Task:
    """One benchmark task."""

    name: str
    suite: str
    env_id: str
    horizon: int
    """Steps of an evaluation episode."""
    reference: tuple[float, float]
    """Returns that normalize to 0 and 100."""
    published_steps: int
    """Transitions in the published dataset, to the nearest thousand."""
    episodes: int
    """Evaluation episodes a cell."""
    obs_dim: int
    action_dim: int
    steps_per_second: int
    """Steps that one core simulates in a second, roughly: for estimates of time."""
    urls: tuple[str, ...]
    """Where the published file can be had, the best place first."""
    minari: str
    """The nearest dataset in Minari: never the same data."""
    minari_note: str
    reference_origin: str = "D4RL, d4rl/infos.py"
    rewards: RewardTransform = RewardTransform()
    lam: float = 1.0
    """The paper's pessimism for the suite."""
    wp_end: float = 0.4
    """The paper's last support weight for the suite."""
    training: dict[str, float] = field(default_factory=dict)
    """Settings of training in which the suite differs from the defaults."""
    maze: Maze | None = None
    goals: Goals | None = None
    """How the recipe of a maze with goals pairs starts and goals."""
    play_goals: tuple[Cell, ...] = ()
    """Cells that D4RL's generator sends to under `play`, picked by hand."""
    levels: tuple[Level, ...] = ()
    """Behaviour policies whose data the recipe joins, one after the other."""
    terminals_end: bool = True
    """Whether a terminal in the data ends its episode, or marks one of several rows at the goal."""
    data_score: DataScore = "episodes"
    """What of the data compares with an evaluation's return: its episodes' returns; the mean reward
    over a horizon, where its episodes have other ends; or the share of episodes with a reward."""
    action_low: float = -1.0
    action_high: float = 1.0

    @property
    def grid(self) -> Maze:
        """The maze of a task that has one."""
        if self.maze is None:
            raise TaskError(f"{self.name} has no maze")
        return self.maze


_U_CELLS = ("#####", "#   #", "### #", "#   #", "#####")
_MEDIUM_CELLS = (
    "########",
    "#  ##  #",
    "#  #   #",
    "##   ###",
    "#  #   #",
    "# #  # #",
    "#   #  #",
    "########",
)
_LARGE_CELLS = (
    "############",
    "#    #     #",
    "# ## # # # #",
    "#      #   #",
    "# #### ### #",
    "#  # #     #",
    "## # # # ###",
    "#  #   #   #",
    "############",
)
_MEDIUM_PLAY: tuple[Cell, ...] = ((2, 6), (5, 1), (6, 5))
_LARGE_PLAY: tuple[Cell, ...] = ((1, 6), (3, 5), (3, 10), (5, 2), (7, 4), (7, 6), (7, 9))
_SERVER = "rail.eecs.berkeley.edu/datasets/offline_rl"


# A copy of D4RL's files, all in one folder under their own names. Its locomotion files are named in
# docs/ReproduceExps.md of github.com/ReinFlow/ReinFlow; its AntMaze ones only in lesser public
# scripts; Maze2D ones nowhere. It is a stranger's copy, so it stands behind D4RL's own server.
_COPY = "https://huggingface.co/datasets/imone/D4RL/resolve/main/"


def _urls(path: str, copied: bool = True) -> tuple[str, ...]:
    copies = (_COPY + path.rpartition("/")[2],) if copied else ()
    # Plain http comes last: anyone on the way can change what it carries.
    return (f"https://{_SERVER}/{path}", *copies, f"http://{_SERVER}/{path}")


def _maze2d(
    size: str,
    cells: tuple[str, ...],
    goal: tuple[float, float],
    horizon: int,
    reference: tuple[float, float],
    steps: int,
) -> Task:
    return Task(
        name=f"maze2d-{size}-v1",
        suite="maze2d",
        env_id=f"gemrl/maze2d-{size}-v1",
        # The body stands at (1.2, 1.2) of the world, whose wall (i, j) is centred on (i+1, j+1).
        maze=Maze(cells, goal, corner=(-0.2, -0.2)),
        horizon=horizon,
        reference=reference,
        published_steps=steps,
        episodes=100,
        obs_dim=4,
        action_dim=2,
        steps_per_second=28_000,
        data_score="rate",
        urls=_urls(f"maze2d/maze2d-{size}-sparse-v1.hdf5", copied=False),
        minari=f"D4RL/pointmaze/{size}-v2",
        minari_note="a million steps in PointMaze's frame, radius 0.45, goals in the observation",
    )


def _antmaze(
    name: str,
    cells: tuple[str, ...],
    goal_cell: tuple[int, int],
    horizon: int,
    published: str,
    goals: Goals,
    play_goals: tuple[Cell, ...] = (),
) -> Task:
    maze = Maze(
        cells, goal=(0.0, 0.0), corner=(-4.0, -4.0), cell_size=4.0, rows_along_x=False, start=(1, 1)
    )
    # D4RL draws each axis from the cell's centre + U(0, 1) + U(0, 0.5) and does not show it to the
    # policy; the mean of the draw is taken, so that success means one thing in data and evaluation.
    x, y = maze.centre(goal_cell) + 0.75
    several = f"multistart_{goals != 'fixed'}_multigoal_{goals == 'diverse'}"
    return Task(
        name=f"antmaze-{name}-v2",
        suite="antmaze",
        env_id=f"gemrl/antmaze-{name}-v2",
        maze=replace(maze, goal=(float(x), float(y))),
        goals=goals,
        play_goals=play_goals,
        horizon=horizon,
        reference=(0.0, 1.0),
        published_steps=1_000_000,
        episodes=100,
        obs_dim=29,
        action_dim=8,
        steps_per_second=3_000,
        rewards=RewardTransform(shift=-1.0),
        terminals_end=False,
        data_score="success",
        lam=3.5,
        wp_end=0.2,
        training={"expectile": 0.9, "beta": 10.0},
        urls=_urls(f"ant_maze_v2/Ant_maze_{published}_noisy_{several}_sparse_fixed.hdf5"),
        minari=f"D4RL/antmaze/{name}-v1",
        minari_note="made anew with Gymnasium's ant (gear 150, half the time step), radius 0.45",
    )


_REPLAY_STEPS = {"halfcheetah": 202_000, "hopper": 402_000, "walker2d": 302_000}
_LEVELS: dict[str, tuple[Level, ...]] = {
    "medium": ("medium",),
    "medium-replay": ("replay",),
    "medium-expert": ("medium", "expert"),
    "expert": ("expert",),
}


def _locomotion(
    robot: str, env_id: str, obs_dim: int, action_dim: int, reference: tuple[float, float]
) -> list[Task]:
    tasks = []
    for kind, levels in _LEVELS.items():
        nearest = "simple-replay" if kind == "medium-replay" else kind
        replay = levels == ("replay",)
        tasks.append(
            Task(
                name=f"{robot}-{kind}-v2",
                suite="locomotion",
                env_id=env_id,
                levels=levels,
                horizon=1000,
                reference=reference,
                published_steps=_REPLAY_STEPS[robot] if replay else 1_000_000 * len(levels),
                episodes=10,
                obs_dim=obs_dim,
                action_dim=action_dim,
                steps_per_second=8_000,
                rewards=RewardTransform(return_range=1000.0),
                urls=_urls(f"gym_mujoco_v2/{robot}_{kind.replace('-', '_')}-v2.hdf5"),
                minari=f"mujoco/{robot}/{nearest}-v0",
                minari_note="other policies, on the -v5 environment",
            )
        )
    return tasks


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _maze2d("umaze", _U_CELLS, (1.0, 1.0), 300, (23.85, 161.86), 1_000_000),
        _maze2d("medium", _MEDIUM_CELLS, (6.0, 6.0), 600, (13.13, 277.39), 2_000_000),
        _maze2d("large", _LARGE_CELLS, (7.0, 9.0), 800, (6.7, 273.99), 4_000_000),
        _antmaze("umaze", _U_CELLS, (3, 1), 700, "u-maze", "fixed"),
        _antmaze("umaze-diverse", _U_CELLS, (3, 1), 700, "u-maze", "diverse"),
        _antmaze("medium-play", _MEDIUM_CELLS, (6, 6), 1000, "big-maze", "play", _MEDIUM_PLAY),
        _antmaze("medium-diverse", _MEDIUM_CELLS, (6, 6), 1000, "big-maze", "diverse"),
        _antmaze("large-play", _LARGE_CELLS, (7, 9), 1000, "hardest-maze", "play", _LARGE_PLAY),
        _antmaze("large-diverse", _LARGE_CELLS, (7, 9), 1000, "hardest-maze", "diverse"),
        *_locomotion("halfcheetah", "HalfCheetah-v4", 17, 6, (-280.178953, 12135.0)),
        *_locomotion("hopper", "Hopper-v4", 11, 3, (-20.272305, 3234.3)),
        *_locomotion("walker2d", "Walker2d-v4", 17, 6, (1.629008, 4592.3)),
    )
}


def task_named(name: str) -> Task:
    """The task of that name."""
    if name not in TASKS:
        raise TaskError(f"unknown task {name!r}; known tasks: {', '.join(TASKS)}")
    return TASKS[name]
