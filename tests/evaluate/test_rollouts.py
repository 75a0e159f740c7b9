"""Episodes, their rows, and the choice of knobs from them."""

import dataclasses
import json
import math

import numpy as np
import pytest

import gemrl
from gemrl.data.tasks import task_named
from gemrl.envs.maze2d import Maze2D
from gemrl.errors import DataError, GemrlError
from gemrl.evaluate.choose import choose
from gemrl.evaluate.rollouts import evaluate_policy, paths_file, rollout
from gemrl.evaluate.rows import PROTOCOLS, Row, append_rows, read_rows

UMAZE = "maze2d-umaze-v1"
ANCHOR = gemrl.Knobs(n=0)
SEARCH = gemrl.Knobs(n=8, wp=0.5)


@pytest.fixture(scope="module")
def three(policy):
    """Rows and paths of three validation episodes of the anchor."""
    return rollout(policy, ANCHOR, task_named(UMAZE), np.array([0, 1, 2]), "validation")


@pytest.fixture(scope="module")
def at_goal(policy):
    """Seeds, rows and paths of three episodes of which the last starts where the reward is."""
    task = task_named(UMAZE)
    starts = Maze2D(task, 100).reset(np.arange(100))[:, :2]
    seed = int(np.argmax(np.linalg.norm(starts - np.array([1.0, 1.0]), axis=1) < 0.45))
    seeds = np.array([0, 1, seed])
    return seeds, *rollout(policy, ANCHOR, task, seeds, "validation")


def small(policy, rows_file=None, episodes=3, **kwargs):
    return gemrl.evaluate_policy(
        policy,
        kwargs.pop("knobs", ANCHOR),
        episodes=episodes,
        rows_file=rows_file,
        quiet=True,
        **kwargs,
    )


# Rows


@pytest.mark.parametrize(
    ("name", "value"), [("score", math.nan), ("score", "high"), ("train_seed", None)]
)
def test_a_row_with_a_value_that_is_none_is_refused_with_its_place(name, value, three, tmp_path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, three[0][:1])
    bad = dataclasses.asdict(three[0][1]) | {name: value}
    path.write_text(path.read_text() + json.dumps(bad) + "\n")
    with pytest.raises(DataError, match=rf"line 2: a row with {name}"):
        read_rows(path)


def test_a_row_holds_all_that_its_score_depends_on(policy):
    rows = small(policy, knobs=SEARCH, protocol="validation")
    assert [row.episode_seed for row in rows] == [0, 1, 2]
    low, high = 23.85, 161.86
    for row in rows:
        assert (row.task, row.env_id) == (UMAZE, f"gemrl/{UMAZE}")
        assert row.simulator.startswith("mujoco ")
        assert (row.method, row.bundle) == ("gem", policy.digest)
        assert (row.data_origin, row.train_seed, row.updates) == ("regenerated", 0, 600)
        assert row.data_fingerprint == policy.bundle.manifest["dataset"]["fingerprint"]
        assert (row.protocol, row.length) == ("validation", 300)
        assert gemrl.Knobs.from_json(row.knobs) == SEARCH
        assert 0 <= row.episode_return <= 300
        assert row.score == pytest.approx(100 * (row.episode_return - low) / (high - low))
        for name in ("violation", "executed_violation"):
            assert 0 <= getattr(row, name) <= 1
        for name in ("collapse_dist", "executed_collapse_dist", "lcb_spread"):
            assert getattr(row, name) > 0
        assert np.isfinite([row.support_z, row.executed_support_z]).all()


def test_rows_survive_their_file(three, tmp_path):
    rows, _ = three
    append_rows(tmp_path / "deep" / "rows.jsonl", rows[:2])
    append_rows(tmp_path / "deep" / "rows.jsonl", rows[2:])
    assert read_rows(tmp_path / "deep" / "rows.jsonl") == rows
    assert read_rows(tmp_path / "none.jsonl") == []


def test_the_anchor_alone_can_violate_nothing_and_has_no_spread(three):
    rows, _ = three
    for row in rows:
        assert (row.violation, row.support_z, row.lcb_spread) == (0, 0, 0)


