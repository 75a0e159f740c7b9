"""Datasets on disk: the same as in memory, whole or not there, and small in memory."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemrl
from gemrl.data.readers import load_dataset
from gemrl.data.shard_files import META
from gemrl.data.shards import ShardedDataset, bytes_in_memory, open_sharded, parse_size
from gemrl.data.storage import genuine_path, home, regenerated_path
from gemrl.errors import ConfigError, DataError, GemrlError

UMAZE = "maze2d-umaze-v1"
MEMORY = 10**9
ABOUT = ("task", "origin", "source", "bounds_origin", "notes", "reading", "obs_dim", "action_dim")
COLUMNS = ("observations", "actions", "rewards", "next_observations", "masks", "episodes")


def some_arrays(rows=60, seed=0, obs_dim=4, action_dim=2, every=10):
    rng = np.random.default_rng(seed)
    ends = np.zeros(rows, dtype=bool)
    ends[every - 1 :: every] = True
    return {
        "observations": rng.standard_normal((rows, obs_dim)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, action_dim)).astype(np.float32),
        "rewards": rng.standard_normal(rows).astype(np.float32),
        "next_observations": rng.standard_normal((rows, obs_dim)).astype(np.float32),
        "terminals": np.zeros(rows, dtype=bool),
        "timeouts": ends,
    }


def write(path, arrays, attributes=(), **settings):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **settings)
        file.attrs.update(dict(attributes))
    return path


def packed_in_memory(data):
    parts = [data.observations, data.actions, data.rewards[:, None], data.next_observations]
    return np.concatenate([*parts, data.masks[:, None]], axis=1)


def assert_same(sharded, data):
    """Everything that training asks of a dataset."""
    for name in ABOUT:
        assert getattr(sharded, name) == getattr(data, name), name
    for name in ("action_low", "action_high", "episode_starts", "episode_returns"):
        assert np.array_equal(getattr(sharded, name), getattr(data, name)), name
    assert sharded.reward_range == data.reward_range
    assert len(sharded) == len(data)
    assert sharded.fingerprint == data.fingerprint
    sharded.require_trainable()
    rng = np.random.default_rng(0)
    everything = np.arange(len(data))
    for rows in (
        everything,
        everything[::-1],
        rng.permutation(len(data)),
        rng.integers(len(data), size=3 * len(data)),
        everything[-1:],
        everything[:0],
    ):
        found = sharded.packed(rows)
        assert found.dtype == np.float32
        assert np.array_equal(found, packed_in_memory(data)[rows])
        if len(rows):
            assert_same_columns(sharded.select(rows), data.select(rows))
    for seed in range(3):
        for ours, theirs in zip(
            sharded.split_episodes(0.3, seed), data.split_episodes(0.3, seed), strict=True
        ):
            assert np.array_equal(ours, theirs)
    training, _ = data.split_episodes(0.3, 0)
    for ours, theirs in zip(
        sharded.observation_statistics(training),
        data.observation_statistics(training),
        strict=True,
    ):
        assert np.array_equal(ours, theirs)


def assert_same_columns(ours, theirs):
    for name in COLUMNS:
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    assert ours.fingerprint == theirs.fingerprint
    assert (ours.notes, ours.source) == (theirs.notes, theirs.source)


def shard_folders():
    """Folders of shards, and of unfinished ones."""
    root = home() / "shards"
    return sorted(path for path in root.glob("*") if path.is_dir()) if root.exists() else []


# The same as in memory


def flag_lists(rows):
    return st.lists(st.booleans(), min_size=rows, max_size=rows)


@st.composite
def logs(draw):
    rows = draw(st.integers(1, 40))
    arrays = some_arrays(rows, draw(st.integers(0, 9)), draw(st.integers(1, 3)))
    arrays["terminals"] = np.array(draw(flag_lists(rows)))
    arrays["timeouts"] = np.array(draw(flag_lists(rows)))
    for name in ("timeouts", "next_observations"):
        if draw(st.booleans()):
            del arrays[name]
    return arrays


@given(logs(), st.sampled_from([1, 300, 1000, 5000, 10**6]), st.sampled_from([1, 100, 500, 10**6]))
@settings(max_examples=60, deadline=None)
def test_a_file_on_disk_is_the_same_dataset_as_in_memory(arrays, memory, shard):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "data.hdf5", arrays)
        try:
            data = load_dataset(path)
        except DataError:
            one, other = both_refusals(path)
            assert one == other
        else:
            assert_same(open_sharded(path, memory=memory, shard=shard), data)
            assert_same(open_sharded(path, memory=10 * memory), data)  # As they were written.


WIDE = {"actions": np.random.default_rng(1).standard_normal((60, 2)).astype(np.float32)}


@pytest.mark.parametrize("memory", [1, MEMORY])
@pytest.mark.parametrize("outside", ["clip", "rescale"])
@pytest.mark.parametrize(
    "bounds", [None, "unit", "data", "quantiles", "-0.5,0.25", ([-1, 0], [0.5, 9]), "file"]
)
def test_bounds_and_moved_actions_are_those_in_memory(bounds, outside, memory, tmp_path):
    arrays = some_arrays() | WIDE
    del arrays["next_observations"]  # Rows that are left out make no bounds either.
    limits = {"action_low": -0.5, "action_high": [0.5, 1.5]}
    path = write(tmp_path / "data.hdf5", arrays, limits)
    data = load_dataset(path, bounds=bounds, outside=outside)
    sharded = open_sharded(path, bounds=bounds, outside=outside, memory=memory, shard=200)
    assert_same(sharded, data)
    assert sharded.notes


@given(st.integers(1, 5000), st.integers(20, 400), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_quantiles_of_blocks_are_those_of_all_actions(rows, memory, seed):
    arrays = some_arrays(rows, seed, obs_dim=1, every=1000)
    arrays["actions"] = np.random.default_rng(seed).standard_cauchy((rows, 2)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "data.hdf5", arrays)
        how = {"bounds": "quantiles", "outside": "clip"}
        sharded = open_sharded(path, memory=1000 * memory, **how)
        expected = np.quantile(arrays["actions"], (0.001, 0.999), axis=0).astype(np.float32)
        if (expected[0] < expected[1]).all():
            assert np.array_equal(sharded.action_low, expected[0])
            assert np.array_equal(sharded.action_high, expected[1])
        assert sharded.fingerprint == load_dataset(path, **how).fingerprint


def test_a_task_whose_terminals_do_not_end_episodes_is_read_as_in_memory(maze_arrays, tmp_path):
    arrays = {name: array for name, array in maze_arrays.items() if name != "next_observations"}
    path = write(tmp_path / "data.hdf5", arrays, compression="gzip", chunks=True)
    data = load_dataset(path, task=UMAZE)
    assert_same(open_sharded(path, task=UMAZE, memory=10**5, shard=10**5), data)


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", "<i4", "|u1", "|b1"])
def test_every_type_of_number_is_read_as_float32(dtype, tmp_path):
    arrays = some_arrays()
    arrays["observations"] = (np.arange(240).reshape(60, 4) % 2).astype(dtype)
    for name in ("rewards", "terminals", "timeouts"):
        arrays[name] = arrays[name].astype(np.float64)[:, None]
    path = write(tmp_path / "data.hdf5", arrays)
    assert_same(open_sharded(path, memory=4000, shard=500), load_dataset(path))


@pytest.mark.parametrize("every", [3, 200, 10**6])
@pytest.mark.parametrize("memory", [300, 20_000, MEMORY])
def test_returns_are_summed_as_in_memory_however_long_an_episode_is(every, memory, tmp_path):
    arrays = some_arrays(3000, obs_dim=2, every=every)
    arrays["rewards"] *= np.random.default_rng(0).choice([1, 1e4], 3000).astype(np.float32)
    del arrays["next_observations"]
    path = write(tmp_path / "data.hdf5", arrays)
    data, sharded = load_dataset(path), open_sharded(path, memory=memory)
    assert np.array_equal(sharded.episode_starts, data.episode_starts)
    assert np.array_equal(sharded.episode_returns, data.episode_returns)


def test_statistics_are_numpys(tmp_path):
    arrays = some_arrays(40_000)
    arrays["observations"] = arrays["observations"] * [1e-3, 1, 1e3, 0] + [1e3, 0, 5, 7]
    path = write(tmp_path / "data.hdf5", arrays)
    sharded = open_sharded(path, memory=10**6)
    rows, _ = sharded.split_episodes(0.1, 0)
    mean, std = sharded.observation_statistics(rows)
    chosen = arrays["observations"].astype(np.float32)[rows].astype(np.float64)
    np.testing.assert_allclose(mean, chosen.mean(axis=0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(std, chosen.std(axis=0), rtol=1e-9, atol=1e-12)
    parts = [part.observations for part in sharded.blocks(rows, 999)]
    assert max(map(len, parts)) == 999
    assert np.array_equal(np.concatenate(parts), chosen)


def test_rows_that_are_not_there_are_no_rows(tmp_path):
    sharded = open_sharded(write(tmp_path / "data.hdf5", some_arrays()), memory=MEMORY)
    for rows in ([-1], [60], [0, 10**12]):
        with pytest.raises(IndexError, match="0 to 59"):
            sharded.packed(np.array(rows))
    with pytest.raises(TypeError):
        sharded.packed(np.array([0.5]))


def test_rows_far_apart_are_the_rows_asked_for(tmp_path):
    path = write(tmp_path / "data.hdf5", some_arrays(50_000, obs_dim=40))
    sharded = open_sharded(path, memory=10**7, shard=10**6)
    rows = np.array([49_999, 3, 20_000, 20_001, 3])
    assert np.array_equal(sharded.packed(rows), packed_in_memory(load_dataset(path))[rows])


def test_a_tasks_name_finds_the_published_file_first_and_says_which(capsys):
    regenerated = write(
        regenerated_path(UMAZE),
        some_arrays(),
        {"gemrl_task": UMAZE, "gemrl_origin": "regenerated"},
    )
    assert_same(open_sharded(UMAZE, memory=MEMORY), load_dataset(UMAZE))
    assert f"using the regenerated dataset {regenerated}\n" in capsys.readouterr().err
    genuine = write(genuine_path(UMAZE), some_arrays(seed=1))
    sharded = open_sharded(UMAZE, memory=MEMORY)
    assert_same(sharded, load_dataset(UMAZE))
    assert (sharded.origin, sharded.source) == ("genuine", str(genuine))


# What is refused


def without(*names):
    return {name: array for name, array in some_arrays().items() if name not in names}


def changed(name, row, value):
    arrays = some_arrays()
    arrays[name] = arrays[name].astype(np.float64)
    arrays[name][row] = value
    return arrays


BAD = {
    "no rewards": without("rewards"),
    "nothing": {"other": np.zeros(3)},
    "text": some_arrays() | {"actions": [b"left"] * 60},
    "lengths": some_arrays() | {"rewards": np.zeros(59)},
    "images": some_arrays() | {"observations": np.zeros((60, 4, 4))},
    "no columns": some_arrays() | {"actions": np.zeros((60, 0))},
    "another width": some_arrays() | {"next_observations": np.zeros((60, 3))},
    "no rows": {name: array[:0] for name, array in some_arrays().items()},
    "two rewards": some_arrays() | {"rewards": np.zeros((60, 2))},
    "half a terminal": changed("terminals", 33, 0.5),
    "timeouts of 2": changed("timeouts", 44, 2),
    "no successors": without("next_observations") | {"timeouts": np.ones(60, bool)},
    "wide actions": some_arrays() | {"actions": 3 * WIDE["actions"]},
    "far too large": changed("rewards", 17, 1e300),
    **{
        f"{value} in {name}": changed(name, [20, 21, 59], value)
        for name in ("observations", "actions", "rewards", "next_observations")
        for value in (np.nan, np.inf)
    },
}


def both_refusals(path, **how):
    """How a file is refused in memory and on disk."""
    messages = []
    for read in (
        lambda: load_dataset(path, **how).require_trainable(),
        lambda: open_sharded(path, **how, memory=2000),
    ):
        with pytest.raises(GemrlError) as caught:
            read()
        messages.append((caught.type, str(caught.value)))
    assert not [folder for folder in shard_folders() if META not in os.listdir(folder)]
    return messages


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_the_same_words_as_in_memory(name, tmp_path):
    one, other = both_refusals(write(tmp_path / "data.hdf5", BAD[name]))
    assert one == other
    assert shard_folders() == []
    assert str(tmp_path / "data.hdf5") in one[1]


def test_bad_rows_count_as_they_do_once_rows_are_left_out(tmp_path):
    arrays = changed("rewards", [25, 41], np.nan)
    del arrays["next_observations"]  # Two of ten rows before row 25 are left out.
    one, other = both_refusals(write(tmp_path / "data.hdf5", arrays))
    assert one == other
    assert "2 values that are not finite, the first in row 23;" in one[1]


@pytest.mark.parametrize(
    ("how", "attributes"),
    [
        ({"task": "no-such-task"}, {}),
        ({"task": "hopper-medium-v2"}, {}),
        ({"task": UMAZE}, {"gemrl_task": "maze2d-large-v1"}),
        ({}, {"gemrl_task": "no-such-task"}),
        ({}, {"action_low": -1.0}),
        ({}, {"action_low": [-1.0] * 3, "action_high": [1.0] * 3}),
        ({"bounds": "task"}, {}),
        ({"bounds": "file"}, {}),
        ({"bounds": "wide"}, {}),
        ({"bounds": "2,1"}, {}),
        ({"bounds": ([0, 0, 0], 1)}, {}),
        ({"outside": "drop"}, {}),
    ],
)
def test_what_contradicts_is_refused_in_the_same_words(how, attributes, tmp_path):
    one, other = both_refusals(write(tmp_path / "data.hdf5", some_arrays(), attributes), **how)
    assert one == other


@pytest.mark.parametrize("source", [UMAZE, "no-such-task-v0", "no/such/file.hdf5", "."])
def test_what_is_not_there_is_refused_in_the_same_words(source):
    one, other = both_refusals(source)
    assert one == other


def test_a_damaged_file_is_refused_or_read_as_it_is_in_memory(tmp_path):
    whole = write(tmp_path / "whole.hdf5", some_arrays()).read_bytes()
    path = tmp_path / "damaged.hdf5"
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(100):
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=3):
            damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged if trial % 4 else damaged[: rng.integers(len(damaged))])
        try:
            data = load_dataset(path)
            data.require_trainable()
        except DataError:
            refused += 1
            with pytest.raises(DataError, match=str(path)):
                open_sharded(path, memory=2000)
        else:
            assert open_sharded(path, memory=2000).fingerprint == data.fingerprint
    assert 10 < refused < 100


@pytest.mark.parametrize("name", ["data.npz", "data.csv", "data.parquet", "minari:D4RL/door-v2"])
def test_other_kinds_of_file_are_refused_with_what_to_do(name, tmp_path):
    source = name if ":" in name else tmp_path / name
    if ":" not in name:
        source.write_bytes(b"")
    with pytest.raises(DataError, match=r"HDF5 files only .* enough memory, and write"):
        open_sharded(source, memory=MEMORY)


def test_chunks_larger_than_memory_allows_are_refused(tmp_path):
    rows, observations = 50_000, np.zeros((50_000, 100), np.float32)
    arrays = some_arrays(rows) | {"next_observations": observations}
    for compression, name in ((None, "plain.hdf5"), (1, "packed.hdf5")):
        path = write(tmp_path / name, arrays | {"rewards": np.zeros(rows)})
        with h5py.File(path, "a") as file:
            del file["observations"]
            file.create_dataset(
                "observations", data=observations, chunks=(rows, 100), compression=compression
            )
    assert len(open_sharded(tmp_path / "plain.hdf5", memory=10**6)) == rows
    with pytest.raises(DataError, match=r"chunks of 20,000,000 bytes.*smaller chunks"):
        open_sharded(path, memory=10**6)
    assert len(open_sharded(path, memory=10**9)) == rows


# Written once


def state_of(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_shards_are_written_once_and_it_is_said(tmp_path, capsys):
    path = write(tmp_path / "data.hdf5", some_arrays())
    first = open_sharded(path, memory=MEMORY)
    assert f"wrote 60 rows as shards to {first.folder}: used by later" in capsys.readouterr().err
    before = state_of(first.folder)
    second = open_sharded(str(path), memory=MEMORY)
    assert second.folder == first.folder
    assert state_of(first.folder) == before
    said = capsys.readouterr().err
    assert "wrote" not in said
    assert "action bounds: -1 to 1" in said
    assert shard_folders() == [first.folder]


def test_each_way_of_reading_has_shards_of_its_own(tmp_path):
    path = write(tmp_path / "data.hdf5", some_arrays() | WIDE)
    hows = [{"bounds": "data"}, {"outside": "clip"}, {"bounds": "data", "task": UMAZE}]
    folders = [open_sharded(path, memory=MEMORY, **how).folder for how in hows]
    assert shard_folders() == sorted(folders)
    for how, folder in zip(hows, folders, strict=True):
        assert_same(sharded := open_sharded(path, memory=MEMORY, **how), load_dataset(path, **how))
        assert sharded.folder == folder


def test_a_file_that_changed_is_written_anew_and_its_old_shards_are_removed(tmp_path):
    path = write(tmp_path / "data.hdf5", some_arrays())
    other = open_sharded(write(tmp_path / "other.hdf5", some_arrays()), memory=MEMORY)
    old = open_sharded(path, memory=MEMORY)
    write(path, some_arrays(seed=1))
    new = open_sharded(path, memory=MEMORY)
    assert new.folder != old.folder
    assert_same(new, load_dataset(path))
    assert shard_folders() == sorted([new.folder, other.folder])
    assert len(old.packed(np.arange(60))) == 60  # Whoever has them mapped can go on.
    touched = path.stat()
    os.utime(path, ns=(touched.st_atime_ns, touched.st_mtime_ns + 1))
    assert open_sharded(path, memory=MEMORY).folder not in (old.folder, new.folder)


def test_files_hold_packed_rows_and_nothing_that_could_run(tmp_path):
    path = write(tmp_path / "data.hdf5", some_arrays())
    sharded = open_sharded(path, memory=MEMORY, shard=1000)
    files = sorted(sharded.folder.glob("rows-*.f32"))
    raw = b"".join(file.read_bytes() for file in files)
    assert raw == packed_in_memory(load_dataset(path)).astype("<f4").tobytes()
    assert len(files) == 3
    assert all(file.stat().st_size <= 1000 for file in files)
    about = json.loads((sharded.folder / META).read_text())
    source = {"path": str(path), "size": path.stat().st_size}
    assert about["source"] == source | {"mtime_ns": path.stat().st_mtime_ns}
    for file in sharded.folder.glob("*.npy"):
        np.load(file, allow_pickle=False)


# Damage


def damage_by_cutting(folder):
    with open(folder / "rows-00001.f32", "r+b") as file:
        file.truncate(100)


def damage_by_removing(folder):
    (folder / "rows-00002.f32").unlink()


def damage_of_episodes(folder):
    (folder / "episode-starts.npy").write_bytes(b"")


def damage_of_description(folder):
    (folder / META).write_text("{}")


def damage_by_half_a_description(folder):
    text = (folder / META).read_text()
    (folder / META).write_text(text[: len(text) // 2])


def damage_by_no_description(folder):
    (folder / META).unlink()


def damage_by_another_format(folder):
    about = json.loads((folder / META).read_text())
    (folder / META).write_text(json.dumps(about | {"format": 99}))


def damage_by_other_dimensions(folder):
    about = json.loads((folder / META).read_text())
    (folder / META).write_text(json.dumps(about | {"obs_dim": 5}))


@pytest.mark.parametrize(
    "damage",
    [
        damage_by_cutting,
        damage_by_removing,
        damage_of_episodes,
        damage_of_description,
        damage_by_half_a_description,
        damage_by_no_description,
        damage_by_another_format,
        damage_by_other_dimensions,
    ],
)
def test_damaged_shards_are_refused_with_what_to_do(damage, tmp_path):
    path = write(tmp_path / "data.hdf5", some_arrays())
    folder = open_sharded(path, memory=MEMORY, shard=1000).folder
    damage(folder)
    with pytest.raises(DataError, match=r"damaged: .*delete the folder") as caught:
        open_sharded(path, memory=MEMORY)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["rows-00001.f32", "episode-returns.npy"])
def test_a_full_check_finds_a_single_changed_byte(name, tmp_path):
    path = write(tmp_path / "data.hdf5", some_arrays())
    sharded = open_sharded(path, memory=MEMORY, shard=1000)
    sharded.verify()
    raw = bytearray((sharded.folder / name).read_bytes())
    raw[-1] ^= 1
    (sharded.folder / name).write_bytes(raw)
    with pytest.raises(DataError, match=f"{name} is not what was written"):
        open_sharded(path, memory=MEMORY).verify()


# Processes

OPEN = """
import sys
from gemrl.data.shards import open_sharded
print(open_sharded(sys.argv[1], memory=int(sys.argv[2])).fingerprint)
"""


def start(script, *words, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def wait_until_rows_are_written(process):
    deadline = time.monotonic() + 60
    while not (written := list((home() / "shards").glob(".*.tmp/rows-*.f32"))):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    return written[0].parent


def test_a_killed_conversion_leaves_nothing_that_is_used(tmp_path):
    path = write(tmp_path / "data.hdf5", some_arrays(30_000))
    process = start(OPEN, path, 2000)  # Row by row, which takes a while.
    unfinished = wait_until_rows_are_written(process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert shard_folders() == [unfinished]
    assert not (unfinished / META).exists()
    sharded = open_sharded(path, memory=MEMORY)
    assert sharded.fingerprint == load_dataset(path).fingerprint
    assert shard_folders() == [sharded.folder]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = write(tmp_path / "data.hdf5", some_arrays(2000))
    process = start(OPEN, path, 2000)
    wait_until_rows_are_written(process)
    os.utime(path)
    out, err = process.communicate()
    assert out == ""
    assert f"{path}: changed while it was read; try again" in err
    assert shard_folders() == []


def test_what_a_killed_conversion_left_is_removed_by_that_of_another_file(tmp_path):
    leftover = home() / "shards" / ".data-0-0-0.tmp"
    leftover.mkdir(parents=True)
    (leftover / "rows-00000.f32").write_bytes(bytes(100))
    sharded = open_sharded(write(tmp_path / "data.hdf5", some_arrays()), memory=MEMORY)
    assert shard_folders() == [sharded.folder]
    assert not leftover.exists()


def test_processes_that_want_the_same_shards_at_once_write_them_once(tmp_path):
    path = write(tmp_path / "data.hdf5", some_arrays(3000))
    processes = [start(OPEN, path, 20_000) for _ in range(3)]
    answers = [process.communicate() for process in processes]
    expected = load_dataset(path).fingerprint
    assert [out.strip() for out, _ in answers] == [expected] * 3
    assert sum("wrote 3,000 rows" in err for _, err in answers) == 1
    assert len(shard_folders()) == 1


FULL = """
import resource, sys
from gemrl.data.shards import open_sharded
from gemrl.errors import DataError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    open_sharded(sys.argv[1], memory=10**6)
except DataError as error:
    print(error)
