"""The task table against the published reference scores and the paper's list."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest

import gemrl
from gemrl.data.tasks import TASKS, task_named
from gemrl.envs.grid import free_cells
from gemrl.errors import DataError, TaskError
from gemrl.learn.spec import fixed_rewards
from gemrl.methods import default_config

SUITES = {"maze2d": 3, "antmaze": 6, "locomotion": 12}


def test_the_table_has_the_papers_eighteen_tasks_and_the_three_expert_ones():
    suites = [task.suite for task in TASKS.values()]
    assert {suite: suites.count(suite) for suite in SUITES} == SUITES
    experts = [name for name, task in TASKS.items() if task.levels == ("expert",)]
    assert experts == ["halfcheetah-expert-v2", "hopper-expert-v2", "walker2d-expert-v2"]


def test_every_task_equals_the_published_reference(test_data_folder):
    published = json.loads((test_data_folder / "ref_scores.json").read_text())["tasks"]
    assert set(published) == set(TASKS)
    for name, facts in published.items():
        task = task_named(name)
        assert task.suite == facts["suite"]
        assert task.reference == (facts["ref_min"], facts["ref_max"])
        assert task.horizon == facts["max_episode_steps"]
        assert (task.obs_dim, task.action_dim) == (facts["obs_dim"], facts["act_dim"])
        assert facts["d4rl_url"] in task.urls
        assert task.minari == facts["minari_nearest"]
        if "d4rl_steps" in facts:
            assert task.published_steps == facts["d4rl_steps"]
        if task.suite == "locomotion":
            assert task.env_id == facts["gymnasium_env"]


def test_knobs_and_training_defaults_follow_the_suite():
    ant, maze = task_named("antmaze-large-play-v2"), task_named("maze2d-large-v1")
    assert (ant.lam, ant.wp_end, maze.lam, maze.wp_end) == (3.5, 0.2, 1.0, 0.4)
    assert default_config("gem", ant.name) == gemrl.GemConfig(expectile=0.9, beta=10.0)
    assert default_config("bc", ant.name) == gemrl.BcConfig()
    assert default_config("gem", maze.name) == default_config("gem", None) == gemrl.GemConfig()


def test_goals_lie_in_free_cells_and_starts_too():
    for task in TASKS.values():
        if task.maze is not None:
            free = free_cells(task.maze)
            assert tuple(task.maze.cell_at(np.array(task.maze.goal))) in free
            for cell in free:
                assert tuple(task.maze.cell_at(task.maze.centre(cell))) == cell
            assert task.maze.start is None or task.maze.start in free


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(TaskError, match="maze2d-umaze-v1"):
        task_named("maze2d-umaze")


def test_locomotion_rewards_are_scaled_by_the_range_of_returns():
    ends = np.array([0, 1, 0, 0, 1], dtype=bool)
    data = gemrl.from_arrays(
        np.arange(5.0)[:, None],
        np.zeros((5, 1)),
        np.array([1.0, 1.0, 2.0, 2.0, 8.0]),
        ends,
        next_observations=np.arange(5.0)[:, None],
    )
    fixed = fixed_rewards(data, task_named("hopper-medium-v2").rewards)
    assert fixed.scale == pytest.approx(1000 / 10)
    same = data.select(np.arange(2))
    with pytest.raises(DataError, match="all 1 episodes"):
        fixed_rewards(same, task_named("hopper-medium-v2").rewards)


def test_no_module_but_the_table_looks_into_names():
    """Names of suites and tasks are compared with nothing outside the table."""
    words = ("antmaze", "maze2d", "hopper", "halfcheetah", "walker2d", "locomotion")
    root = Path(gemrl.__file__).parent
    for path in root.rglob("*.py"):
        if path.name == "tasks.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                assert not any(isinstance(t, str) and t.lower() in words for t in texts), (
                    f"{path}:{node.lineno} compares a name"
                )
