"""Datasets from files and from the cache folder: what is read, and what is refused and how."""

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

import gemrl
from gemrl.data.inspect import inspect
from gemrl.data.readers import load_dataset, task_hint
from gemrl.data.storage import genuine_path, regenerated_path
from gemrl.data.tasks import TASKS
from gemrl.errors import DataError

UMAZE = "maze2d-umaze-v1"


def small_arrays(rows=30, seed=0):
    rng = np.random.default_rng(seed)
    ends = np.zeros(rows, dtype=bool)
    ends[9::10] = True
    return {
        "observations": rng.standard_normal((rows, 4)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": rng.standard_normal(rows).astype(np.float32),
        "next_observations": rng.standard_normal((rows, 4)).astype(np.float32),
        "terminals": np.zeros(rows, dtype=bool),
        "timeouts": ends,
    }


def write_hdf5(path, arrays, **attributes):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
        file.attrs.update(attributes)
    return path


def write_npz(path, arrays):
    np.savez_compressed(path, **arrays)
    return path


def refusal(path, **kwargs):
    """The message with which a file is refused; it always names the file."""
    with pytest.raises(DataError) as caught:
        load_dataset(path, **kwargs)
    assert isinstance(caught.value, ValueError)
    message = str(caught.value)
    assert str(path) in message
    return message


WRITERS = {"hdf5": write_hdf5, "h5": write_hdf5, "npz": write_npz}


# Round trips


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("without", [(), ("timeouts",), ("next_observations",)])
def test_a_written_file_is_read_back_as_the_same_dataset(suffix, without, tmp_path):
    arrays = {k: v for k, v in small_arrays().items() if k not in without}
    path = WRITERS[suffix](tmp_path / f"data.{suffix}", arrays)
    for source in (path, str(path)):
        data = load_dataset(source)
        expected = gemrl.from_arrays(**arrays)
        for name in ("observations", "actions", "rewards", "next_observations", "masks"):
            assert np.array_equal(getattr(data, name), getattr(expected, name))
        assert data.fingerprint == expected.fingerprint
        assert (data.task, data.origin, data.source) == (None, "unknown", str(path))


def test_both_formats_give_the_same_fingerprint(tmp_path):
    arrays = small_arrays()
    one = load_dataset(write_hdf5(tmp_path / "data.hdf5", arrays))
    other = load_dataset(write_npz(tmp_path / "data.npz", arrays))
    assert one.fingerprint == other.fingerprint


def test_other_keys_of_a_file_are_left_alone(tmp_path):
    path = tmp_path / "data.hdf5"
    write_hdf5(path, small_arrays() | {"infos_qpos": np.zeros((30, 7))})
    with h5py.File(path, "a") as file:
        file.create_dataset("metadata/algorithm", data="SAC")
    expected = gemrl.from_arrays(**small_arrays())
    assert load_dataset(path).fingerprint == expected.fingerprint


def test_infos_may_be_a_group_or_an_array(tmp_path):
    expected = gemrl.from_arrays(**small_arrays())
    for infos in ({"infos/qpos": np.zeros((30, 7))}, {"infos": np.zeros(30)}):
        path = write_hdf5(tmp_path / "data.hdf5", small_arrays() | infos)
        assert load_dataset(path).fingerprint == expected.fingerprint


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
def test_rewards_and_ends_may_be_columns(suffix, tmp_path):
    arrays = small_arrays()
    for name in ("rewards", "terminals", "timeouts"):
        arrays[name] = arrays[name][:, None]
    data = load_dataset(WRITERS[suffix](tmp_path / f"data.{suffix}", arrays))
    assert data.fingerprint == gemrl.from_arrays(**small_arrays()).fingerprint


def test_a_suffix_in_capitals_is_the_same(tmp_path):
    path = write_hdf5(tmp_path / "DATA.HDF5", small_arrays())
    assert len(load_dataset(path)) == 30


def test_a_file_names_its_task_in_its_attributes(tmp_path):
    path = write_hdf5(
        tmp_path / "data.hdf5", small_arrays(), gemrl_task=UMAZE, gemrl_origin="regenerated"
    )
    data = load_dataset(path)
    assert (data.task, data.origin) == (UMAZE, "regenerated")


def test_the_task_of_a_file_can_be_given(tmp_path):
    path = write_npz(tmp_path / "data.npz", small_arrays())
    assert load_dataset(path, task=UMAZE).task == UMAZE
    with pytest.raises(ValueError, match="no-such-task"):
        load_dataset(path, task="no-such-task")


# What is refused


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminals"])
def test_a_missing_key_is_named_with_the_keys_there_are(suffix, name, tmp_path):
    arrays = small_arrays()
    del arrays[name]
    message = refusal(WRITERS[suffix](tmp_path / f"data.{suffix}", arrays))
    assert f"lacks {name};" in message
    assert "timeouts" in message


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
def test_a_file_with_no_arrays_names_all_that_is_missing(suffix, tmp_path):
    message = refusal(WRITERS[suffix](tmp_path / f"data.{suffix}", {"other": np.zeros(3)}))
    for name in ("observations", "actions", "rewards", "terminals"):
        assert name in message


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
def test_a_truncated_file_is_refused_wherever_it_was_cut(suffix, tmp_path):
    whole = WRITERS[suffix](tmp_path / f"whole.{suffix}", small_arrays()).read_bytes()
    path = tmp_path / f"cut.{suffix}"
    for share in (0, 0.01, 0.3, 0.6, 0.9, 0.99):
        path.write_bytes(whole[: int(share * len(whole))])
        refusal(path)


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
def test_a_file_with_flipped_bytes_is_read_or_refused_and_nothing_else(suffix, tmp_path):
    whole = WRITERS[suffix](tmp_path / f"whole.{suffix}", small_arrays()).read_bytes()
    path = tmp_path / f"damaged.{suffix}"
    rng = np.random.default_rng(0)
    messages = []
    for _ in range(200):
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=3):
            damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            load_dataset(path)
        except DataError as error:
            messages.append(str(error))
    assert messages
    assert all(str(path) in message for message in messages)


