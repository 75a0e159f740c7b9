"""AntMaze against D4RL's numbers and an independent simulation of the same ant and mazes."""

import sys

import numpy as np
import pytest

from gemrl.data.tasks import task_named
from gemrl.envs.antmaze import AntMaze
from gemrl.errors import MissingExtraError

UMAZE, MEDIUM, LARGE = "antmaze-umaze-v2", "antmaze-medium-play-v2", "antmaze-large-play-v2"
MAPS = {UMAZE: "U_MAZE", MEDIUM: "MEDIUM_MAZE", LARGE: "LARGE_MAZE"}
ALL = (
    *MAPS,
    "antmaze-umaze-diverse-v2",
    "antmaze-medium-diverse-v2",
    "antmaze-large-diverse-v2",
)


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path, monkeypatch):
    """Gymnasium's mazes leave a model file in the folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def state_at(env, position, height=0.75):
    qpos = env.model.qpos0.copy()
    qpos[:3] = *position, height
    return qpos


def other_simulation(task):
    """Gymnasium-Robotics' ant and maze with D4RL's numbers, and where it has our origin."""
    mujoco = pytest.importorskip("mujoco")
    robotics = pytest.importorskip("gymnasium_robotics")
    mazes = pytest.importorskip("gymnasium_robotics.envs.maze.maze_v4")
    maps = pytest.importorskip("gymnasium_robotics.envs.maze.maps")
    ant = f"{robotics.__path__[0]}/envs/mujoco/assets/ant.xml"
    # Its y axis runs against the rows.
    cells = getattr(maps, MAPS[task.name])[::-1]
    maze, path = mazes.Maze.make_maze(ant, cells, 4, 0.5)
    model = mujoco.MjModel.from_xml_path(path)
    model.opt.timestep = 0.02
    model.actuator_gear[:, 0] = 30
    model.geom_solref[:] = 0.02, 1
    model.geom_solimp[:, :3] = 0.8, 0.8, 0.01
    return model, mujoco.MjData(model), maze.cell_rowcol_to_xy(np.array([len(cells) - 2, 1]))


def differences(task, qpos, qvel, steps):
    """Largest difference of a step and of an acceleration from the other simulation's; contacts."""
    mujoco = pytest.importorskip("mujoco")
    model, other, origin = other_simulation(task)
    env = AntMaze(task, 1)
    env.set_state(0, qpos, qvel)
    rng = np.random.default_rng(0)
    step_error = acceleration_error = 0.0
    contacts, touched = 0, set()
    for step in range(steps):
        if step % 10 == 0:
            action = rng.uniform(-1, 1, 8)
        ours = env.data[0]
        other.qpos[:], other.qvel[:] = ours.qpos, ours.qvel
        other.qpos[:2] += origin
        other.qacc_warmstart[:] = ours.qacc_warmstart
        other.ctrl[:] = action
        ours.ctrl[:] = action
        mujoco.mj_forward(model, other)
        mujoco.mj_forward(env.model, ours)
        acceleration_error = max(acceleration_error, np.abs(other.qacc - ours.qacc).max())
        mujoco.mj_step(model, other, 5)
        observation = env.step(action[None])[0][0]
        theirs = np.concatenate([other.qpos, other.qvel])
        theirs[:2] -= origin
        step_error = max(step_error, np.abs(observation - theirs).max())
        contacts += ours.ncon
        touched |= set(ours.contact.geom1) | set(ours.contact.geom2)
    walls = {geom for geom in touched if env.model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_BOX}
    return step_error, acceleration_error, contacts, walls


@pytest.mark.parametrize("name", MAPS)
def test_steps_on_the_ground_equal_gymnasium_robotics(name):
    task = task_named(name)
    qpos = state_at(AntMaze(task, 1), (0, 0))
    step_error, acceleration_error, contacts, _ = differences(task, qpos, np.zeros(14), 100)
    assert step_error < 1e-9
    assert acceleration_error < 1e-7
    assert contacts > 50


def test_steps_in_the_air_equal_gymnasium_robotics():
    task = task_named(UMAZE)
    qpos = state_at(AntMaze(task, 1), (0, 0), height=60)
    qvel = np.random.default_rng(1).standard_normal(14)
    step_error, acceleration_error, contacts, _ = differences(task, qpos, qvel, 20)
    assert step_error < 1e-9
    assert acceleration_error < 1e-9
    assert contacts == 0


