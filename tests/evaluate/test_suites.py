"""Evaluation in every suite: episodes that end early, and rows that do not depend on company."""

from dataclasses import replace

import numpy as np
import pytest

import gemrl
from gemrl.data.recipes import make_dataset
from gemrl.data.tasks import task_named
from gemrl.evaluate.rollouts import _padded, evaluate_policy, rollout

SMALL = {"hidden": (16, 16), "batch_size": 32, "critics": 2, "components": 2}
ANT = "antmaze-umaze-v2"
HOPPER = "hopper-medium-v2"


@pytest.fixture(scope="module", params=[HOPPER, ANT])
def small_policy(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    make_dataset(task_named(request.param), 3_000, 0, folder / "data.hdf5")
    data = gemrl.load_dataset(folder / "data.hdf5")
    config = gemrl.GemConfig(steps=30, pretrain_steps=30, **SMALL)
    return gemrl.train(data, config, folder / "run", quiet=True)


def test_knobs_come_from_the_suite_where_none_are_given(small_policy):
    task = task_named(small_policy.bundle.manifest["task"])
    assert (small_policy.default_knobs.lam, small_policy.default_knobs.wp) == (
        task.lam,
        task.wp_end,
    )


def test_each_episode_gets_the_row_it_would_get_alone(small_policy):
    task = task_named(small_policy.bundle.manifest["task"])
    knobs = gemrl.Knobs(n=4)
    seeds = np.arange(3)
    short = replace(task, horizon=60)
    together, paths = rollout(small_policy, knobs, short, seeds, "validation")
    assert paths.shape == (61, 3, task.obs_dim)
    for row in together:
        seed = np.array([row.episode_seed])
        (alone,), _ = rollout(small_policy, knobs, short, seed, "validation")
        assert alone.length == row.length
        assert alone.episode_return == pytest.approx(row.episode_return, rel=1e-3)
        assert alone.violation == pytest.approx(row.violation, abs=1e-3)


def test_a_robot_that_falls_has_a_short_row_with_the_audits_of_its_own_steps(small_policy):
    task = task_named(small_policy.bundle.manifest["task"])
    if task.name != HOPPER:
        pytest.skip("an ant that falls goes on")
    rows = evaluate_policy(
        small_policy, gemrl.Knobs(n=3), episodes=5, protocol="validation", quiet=True
    )
    assert all(1 <= row.length < task.horizon for row in rows)
    assert len({row.length for row in rows}) > 1
    assert all(np.isfinite([row.support_z, row.collapse_dist]).all() for row in rows)
    assert rows[0].env_id == "Hopper-v4"
    assert "mujoco" in rows[0].simulator


@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_batches_only_ever_halve_and_hold_every_row_alive(count):
    sizes = set()
    for alive in range(1, count + 1):
        rows = np.arange(count)[-alive:]
        padded = _padded(rows, count)
        assert np.array_equal(padded[:alive], rows)
        assert set(padded) == set(rows)
        assert len(padded) < 2 * alive + 1
        sizes.add(len(padded))
    assert len(sizes) <= np.ceil(np.log2(count)) + 1
