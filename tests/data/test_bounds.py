"""Action bounds: which are taken, what is said of it, and what becomes of actions outside."""

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as array_strategy

import gemrl
from gemrl.data.bounds import with_bounds
from gemrl.errors import DataError

UMAZE = "maze2d-umaze-v1"


def make(actions, **kwargs):
    actions = np.asarray(actions, np.float32)
    rows = len(actions)
    obs = np.zeros((rows, 4), np.float32)
    flags = np.zeros(rows, bool)
    return gemrl.from_arrays(obs, actions, flags, flags, next_observations=obs, **kwargs)


def write(path, actions, **extra):
    data = make(actions)
    arrays = {
        "observations": data.observations,
        "next_observations": data.next_observations,
        "actions": data.actions,
        "rewards": data.rewards,
        "terminals": 1 - data.masks,
    }
    if path.suffix == ".npz":
        np.savez(path, **arrays, **extra)
        return path
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        file.attrs.update(extra)
    return path


WIDE = [[-2.0, 10.0], [0.5, 20.0], [3.0, 15.0]]


# Which bounds


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
def test_a_file_without_bounds_has_the_unit_ones_and_it_is_said(suffix, tmp_path, capsys):
    data = gemrl.load_dataset(write(tmp_path / f"data.{suffix}", WIDE))
    assert data.bounds_origin == "unit"
    assert (data.action_low.tolist(), data.action_high.tolist()) == ([-1, -1], [1, 1])
    said = "action bounds: -1 to 1, D4RL's convention, since neither a task nor the file names"
    assert said in capsys.readouterr().err
    assert said in data.notes[0]


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
@pytest.mark.parametrize(("low", "high"), [(-3.0, 30.0), ([-3.0, 5.0], [4.0, 30.0])])
def test_the_bounds_of_a_file_are_taken(suffix, low, high, tmp_path, capsys):
    path = write(tmp_path / f"data.{suffix}", WIDE, action_low=low, action_high=high)
    data = gemrl.load_dataset(path)
    assert data.bounds_origin == "file"
    assert np.array_equal(data.action_low, np.broadcast_to(low, 2))
    assert np.array_equal(data.action_high, np.broadcast_to(high, 2))
    assert "as the file has them" in capsys.readouterr().err
    data.require_trainable()


def test_arrays_in_an_hdf5_file_are_bounds_as_attributes_are(tmp_path):
    path = write(tmp_path / "data.hdf5", WIDE)
    with h5py.File(path, "a") as file:
        file["action_low"], file["action_high"] = [-3.0, 5.0], [4.0, 30.0]
    assert gemrl.load_dataset(path).action_low.tolist() == [-3, 5]


def test_the_bounds_of_a_task_come_first_and_it_is_said(tmp_path, capsys):
    path = write(tmp_path / "data.hdf5", WIDE, action_low=-3.0, action_high=30.0)
    data = gemrl.load_dataset(path, task=UMAZE)
    assert data.bounds_origin == "task"
    assert data.action_high.tolist() == [1, 1]
    assert data.notes == ("action bounds: -1 to 1, the task's",)
    assert capsys.readouterr().err == "action bounds: -1 to 1, the task's\n"
    assert gemrl.load_dataset(path, task=UMAZE, bounds="file").action_high.tolist() == [30, 30]


def test_bounds_of_the_data_are_each_dimensions_own(tmp_path):
    data = gemrl.load_dataset(write(tmp_path / "data.hdf5", WIDE), bounds="data")
    assert data.bounds_origin == "data"
    assert (data.action_low.tolist(), data.action_high.tolist()) == ([-2, 10], [3, 20])
    data.require_trainable()


def test_a_dimension_that_never_changes_gets_some_room_and_it_is_said(capsys):
    data = with_bounds(make([[0.0, 300.0], [1.0, 300.0]]), "data")
    assert (data.action_low.tolist(), data.action_high.tolist()) == ([0, 297], [1, 303])
    assert "action dimension 1 is 300 throughout" in capsys.readouterr().err
    data.require_trainable()