def test_the_return_is_the_number_of_steps_that_end_near_the_goal(at_goal):
    _, rows, observations = at_goal
    assert rows[2].episode_return > 0
    assert observations.shape == (301, 3, 4)
    distance = np.linalg.norm(observations[1:, :, :2] - np.array([1.0, 1.0]), axis=-1)
    assert [row.episode_return for row in rows] == (distance <= 0.5).sum(axis=0).tolist()


def test_validation_and_test_seeds_are_disjoint():
    assert not set(PROTOCOLS["validation"]) & set(PROTOCOLS["test"])
    assert set(PROTOCOLS) == {"validation", "test"}


def test_validation_and_test_episodes_start_elsewhere(policy, three):
    rows = small(policy, protocol="test")
    assert {row.protocol for row in rows} == {"test"}
    assert not {row.episode_seed for row in rows} & {row.episode_seed for row in three[0]}
    assert all(row.episode_seed in PROTOCOLS["test"] for row in rows)


# Not twice


def test_a_rerun_computes_nothing_new_and_leaves_the_file_as_it_was(policy, three, tmp_path):
    path = tmp_path / "rows.jsonl"
    first = small(policy, path, protocol="validation")
    assert first == three[0]
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert small(policy, path, protocol="validation") == first
    assert small(policy, path, episodes=2, protocol="validation") == first[:2]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_more_episodes_add_only_the_missing_ones(policy, three, tmp_path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, three[0][:1])
    before = path.read_bytes()
    rows = small(policy, path, episodes=4, protocol="validation")
    assert [row.episode_seed for row in rows] == [0, 1, 2, 3]
    assert path.read_bytes().startswith(before)
    assert [row.episode_seed for row in read_rows(path)] == [0, 1, 2, 3]


def test_other_knobs_protocols_and_policies_have_rows_of_their_own(policy, three, tmp_path):
    path = tmp_path / "rows.jsonl"
    rows, _ = three
    others = [dataclasses.replace(row, bundle="another") for row in rows]
    others += [dataclasses.replace(row, knobs=SEARCH.to_json()) for row in rows]
    others += [dataclasses.replace(row, protocol="test") for row in rows]
    assert len({row.cell for row in (*others, rows[0])}) == 4
    append_rows(path, others)
    assert small(policy, path, protocol="validation") == rows
    assert len(read_rows(path)) == 12


def test_paths_of_a_settings_first_episodes_stay_when_more_are_added(policy, three, tmp_path):
    path = tmp_path / "rows.jsonl"
    small(policy, path, episodes=3, protocol="validation")
    cell = read_rows(path)[0].cell
    with np.load(paths_file(tmp_path, cell)) as file:
        assert np.allclose(file["observations"], three[1], atol=1e-4)
    small(policy, path, episodes=4, protocol="validation")
    with np.load(paths_file(tmp_path, cell)) as file:
        assert np.allclose(file["observations"][:, :3], three[1], atol=1e-4)


def test_a_half_last_line_is_read_without_it(three, tmp_path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, three[0])
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert read_rows(path) == three[0][:2]


def test_an_evaluation_goes_on_after_a_half_last_line(policy, three, tmp_path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, three[0])
    path.write_bytes(path.read_bytes()[:-40])
    rows = small(policy, path, protocol="validation")
    assert [row.episode_seed for row in rows] == [0, 1, 2]
    assert read_rows(path) == rows


def test_an_evaluation_goes_on_after_a_last_line_that_lacks_only_its_end(policy, three, tmp_path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, three[0][:2])
    path.write_bytes(path.read_bytes()[:-1])
    rows = small(policy, path, protocol="validation")
    assert [row.episode_seed for row in rows] == [0, 1, 2]
    assert read_rows(path) == rows


@pytest.mark.parametrize("line", ['{"task": "maze', "[]", "{}", '{"task": 1}', "rubbish"])
def test_a_broken_line_in_the_middle_is_an_error_that_names_file_and_line(three, line, tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(dataclasses.asdict(row)) for row in three[0]]
    path.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2\b"):
        read_rows(path)


# Episodes