@pytest.mark.parametrize(
    ("name", "position", "velocity"),
    [
        (UMAZE, (0, 0.9), (0, 3)),
        (UMAZE, (9.15, 8), (3, 0)),
        (MEDIUM, (4.9, 4), (3, 0)),
        (LARGE, (32, 25), (0, 3)),
    ],
)
def test_steps_against_a_wall_equal_gymnasium_robotics(name, position, velocity):
    task = task_named(name)
    qpos = state_at(AntMaze(task, 1), position)
    qvel = np.append(velocity, np.zeros(12))
    step_error, _, _, walls = differences(task, qpos, qvel, 30)
    assert step_error < 1e-9
    assert walls


@pytest.mark.parametrize("name", MAPS)
def test_cells_start_and_goal_cell_are_d4rls(name):
    maps = pytest.importorskip("gymnasium_robotics.envs.maze.maps")
    maze = task_named(name).grid
    assert np.array_equal(maze.walls, np.array(getattr(maps, MAPS[name])) == 1)
    assert maze.start == (1, 1)
    assert maze.centre((1, 1)) == pytest.approx((0, 0))
    # x runs along a row, y down the rows, in steps of 4 m.
    assert maze.centre((2, 4)) == pytest.approx((12, 4))
    goal_cell = {UMAZE: (3, 1), MEDIUM: (6, 6), LARGE: (7, 9)}[name]
    # D4RL draws it on both axes as the cell's centre plus U(0, 1) plus U(0, 0.5): its mean.
    assert maze.goal == pytest.approx(maze.centre(goal_cell) + 0.75)
    assert maze.goal == {UMAZE: (0.75, 8.75), MEDIUM: (20.75, 20.75), LARGE: (32.75, 24.75)}[name]


@pytest.mark.parametrize("name", ALL)
def test_the_task_table_holds_d4rls_horizons_and_references(name):
    task = task_named(name)
    assert task.horizon == (700 if "umaze" in name else 1000)
    assert task.reference == (0, 1)
    assert (task.obs_dim, task.action_dim) == (29, 8)


def test_the_models_numbers_are_d4rls():
    mujoco = pytest.importorskip("mujoco")
    env = AntMaze(task_named(UMAZE), 1)
    model = env.model
    assert model.opt.timestep == 0.02
    assert model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4
    assert np.all(model.geom_solref == (0.02, 1))
    assert np.all(model.geom_solimp[:, :3] == (0.8, 0.8, 0.01))
    assert np.all(model.geom_friction == (1, 0.5, 0.5))
    assert np.all(model.geom_margin == 0.01)
    assert np.all(model.dof_armature == [0] * 6 + [1] * 8)
    assert np.all(model.dof_damping == [0] * 6 + [1] * 8)
    hips, ankles = model.jnt_range[1::2], model.jnt_range[2::2]
    assert np.allclose(np.rad2deg(hips), (-30, 30))
    assert np.allclose(np.rad2deg(ankles), [(30, 70), (-70, -30), (-70, -30), (30, 70)])
    walls = model.geom_type == mujoco.mjtGeom.mjGEOM_BOX
    assert np.all(model.geom_size[walls] == (2, 2, 1))
    assert np.all(model.geom_pos[walls, 2] == 1)
    assert np.all(model.qpos0 == [0, 0, 0.75, 1] + [0] * 11)


def test_a_step_lasts_a_tenth_of_a_second_and_action_one_is_a_torque_of_thirty():
    env = AntMaze(task_named(UMAZE), 1)
    env.set_state(0, state_at(env, (0, 0)), np.zeros(14))
    env.step(np.array([[1, -1, 0.5, 0, 0, 0, 0, 0]]))
    assert env.data[0].time == pytest.approx(0.1)
    # The first two actions move the fourth leg, the next two the first.
    assert env.data[0].qfrc_actuator[6:] == pytest.approx([15, 0, 0, 0, 0, 0, 30, -30])


def test_actions_are_clipped_to_one():
    env = AntMaze(task_named(UMAZE), 2)
    env.reset(np.array([5, 5]))
    for _ in range(10):
        observations, _, _ = env.step(np.stack([np.full(8, -1.0), np.full(8, -1e9)]))
    assert np.array_equal(observations[0], observations[1])