def test_values_that_are_not_finite_do_not_make_bounds():
    data = with_bounds(make([[0.0, np.nan], [np.inf, np.nan], [2.0, np.nan]]), "data")
    assert (data.action_low.tolist(), data.action_high.tolist()) == ([0, -1], [2, 1])
    with pytest.raises(DataError, match="not finite"):
        data.require_trainable()


def test_quantiles_leave_the_furthest_actions_outside():
    actions = np.linspace(0, 1, 10_001)[:, None]
    data = with_bounds(make(actions), "quantiles")
    assert data.action_low[0] == pytest.approx(0.001)
    assert data.action_high[0] == pytest.approx(0.999)
    assert data.outside_bounds().sum() == 20


@pytest.mark.parametrize("bounds", ["-2,20", " -2, 20", (-2, 20), [[-2, -2], 20.0]])
def test_bounds_can_be_given(bounds):
    data = with_bounds(make(WIDE), bounds)
    assert data.bounds_origin == "given"
    assert (data.action_low.tolist(), data.action_high.tolist()) == ([-2, -2], [20, 20])


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ("wide", "task, file, unit, data, quantiles"),
        ("1,2,3", "two numbers"),
        ("task", "it has none"),
        ("file", "it names none"),
        ((1, 1), "the lower below the upper"),
        ((2, -2), "the lower below the upper"),
        ((0, np.inf), "finite"),
        ("nan,1", "finite"),
        (([0, 0, 0], 1), "2 action dimensions"),
        (("a", "b"), "one number"),
        ((1, 2, 3), "pair"),
        (5, "a pair, the lower and the upper, or one of task, file"),
        (np.array(5), "pair"),
        ({-1, 1}, "pair"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(bounds, words):
    with pytest.raises(DataError, match=words):
        with_bounds(make(WIDE), bounds)


def test_a_wrong_word_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(DataError, match="must be one of task"):
        gemrl.load_dataset(tmp_path / "absent.hdf5", bounds="wide")
    with pytest.raises(DataError, match="refuse, clip, rescale"):
        gemrl.load_dataset(tmp_path / "absent.hdf5", outside="drop")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"action_low": -1.0}, "go together"),
        ({"action_low": [-1.0] * 3, "action_high": [1.0] * 3}, "2 action dimensions"),
        ({"action_low": [[-1.0] * 2], "action_high": [[1.0] * 2]}, "one for each"),
        ({"action_low": 1.0, "action_high": -1.0}, "lower below"),
    ],
)
@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
def test_bounds_of_a_file_that_make_no_sense_are_refused(suffix, extra, words, tmp_path):
    path = write(tmp_path / f"data.{suffix}", WIDE, **extra)
    with pytest.raises(DataError, match=words):
        gemrl.load_dataset(path)


@pytest.mark.parametrize(
    ("low", "high", "dims"),
    [
        (-np.inf, np.inf, "[0, 1]"),
        ([-np.inf, -2], [np.inf, 2], "[0]"),
        ([0, 0], [1, np.inf], "[1]"),
    ],
)
def test_open_bounds_of_a_file_are_passed_over_and_their_dimensions_said(low, high, dims, tmp_path):
    path = write(tmp_path / "data.npz", WIDE, action_low=low, action_high=high)
    data = gemrl.load_dataset(path)
    assert data.bounds_origin == "unit"
    assert data.notes == (
        "action bounds: -1 to 1, D4RL's convention, since those of the file are open in dimensions "
        f"{dims}",
    )
    own = with_bounds(make(WIDE), file=(np.array(low), np.array(high)), otherwise="data")
    assert own.notes[0].endswith(
        f"own range in the data, since those of the file are open in dimensions {dims}"
    )


