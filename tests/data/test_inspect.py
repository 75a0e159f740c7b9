"""Inspection: every count is right on data made by hand, and every finding is said in words."""

import json

import numpy as np
import pytest

import gemrl
from gemrl.data.inspect import describe, inspect


def hand_made():
    """Ten rows in two episodes (rows 0 to 5, terminal; rows 6 to 9, cut), nothing odd in them."""
    rows = np.arange(10, dtype=np.float32)
    observations = np.stack([rows, np.sin(rows), -rows], axis=1)
    arrays = {
        "observations": observations,
        "actions": np.stack([np.linspace(-0.5, 0.5, 10), np.linspace(0.9, -0.9, 10)], axis=1),
        "rewards": np.array([0, 1, 0, 2, 0, 0, 1, 0, 0, -4], dtype=np.float32),
        "next_observations": np.stack([rows + 1, np.sin(rows + 1), -rows - 1], axis=1),
        "terminals": np.zeros(10, dtype=bool),
        "timeouts": np.zeros(10, dtype=bool),
    }
    arrays["terminals"][5] = True
    return arrays


def report_of(**changes):
    return inspect(gemrl.from_arrays(**(hand_made() | changes), source="log.npz"))


def changed(name, place, value):
    array = hand_made()[name].astype(np.float32)
    array[place] = value
    return {name: array}


def only(report):
    """The single warning of a report."""
    assert len(report["warnings"]) == 1, report["warnings"]
    return report["warnings"][0]


def strict_json(text):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_sizes_and_spreads_are_right_and_clean_data_has_no_warning():
    report = report_of()
    assert report["source"] == "log.npz"
    assert (report["rows"], report["episodes"], report["terminals"]) == (10, 2, 1)
    assert (report["observation_dim"], report["action_dim"]) == (3, 2)
    assert report["episode_length"] == {"min": 4, "median": 5, "mean": 5, "max": 6}
    assert report["episode_return"] == {"min": -3, "median": 0, "mean": 0, "max": 3}
    assert report["reward"]["nonzero_share"] == pytest.approx(0.4)
    assert report["reward"]["min"] == -4
    assert report["action_min"] == pytest.approx([-0.5, -0.9])
    assert report["action_max"] == pytest.approx([0.5, 0.9])
    assert (report["action_low"], report["action_high"]) == ([-1, -1], [1, 1])
    assert (report["saturated_share"], report["outside_bounds"], report["jumps"]) == (0, 0, 0)
    assert report["constant_observation_dims"] == []
    assert set(report["not_finite"].values()) == {0}
    assert report["warnings"] == []
    assert report["fingerprint"] == gemrl.from_arrays(**hand_made()).fingerprint


def test_components_at_a_bound_are_counted():
    actions = hand_made()["actions"]
    actions[[1, 2, 3], 0] = [1, -1, 0.9995]
    actions[7, 1] = -1
    report = report_of(actions=actions)
    assert report["saturated_share"] == pytest.approx(4 / 20)
    assert "20% of action components sit at a bound" in only(report)


def test_components_at_a_bound_are_counted_in_the_bounds_own_units():
    actions = 2 + 3 * hand_made()["actions"]
    actions[:5, 0] = [5, -1, 5, -1, 5]
    report = report_of(actions=actions, action_low=-1.0, action_high=5.0)
    assert report["saturated_share"] == pytest.approx(5 / 20)
    assert report["outside_bounds"] == 0


def test_actions_outside_the_bounds_are_counted_by_rows():
    actions = hand_made()["actions"]
    actions[4] = [1.5, -1.5]
    actions[8, 1] = 1.01
    report = report_of(actions=actions)
    assert report["outside_bounds"] == 2
    assert any("2 actions lie outside the bounds" in words for words in report["warnings"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "next_observations"])
def test_values_that_are_not_finite_are_counted_by_array(name, bad):
    array = hand_made()[name].astype(np.float32)
    array[[2, 7]] = bad
    report = report_of(**{name: array})
    count = array[[2, 7]].size
    assert report["not_finite"] == {
        key: count if key == name else 0
        for key in ("observations", "actions", "rewards", "next_observations")
    }
    assert any(words.startswith(f"{name}: {count} values") for words in report["warnings"])


def test_infinite_observations_that_follow_each_other_are_counted_without_complaint():
    arrays = hand_made()
    arrays["observations"][3] = np.inf
    arrays["next_observations"][2] = np.inf
    report = report_of(**arrays)
    assert report["not_finite"]["observations"] == 3
    assert report["not_finite"]["next_observations"] == 3


def test_rows_that_are_not_followed_by_their_next_observation_are_counted_within_episodes():
    following = hand_made()["next_observations"]
    following[[0, 3, 7], 1] += 0.5
    # Between the episodes, and after the last row, there is nothing to compare with.
    following[[5, 9], 1] += 0.5
    report = report_of(next_observations=following)
    assert report["jumps"] == 3
    assert only(report).startswith("3 rows inside episodes")


def test_observation_dimensions_that_never_change_are_named():
    arrays = hand_made()
    for name in ("observations", "next_observations"):
        arrays[name][:, 1] = 4.25
    report = report_of(**arrays)
    assert report["constant_observation_dims"] == [1]
    assert "[1] never change" in only(report)


def test_rewards_that_are_all_zero_are_said():
    report = report_of(rewards=np.zeros(10))
    assert report["reward"]["nonzero_share"] == 0
    assert "all rewards are zero" in only(report)


def test_episodes_without_a_terminal_are_said():
    timeouts = np.zeros(10, dtype=bool)
    timeouts[5] = True
    report = report_of(terminals=np.zeros(10, dtype=bool), timeouts=timeouts)
    assert (report["terminals"], report["episodes"]) == (0, 2)
    assert "no terminals" in only(report)


def test_a_dataset_of_one_row_can_be_inspected():
    report = report_of(**{name: array[:1] for name, array in hand_made().items()})
    assert (report["rows"], report["episodes"], report["jumps"]) == (1, 1, 0)


def test_the_report_on_clean_data_is_json(maze_data):
    report = inspect(maze_data)
    assert strict_json(json.dumps(report)) == report


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["actions", "rewards"])
def test_the_report_on_data_with_values_that_are_not_finite_is_still_json(name, bad):
    report = report_of(**changed(name, 2, bad))
    assert strict_json(json.dumps(report))["not_finite"][name] > 0


def test_the_text_tells_sizes_origin_and_every_warning(maze_data):
    report = inspect(maze_data)
    text = describe(report)
    assert "20,000" in text
    assert "maze2d-umaze-v1 (regenerated data)" in text
    assert report["fingerprint"][:16] in text
    assert len(report["warnings"]) >= 2
    for words in report["warnings"]:
        assert words in text


def test_regenerated_maze_data_is_reported_as_saturated_and_without_terminals(maze_data):
    report = inspect(maze_data)
    assert 0.25 <= report["saturated_share"] <= 0.40
    assert (report["terminals"], report["jumps"], report["outside_bounds"]) == (0, 0, 0)
    said = " ".join(report["warnings"])
    assert "sit at a bound" in said
    assert "no terminals" in said
