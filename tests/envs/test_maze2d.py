"""Maze2D against D4RL's published numbers and an independent simulation of the same maze."""

import sys

import numpy as np
import pytest

from gemrl.data.tasks import TASKS, task_named
from gemrl.envs.grid import free_cells, inside_wall
from gemrl.envs.maze2d import Maze2D
from gemrl.errors import GemrlError, MissingExtraError

UMAZE = "maze2d-umaze-v1"
MAPS = {UMAZE: "U_MAZE", "maze2d-medium-v1": "MEDIUM_MAZE", "maze2d-large-v1": "LARGE_MAZE"}
RADIUS = 0.1


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path, monkeypatch):
    """PointMaze leaves a model file in the folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def walls_of(task):
    return np.array([[cell == "#" for cell in row] for row in task.maze.cells])


def in_wall(task, positions):
    """Cell (i, j) is centred on (i - 0.2, j - 0.2), so it starts at (i - 0.7, j - 0.7)."""
    index = np.floor(np.asarray(positions) + 0.7).astype(int)
    return walls_of(task)[index[..., 0], index[..., 1]]


def touching(task, position, reach=RADIUS + 0.005):
    """Does a wall lie within reach of the position, along an axis?"""
    steps = reach * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    return bool(in_wall(task, position + steps).any())


def drive(task, count, steps, seed, size=1.0, hold=15):
    """Random actions, each held for a while so that walls are hit hard."""
    rng = np.random.default_rng(seed)
    env = Maze2D(task, count)
    observations = [env.reset(np.arange(count))]
    rewards = []
    for step in range(steps):
        if step % hold == 0:
            actions = rng.uniform(-size, size, (count, 2))
        observation, reward, _ = env.step(actions)
        observations.append(observation)
        rewards.append(reward)
    return np.stack(observations), np.stack(rewards)


@pytest.mark.parametrize("name", [UMAZE, "maze2d-medium-v1", "maze2d-large-v1"])
def test_a_uniformly_random_policy_returns_d4rls_reference_minimum(name):
    task = task_named(name)
    episodes = 300
    env = Maze2D(task, episodes)
    env.reset(np.arange(episodes))
    rng = np.random.default_rng(0)
    returns = np.zeros(episodes)
    for _ in range(task.horizon):
        returns += env.step(rng.uniform(-1, 1, (episodes, 2)))[1]
    # The reference is itself the mean of a random policy's 100 episodes.
    error = returns.std(ddof=1) * np.sqrt(1 / episodes + 1 / 100)
    assert error < 10
    assert abs(returns.mean() - task.reference[0]) < 2 * error


@pytest.mark.parametrize("name", MAPS)
def test_cells_are_those_of_pointmaze(name):
    maps = pytest.importorskip("gymnasium_robotics.envs.maze.maps")
    assert np.array_equal(walls_of(task_named(name)), np.array(getattr(maps, MAPS[name])) == 1)


@pytest.mark.parametrize("name", MAPS)
def test_steps_equal_pointmazes_after_the_change_of_frame(name):
    point_maze = pytest.importorskip("gymnasium_robotics.envs.maze.point_maze")
    maps = pytest.importorskip("gymnasium_robotics.envs.maze.maps")
    task = task_named(name)
    height, width = walls_of(task).shape
    other = point_maze.PointMazeEnv(maze_map=getattr(maps, MAPS[name]))
    other.reset(seed=0)

    def in_its_frame(observation):
        x, y, vx, vy = observation
        return np.array([y + 0.7 - width / 2, height / 2 - 0.7 - x, vy, -vx])

    env = Maze2D(task, 1)
    observation = env.reset(np.array([0]))[0]
    rng = np.random.default_rng(0)
    contacts = 0
    for step in range(400):
        if step % 20 == 0:
            action = rng.uniform(-1.5, 1.5, 2)
        state = in_its_frame(observation)
        other.point_env.set_state(state[:2], state[2:])
        observation = env.step(action[None])[0][0]
        theirs = other.step(np.array([action[1], -action[0]]))[0]["observation"]
        assert np.allclose(in_its_frame(observation), theirs, rtol=0, atol=1e-9)
        contacts += touching(task, observation[:2])
    other.close()
    assert contacts >= 30


def test_a_path_with_wall_contacts_follows_pointmazes_without_being_set_back_on_it():
    point_maze = pytest.importorskip("gymnasium_robotics.envs.maze.point_maze")
    task = task_named(UMAZE)
    other = point_maze.PointMazeEnv()
    other.reset(seed=0)
    env = Maze2D(task, 1)
    start = env.reset(np.array([3]))[0]
    other.point_env.set_state(
        np.array([start[1] + 0.7 - 2.5, 2.5 - 0.7 - start[0]]), np.array([start[3], -start[2]])
    )
    rng = np.random.default_rng(0)
    contacts = 0
    for step in range(300):
        if step % 20 == 0:
            action = rng.uniform(-1, 1, 2)
        x, y, vx, vy = env.step(action[None])[0][0]
        theirs = other.step(np.array([action[1], -action[0]]))[0]["observation"]
        ours = np.array([y + 0.7 - 2.5, 2.5 - 0.7 - x, vy, -vx])
        assert np.allclose(ours, theirs, rtol=0, atol=1e-9)
        contacts += touching(task, np.array([x, y]))
    other.close()
    assert contacts >= 20


@pytest.mark.parametrize("name", MAPS)
def test_long_random_driving_ends_in_no_wall(name):
    task = task_named(name)
    observations, _ = drive(task, count=12, steps=1500, seed=1)
    positions = observations[..., :2]
    assert not in_wall(task, positions).any()
    assert not inside_wall(task.maze, positions).any()
    # It is a test of walls only if they were hit.
    assert np.mean([touching(task, position) for position in positions[-100:, 0]]) > 0
    reached = {tuple(cell) for cell in np.floor(positions + 0.7).astype(int).reshape(-1, 2)}
    assert reached <= set(free_cells(task.maze))


def test_inside_wall_agrees_with_the_map_and_counts_the_outside_as_wall():
    task = task_named("maze2d-large-v1")
    walls = walls_of(task)
    for (i, j), wall in np.ndenumerate(walls):
        centre = task.maze.centre((i, j))
        assert centre == pytest.approx((i - 0.2, j - 0.2))
        for corner in ((0, 0), (0.49, 0.49), (-0.49, 0.49), (0.49, -0.49), (-0.49, -0.49)):
            assert inside_wall(task.maze, centre + corner) == wall
    outside = np.array([[-0.8, 1.0], [1.0, -0.8], [9.0, 1.0], [1.0, 12.0], [-50, 900]])
    assert inside_wall(task.maze, outside).all()


@pytest.mark.parametrize("name", MAPS)
def test_reward_is_one_exactly_within_half_a_cell_of_the_goal(name):
    task = task_named(name)
    goal = np.array({UMAZE: (1, 1), "maze2d-medium-v1": (6, 6), "maze2d-large-v1": (7, 9)}[name])
    env = Maze2D(task, 64)
    rng = np.random.default_rng(0)
    # The goal lies 0.2 off its cell's centre, so this covers both sides of its circle.
    for row in range(64):
        env.set_state(row, goal - 0.2 + rng.uniform(-0.39, 0.39, 2), np.zeros(2))
    observations, rewards, _ = env.step(np.zeros((64, 2)))
    distance = np.hypot(observations[:, 0] - goal[0], observations[:, 1] - goal[1])
    assert np.array_equal(rewards, np.where(distance <= 0.5, 1.0, 0.0))
    assert 0 < rewards.sum() < 64


def test_reward_is_that_of_the_position_after_the_step():
    task = task_named(UMAZE)
    env = Maze2D(task, 2)
    entering, leaving = np.array([1.0, 1.505]), np.array([1.0, 1.495])
    env.set_state(0, entering, np.array([0.0, -2.0]))
    env.set_state(1, leaving, np.array([0.0, 2.0]))
    assert env.at_goal(env.observations()).tolist() == [0, 1]
    observations, rewards, _ = env.step(np.zeros((2, 2)))
    assert observations[0, 1] < 1.5 < observations[1, 1]
    assert rewards.tolist() == [1, 0]


def test_rewards_along_a_path_are_those_of_the_observations_returned_with_them():
    task = task_named(UMAZE)
    observations, rewards = drive(task, count=20, steps=300, seed=2)
    distance = np.linalg.norm(observations[1:, :, :2] - np.array([1.0, 1.0]), axis=-1)
    assert np.array_equal(rewards, (distance <= 0.5).astype(float))
    assert 0 < rewards.mean() < 1


def test_actions_are_clipped_to_one():
    env = Maze2D(task_named(UMAZE), 3)
    env.reset(np.array([5, 5, 5]))
    for _ in range(30):
        observations, _, _ = env.step(np.array([[1.0, -1.0], [7.0, -1e9], [0.5, -0.5]]))
    assert np.array_equal(observations[0], observations[1])
    assert not np.allclose(observations[0], observations[2])


def test_velocity_is_clipped_to_five_before_a_step():
    env = Maze2D(task_named(UMAZE), 2)
    env.set_state(0, task_named(UMAZE).maze.centre((1, 1)), np.array([0.0, 5.0]))
    env.set_state(1, task_named(UMAZE).maze.centre((1, 1)), np.array([0.0, 50.0]))
    observations, _, _ = env.step(np.zeros((2, 2)))
    assert np.array_equal(observations[0], observations[1])


@pytest.mark.parametrize("name", MAPS)
def test_reset_is_a_free_cell_plus_at_most_a_tenth(name):
    task = task_named(name)
    count = 400
    observations = Maze2D(task, count).reset(np.arange(count))
    cells = np.rint(observations[:, :2] + 0.2).astype(int)
    offsets = observations[:, :2] + 0.2 - cells
    assert np.abs(offsets).max() <= 0.1 + 1e-12
    assert np.abs(offsets).max() > 0.09
    assert not walls_of(task)[cells[:, 0], cells[:, 1]].any()
    assert {tuple(cell) for cell in cells} == set(free_cells(task.maze))
    assert observations[:, 2:].std() == pytest.approx(0.1, rel=0.15)


def test_reset_depends_on_its_seed_alone():
    task = task_named(UMAZE)
    env = Maze2D(task, 3)
    first = env.reset(np.array([7, 8, 9]))
    for _ in range(5):
        env.step(np.ones((3, 2)))
    again = env.reset(np.array([9, 7, 8]))
    assert np.array_equal(again, first[[2, 0, 1]])
    assert np.array_equal(Maze2D(task, 1).reset(np.array([8]))[0], first[1])
    assert len(np.unique(first, axis=0)) == 3


def test_environments_of_a_batch_do_not_touch_each_other():
    task = task_named(UMAZE)
    actions = np.random.default_rng(0).uniform(-1, 1, (60, 4, 2))
    together = Maze2D(task, 4)
    together.reset(np.arange(4))
    alone = Maze2D(task, 1)
    alone.reset(np.array([2]))
    for row in actions:
        batch, batch_rewards, _ = together.step(row)
        single, single_rewards, _ = alone.step(row[2:3])
        assert np.array_equal(batch[2], single[0])
        assert batch_rewards[2] == single_rewards[0]


@pytest.mark.parametrize("name", MAPS)
def test_the_task_table_holds_d4rls_horizons_references_and_goals(name):
    task = TASKS[name]
    horizon, reference, goal = {
        UMAZE: (300, (23.85, 161.86), (1, 1)),
        "maze2d-medium-v1": (600, (13.13, 277.39), (6, 6)),
        "maze2d-large-v1": (800, (6.7, 273.99), (7, 9)),
    }[name]
    assert (task.horizon, task.reference, task.maze.goal) == (horizon, reference, goal)


def test_without_mujoco_the_error_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=r"gemrl\[eval\]") as caught:
        Maze2D(task_named(UMAZE), 1)
    assert isinstance(caught.value, GemrlError)
