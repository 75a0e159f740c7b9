"""Every task's recipe at a small size, and the behaviour policies that gemrl brings along."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import gemrl
from gemrl.data.behavior import load_behavior
from gemrl.data.inspect import inspect
from gemrl.data.recipes import make_dataset
from gemrl.data.recipes.locomotion import collect, make_locomotion, own_policies
from gemrl.data.tasks import TASKS, task_named
from gemrl.maths.statistics import normalized_score

POLICIES = Path(gemrl.__file__).parent / "data" / "policies"
ROBOTS = ("halfcheetah", "hopper", "walker2d")


def contents(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
            )
        )
        return found, dict(file.attrs)


@pytest.mark.parametrize("name", TASKS)
def test_the_recipe_makes_the_same_bytes_again_and_a_file_that_says_what_it_is(name, tmp_path):
    task = task_named(name)
    for copy in ("one", "two"):
        make_dataset(task, 300, 7, tmp_path / f"{copy}.hdf5")
    arrays, attributes = contents(tmp_path / "one.hdf5")
    again, _ = contents(tmp_path / "two.hdf5")
    assert arrays.keys() == again.keys()
    assert all(arrays[key].tobytes() == again[key].tobytes() for key in arrays)
    assert arrays["observations"].shape == (300, task.obs_dim)
    assert arrays["actions"].shape == (300, task.action_dim)
    assert attributes["gemrl_origin"] == "regenerated"
    recipe = json.loads(attributes["gemrl_recipe"])
    assert (recipe["seed"], recipe["steps"]) == (7, 300)
    assert {"gemrl", "mujoco", "numpy", "name"} <= recipe.keys()

    data = gemrl.load_dataset(tmp_path / "one.hdf5")
    data.require_trainable()
    assert (data.task, data.origin) == (name, "regenerated")
    report = inspect(data)
    assert report["jumps"] == 0
    assert report["outside_bounds"] == 0


def test_another_seed_gives_other_data(tmp_path):
    for name in ("maze2d-umaze-v1", "antmaze-medium-play-v2", "walker2d-medium-replay-v2"):
        task = task_named(name)
        for seed in (0, 1):
            make_dataset(task, 100, seed, tmp_path / f"{name}-{seed}.hdf5")
        one, two = (contents(tmp_path / f"{name}-{seed}.hdf5")[0] for seed in (0, 1))
        assert not np.array_equal(one["actions"], two["actions"])


def test_medium_expert_is_medium_and_then_expert_of_the_same_seed():
    medium, expert, joined = (
        make_locomotion(task_named(f"hopper-{kind}-v2"), steps, 3)
        for kind, steps in (("medium", 400), ("expert", 400), ("medium-expert", 800))
    )
    for name, array in joined.items():
        assert np.array_equal(array, np.concatenate([medium[name], expert[name]]))


def score(robot, policy, steps=3_000):
    task = task_named(f"{robot}-medium-v2")
    data = collect(task.env_id, [policy], steps, [0], horizon=1000)
    ends = data["terminals"] | data["timeouts"]
    starts = np.flatnonzero(np.append(True, ends[:-1]))
    returns = np.add.reduceat(data["rewards"], starts)
    # The last episode is cut by the number of steps unless it is long enough to be whole.
    whole = (
        returns[:-1] if len(returns) > 1 and len(data["rewards"]) - starts[-1] < 1000 else returns
    )
    return normalized_score(float(whole.mean()), *task.reference)


@pytest.mark.parametrize("robot", ROBOTS)
def test_own_policies_walk_at_the_level_that_their_record_tells(robot):
    levels = json.loads((POLICIES / "levels.json").read_text())
    env_id = task_named(f"{robot}-medium-v2").env_id
    scores = {}
    for level in ("medium", "expert"):
        (policy,) = own_policies(env_id, level)
        scores[level] = score(robot, policy)
        assert scores[level] == pytest.approx(levels[policy.source]["sampled_normalized"], abs=20)
    assert 20 < scores["medium"] < 70
    assert scores["expert"] > 80
    assert len(own_policies(env_id, "replay")) >= 8


def test_each_network_is_small_and_has_its_record():
    levels = json.loads((POLICIES / "levels.json").read_text())
    files = sorted(POLICIES.glob("*.npz"))
    assert {path.name for path in files} == set(levels)
    for path in files:
        assert path.stat().st_size <= 150_000
        task = task_named(f"{path.name.split('-')[0]}-medium-v2")
        assert levels[path.name]["env"] == task.env_id
        policy = load_behavior(path)
        assert (policy.obs_dim, policy.action_dim) == (task.obs_dim, task.action_dim)