def test_an_episode_does_not_depend_on_which_others_share_its_batch(policy, at_goal):
    seeds, rows, paths = at_goal
    (alone,), path = rollout(policy, ANCHOR, task_named(UMAZE), seeds[2:], "validation")
    assert alone.episode_return == rows[2].episode_return > 0
    assert alone.score == rows[2].score
    assert np.allclose(path[:, 0], paths[:, 2], atol=1e-3)


def test_a_search_starts_the_same_whichever_episodes_share_its_batch(policy):
    task = dataclasses.replace(task_named(UMAZE), horizon=15)
    _, forward = rollout(policy, SEARCH, task, np.array([4, 5, 6]), "validation")
    _, backward = rollout(policy, SEARCH, task, np.array([9, 6, 4]), "validation")
    assert np.allclose(forward[:, 0], backward[:, 2], atol=1e-4)
    assert np.allclose(forward[:, 2], backward[:, 1], atol=1e-4)
    assert not np.allclose(forward[:, 1], backward[:, 0], atol=1e-4)


def test_the_same_episodes_give_the_same_rows(policy, three):
    again, _ = rollout(policy, ANCHOR, task_named(UMAZE), np.array([0, 1, 2]), "validation")
    assert again == three[0]


def test_evaluation_goes_by_its_public_name_however_often_it_is_used():
    for _ in range(2):
        assert gemrl.evaluate_policy is evaluate_policy


# What is refused


def test_an_unknown_protocol_is_refused_with_the_known_ones(policy):
    with pytest.raises(GemrlError, match=r"protocol = 'training'.*validation.*test") as caught:
        small(policy, protocol="training")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("episodes", [0, -1, 1_000_001])
def test_a_number_of_episodes_out_of_range_is_refused(policy, episodes):
    with pytest.raises(GemrlError, match=f"episodes = {episodes}") as caught:
        small(policy, episodes=episodes)
    assert isinstance(caught.value, ValueError)


def test_an_unknown_task_is_refused(policy):
    with pytest.raises(GemrlError, match="no-such-task") as caught:
        small(policy, task="no-such-task")
    assert isinstance(caught.value, ValueError)


def test_a_policy_without_a_task_must_be_told_one(policy):
    manifest = policy.bundle.manifest | {"task": None}
    nameless = gemrl.Policy(dataclasses.replace(policy.bundle, manifest=manifest))
    with pytest.raises(GemrlError, match="--task"):
        small(nameless)


# Choosing


def row_of(base: Row, **changes) -> Row:
    return dataclasses.replace(base, **changes)


def setting(wp):
    return gemrl.Knobs(n=8, wp=wp).to_json()


@pytest.fixture(scope="module")
def validation(three):
    """Three settings with mean scores of 10, 30 and 20."""
    scores = {0.1: (0, 20), 0.4: (25, 35), 1.0: (39, 1)}
    return [
        row_of(three[0][0], knobs=setting(wp), episode_seed=i, score=float(score))
        for wp, found in scores.items()
        for i, score in enumerate(found)
    ]


def test_the_setting_with_the_best_validation_mean_is_chosen(validation):
    best, choices = choose(validation)
    assert best.knobs == gemrl.Knobs(n=8, wp=0.4)
    assert best.score.mean == 30
    assert [choice.knobs.wp for choice in choices] == [0.1, 0.4, 1.0]
    assert [choice.score.mean for choice in choices] == [10, 30, 20]


def test_the_order_of_rows_does_not_change_the_choice(validation):
    assert choose(validation[::-1])[0].knobs == choose(validation)[0].knobs


def test_training_seeds_count_alike_however_many_episodes_each_has(three):
    base = row_of(three[0][0], knobs=setting(0.4))
    rows = [row_of(base, train_seed=0, episode_seed=i, score=100.0) for i in range(9)]
    rows.append(row_of(base, train_seed=1, episode_seed=0, score=0.0))
    assert choose(rows)[0].score.mean == 50


def test_test_rows_are_never_chosen_on(validation):
    with pytest.raises(DataError, match="validation"):
        choose([*validation, row_of(validation[0], protocol="test")])
    with pytest.raises(DataError, match="validation"):
        choose([row_of(row, protocol="test") for row in validation])
    with pytest.raises(DataError, match="there must be some"):
        choose([])