"""


@pytest.mark.parametrize("most", [0, 100_000])
def test_a_disk_that_fills_up_is_said_with_what_is_needed_and_nothing_is_left(most, tmp_path):
    path = write(tmp_path / "data.hdf5", some_arrays(10_000))
    out, err = start(FULL, path, most).communicate()
    assert str(path) in out, err
    assert "File too large" in out
    assert "GEMRL_HOME" in out
    (needed,) = (int(w.replace(",", "")) for w in out.split() if w.replace(",", "").isdigit())
    assert 480_000 <= needed < 600_000
    assert [p.name for p in (home() / "shards").iterdir()] == [".lock"]


def test_too_little_room_is_found_before_anything_is_written(tmp_path, monkeypatch):
    # No disk can be filled here, so that what is free is made up.
    room = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: room)
    path = write(tmp_path / "data.hdf5", some_arrays(10_000))
    with pytest.raises(DataError, match="only 1,000 are free"):
        open_sharded(path, memory=MEMORY)
    assert shard_folders() == []


def test_a_cache_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMRL_HOME", str(tmp_path / "file"))
    path = write(tmp_path / "data.hdf5", some_arrays())
    with pytest.raises(DataError, match="cannot write"):
        open_sharded(path, memory=MEMORY)


# Memory

USE = """
import json, sys
import numpy as np
import h5py
from gemrl.data.shards import open_sharded

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

