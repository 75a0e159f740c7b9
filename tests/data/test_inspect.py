"""Inspection: every count is right on data made by hand, every planted fault is found and said in
words, clean data is left in peace, and nothing that a dataset may hold makes it fail.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import gemrl
from gemrl.data.inspect import describe, inspect, write_page
from gemrl.data.readers import load_dataset
from gemrl.errors import DataError

UMAZE = "maze2d-umaze-v1"


# Ten rows made by hand


def hand_made():
    """Ten rows in two episodes (rows 0 to 5, terminal; rows 6 to 9, cut), nothing odd in them."""
    rows = np.arange(10, dtype=np.float32)
    observations = np.stack([rows, np.sin(rows), np.cos(2 * rows)], axis=1)
    arrays = {
        "observations": observations,
        "actions": np.stack([np.linspace(-0.5, 0.5, 10), 0.9 * np.cos(np.arange(10))], axis=1),
        "rewards": np.array([0, 1, 0, 2, 0, 0, 1, 0, 0, -4], dtype=np.float32),
        "next_observations": np.stack([rows + 1, np.sin(rows + 1), np.cos(2 * rows + 2)], axis=1),
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
    """The single warning of a report, but for ten rows being few."""
    said = [words for words in report["warnings"] if not words.startswith("only ")]
    assert len(said) == 1, said
    return said[0]


def strict_json(text):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_sizes_and_spreads_are_right():
    report = report_of()
    assert report["source"] == "log.npz"
    assert (report["rows"], report["episodes"], report["terminals"]) == (10, 2, 1)
    assert (report["observation_dim"], report["action_dim"]) == (3, 2)
    for name, spread in (
        ("episode_length", {"min": 4, "median": 5, "mean": 5, "max": 6, "q25": 4.5, "q75": 5.5}),
        ("episode_return", {"min": -3, "median": 0, "mean": 0, "max": 3, "q25": -1.5, "q75": 1.5}),
    ):
        assert {key: report[name][key] for key in spread} == spread
    assert report["reward"]["nonzero_share"] == pytest.approx(0.4)
    assert report["reward"]["min"] == -4
    assert report["action_min"] == pytest.approx([-0.5, 0.9 * np.cos(3)])
    assert report["action_max"] == pytest.approx([0.5, 0.9])
    assert (report["action_low"], report["action_high"]) == ([-1, -1], [1, 1])
    assert (report["saturated_share"], report["outside_bounds"], report["jumps"]) == (0, 0, 0)
    assert report["constant_observation_dims"] == []
    assert set(report["not_finite"].values()) == {0}
    assert (report["ends"]["terminal"], report["ends"]["cut"]) == (1, 1)
    assert report["bad_values"] == {}
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


# Clean data, and clean data with one fault in it


@cache
def _clean():
    """12,000 rows in about 120 episodes with random ends, rewarded for where they lead."""
    rng = np.random.default_rng(0)
    rows, state = 12_000, rng.normal(size=4)
    actions = rng.uniform(-0.9, 0.9, (rows, 2))
    observations, following = np.empty((rows, 4)), np.empty((rows, 4))
    ends = rng.random(rows) < 0.01
    for t in range(rows):
        observations[t] = state
        push = 0.3 * np.array([*actions[t], actions[t, 0] - actions[t, 1], 0.5])
        state = following[t] = 0.9 * state + push + 0.2 * rng.normal(size=4)
        if ends[t]:
            state = rng.normal(size=4)
    terminals = ends & (rng.random(rows) < 0.5)
    return {
        "observations": observations,
        "actions": actions,
        "rewards": -((following[:, 0] - 1) ** 2) + 0.5 * following[:, 1],
        "next_observations": following,
        "terminals": terminals,
        "timeouts": ends & ~terminals,
    }


def clean(**changes):
    return {name: array.copy() for name, array in _clean().items()} | changes


def found(**arrays):
    """Findings about a dataset, as pairs of what they are about and what they say."""
    report = inspect(gemrl.from_arrays(**arrays))
    return [(finding["about"], finding["text"]) for finding in report["findings"]]


def test_clean_data_is_left_in_peace():
    report = inspect(gemrl.from_arrays(**clean()))
    assert report["findings"] == report["warnings"] == report["notes"] == []
    assert report["reward_timing"]["verdict"] == "next"
    assert 0 < report["ends"]["terminal"] < report["episodes"]


def both(dim, change):
    """A dimension of the observation changed in this row's and the next one's."""
    made = clean()
    for name in ("observations", "next_observations"):
        made[name][:, dim] = change(made[name][:, dim])
    return made


def with_value(name, place, value):
    made = clean()
    made[name][place] = value
    return made


def with_ends(every, *, terminal):
    """Ends at a fixed length, and rows that follow them as if each episode had been reset."""
    ends = np.zeros(12_000, dtype=bool)
    ends[every - 1 :: every] = True
    none = np.zeros_like(ends)
    made = clean(terminals=ends if terminal else none, timeouts=none if terminal else ends)
    made["observations"] = np.random.default_rng(1).normal(size=(12_000, 4))
    made["next_observations"] = np.roll(made["observations"], -1, axis=0)
    made["next_observations"][ends] += 3.0
    return made


def stuck_in_episodes(count):
    made = clean()
    starts = np.flatnonzero(np.append(True, (made["terminals"] | made["timeouts"])[:-1]))
    longest = np.argsort(-np.diff(np.append(starts, 12_000)))[:count]
    for episode in longest:
        rows = slice(starts[episode], np.append(starts, 12_000)[episode + 1])
        for name in ("observations", "next_observations"):
            made[name][rows, 2] = 0.125
    return made


def wide():
    made = clean()
    for name in ("observations", "next_observations"):
        made[name] = np.concatenate([made[name], 2 - 3 * made[name][:, :1]], axis=1)
    return made


def twice():
    made = clean()
    made["terminals"][-1] = True
    return {name: np.concatenate([array, array]) for name, array in made.items()}


def held():
    made = clean()
    made["actions"] = np.repeat(made["actions"][::4], 4, axis=0)
    return made


def joined():
    """Two logs put together without an end between them."""
    made = clean()
    middle = 6000
    while made["terminals"][middle] or made["timeouts"][middle]:
        middle += 1
    made["next_observations"][middle] += 2.0
    return made


def counted():
    """Rewards that count what is done so far."""
    made = clean()
    ends = made["terminals"] | made["timeouts"]
    episode = np.concatenate([[0], np.cumsum(ends[:-1])])
    starts = np.flatnonzero(np.diff(episode, prepend=-1))
    return made | {"rewards": np.minimum((np.arange(12_000) - starts[episode]) // 20, 4)}


FAULTS = {
    "nan": (with_value("observations", (7, 1), np.nan), "not_finite", "first in row 7"),
    "infinite": (with_value("rewards", 9, np.inf), "not_finite", "1 infinite"),
    "outside": (
        with_value("actions", (5, 1), -3.0),
        "outside_bounds",
        "-3 in dimension 1 of row 5",
    ),
    "constant action": (with_value("actions", (..., 1), 0.5), "constant_action_dims", "[1]"),
    "small units": (clean(actions=_clean()["actions"] / 50), "action_dims", "less than a tenth"),
    "held": (held(), "held_action_share", "about 4 rows"),
    "zero rewards": (clean(rewards=np.zeros(12_000)), "reward", "all rewards are zero"),
    "constant rewards": (clean(rewards=np.full(12_000, -1)), "reward", "all rewards are -1"),
    "one huge reward": (with_value("rewards", 4, 1e6), "reward", "a few rows will rule"),
    "counted rewards": (counted(), "reward", "never fall"),
    "joined": (joined(), "jumps", "1 rows inside episodes"),
    "limit": (with_ends(200, terminal=True), "ends", "60 of 60 terminals come at exactly 200 rows"),
    "no terminals": (with_ends(200, terminal=False), "terminals", "200 rows: a time limit"),
    "constant": (both(3, lambda x: 0 * x + 7), "constant_observation_dims", "[3] never change"),
    "correlated": (wide(), "correlated_dims", "observation 0 and observation 4"),
    "stuck": (stuck_in_episodes(3), "observation_dims", "dimension 2 in 3 of"),
    "outlier": (with_value("observations", (0, 2), 1e4), "observation_dims", "values far out"),
    "tiny": (both(1, lambda x: 1e-9 * x), "observation_dims", "[1] vary by a millionth"),
    "scales": (both(1, lambda x: 1e6 * x), "observation_dims", "scales differ much"),
    "clipped": (both(0, lambda x: np.clip(x, -1, 1)), "observation_dims", "[0] look clipped"),
    "twice": (twice(), "repeated_rows", "12000 rows (50.0%) repeat"),
    "stored twice": (
        clean(next_observations=_clean()["observations"]),
        "frozen_share",
        "nothing ever moves",
    ),
    "few": ({name: array[:5000] for name, array in clean().items()}, "rows", "only 5,000 rows"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    arrays, about, words = FAULTS[name]
    said = found(**arrays)
    assert any(a == about and words in text for a, text in said), said


def test_a_dimension_that_is_there_twice_is_named():
    made = clean()
    for name in ("observations", "next_observations"):
        made[name] = np.concatenate([made[name], made[name][:, 2:3]], axis=1)
    assert (
        "duplicated_dims",
        "dimensions are there twice: observation 2 = observation 4",
    ) in found(**made)


def test_a_sensor_that_stops_midway_is_found():
    made = clean()
    made["terminals"][:], made["timeouts"][:] = False, False
    made["terminals"][[3999, 7999]] = True
    for name in ("observations", "next_observations"):
        made[name][1000:1100, 0] = 0.5
    assert any("[0] stop for long (dimension 0 for 100 rows)" in text for _, text in found(**made))


def test_a_goal_in_the_observation_is_no_stuck_sensor():
    made = clean()
    episode = np.concatenate([[0], np.cumsum((made["terminals"] | made["timeouts"])[:-1])])
    for name in ("observations", "next_observations"):
        made[name][:, 3] = np.random.default_rng(2).normal(size=episode[-1] + 1)[episode]
    said = found(**made)
    assert any("[3] change only between episodes: goals" in text for _, text in said)
    assert not any("stuck" in text for _, text in said)


def test_a_terminal_on_the_last_row_only_is_taken_for_the_end_of_the_log():
    last = np.arange(12_000) == 11_999
    said = found(**clean(terminals=last, timeouts=np.zeros(12_000, dtype=bool)))
    assert any("the only terminal is the last row" in text for _, text in said)


def test_data_without_any_end_is_said_to_be_one_episode():
    none = np.zeros(12_000, dtype=bool)
    said = found(**clean(terminals=none, timeouts=none))
    assert any("nothing ends: it is one episode" in text for _, text in said)


@pytest.mark.parametrize(("sign", "words"), [(1, "success"), (-1, "failure")])
def test_terminals_with_the_best_or_worst_rewards_are_told_apart(sign, words):
    made = clean()
    made["rewards"] = sign * made["terminals"].astype(np.float32)
    assert any(f"terminals seem to mark {words}" in text for _, text in found(**made))


def test_a_terminal_inside_an_episode_is_found():
    data = gemrl.from_arrays(**clean())
    masks = data.masks.copy()
    masks[5:7] = 0
    said = (
        "2 terminals lie inside episodes: the log goes on after them, as in AntMaze's files; "
        "values do not bootstrap there"
    )
    assert said in inspect(replace(data, masks=masks))["notes"]


def ant(successes, lengths):
    """AntMaze as its files are: at the goal a terminal with a reward, and the log may go on."""
    rows = sum(lengths)
    rng = np.random.default_rng(0)
    done = np.zeros(rows, dtype=bool)
    done[successes] = True
    observations = rng.normal(size=(rows, 29)).astype(np.float32)
    following = np.roll(observations, -1, axis=0)
    following[np.cumsum(lengths) - 1] += 3.0
    return gemrl.Dataset(
        observations=observations,
        actions=rng.uniform(-1, 1, (rows, 8)).astype(np.float32),
        rewards=done.astype(np.float32),
        next_observations=following,
        masks=1 - done.astype(np.float32),
        episodes=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        action_low=-np.ones(8, np.float32),
        action_high=np.ones(8, np.float32),
        task="antmaze-umaze-v2",
    )


def test_a_score_counts_rewards_up_to_the_first_terminal():
    report = inspect(ant([3, 4, 5, 12, 19], [10, 10, 10]))
    score = report["score"]
    assert (score["of"], score["best"], score["worst"]) == ("episodes", 100, 0)
    assert score["mean"] == pytest.approx(200 / 3)
    assert report["ends"]["inside"] == 4
    assert report["ends"]["reading"] != "endless"


def test_rewards_after_a_terminal_are_no_part_of_the_score_even_where_not_finite():
    data = ant([3], [10, 10])
    data.rewards[5] = np.nan
    assert inspect(data)["score"]["best"] == 100


@pytest.mark.parametrize(
    ("lengths", "successes", "of", "mean"),
    [
        ([10, 10, 10], [], "episodes", 0),
        ([10, 10, 4], [3], "episodes but the last, which is cut short", 50),
        ([10, 10, 4], [3, 23], "episodes", 200 / 3),
        ([10, 10, 4], [3, 21], "episodes", 200 / 3),
        ([10, 4, 10], [3], "episodes; cut episodes count as they are", 100 / 3),
        (
            [10, 4, 10, 3],
            [3],
            "episodes but the last, which is cut short; cut episodes count as they are",
            100 / 3,
        ),
        ([4], [], "episodes", 0),
    ],
)
def test_a_last_episode_that_the_end_cuts_is_left_out_of_the_score(lengths, successes, of, mean):
    score = inspect(ant(successes, lengths))["score"]
    assert score["of"] == of
    assert score["mean"] == pytest.approx(mean)


def test_terminals_inside_episodes_are_not_the_end_of_the_log_nor_endless():
    assert inspect(ant([5, 29], [10, 10, 10]))["ends"]["reading"] != "last_row_only"


def test_bounds_that_are_no_range_are_told():
    data = gemrl.from_arrays(**clean(), action_low=1.0, action_high=1.0)
    report = inspect(data)
    assert report["findings"][0]["text"].startswith("the action bounds are no range")
    assert strict_json(json.dumps(report, allow_nan=False)) == report


def test_what_training_refuses_comes_first():
    report = inspect(gemrl.from_arrays(**with_value("actions", (5, 1), -3.0), task=UMAZE))
    levels = [finding["level"] for finding in report["findings"]]
    assert levels == sorted(levels, key=("refused", "warning", "note").index)
    assert levels[0] == "refused"
    assert "  REFUSED         1 actions lie outside" in describe(report)


def test_data_of_another_size_than_its_tasks_is_told():
    said = found(**wide(), task=UMAZE)
    assert any("has 4 observation dimensions, this data 5" in text for _, text in said)


# Reward timing


@pytest.mark.parametrize("verdict", ["current", "next"])
def test_a_dense_reward_is_traced_to_its_observation(verdict):
    made = clean()
    of = made["observations" if verdict == "current" else "next_observations"]
    made["rewards"] = -((of[:, 0] - 1) ** 2) + of[:, 2]
    assert inspect(gemrl.from_arrays(**made))["reward_timing"]["verdict"] == verdict


def plant(rewards):
    """The log of docs/your-logs.md: a heated tank in batches of sixty rows."""
    rng = np.random.default_rng(0)
    rows, temperature = [], rng.uniform(15, 25, 100)
    for _ in range(60):
        flow = rng.uniform(0.8, 1.2, 100)
        valve = np.clip(0.04 * (60 - temperature) + rng.normal(0, 0.15, 100), 0, 1)
        after = temperature + 3 * valve * flow - 0.02 * (temperature - 20)
        rows.append(np.stack([temperature, flow, valve, -np.abs(after - 60) / 40], axis=1))
        temperature = after
    log = np.stack(rows, axis=1).reshape(-1, 4).round(3)
    ends = np.arange(6000) % 60 == 59
    return gemrl.from_arrays(
        log[:, :2], log[:, 2:3], rewards(log[:, 3]), np.zeros(6000), ends, action_low=0
    )


def shifted(rewards):
    """Down by a row: the first of an episode is the last of the one before."""
    return np.append(np.float32(0), rewards[:-1])


def test_the_plants_rewards_are_traced_where_they_are_and_shifted_down_a_row():
    assert inspect(plant(lambda r: r))["reward_timing"]["verdict"] == "next"
    zeroed = np.arange(6000) % 60 > 0
    for change in (shifted, lambda r: shifted(r) * zeroed):
        report = inspect(plant(change))
        assert report["reward_timing"]["verdict"] == "current"
        assert any("comes one step late" in words for words in report["warnings"])


def test_a_few_wild_rewards_do_not_hide_where_the_others_belong():
    def wild(rewards):
        rewards = shifted(rewards)
        rewards[np.random.default_rng(1).choice(6000, 5, replace=False)] = 1e4
        return rewards

    assert inspect(plant(wild))["reward_timing"]["verdict"] == "current"


def walk(lag):
    """A reward for the way from one observation to the next, which neither of them gives alone."""
    rng = np.random.default_rng(0)
    place = rng.normal(size=(12_001, 3))
    actions = rng.uniform(-1, 1, (12_000, 2))
    rewards = place[1:, 0] - place[:-1, 0] - 0.1 * actions[:, 0] ** 2
    ends = np.arange(12_000) % 100 == 99
    rewards = np.append(np.zeros(lag), rewards[: 12_000 - lag])
    return gemrl.from_arrays(place[:-1], actions, rewards, np.zeros(12_000), ends, place[1:])


def test_a_reward_for_a_step_is_traced_to_the_row_before_where_it_comes_late():
    timing = inspect(walk(0))["reward_timing"]
    assert timing["verdict"] == "cannot tell"
    assert timing["row"] < 0.1 < timing["previous_row"]
    assert timing["why"].endswith("the row before less well")
    report = inspect(walk(1))
    assert report["reward_timing"]["verdict"] == "previous"
    assert any("seems to belong to the row before" in words for words in report["warnings"])
    assert "belongs to the row before" in describe(report)


def test_rewards_of_chance_or_of_the_action_alone_cannot_be_traced():
    rng = np.random.default_rng(3)
    for rewards in (rng.normal(size=12_000), rng.random(12_000) < 0.1, _clean()["actions"][:, 0]):
        timing = inspect(gemrl.from_arrays(**clean(rewards=rewards)))["reward_timing"]
        assert timing["verdict"] == "cannot tell"
        assert timing["why"]


def test_the_maze_rewards_belong_to_the_current_observation(maze_data):
    report = inspect(maze_data)
    assert report["reward_timing"]["verdict"] == "current"
    assert any("its own row's observation" in words for words in report["warnings"])


def test_maze_rewards_moved_by_a_row_belong_to_the_next_observation(maze_arrays):
    arrays = dict(maze_arrays)
    arrays["rewards"] = np.append(arrays["rewards"][1:], 0)
    report = inspect(gemrl.from_arrays(**arrays))
    assert report["reward_timing"]["verdict"] == "next"
    assert not any("its own row's" in words for words in report["warnings"])


def test_timeouts_of_the_maze_data_are_told_from_resets(maze_data):
    report = inspect(maze_data)
    assert report["ends"]["reading"] == "endless"
    assert any("such as reached targets" in words for words in report["warnings"])


def test_the_score_of_endless_data_is_of_stretches_as_long_as_an_evaluation(maze_data):
    score = inspect(maze_data)["score"]
    assert score["of"] == "stretches of 300 rows"
    assert score["worst"] == pytest.approx(100 * (0 - 23.85) / (161.86 - 23.85))
    assert score["worst"] < score["mean"] < score["best"]


# Real files


@pytest.fixture
def real(test_data_folder):
    return lambda name: load_dataset(test_data_folder / "real" / f"{name}.hdf5")


def test_the_doors_human_actions_are_found_outside_the_bounds(real):
    data = real("door-human-demos")
    data = replace(data, action_low=-np.ones(28, "f4"), action_high=np.ones(28, "f4"))
    report = inspect(data)
    assert report["outside_bounds"] == int((np.abs(data.actions) > 1.00002).any(axis=1).sum())
    assert report["outside"]["worst"]["dim"] == 25
    assert report["findings"][0]["about"] == "outside_bounds"
    assert report["ends"]["cuts_at_longest"] == 5
    assert report["reward_timing"]["verdict"] == "next"


@pytest.mark.parametrize(("name", "reach"), [("hopper", 5), ("halfcheetah", 2), ("walker2d", 3.8)])
def test_the_expert_rollouts_are_found_far_outside_and_few(name, reach, real):
    data = real(f"{name}-expert-rollouts-v4")
    size = data.action_dim
    report = inspect(
        replace(data, action_low=-np.ones(size, "f4"), action_high=np.ones(size, "f4"))
    )
    assert report["outside"]["share"] > 0.5
    assert abs(report["outside"]["worst"]["value"]) > reach
    assert "in other units or were never clipped" in report["warnings"][0]
    assert any("only 2 episodes" in words for words in report["warnings"])
    clipped = any("look clipped" in words for words in report["notes"])
    assert clipped == (name != "halfcheetah")  # The others' speeds are clipped to 10.


@pytest.mark.parametrize("name", ["hopper", "halfcheetah", "walker2d"])
def test_the_rollouts_rewards_are_found_late_only_where_they_were_shifted(name, real):
    data = real(f"{name}-expert-rollouts-v4")
    assert inspect(data)["reward_timing"]["verdict"] in ("next", "cannot tell")
    late = inspect(replace(data, rewards=shifted(data.rewards)))
    assert late["reward_timing"]["verdict"] in ("current", "previous")
    assert any("comes one step late" in words for words in late["warnings"])


def test_the_kitchens_human_demonstrations_have_no_rewards_and_other_units(real):
    data = real("kitchen-human-demos")
    report = inspect(replace(data, action_low=-np.ones(9, "f4"), action_high=np.ones(9, "f4")))
    said = " ".join(report["warnings"])
    assert "all rewards are zero" in said
    assert "in other units" in said
    assert "action dimensions [7, 8] use less than a tenth" in said
    assert report["constant_observation_dims"] == [20, 50]
    assert report["outside_bounds"] == len(data)


def test_the_complete_kitchens_goals_counts_and_successes_are_found(real):
    report = inspect(real("kitchen-complete-v0"))
    assert report["constant_observation_dims"] == list(range(30, 60))
    assert report["reward"]["values"] == [0, 1, 2, 3, 4]
    said = " ".join(report["notes"])
    assert "a count of what is done so far" in said
    assert "terminals seem to mark success" in said
    assert (report["ends"]["terminal"], report["ends"]["cut"]) == (19, 0)


# Whatever a dataset holds

NUMBERS = st.floats(width=32) | st.sampled_from([0.0, 1.0, -1.0, np.nan, np.inf, -np.inf])


@st.composite
def datasets(draw):
    rows, obs, act = draw(st.tuples(st.integers(1, 30), st.integers(1, 4), st.integers(1, 3)))

    def numbers(*shape):
        return draw(arrays(np.float32, shape, elements=NUMBERS, fill=NUMBERS))

    flags = arrays(bool, rows)
    kept = draw(st.booleans())
    terminals = draw(flags)
    if not kept:
        terminals[0] = True
    return gemrl.from_arrays(
        observations=numbers(rows, obs),
        actions=numbers(rows, act),
        rewards=numbers(rows),
        terminals=terminals,
        timeouts=draw(flags),
        next_observations=numbers(rows, obs) if kept else None,
        action_low=numbers(act),
        action_high=numbers(act),
        task=draw(st.sampled_from([None, UMAZE])),
    )


@settings(max_examples=150, deadline=None)
@given(data=datasets())
def test_anything_can_be_inspected_and_the_report_is_json(data):
    report = inspect(data)
    assert strict_json(json.dumps(report, allow_nan=False)) == report
    assert data.source in describe(report)


# The page


@settings(max_examples=5, deadline=None)
@given(data=datasets())
def test_anything_can_be_shown(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("page") / "page.html"
    assert write_page(data, inspect(data), out).read_text().startswith("<!doctype html>")


def test_the_page_tells_every_finding_and_asks_nothing_of_the_network(maze_data, tmp_path):
    report = inspect(maze_data)
    text = write_page(maze_data, report, tmp_path / "page.html").read_text()
    plain = text.replace("&#39;", "'")
    for words in report["warnings"] + report["notes"]:
        assert words in plain
    assert "http" not in text
    assert text.count("data:image/png;base64,") == text.count("<img") == 9


def test_a_page_that_cannot_be_written_is_refused_by_its_own_name(maze_data):
    with pytest.raises(DataError) as caught:
        write_page(maze_data, inspect(maze_data), Path("/proc/x.html"))
    assert str(caught.value).startswith("cannot write /proc/x.html: ")
    assert ".tmp" not in str(caught.value)


def test_the_page_of_many_dimensions_has_few_pictures(tmp_path):
    rng = np.random.default_rng(0)
    data = gemrl.from_arrays(
        rng.normal(size=(200, 60)), rng.uniform(-1, 1, (200, 28)), np.ones(200), np.zeros(200)
    )
    text = write_page(data, inspect(data), tmp_path / "page.html").read_text()
    assert text.count("<img") == 8
