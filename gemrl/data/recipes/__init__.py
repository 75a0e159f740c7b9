"""Datasets made anew by their published recipes, deterministically from a seed."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gemrl
from gemrl.data.behavior import load_behavior
from gemrl.data.recipes import antmaze, locomotion, maze2d
from gemrl.data.storage import atomic_path
from gemrl.data.tasks import Task, task_named
from gemrl.envs.locomotion import GymRows
from gemrl.envs.simulator import load_gymnasium, load_mujoco
from gemrl.errors import ConfigError, DataError
from gemrl.progress import Report, say, silent

Arrays = dict[str, np.ndarray]


class Recipe(NamedTuple):
    """How a suite's data is made, and how a file says it."""

    make: Callable[[Task, int, int, Report], Arrays]
    describe: Callable[[Task, Arrays], dict[str, Any]]


RECIPES = {
    "maze2d": Recipe(
        maze2d.make_maze2d,
        lambda task, arrays: {
            "name": "maze2d waypoint controller",
            "action_noise": maze2d.ACTION_NOISE,
        },
    ),
    "antmaze": Recipe(
        antmaze.make_antmaze,
        lambda task, arrays: {
            "name": "antmaze planner and gait",
            "goals": task.goals,
            "action_noise": antmaze.ACTION_NOISE,
            "episode_steps": antmaze.EPISODE_STEPS,
            "ends_at_goal": True,
            "success_rate": antmaze.success_rate(arrays),
        },
    ),
    "locomotion": Recipe(
        locomotion.make_locomotion,
        lambda task, arrays: {
            "name": "locomotion policies, sampled",
            "gymnasium": load_gymnasium().__version__,
            "policies": {
                policy.source: policy.sha256
                for level in task.levels
                for policy in locomotion.own_policies(task.env_id, level)
            },
        },
    ),
}


def make_dataset(task: Task, steps: int, seed: int, out: Path, report: Report = silent) -> None:
    """Regenerate a task's dataset into an HDF5 file that says what it is."""
    _require_sane(steps, seed, out)
    recipe = RECIPES[task.suite]
    with _writable(out) as temporary:
        arrays = recipe.make(task, steps, seed, report)
        said = recipe.describe(task, arrays) | {"steps": steps, "seed": seed}
        bounds = (task.action_low, task.action_high)
        _write(temporary, arrays, task.name, "regenerated", said, bounds)


def collect_dataset(
    env_id: str,
    policies: list[Path],
    steps: int,
    seed: int,
    out: Path,
    *,
    horizon: int | None = None,
    deterministic: bool = False,
    task: str | None = None,
    report: Report = silent,
) -> None:
    """Episodes of anybody's policies in a Gymnasium environment, in the layout of the others.

    Each policy has an equal share of the steps, in the order given. `task` names the task that the
    data stands for.
    """
    _require_sane(steps, seed, out)
    if not policies:
        raise ConfigError("collect needs at least one policy file")
    if horizon is not None and horizon < 1:
        raise ConfigError(f"horizon = {horizon}: must be at least 1")
    if task is not None and task_named(task).env_id != env_id:
        raise ConfigError(f"task {task} is on {task_named(task).env_id}, not on {env_id}")
    loaded = [load_behavior(path) for path in policies]
    env = GymRows(env_id, 1)
    said = {
        "name": "collected",
        "environment": env_id,
        "policies": [{"file": policy.source, "sha256": policy.sha256} for policy in loaded],
        "deterministic": deterministic,
        "horizon": horizon or env.horizon,
        "steps": steps,
        "seed": seed,
        "gymnasium": load_gymnasium().__version__,
    }
    with _writable(out) as temporary:
        arrays = locomotion.collect(
            env_id,
            loaded,
            steps,
            [seed],
            horizon=horizon,
            deterministic=deterministic,
            report=report,
        )
        _write(temporary, arrays, task, "collected", said, (env.action_low, env.action_high))


def _require_sane(steps: int, seed: int, out: Path) -> None:
    if steps < 1:
        raise ConfigError(f"steps = {steps}: must be at least 1")
    if seed < 0:
        raise ConfigError(f"seed = {seed}: must be at least 0")
    if out.suffix not in (".hdf5", ".h5"):
        raise ConfigError(f"out = {out}: must end in .hdf5")


@contextmanager
def _writable(out: Path) -> Iterator[Path]:
    """A temporary file that becomes `out`, found to be writable before the long work begins."""
    if out.exists():
        say(f"{out} is there already and will be replaced")
    try:
        with atomic_path(out) as temporary:
            temporary.touch()
            yield temporary
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}") from error


def _write(
    path: Path,
    arrays: Arrays,
    task: str | None,
    origin: str,
    said: dict[str, Any],
    bounds: tuple[np.ndarray | float, np.ndarray | float],
) -> None:
    """One HDF5 file in D4RL's layout; its attributes tell how it came to be."""
    import h5py

    versions = {
        "gemrl": gemrl.__version__,
        "mujoco": load_mujoco().__version__,
        "numpy": np.__version__,
    }
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
        if task is not None:
            file.attrs["gemrl_task"] = task
        file.attrs["gemrl_origin"] = origin
        file.attrs["gemrl_recipe"] = json.dumps(said | versions, sort_keys=True)
        size = arrays["actions"].shape[1]
        for name, bound in zip(("action_low", "action_high"), bounds, strict=True):
            file.attrs[name] = np.broadcast_to(np.float32(bound), (size,))