path, memory = sys.argv[1], int(sys.argv[2])
base = status("VmHWM")
data = open_sharded(path, memory=memory)
written = status("VmHWM") - base
training, _ = data.split_episodes(0.05, 0)
data.observation_statistics(training)
rng = np.random.default_rng(0)
for _ in range(5):
    data.packed(training[rng.integers(len(training), size=20_000)])
used = status("VmHWM") - base
for mapped in data.maps:
    sum(mapped[::4096])
mapped = status("RssFile")
data.release()
print(json.dumps({"written": written, "used": used, "gone": mapped - status("RssFile")}))
"""


def write_large(path, rows):
    """A file that is written without having it in memory."""
    rng = np.random.default_rng(0)
    shapes = {"observations": (40,), "actions": (8,), "rewards": (), "terminals": ()}
    size = 50_000
    blocks = {n: rng.uniform(-1, 1, (size, *s)).astype(np.float32) for n, s in shapes.items()}
    blocks["terminals"] = np.arange(size) % 1000 == 999
    with h5py.File(path, "w") as file:
        for name, block in blocks.items():
            array = file.create_dataset(name, (rows, *shapes[name]), block.dtype)
            for start in range(0, rows, size):
                array[start : start + size] = block[: rows - start]
    return path


def use(path, memory):
    out, err = start(USE, path, memory).communicate()
    assert out, err
    return json.loads(out)


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")


@linux
def test_a_dataset_larger_than_memory_is_written_and_used_in_less(tmp_path):
    path = write_large(tmp_path / "data.hdf5", rows := 800_000)
    needed = rows * 4 * 91
    assert bytes_in_memory(path) == needed
    memory = 100_000_000
    assert needed > 2.9 * memory
    for _ in range(2):
        found = use(path, memory)
        assert found["written"] < memory / 2
        assert found["used"] < memory
        assert found["gone"] > 0.9 * needed


@linux
@pytest.mark.long
def test_a_dataset_of_gigabytes_is_written_and_used_in_little_memory(tmp_path):
    path = write_large(tmp_path / "data.hdf5", 8_000_000)
    found = use(path, 400_000_000)
    assert found["used"] < 400_000_000 < 2_900_000_000 < bytes_in_memory(path)


# Sizes


@pytest.mark.parametrize("without_next", [True, False])
def test_the_memory_of_a_dataset_is_told_from_headers(without_next, tmp_path):
    arrays = some_arrays() | {"terminals": np.arange(60) % 10 == 9}
    if without_next:
        del arrays["next_observations"]
    path = write(tmp_path / "data.hdf5", arrays)
    data = load_dataset(path)
    assert bytes_in_memory(path) == sum(getattr(data, name).nbytes for name in COLUMNS)
    write(genuine_path(UMAZE), arrays)
    assert bytes_in_memory(UMAZE) == bytes_in_memory(str(path))


def test_the_memory_of_what_is_no_hdf5_file_is_not_told(tmp_path):
    (tmp_path / "broken.hdf5").write_bytes(b"broken")
    np.savez(tmp_path / "data.npz", **some_arrays())
    lacking = write(tmp_path / "lacking.hdf5", without("actions"))
    names = ("broken.hdf5", "data.npz", "absent.hdf5")
    for source in (*(tmp_path / name for name in names), lacking, UMAZE, "minari:D4RL/door-v2"):
        assert bytes_in_memory(source) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GB", 2 * 10**9),
        ("512MB", 512 * 10**6),
        ("1.5GiB", 3 * 2**29),
        ("2.3GB", 2_300_000_000),
        ("64 MiB", 2**26),
        (" 10kb ", 10_000),
        ("1TiB", 2**40),
        ("123456789", 123456789),
        ("1000B", 1000),
        ("9" * 400, 10**400 - 1),
    ],
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "2 gigs", "-1GB", "0", "0.0GB", "1e9", "2.5", "1,5GB"])
def test_what_is_no_size_is_refused_with_examples(text):
    with pytest.raises(ConfigError, match=r"2GB, 512MB or 1\.5GiB") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


def test_a_dataset_on_disk_is_not_one_in_memory(tmp_path):
    path = write(tmp_path / "data.hdf5", some_arrays())
    assert isinstance(open_sharded(path, memory=MEMORY), ShardedDataset)
    assert isinstance(load_dataset(path), gemrl.Dataset)
