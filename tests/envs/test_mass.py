"""Mass scaling: always from the originals, and with MuJoCo's own constants computed anew."""

import re

import mujoco
import numpy as np
import pytest

from gemrl.data.recipes.maze2d import WaypointController
from gemrl.data.tasks import task_named
from gemrl.envs.make import make_env
from gemrl.envs.maze2d import Maze2D, maze_xml
from gemrl.envs.simulator import MassScale
from gemrl.errors import ConfigError

UMAZE = task_named("maze2d-umaze-v1")
DERIVED = ("body_mass", "body_inertia", "body_subtreemass", "body_invweight0", "dof_invweight0")


def test_a_scaled_model_is_the_model_compiled_with_that_density():
    model = mujoco.MjModel.from_xml_string(maze_xml(UMAZE.grid))
    MassScale(model).set(3.0)
    dense = re.sub(r'density="1000"', 'density="3000"', maze_xml(UMAZE.grid))
    expected = mujoco.MjModel.from_xml_string(dense)
    for name in DERIVED:
        np.testing.assert_allclose(getattr(model, name), getattr(expected, name), rtol=1e-9)


def test_scales_do_not_add_up_and_one_brings_the_original_back():
    model = mujoco.MjModel.from_xml_string(maze_xml(UMAZE.grid))
    before = {name: getattr(model, name).copy() for name in DERIVED}
    scale = MassScale(model)
    for value in (2.0, 0.1, 2.0):
        scale.set(value)
    np.testing.assert_allclose(model.body_mass, 2 * before["body_mass"], rtol=1e-12)
    scale.set(1.0)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(model, name), value)


@pytest.mark.parametrize("name", ["maze2d-umaze-v1", "antmaze-umaze-v2", "hopper-medium-v2"])
def test_every_suites_environment_can_be_made_heavier(name):
    task = task_named(name)
    plain, heavy = make_env(task, 2), make_env(task, 2, mass_scale=2.0)
    for model, other in zip(plain.models, heavy.models, strict=True):
        np.testing.assert_allclose(other.body_mass, 2 * model.body_mass)
    first = [env.reset(np.array([0, 1])) for env in (plain, heavy)]
    np.testing.assert_allclose(first[0], first[1])
    actions = np.full((2, task.action_dim), 0.5)
    assert not np.allclose(plain.step(actions)[0], heavy.step(actions)[0])


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_mass_that_cannot_be_is_refused(scale):
    with pytest.raises(ConfigError, match="mass scale"):
        MassScale(Maze2D(UMAZE, 1).models[0]).set(scale)


def replanning_return(scale, episodes=20):
    """Mean return of the waypoint controller when it plans towards the goal from each start."""
    env = make_env(UMAZE, 1, mass_scale=scale)
    controller = WaypointController(UMAZE.grid)
    goal = tuple(int(i) for i in UMAZE.grid.cell_at(np.array(UMAZE.grid.goal)))
    total = 0.0
    for seed in range(episodes):
        observation = env.reset(np.array([seed]))[0]
        controller.plan(observation[:2], goal)
        for _ in range(UMAZE.horizon):
            action, _ = controller.act(observation[:2], observation[2:])
            observations, rewards, _ = env.step(action[None])
            observation, total = observations[0], total + rewards[0]
    return total / episodes


def test_a_heavier_particle_earns_less():
    light, middle, heavy = (replanning_return(scale) for scale in (1.0, 4.0, 8.0))
    assert light > 150
    assert light > 1.5 * middle
    assert middle > 1.1 * heavy