def test_the_observation_is_fifteen_positions_and_fourteen_velocities():
    env = AntMaze(task_named(UMAZE), 2)
    observations = env.reset(np.arange(2))
    assert observations.shape == (2, 29)
    assert observations.dtype == np.float64
    assert np.array_equal(observations[1, :15], env.data[1].qpos)
    assert np.array_equal(observations[1, 15:], env.data[1].qvel)


def test_reset_is_the_start_with_d4rls_noise():
    observations = AntMaze(task_named(LARGE), 100).reset(np.arange(100))
    first = np.array([0, 0, 0.75])
    assert 0.09 < np.abs(observations[:, :3] - first).max() <= 0.1
    assert 0.09 < np.abs(observations[:, 7:15]).max() <= 0.1
    assert np.linalg.norm(observations[:, 3:7], axis=1) == pytest.approx(np.ones(100))
    assert observations[:, 15:].std() == pytest.approx(0.1, rel=0.1)


def test_reset_depends_on_its_seed_alone():
    env = AntMaze(task_named(UMAZE), 3)
    first = env.reset(np.array([7, 8, 9]))
    env.step(np.ones((3, 8)))
    again = env.reset(np.array([9, 7, 8]))
    assert np.array_equal(again, first[[2, 0, 1]])
    assert len(np.unique(first, axis=0)) == 3


@pytest.mark.parametrize("name", MAPS)
def test_reward_is_one_and_the_row_ends_exactly_within_half_a_metre_of_the_goal(name):
    env = AntMaze(task_named(name), 40)
    goal = np.array(env.task.grid.goal)
    offsets = np.random.default_rng(0).uniform(-0.7, 0.7, (40, 2))
    for row, offset in enumerate(offsets):
        env.set_state(row, state_at(env, goal + offset), np.zeros(14))
    observations, rewards, ended = env.step(np.zeros((40, 8)))
    near = np.hypot(*(observations[:, :2] - goal).T) <= 0.5
    assert np.array_equal(rewards, near.astype(float))
    assert np.array_equal(ended, near)
    assert 0 < near.sum() < 40


def test_a_row_that_has_ended_stands_still_and_earns_nothing_until_its_reset():
    env = AntMaze(task_named(UMAZE), 2)
    env.reset(np.arange(2))
    env.set_state(0, state_at(env, env.task.grid.goal), np.zeros(14))
    first, rewards, ended = env.step(np.ones((2, 8)))
    assert rewards.tolist() == [1, 0]
    assert ended.tolist() == [True, False]
    second, rewards, ended = env.step(np.ones((2, 8)))
    assert np.array_equal(first[0], second[0])
    assert not np.array_equal(first[1], second[1])
    assert rewards.tolist() == [0, 0]
    assert ended.tolist() == [True, False]
    env.reset(np.arange(2))
    assert not env.step(np.zeros((2, 8)))[2].any()


def test_reward_is_that_of_the_position_after_the_step():
    env = AntMaze(task_named(UMAZE), 2)
    goal = np.array(env.task.grid.goal)
    fast = np.append([3.0, 0], np.zeros(12))
    env.set_state(0, state_at(env, np.subtract(goal, (0.55, 0))), fast)
    env.set_state(1, state_at(env, np.add(goal, (0.45, 0))), fast)
    assert env.step(np.zeros((2, 8)))[1].tolist() == [1, 0]


def test_a_fallen_ant_stays_fallen_and_its_episode_goes_on():
    env = AntMaze(task_named(UMAZE), 1)
    on_its_back = state_at(env, (0, 0), height=0.4)
    on_its_back[3:7] = 0, 1, 0, 0
    env.set_state(0, on_its_back, np.zeros(14))
    rng = np.random.default_rng(0)
    for _ in range(60):
        observations, rewards, ended = env.step(rng.uniform(-1, 1, (1, 8)))
        assert rewards[0] == 0
        assert not ended[0]
    assert 1 - 2 * np.sum(observations[0, 4:6] ** 2) < 0


def test_a_row_does_not_depend_on_who_shares_its_batch():
    actions = np.random.default_rng(0).uniform(-1, 1, (30, 4, 8))
    together, alone = (AntMaze(task_named(UMAZE), count) for count in (4, 1))
    together.reset(np.arange(4))
    alone.reset(np.array([2]))
    for row in actions:
        assert np.array_equal(together.step(row)[0][2], alone.step(row[2:3])[0][0])


def test_without_mujoco_the_error_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=r"gemrl\[eval\]"):
        AntMaze(task_named(UMAZE), 1)
