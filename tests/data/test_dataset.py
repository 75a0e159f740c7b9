"""Datasets at the door: episodes, masks, splits, fingerprints and what is refused."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemrl
from gemrl.errors import DataError, GemrlError

ARRAYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


def arrays_of(terminals, timeouts, obs_dim=2, action_dim=1):
    """Rows that can be told apart: observation, action and reward of row t all hold t."""
    rows = len(terminals)
    number = np.arange(rows, dtype=np.float32)
    return {
        "observations": np.tile(number[:, None], (1, obs_dim)),
        "actions": np.tile(number[:, None] / 1000, (1, action_dim)),
        "rewards": number,
        "terminals": np.array(terminals, dtype=bool),
        "timeouts": np.array(timeouts, dtype=bool),
    }


def good_arrays(rows=6):
    arrays = arrays_of([False] * rows, [False] * rows)
    return arrays | {"next_observations": arrays["observations"] + 1}


def ends(length):
    return st.lists(st.booleans(), min_size=length, max_size=length)


@st.composite
def episode_ends(draw, min_rows=1):
    rows = draw(st.integers(min_rows, 40))
    return draw(ends(rows)), draw(ends(rows))


# Episodes and masks


def test_a_terminal_ends_bootstrapping_and_a_timeout_only_the_episode():
    terminals = [0, 0, 1, 0, 0, 0]
    timeouts = [0, 1, 0, 0, 1, 0]
    arrays = arrays_of(terminals, timeouts)
    data = gemrl.from_arrays(**arrays, next_observations=arrays["observations"] + 0.5)
    assert data.masks.tolist() == [1, 1, 0, 1, 1, 1]
    assert data.episodes.tolist() == [0, 0, 1, 2, 2, 3]
    assert data.episode_starts.tolist() == [0, 2, 3, 5]
    assert data.episode_returns.tolist() == [1, 2, 7, 5]
    assert np.array_equal(data.next_observations, data.observations + 0.5)


def test_without_next_observations_only_the_last_row_of_a_cut_episode_is_left_out():
    #           0  1  2  3  4  5
    terminals = [0, 0, 1, 0, 0, 0]
    timeouts = [0, 1, 0, 0, 0, 0]
    data = gemrl.from_arrays(**arrays_of(terminals, timeouts))
    # Row 1 is cut by a timeout and row 5 by the end of the data; row 2 is terminal and stays.
    assert data.rewards.tolist() == [0, 2, 3, 4]
    assert data.masks.tolist() == [1, 0, 1, 1]
    assert data.next_observations[:, 0].tolist() == [1, 3, 4, 5]
    assert len(data.episode_starts) == 3


def test_without_next_observations_a_terminal_at_the_very_end_is_kept():
    data = gemrl.from_arrays(**arrays_of([0, 0, 1], [0, 0, 0]))
    assert data.rewards.tolist() == [0, 1, 2]
    assert data.masks.tolist() == [1, 1, 0]


def test_a_row_that_is_both_terminal_and_timed_out_counts_as_terminal():
    data = gemrl.from_arrays(**arrays_of([0, 1, 0, 1], [0, 1, 0, 1]))
    assert data.rewards.tolist() == [0, 1, 2, 3]
    assert data.masks.tolist() == [1, 0, 1, 0]


def test_without_timeouts_terminals_alone_end_episodes():
    arrays = arrays_of([0, 0, 1, 0, 0, 1], [0] * 6)
    del arrays["timeouts"]
    data = gemrl.from_arrays(**arrays)
    assert data.episodes.tolist() == [0, 0, 0, 1, 1, 1]


def test_rewards_and_ends_may_be_columns():
    arrays = arrays_of([0, 0, 1, 0], [0, 0, 0, 0])
    columns = dict(arrays)
    for name in ("rewards", "terminals", "timeouts"):
        columns[name] = arrays[name][:, None]
    assert gemrl.from_arrays(**columns).fingerprint == gemrl.from_arrays(**arrays).fingerprint


@given(episode_ends())
@settings(max_examples=100, deadline=None)
def test_episodes_in_order_give_all_rows_back(case):
    terminals, timeouts = case
    arrays = arrays_of(terminals, timeouts)
    data = gemrl.from_arrays(**arrays, next_observations=arrays["observations"] + 1)
    starts = [*data.episode_starts.tolist(), len(data)]
    rows = np.concatenate([data.rewards[a:b] for a, b in pairwise(starts)])
    assert rows.tolist() == list(range(len(terminals)))
    # An episode goes on to its first end and not past it.
    ended = np.logical_or(terminals, timeouts)
    for a, b in pairwise(starts):
        assert not ended[a : b - 1].any()
        assert ended[b - 1] or b == len(data)
    assert data.episode_returns.sum() == pytest.approx(sum(range(len(terminals))))


@given(episode_ends())
@settings(max_examples=100, deadline=None)
def test_no_bootstrapped_transition_crosses_an_episode(case):
    terminals, timeouts = case
    arrays = arrays_of(terminals, timeouts)
    ended = np.logical_or(terminals, timeouts)
    ended[-1] = True
    kept = [t for t in range(len(ended)) if terminals[t] or not ended[t]]
    if not kept:
        with pytest.raises(DataError, match="no row has a known successor"):
            gemrl.from_arrays(**arrays)
        return
    data = gemrl.from_arrays(**arrays)
    assert data.rewards.tolist() == kept
    for row, t in enumerate(kept):
        assert data.masks[row] == (not terminals[t])
        if data.masks[row]:
            assert data.next_observations[row, 0] == t + 1
            assert not ended[t]


@given(episode_ends(), st.floats(0, 0.99), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_held_out_and_training_rows_are_whole_disjoint_episodes_of_everything(case, share, seed):
    terminals, timeouts = case
    arrays = arrays_of(terminals, timeouts)
    data = gemrl.from_arrays(**arrays, next_observations=arrays["observations"] + 1)
    training, held = data.split_episodes(share, seed)
    assert sorted([*training, *held]) == list(range(len(data)))
    assert not set(data.episodes[training]) & set(data.episodes[held])
    assert len(training) > 0
    count = len(data.episode_starts)
    held_count = len(set(data.episodes[held].tolist()))
    assert held_count == min(round(share * count), count - 1)
    again = data.split_episodes(share, seed)
    assert np.array_equal(training, again[0])
    assert np.array_equal(held, again[1])


@given(episode_ends(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_episode_number_grows_by_one_after_each_end_and_only_there(case, with_next):
    terminals, timeouts = case
    arrays = arrays_of(terminals, timeouts)
    ended = np.logical_or(terminals, timeouts)
    number = np.concatenate([[0], np.cumsum(ended[:-1])])
    if with_next:
        arrays["next_observations"] = arrays["observations"] + 1
    elif not (np.array(terminals) | ~np.append(ended[:-1], True)).any():
        return
    data = gemrl.from_arrays(**arrays)
    rows = data.rewards.astype(int)
    assert data.episodes.tolist() == number[rows].tolist()
    assert data.masks.tolist() == [not terminals[row] for row in rows]
    # Inside an episode the next observation is the following row's.
    same = np.flatnonzero(np.diff(data.episodes) == 0)
    assert np.array_equal(data.next_observations[same], data.observations[same + 1])


@given(episode_ends(min_rows=2), episode_ends(min_rows=2), st.booleans())
@settings(max_examples=100, deadline=None)
def test_two_logs_joined_at_an_end_split_as_they_do_apart(first, second, with_next):
    parts = []
    for terminals, timeouts in (first, second):
        arrays = arrays_of([*terminals[:-1], True], timeouts)
        if with_next:
            arrays["next_observations"] = arrays["observations"] + 1
        parts.append(arrays)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    one, other = (gemrl.from_arrays(**part) for part in parts)
    both = gemrl.from_arrays(**joined)
    later = int(np.logical_or(parts[0]["terminals"], parts[0]["timeouts"]).sum())
    assert both.episodes.tolist() == [*one.episodes, *(other.episodes + later)]
    for name in ("observations", "actions", "rewards", "masks"):
        apart = np.concatenate([getattr(one, name), getattr(other, name)])
        assert np.array_equal(getattr(both, name), apart)
    going_on = both.masks == 1
    apart = np.concatenate([one.next_observations, other.next_observations])
    assert np.array_equal(both.next_observations[going_on], apart[going_on])


@pytest.mark.parametrize("every", [1, 2, 40, 100, 5000, 20_000])
def test_arrays_of_its_own_are_moved_in_place_to_the_same_dataset(every):
    rows = 12_000
    timeouts = np.arange(1, rows + 1) % every == 0
    arrays = arrays_of(np.arange(rows) % 777 == 0, timeouts, obs_dim=3)
    before = {name: array.copy() for name, array in arrays.items()}
    expected = gemrl.from_arrays(**arrays)
    for name, array in arrays.items():
        assert np.array_equal(array, before[name])
    own = gemrl.from_arrays(**arrays, own=True)
    assert own.fingerprint == expected.fingerprint


def test_another_seed_holds_out_other_episodes():
    arrays = arrays_of([0] * 200, [0, 1] * 100)
    data = gemrl.from_arrays(**arrays, next_observations=arrays["observations"] + 1)
    splits = {tuple(data.split_episodes(0.2, seed)[1]) for seed in range(5)}
    assert len(splits) == 5


def test_selected_rows_keep_their_episodes_apart(maze_data):
    training, held = maze_data.split_episodes(0.3, 0)
    for rows in (training, held):
        part = maze_data.select(rows)
        assert len(part) == len(rows)
        assert np.array_equal(part.observations, maze_data.observations[rows])
        assert len(part.episode_starts) == len(np.unique(maze_data.episodes[rows]))


# Fingerprints


def test_equal_contents_have_equal_fingerprints_whatever_their_layout_and_source():
    arrays = good_arrays()
    one = gemrl.from_arrays(**arrays)
    fortran = {k: np.asfortranarray(v) for k, v in arrays.items()}
    other = gemrl.from_arrays(**fortran, source="elsewhere", origin="genuine")
    assert one.fingerprint == other.fingerprint
    as_float64 = {k: v.astype(np.float64) for k, v in arrays.items()}
    assert gemrl.from_arrays(**as_float64).fingerprint == one.fingerprint


def test_any_changed_array_changes_the_fingerprint():
    arrays = good_arrays()
    prints = {gemrl.from_arrays(**arrays).fingerprint}
    for name in ARRAYS:
        changed = {k: v.copy() for k, v in arrays.items()}
        changed[name][2] = 1 - changed[name][2]
        prints.add(gemrl.from_arrays(**changed).fingerprint)
    prints.add(gemrl.from_arrays(**arrays, action_low=-2.0).fingerprint)
    prints.add(gemrl.from_arrays(**arrays, action_high=2.0).fingerprint)
    assert len(prints) == 1 + len(ARRAYS) + 2


def test_moving_values_between_arrays_changes_the_fingerprint():
    wide = arrays_of([0] * 4, [0] * 4, obs_dim=2, action_dim=1)
    narrow = arrays_of([0] * 4, [0] * 4, obs_dim=1, action_dim=2)
    assert gemrl.from_arrays(**wide).fingerprint != gemrl.from_arrays(**narrow).fingerprint


# What is refused


def refuses(**changes):
    """The message with which these arrays are refused."""
    with pytest.raises(DataError) as caught:
        gemrl.from_arrays(**(good_arrays() | changes), source="here.npz")
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, GemrlError)
    message = str(caught.value)
    assert "here.npz" in message
    return message


def test_an_empty_dataset_is_refused():
    empty = {name: array[:0] for name, array in good_arrays().items()}
    assert "empty" in refuses(**empty)


@pytest.mark.parametrize("name", [n for n in ARRAYS if n != "observations"])
def test_lengths_that_disagree_are_refused_by_the_arrays_name(name):
    message = refuses(**{name: good_arrays()[name][:-1]})
    assert name in message
    assert "5" in message
    assert "6" in message


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_objects_or_text_are_refused_by_name_and_type(name):
    array = good_arrays()[name]
    assert name in (message := refuses(**{name: array.astype(object)}))
    assert "object" in message
    assert name in (message := refuses(**{name: array.astype(str)}))
    assert "<U" in message


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("shape", [(), (6, 2, 3)])
def test_arrays_with_the_wrong_number_of_axes_are_refused_by_name(name, shape):
    assert name in refuses(**{name: np.zeros(shape, np.float32)})


@pytest.mark.parametrize("name", ["observations", "actions", "next_observations"])
def test_rows_that_are_numbers_instead_of_vectors_are_refused_by_name(name):
    assert name in refuses(**{name: np.zeros(6, np.float32)})


@pytest.mark.parametrize("name", ["rewards", "terminals", "timeouts"])
def test_several_rewards_or_ends_a_row_are_refused_by_name(name):
    assert name in refuses(**{name: np.zeros((6, 2), np.float32)})


def test_next_observations_of_another_width_are_refused():
    assert "next_observations" in refuses(next_observations=np.zeros((6, 3), np.float32))


@pytest.mark.parametrize("name", ["action_low", "action_high"])
def test_bounds_of_the_wrong_length_are_refused_by_name(name):
    assert name in refuses(**{name: np.ones(3)})


# What cannot be trained on


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "next_observations"])
def test_values_that_are_not_finite_are_refused_for_training_by_array_and_row(name, bad):
    arrays = {k: v.copy() for k, v in good_arrays().items()}
    arrays[name][4] = bad
    data = gemrl.from_arrays(**arrays, source="log.npz")
    with pytest.raises(DataError, match=rf"log\.npz: {name} .* row 4\b"):
        data.require_trainable()


def test_actions_outside_their_bounds_are_refused_for_training_with_the_first_row():
    arrays = good_arrays()
    arrays["actions"][3] = 1.5
    arrays["actions"][5] = -1.5
    data = gemrl.from_arrays(**arrays)
    with pytest.raises(DataError, match=r"2 actions lie outside .*row 3\b.*1\.5"):
        data.require_trainable()
    assert data.outside_bounds().any(axis=1).tolist() == [0, 0, 0, 1, 0, 1]
    wider = gemrl.from_arrays(**arrays, action_low=-2.0, action_high=2.0)
    wider.require_trainable()
    assert not wider.outside_bounds().any()


def test_actions_on_their_bounds_up_to_rounding_are_trainable():
    arrays = good_arrays()
    arrays["actions"][3] = 1 + 1e-6
    data = gemrl.from_arrays(**arrays)
    data.require_trainable()
    assert not data.outside_bounds().any()


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, -2.0), (np.nan, 1.0)])
def test_bounds_without_room_between_them_are_refused_for_training(low, high):
    data = gemrl.from_arrays(**good_arrays(), action_low=low, action_high=high)
    with pytest.raises(DataError, match=r"action_low .*action_high"):
        data.require_trainable()


def test_numbers_too_large_for_float32_are_refused_for_training():
    arrays = good_arrays()
    arrays["rewards"] = arrays["rewards"].astype(np.float64)
    arrays["rewards"][2] = 1e300
    with pytest.raises(DataError, match=r"rewards .* row 2\b"):
        gemrl.from_arrays(**arrays).require_trainable()


def test_training_refuses_what_cannot_be_trained_on_before_it_makes_a_folder(tmp_path):
    arrays = good_arrays()
    arrays["rewards"][1] = np.nan
    with pytest.raises(DataError, match=r"rewards .* row 1\b"):
        gemrl.train(gemrl.from_arrays(**arrays), gemrl.BcConfig(steps=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_terminals_inside_episodes_end_the_bootstrapping_only():
    arrays = arrays_of([0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 1])
    data = gemrl.from_arrays(
        **arrays, next_observations=arrays["observations"] + 1, terminals_end=False
    )
    assert data.episodes.tolist() == [0, 0, 0, 0, 1, 1]
    assert data.masks.tolist() == [1, 0, 0, 1, 1, 1]
    # Without successors the last row of an episode is left out, and no other.
    shorter = gemrl.from_arrays(**arrays, terminals_end=False)
    assert shorter.rewards.tolist() == [0, 1, 2, 4]
    assert shorter.episodes.tolist() == [0, 0, 0, 1]


def test_antmazes_terminals_do_not_cut_its_episodes(tmp_path):
    arrays = arrays_of([0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 1], obs_dim=29, action_dim=8)
    np.savez(tmp_path / "ant.npz", **arrays)
    loaded = gemrl.load_dataset(tmp_path / "ant.npz", task="antmaze-umaze-v2", outside="clip")
    assert len(loaded.episode_starts) == 2
    assert len(gemrl.load_dataset(tmp_path / "ant.npz", outside="clip").episode_starts) == 3
