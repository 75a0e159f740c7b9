"""Locomotion rows against Gymnasium's own environments, one at a time."""

import warnings

import gymnasium
import numpy as np
import pytest

from gemrl.data.tasks import TASKS, task_named
from gemrl.envs.locomotion import GymRows, Locomotion
from gemrl.errors import ConfigError

ROBOTS = ("halfcheetah", "hopper", "walker2d")


def their_env(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gymnasium.make(env_id)


@pytest.mark.parametrize("robot", ROBOTS)
def test_a_row_walks_exactly_as_gymnasiums_environment_does(robot):
    task = task_named(f"{robot}-medium-v2")
    ours, theirs = Locomotion(task, 2), their_env(task.env_id)
    rng = np.random.default_rng(0)
    observation = ours.reset(np.array([3, 4]))
    assert np.array_equal(observation[1], theirs.reset(seed=4)[0])
    for _ in range(60):
        action = rng.uniform(-1, 1, (2, task.action_dim)).astype(np.float32)
        observation, reward, ended = ours.step(action)
        other, other_reward, other_ended, _, _ = theirs.step(action[1])
        np.testing.assert_array_equal(observation[1], other)
        assert reward[1] == other_reward
        assert ended[1] == other_ended
        if other_ended:
            break


def test_the_tasks_environments_have_the_tables_sizes_bounds_and_horizon():
    for task in TASKS.values():
        if task.suite == "locomotion":
            rows = GymRows(task.env_id, 1)
            assert (rows.obs_dim, rows.action_dim) == (task.obs_dim, task.action_dim)
            assert (rows.action_low == task.action_low).all()
            assert (rows.action_high == task.action_high).all()
            assert rows.horizon == task.horizon
            assert task.env_id.endswith("-v4")


def test_a_fallen_row_stands_still_and_earns_nothing_while_others_go_on():
    env = Locomotion(task_named("hopper-medium-v2"), 4)
    env.reset(np.arange(4))
    rng = np.random.default_rng(1)
    fallen, kept = np.zeros(4, dtype=bool), np.zeros((4, 11))
    for _ in range(200):
        observation, reward, ended = env.step(rng.uniform(-1, 1, (4, 3)))
        assert (ended >= fallen).all()
        assert (reward[fallen] == 0).all()
        np.testing.assert_array_equal(observation[fallen], kept[fallen])
        fallen, kept = ended, observation
    assert fallen.all()
    assert not np.array_equal(env.restart(2, 9), kept[2])
    assert not env.step(np.zeros((4, 3)))[2][2]


def test_half_cheetah_never_ends():
    env = Locomotion(task_named("halfcheetah-medium-v2"), 1)
    env.reset(np.array([0]))
    rng = np.random.default_rng(0)
    assert not any(env.step(rng.uniform(-1, 1, (1, 6)))[2][0] for _ in range(300))


def test_making_one_leaves_no_log_file_and_no_words(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    GymRows("HalfCheetah-v4", 1)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("env_id", ["NoSuchRobot-v4", "CartPole-v1"])
def test_an_environment_that_is_unknown_or_has_no_vectors_is_refused_by_name(env_id):
    with pytest.raises(ConfigError, match=env_id):
        GymRows(env_id, 1)
