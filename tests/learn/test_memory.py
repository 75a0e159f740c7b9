"""`gemrl train --memory`: a limit that is kept, from disk where need be, or refused in words."""

import re
import shutil

import h5py
import numpy as np
import pytest

import gemrl
from gemrl.cli import main
from gemrl.data.storage import home
from gemrl.learn.memory import Extent, extent_of, needed_in_memory, needed_on_disk

# Trains, and says at the end how much of it was resident at most, in kilobytes.
PEAK = """
import re, sys
from gemrl.cli import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
sys.exit(code)
"""
# Those of the other tests' data, whose programs are compiled already.
OBS, ACTION = 4, 2


def write_synthetic(path, size, obs=OBS, action=ACTION, every=1000):
    """Noise in D4RL's layout, about `size` bytes of it as float32; gives the number of rows."""
    rng = np.random.default_rng(0)
    rows = size // (4 * (2 * obs + action + 1) + 2)
    shapes = {"observations": (obs,), "actions": (action,), "rewards": ()}
    shapes |= {"next_observations": (obs,)}
    with h5py.File(path, "w") as file:
        columns = {n: file.create_dataset(n, (rows, *s), "f4") for n, s in shapes.items()}
        for start in range(0, rows, 100_000):
            count = min(100_000, rows - start)
            for name, shape in shapes.items():
                noise = 2 * rng.random((count, *shape), dtype=np.float32) - 1
                columns[name][start : start + count] = noise
        file["terminals"] = np.zeros(rows, dtype=bool)
        file["timeouts"] = np.arange(1, rows + 1) % every == 0
    return rows


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """300 MB, which training in memory needs more than twice."""
    folder = tmp_path_factory.mktemp("large")
    write_synthetic(folder / "large.hdf5", 300 * 10**6)
    yield folder / "large.hdf5"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def words(bc_words):
    return (*bc_words, "--steps", "600")


@pytest.fixture(scope="module")
def config():
    return gemrl.BcConfig(steps=600, hidden=(8,), batch_size=32, checkpoint_every=1500)


@pytest.fixture
def peak(processes, tmp_path):
    """Train in a process with a cache folder of its own: its peak in bytes and what it said."""

    def call(*words, **environment):
        environment["GEMRL_HOME"] = str(tmp_path / "home")
        code, out, err = processes.end(
            processes.python("-c", PEAK, "train", *words, environment=environment)
        )
        assert code == 0, err
        return 1024 * int(out.split()[-1]), err

    yield call
    shutil.rmtree(tmp_path / "home", ignore_errors=True)