@pytest.mark.parametrize("suffix", ["hdf5", "h5", "npz"])
def test_a_text_file_with_the_suffix_of_a_dataset_is_refused(suffix, tmp_path):
    path = tmp_path / f"data.{suffix}"
    path.write_text("observations,actions\n1,2\n")
    assert "not a readable" in refusal(path)


def test_a_single_array_called_npz_is_refused(tmp_path):
    with open(tmp_path / "data.npz", "wb") as file:
        np.save(file, np.zeros((3, 4)))
    assert "NPZ" in refusal(tmp_path / "data.npz")


def test_a_pickle_called_npz_is_refused_and_does_not_run(tmp_path):
    path, witness = tmp_path / "data.npz", tmp_path / "witness"
    path.write_bytes(pickle.dumps(_Touch(witness)))
    refusal(path)
    assert not witness.exists()


def test_object_arrays_in_an_npz_are_refused_and_do_not_run(tmp_path):
    witness = tmp_path / "witness"
    rewards = np.array([_Touch(witness)] * 30, dtype=object)
    refusal(write_npz(tmp_path / "data.npz", small_arrays() | {"rewards": rewards}))
    assert not witness.exists()


class _Touch:
    """Unpickling one of these leaves a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_what_the_pickles_above_would_do_if_they_ran(tmp_path):
    pickle.loads(pickle.dumps(_Touch(tmp_path / "witness")))
    assert (tmp_path / "witness").exists()


def test_text_in_an_hdf5_is_refused_by_the_arrays_name(tmp_path):
    path = write_hdf5(tmp_path / "data.hdf5", small_arrays() | {"actions": [b"left"] * 30})
    assert "actions" in refusal(path)


def test_a_group_in_the_place_of_an_array_is_refused_by_its_name(tmp_path):
    arrays = small_arrays()
    del arrays["rewards"]
    path = write_hdf5(tmp_path / "data.hdf5", arrays | {"rewards/first": np.zeros(30)})
    assert "rewards" in refusal(path)


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
def test_a_single_number_in_the_place_of_an_array_is_refused_by_its_name(suffix, tmp_path):
    arrays = small_arrays() | {"observations": np.float32(3)}
    assert "observations" in refusal(WRITERS[suffix](tmp_path / f"data.{suffix}", arrays))


@pytest.mark.parametrize("name", ["data.txt", "data", "data.hdf5.txt"])
def test_an_unknown_suffix_is_refused_with_the_known_ones(name, tmp_path):
    (tmp_path / name).write_text("1,2")
    message = refusal(tmp_path / name)
    for suffix in (".hdf5", ".h5", ".npz", ".parquet", ".csv"):
        assert suffix in message


def test_a_folder_is_refused_even_when_named_like_a_file(tmp_path):
    refusal(tmp_path)
    (tmp_path / "data.hdf5").mkdir()
    refusal(tmp_path / "data.hdf5")


@pytest.mark.parametrize("source", ["no-such-task-v0", "no/such/file.hdf5"])
def test_an_unknown_name_is_refused_with_the_known_tasks(source):
    message = refusal(source)
    for task in TASKS:
        assert task in message


# By task name


def test_a_task_with_nothing_in_the_cache_names_the_commands_that_get_it():
    with pytest.raises(DataError, match=f"gemrl data make {UMAZE}") as caught:
        load_dataset(UMAZE)
    assert f"gemrl data fetch {UMAZE}" in str(caught.value)
    assert str(genuine_path(UMAZE)) in str(caught.value)


def test_a_task_that_contradicts_is_refused(tmp_path):
    with pytest.raises(DataError, match="contradicts"):
        load_dataset(UMAZE, task="maze2d-large-v1")
    path = write_hdf5(tmp_path / "data.hdf5", small_arrays(), gemrl_task=UMAZE)
    with pytest.raises(DataError, match="contradicts"):
        load_dataset(path, task="maze2d-large-v1")


def test_a_hint_of_the_task_is_had_without_loading_and_never_fails(tmp_path):
    assert task_hint(UMAZE) == UMAZE
    named = write_hdf5(tmp_path / "named.hdf5", small_arrays(), gemrl_task=UMAZE)
    assert task_hint(named) == task_hint(str(named)) == UMAZE
    broken = tmp_path / "broken.hdf5"
    broken.write_bytes(named.read_bytes()[:500])
    for source in (
        write_hdf5(tmp_path / "plain.hdf5", small_arrays()),
        write_hdf5(tmp_path / "other.hdf5", small_arrays(), gemrl_task="no-such-task"),
        write_hdf5(tmp_path / "number.hdf5", small_arrays(), gemrl_task=3),
        write_npz(tmp_path / "data.npz", small_arrays()),
        broken,
        tmp_path,
        tmp_path / "absent.hdf5",
        "minari:D4RL/door/human-v2",
        "no\x00name",
        "",
    ):
        assert task_hint(source) is None


def test_a_genuine_file_is_preferred_to_a_regenerated_one_and_each_is_said(capsys):
    regenerated = write_hdf5(
        regenerated_path(UMAZE),
        small_arrays(seed=1),
        gemrl_task=UMAZE,
        gemrl_origin="regenerated",
    )
    data = load_dataset(UMAZE)
    assert (data.task, data.origin, data.source) == (UMAZE, "regenerated", str(regenerated))
    captured = capsys.readouterr()
    assert "regenerated" in captured.err
    assert captured.out == ""

    genuine = write_hdf5(genuine_path(UMAZE), small_arrays(seed=2))
    data = load_dataset(UMAZE)
    assert (data.task, data.origin, data.source) == (UMAZE, "genuine", str(genuine))
    assert data.fingerprint == gemrl.from_arrays(**small_arrays(seed=2)).fingerprint
    captured = capsys.readouterr()
    assert "genuine" in captured.err
    assert captured.out == ""


def test_the_path_said_is_the_path_read_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GEMRL_HOME", str(tmp_path / ("long" * 20) / "home[old]"))
    path = write_hdf5(genuine_path(UMAZE), small_arrays())
    load_dataset(UMAZE)
    assert f"using the genuine dataset {path}\n" in capsys.readouterr().err


def test_a_regenerated_file_in_the_genuine_folder_stays_regenerated(capsys):
    write_hdf5(genuine_path(UMAZE), small_arrays(), gemrl_task=UMAZE, gemrl_origin="regenerated")
    for source in (UMAZE, genuine_path(UMAZE)):
        assert load_dataset(source).origin == "regenerated"
    said = capsys.readouterr().err
    assert "using the regenerated dataset" in said
    assert "genuine dataset" not in said


def test_data_of_other_sizes_than_its_tasks_is_refused_with_both(tmp_path):
    hopper = "hopper-medium-v2"
    plain = write_hdf5(tmp_path / "plain.hdf5", small_arrays())
    named = write_hdf5(tmp_path / "named.hdf5", small_arrays(), gemrl_task=hopper)
    cached = write_hdf5(genuine_path(hopper), small_arrays())
    with pytest.raises(DataError, match=str(cached)):
        load_dataset(hopper)
    for message in (refusal(plain, task=hopper), refusal(named)):
        assert f"{hopper} has 11 observation and 3 action dimensions" in message
        assert "it has 4 and 2" in message


# Real files


@pytest.mark.parametrize(
    ("name", "rows", "episodes", "obs_dim", "action_dim"),
    [
        ("door-human-demos", 6729, 25, 39, 28),
        ("kitchen-human-demos", 125_098, 553, 59, 9),
        ("hopper-expert-rollouts-v4", 2000, 2, 11, 3),
        ("halfcheetah-expert-rollouts-v4", 2000, 2, 17, 6),
        ("walker2d-expert-rollouts-v4", 2000, 2, 17, 6),
    ],
)
def test_every_real_file_is_read(name, rows, episodes, obs_dim, action_dim, test_data_folder):
    data = load_dataset(test_data_folder / "real" / f"{name}.hdf5", bounds="data")
    # Each episode ends in a timeout, whose row has no successor in the file.
    assert len(data) == rows - episodes
    assert len(data.episode_starts) == episodes
    assert (data.obs_dim, data.action_dim) == (obs_dim, action_dim)
    data.require_trainable()


def test_the_genuine_kitchen_file_is_read(test_data_folder):
    data = load_dataset(test_data_folder / "real" / "kitchen-complete-v0.hdf5")
    # All 19 episodes end in a terminal, whose row is kept though the file has no successors.
    assert len(data) == 3680
    assert (data.obs_dim, data.action_dim) == (60, 9)
    assert len(data.episode_starts) == 19
    assert (data.masks == 0).sum() == 19
    data.require_trainable()


@pytest.mark.parametrize("name", ["hopper", "halfcheetah", "walker2d"])
def test_the_expert_rollouts_are_reported_as_outside_their_bounds(name, test_data_folder):
    path = test_data_folder / "real" / f"{name}-expert-rollouts-v4.hdf5"
    data = load_dataset(path)
    report = inspect(data)
    assert report["outside_bounds"] == int((np.abs(data.actions) > 1.00002).any(axis=1).sum()) > 0
    assert any("outside the bounds" in warning for warning in report["warnings"])
    with pytest.raises(DataError, match="outside the bounds"):
        data.require_trainable()
