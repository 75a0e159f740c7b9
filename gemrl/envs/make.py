"""The environment of a task."""

from collections.abc import Callable

from gemrl.data.tasks import Task
from gemrl.envs.antmaze import AntMaze
from gemrl.envs.locomotion import Locomotion
from gemrl.envs.maze2d import Maze2D
from gemrl.envs.simulator import Env, MassScale
from gemrl.errors import ConfigError

_SUITES: dict[str, Callable[[Task, int], Maze2D | AntMaze | Locomotion]] = {
    "maze2d": Maze2D,
    "antmaze": AntMaze,
    "locomotion": Locomotion,
}


def make_env(task: Task, count: int, *, mass_scale: float = 1.0) -> Env:
    """`count` environments of a task that step together, their bodies `mass_scale` as heavy."""
    if count < 1:
        raise ConfigError(f"count = {count}: must be at least 1")
    env = _SUITES[task.suite](task, count)
    if mass_scale != 1.0:
        for model in env.models:
            MassScale(model).set(mass_scale)
    return env