def test_unit_bounds_that_were_asked_for_are_said_to_be(tmp_path):
    path = write(tmp_path / "data.npz", WIDE, action_low=-3.0, action_high=30.0)
    assert gemrl.load_dataset(path, bounds="unit").notes == (
        "action bounds: -1 to 1, as asked for",
    )


# Actions outside


def test_actions_outside_are_refused_by_count_row_dimension_and_flags():
    data = with_bounds(make([[0.5, 0.5], [0.5, 1.5], [-3.0, 0.0]]), "unit")
    with pytest.raises(DataError) as caught:
        data.require_trainable()
    message = str(caught.value)
    for words in ("2 actions", "row 1", "1.5 in dimension 1", "[-1, 1]", "--outside clip|rescale"):
        assert words in message
    assert "--bounds data" in message


def test_clipped_actions_lie_on_the_bounds_and_it_is_said(capsys):
    data = with_bounds(make([[0.5, 0.5], [0.5, 1.5], [-3.0, 0.0]]), "unit", outside="clip")
    assert data.actions.tolist() == [[0.5, 0.5], [0.5, 1.0], [-1.0, 0.0]]
    assert "2 actions outside the bounds were clipped" in capsys.readouterr().err
    data.require_trainable()


def test_rescaled_actions_are_drawn_about_the_middle_where_one_lies_outside(capsys):
    data = with_bounds(
        make([[0.0, 0.5], [2.0, 1.0], [5.0, 0.2]]), ([0, -1], [2, 1]), outside="rescale"
    )
    # The middle is 1 and the furthest 4 away from it.
    assert data.actions[:, 0].tolist() == [0.75, 1.25, 2.0]
    assert data.actions[:, 1].tolist() == [0.5, 1.0, np.float32(0.2)]
    assert "by the factors [0.25, 1]" in capsys.readouterr().err
    assert any("factors" in note for note in data.notes)
    data.require_trainable()


@pytest.mark.parametrize("outside", ["clip", "rescale"])
def test_actions_within_rounding_of_the_bounds_are_left_alone(outside):
    data = make([[1 + 1e-6, 0.5]])
    moved = with_bounds(data, "unit", outside=outside)
    assert moved.fingerprint == data.fingerprint
    assert len(moved.notes) == 1


@pytest.mark.parametrize("outside", ["clip", "rescale"])
def test_what_is_not_finite_is_never_hidden(outside):
    data = with_bounds(make([[np.inf, 0], [-np.inf, 0], [np.nan, 0], [4, 0]]), outside=outside)
    assert data.actions[:, 0].tolist()[:2] == [np.inf, -np.inf]
    assert np.isnan(data.actions[2, 0])
    assert data.actions[3, 0] == 1
    with pytest.raises(DataError, match="3 values that are not finite"):
        data.require_trainable()


@given(
    array_strategy(np.float32, (7, 2), elements=st.floats(-1e6, 1e6, width=32)),
    st.sampled_from(["clip", "rescale"]),
    st.sampled_from(["unit", "data", "quantiles", "-0.1,7"]),
)
@settings(max_examples=100, deadline=None)
def test_moved_actions_can_always_be_trained_on(actions, outside, bounds):
    data = with_bounds(make(actions), bounds, outside=outside)
    data.require_trainable()
    assert (data.actions >= data.action_low - 1e-5 * (data.action_high - data.action_low)).all()
    before = np.argsort(actions, axis=0, kind="stable")
    ordered = np.take_along_axis(data.actions, before, axis=0)
    assert (np.diff(ordered, axis=0) >= 0).all()


def test_notes_and_bounds_are_kept_by_a_selection_and_are_no_part_of_the_fingerprint():
    data = with_bounds(make(WIDE), "-2,20")
    part = data.select(np.array([0, 2]))
    assert (part.notes, part.bounds_origin) == (data.notes, "given")
    assert data.fingerprint == make(WIDE, action_low=-2, action_high=20).fingerprint