@pytest.fixture
def refusal(capfd, tmp_path):
    """What `gemrl train` says on refusing a limit, in one line."""

    def call(*words):
        assert main([*map(str, words), "--out", str(tmp_path / "refused")]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert err.count("\n") == 1, err
        assert not (tmp_path / "refused").exists()
        return err

    return call


def test_a_dataset_larger_than_the_limit_is_trained_on_from_disk_within_it_bit_for_bit(
    large, words, config, peak, contents, compiled_home, tmp_path
):
    limit = 850 * 10**6
    data = gemrl.load_dataset(large)
    assert 320e6 + 2 * data.nbytes > 1.1 * limit  # The least of runs takes 320 MB.
    used, said = peak(
        *(large, *words, "--memory", "850MB", "--out", tmp_path / "disk"),
        JAX_COMPILATION_CACHE_DIR=str(compiled_home / "compiled"),
    )
    assert f"wrote {len(data):,} rows as shards" in said
    assert used < limit
    gemrl.train(data, config, tmp_path / "memory", quiet=True)
    assert contents(tmp_path / "disk") == contents(tmp_path / "memory")


def test_a_limit_that_is_large_enough_leaves_the_dataset_in_memory(
    small_file, bc_words, bc_alone, contents, tmp_path, capfd
):
    words = ("train", str(small_file), *bc_words, "--memory", "8GB", "--out", str(tmp_path))
    assert main(words) == 0
    assert "shards" not in capfd.readouterr().err
    assert not (home() / "shards").exists()
    assert contents(tmp_path) == contents(bc_alone)


@pytest.mark.parametrize("size", ["", "0", "-1GB", "1.5", "2 GBs", "many", "1e9", "GB", "nan"])
def test_what_is_no_size_is_refused(size, small_file, refusal):
    said = refusal("train", small_file, "--steps", "1", f"--memory={size}")
    assert "must be a size such as 2GB, 512MB or 1.5GiB" in said
    assert repr(size) in said


@pytest.mark.parametrize("size", ["1", "100MB", "699.9MB"])
def test_a_limit_below_what_any_training_takes_is_refused_with_the_least_one(
    size, small_file, refusal
):
    assert f"memory = {size}: must be at least 700MB" in refusal(
        "train", small_file, "--memory", size
    )


def test_a_limit_that_the_dataset_exceeds_even_on_disk_is_refused_with_the_least_one(
    large, words, refusal, tmp_path, capfd
):
    said = refusal("train", large, *words, "--memory", "720MB")
    least = re.search(r"memory = 720MB: must be at least ([\d,]+MB)", said)[1].replace(",", "")
    assert not (home() / "shards").exists()
    words = ("train", str(large), *words, "--steps", "1", "--memory")
    assert main([*words, least, "--out", str(tmp_path / "run")]) == 0
    shutil.rmtree(home())


def test_a_log_that_would_exceed_the_limit_is_refused_and_one_that_fits_is_not(
    small_data, refusal, words, tmp_path, capfd
):
    log = tmp_path / "log.npz"
    rows = slice(0, 500)
    np.savez(
        log,
        observations=small_data.observations[rows],
        actions=small_data.actions[rows],
        rewards=small_data.rewards[rows],
        terminals=small_data.masks[rows] == 0,
    )
    said = refusal("train", log, *words, "--memory", "700MB")
    assert "only HDF5 files are trained on from disk" in said
    assert main(["train", str(log), *words, "--memory", "1GB", "--out", str(tmp_path / "run")]) == 0


def test_reading_numbers_of_double_precision_counts_towards_the_limit(tmp_path):
    rows = write_synthetic(tmp_path / "single.hdf5", 10**6)
    with (
        h5py.File(tmp_path / "single.hdf5") as single,
        h5py.File(tmp_path / "double.hdf5", "w") as double,
    ):
        for name, column in single.items():
            double[name] = column[:].astype("f8")
    one, two = (extent_of(tmp_path / f"{name}.hdf5") for name in ("single", "double"))
    assert (one.rows, one.obs_dim, one.action_dim) == (rows, OBS, ACTION)
    assert one.in_memory == two.in_memory == gemrl.load_dataset(tmp_path / "single.hdf5").nbytes
    assert two.stored == rows * 8 * (2 * OBS + ACTION + 3)
    # Scaled up, all of the file is in memory while the last of it becomes single precision.
    large = Extent(10**8, OBS, ACTION, 8 * 10**8 * (2 * OBS + ACTION + 3))
    assert needed_in_memory(gemrl.BcConfig(), large) > large.stored + large.in_memory


def test_what_is_no_hdf5_file_tells_no_extent(tmp_path):
    (tmp_path / "log.csv").write_text("a,b\n1,2\n")
    (tmp_path / "broken.hdf5").write_bytes(b"nothing")
    for name in ("log.csv", "broken.hdf5", "missing.hdf5"):
        assert extent_of(tmp_path / name) is None


@pytest.mark.parametrize(
    "larger",
    [{"hidden": (2048, 2048)}, {"batch_size": 16384}, {"critics": 50}],
)
def test_larger_networks_and_minibatches_need_more(larger):
    data = Extent(10**6, OBS, ACTION)
    for needed in (needed_in_memory, needed_on_disk):
        more, less = needed(gemrl.GemConfig(**larger), data), needed(gemrl.GemConfig(), data)
        assert more > less + 100 * 10**6


@pytest.mark.long
def test_four_gigabytes_are_trained_on_within_two(peak, tmp_path):
    path = tmp_path / "huge.hdf5"
    rows = write_synthetic(path, 4 * 10**9, 17, 6)
    words = ("--steps", "1200", "--pretrain-steps", "600")
    used, said = peak(path, *words, "--memory", "2GB", "--out", tmp_path / "run")
    path.unlink()
    assert f"wrote {rows:,} rows as shards" in said
    assert used < 2 * 10**9


@pytest.mark.long
@pytest.mark.parametrize(
    ("obs", "action", "settings"),
    [
        (17, 6, ()),
        (111, 8, ()),
        (111, 8, ("--batch-size", "4096")),
        (1, 1, ()),
        (17, 6, ("--hidden", "1024", "1024", "1024", "--batch-size", "1024")),
    ],
)
def test_the_least_limit_that_is_accepted_is_kept(
    obs, action, settings, peak, refusal, tmp_path, capfd
):
    path = tmp_path / "data.hdf5"
    write_synthetic(path, 600 * 10**6, obs, action)
    words = (path, "--steps", "40", "--pretrain-steps", "520", *settings)
    if "--hidden" in settings:
        words = (*words, "--pretrain-steps", "40")
    said = refusal("train", *words, "--memory", "701MB")
    least = int(re.search(r"must be at least ([\d,]+)MB", said)[1].replace(",", ""))
    used, said = peak(*words, "--memory", f"{least}MB", "--out", tmp_path / "run")
    path.unlink()
    assert "as shards" in said
    assert used < least * 10**6
