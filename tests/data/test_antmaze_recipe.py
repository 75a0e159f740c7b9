"""Regenerated AntMaze data: what the recipe promises, seen in the arrays alone."""

from dataclasses import replace

import numpy as np
import pytest

from gemrl.data.recipes import antmaze
from gemrl.data.recipes.antmaze import make_antmaze, success_rate
from gemrl.data.recipes.gait import walk
from gemrl.data.tasks import task_named
from gemrl.envs.antmaze import AntMaze
from gemrl.envs.grid import free_cells, inside_wall
from gemrl.errors import TaskError

UMAZE = task_named("antmaze-umaze-v2")
PLAY = task_named("antmaze-large-play-v2")
DIVERSE = task_named("antmaze-medium-diverse-v2")


@pytest.fixture(scope="module")
def umaze():
    return make_antmaze(UMAZE, 6000, seed=0)


@pytest.fixture(scope="module", params=[PLAY, DIVERSE], ids=lambda task: task.goals)
def larger(request):
    return request.param, make_antmaze(request.param, 2500, seed=0)


def episodes_of(arrays):
    """Slices of rows between timeouts; the last one, which was cut off, left out."""
    ends = np.flatnonzero(arrays["timeouts"])
    return [slice(a, b + 1) for a, b in zip(np.append(-1, ends[:-1]) + 1, ends, strict=True)]


def test_the_arrays_have_d4rls_layout(umaze):
    widths = {
        "observations": (29,),
        "actions": (8,),
        "rewards": (),
        "next_observations": (29,),
        "terminals": (),
        "timeouts": (),
        "infos/goal": (2,),
        "infos/qpos": (15,),
        "infos/qvel": (14,),
    }
    assert {name: array.shape for name, array in umaze.items()} == {
        name: (6000, *width) for name, width in widths.items()
    }
    for name, array in umaze.items():
        assert array.dtype == (bool if name in ("terminals", "timeouts") else np.float32)
        assert np.isfinite(array).all()
    state = np.concatenate([umaze["infos/qpos"], umaze["infos/qvel"]], axis=1)
    assert np.array_equal(state, umaze["next_observations"])


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    first, again, other = (make_antmaze(DIVERSE, 100, seed=seed) for seed in (3, 3, 4))
    for name, array in first.items():
        assert array.tobytes() == again[name].tobytes()
    for name in ("observations", "actions"):
        assert not np.array_equal(first[name], other[name])


def test_fewer_steps_are_the_first_of_more_and_reports_change_nothing(umaze):
    heard = []
    fewer = make_antmaze(UMAZE, 500, seed=0, report=heard.append)
    for name, array in fewer.items():
        assert np.array_equal(array, umaze[name][:500])
    assert heard == sorted(heard)
    assert heard[-1] == 500


def test_the_data_does_not_depend_on_how_many_ants_walk_together(monkeypatch):
    together = make_antmaze(DIVERSE, 400, seed=1)
    monkeypatch.setattr(antmaze, "ANTS", 3)
    fewer = make_antmaze(DIVERSE, 400, seed=1)
    for name, array in together.items():
        assert np.array_equal(array, fewer[name])


def test_at_least_four_fifths_of_the_episodes_reach_their_goal(umaze, larger):
    assert len(episodes_of(umaze)) >= 20
    assert success_rate(umaze) >= 0.8
    assert len(episodes_of(larger[1])) >= 8
    assert success_rate(larger[1]) >= 0.8


def test_the_success_rate_counts_whole_episodes_that_end_at_their_goal():
    arrays = {
        "timeouts": np.array([0, 1, 1, 0], dtype=bool),
        "next_observations": np.array([[9, 9], [0.4, 0], [3, 0], [0, 0]]),
        "infos/goal": np.zeros((4, 2)),
    }
    assert success_rate(arrays) == 0.5
    assert success_rate({**arrays, "timeouts": np.zeros(4, dtype=bool)}) is None


def test_no_episode_holds_a_jump(umaze, larger):
    for arrays in (umaze, larger[1]):
        within = ~arrays["timeouts"][:-1]
        following = arrays["observations"][1:]
        assert np.array_equal(following[within], arrays["next_observations"][:-1][within])
        moved = (arrays["next_observations"] - arrays["observations"])[:, :2]
        assert np.linalg.norm(moved, axis=1).max() < 1.0
        lengths = [rows.stop - rows.start for rows in episodes_of(arrays)]
        assert max(lengths) <= 1000


def test_an_episode_ends_where_it_first_reaches_its_commanded_goal(umaze, larger):
    for arrays in (umaze, larger[1]):
        away = arrays["next_observations"][:, :2] - arrays["infos/goal"]
        reached = np.linalg.norm(away, axis=1) <= 0.5
        assert not reached[~arrays["timeouts"]].any()


def test_rewards_and_terminals_mark_the_evaluation_goal_after_the_step(umaze, larger):
    for task, arrays in ((UMAZE, umaze), larger):
        away = arrays["next_observations"][:, :2] - np.array(task.grid.goal)
        near = np.linalg.norm(away, axis=1) <= 0.5
        assert np.array_equal(arrays["rewards"], near.astype(np.float32))
        assert np.array_equal(arrays["terminals"], near)
        assert near.any() or task is not UMAZE


def test_fixed_data_runs_from_the_start_to_the_evaluation_goal(umaze):
    starts = [umaze["observations"][rows.start, :2] for rows in episodes_of(umaze)]
    assert np.abs(starts).max() <= 0.1
    assert np.allclose(umaze["infos/goal"], UMAZE.grid.goal)


def test_play_is_sent_to_picked_cells_and_diverse_to_any(larger):
    task, arrays = larger
    goals = {tuple(cell) for cell in task.grid.cell_at(arrays["infos/goal"])}
    rows = [rows.start for rows in episodes_of(arrays)]
    starts = {tuple(cell) for cell in task.grid.cell_at(arrays["observations"][rows, :2])}
    assert len(goals) >= 4
    assert len(starts) >= 6
    if task.goals == "play":
        assert goals <= {(1, 6), (3, 5), (3, 10), (5, 2), (7, 4), (7, 6), (7, 9)}
        assert not starts & goals


@pytest.mark.parametrize("name", ["medium", "large"])
def test_the_evaluation_goal_is_among_the_goals_of_play_and_diverse(name):
    for kind in ("play", "diverse"):
        task = task_named(f"antmaze-{name}-{kind}-v2")
        starts, goals = antmaze.start_and_goal_cells(task)
        assert tuple(task.grid.cell_at(np.array(task.grid.goal))) in goals
        assert set(starts) | set(goals) == set(free_cells(task.grid))


def test_a_task_without_a_rule_is_refused():
    with pytest.raises(TaskError, match="antmaze-umaze-v2"):
        make_antmaze(replace(UMAZE, goals=None), 10, seed=0)


def test_no_ant_is_inside_a_wall(umaze, larger):
    for task, arrays in ((UMAZE, umaze), larger):
        assert not inside_wall(task.grid, arrays["observations"][:, :2]).any()


def test_the_stored_actions_lead_from_each_observation_to_the_next(umaze):
    rows = np.arange(0, 6000, 150)
    env = AntMaze(UMAZE, len(rows))
    for row, at in enumerate(rows):
        state = umaze["observations"][at].astype(np.float64)
        env.set_state(row, state[:15], state[15:])
    observations = env.step(umaze["actions"][rows])[0]
    error = np.abs(observations - umaze["next_observations"][rows]).max(axis=1)
    # A contact that rounding to 32 bits makes or breaks is rare.
    assert np.median(error) < 1e-4
    assert np.mean(error < 0.01) > 0.9


def test_actions_are_the_gaits_with_noise_of_a_fifth_clipped_to_one(umaze):
    actions = umaze["actions"]
    assert np.abs(actions).max() == 1
    # In the fixed maze every episode starts towards the next cell in x.
    starts = np.array([rows.start for rows in episodes_of(umaze)])
    clock = np.arange(12).repeat(len(starts))
    rows = np.tile(starts, 12) + clock
    states = umaze["observations"][rows].astype(np.float64)
    away = np.array([4.0, 0.0]) - states[:, :2]
    wanted = walk(states, away / np.linalg.norm(away, axis=1, keepdims=True), clock)
    # Noise that takes an action beyond 1 is cut off.
    noise = (actions[rows] - wanted)[np.abs(wanted) < 0.3]
    assert len(noise) > 200
    assert noise.std() == pytest.approx(0.2, rel=0.1)


def test_the_gait_walks_in_all_eight_directions_without_a_fall():
    open_floor = replace(UMAZE, maze=replace(UMAZE.grid, cells=(), goal=(1e6, 0.0)))
    env = AntMaze(open_floor, 8)
    angles = np.arange(8) * np.pi / 4
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    rng = np.random.default_rng(0)
    observations = env.reset(np.arange(8))
    for step in range(100):
        if step == 20:
            landed = observations
        actions = walk(observations, directions, np.full(8, step))
        observations, _, _ = env.step(actions + 0.2 * rng.standard_normal((8, 8)))
    moved = (observations - landed)[:, :2] / 8.0
    assert (moved * directions).sum(axis=1).min() > 1.0
    assert (moved * directions).sum(axis=1).mean() > 1.3
    assert (1 - 2 * np.sum(observations[:, 4:6] ** 2, axis=1)).min() > 0.5


def test_the_gait_is_the_same_whichever_way_the_ant_is_turned():
    observations = AntMaze(UMAZE, 1).reset(np.array([0])).repeat(2, axis=0)
    observations[0, 3:7] = 1, 0, 0, 0
    observations[1, 3:7] = np.cos(0.4), 0, 0, np.sin(0.4)
    directions = np.array([[1.0, 0.0], [np.cos(0.8), np.sin(0.8)]])
    actions = walk(observations, directions, np.full(2, 3))
    assert np.allclose(actions[0], actions[1])
