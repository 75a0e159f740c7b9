"""Kills, full disks and damaged checkpoints: nothing is lost, and the end is the same."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import gemrl
from gemrl.errors import BundleError
from gemrl.learn.interrupts import PARENT, Interrupted
from gemrl.learn.metrics import METRICS, last_update
from gemrl.learn.tensors import load_arrays

TOOL = Path(__file__).parents[2] / "tools" / "kill_training.py"


def checkpoints(run):
    return sorted((run / "checkpoints").glob("*.safetensors"))


def killed(processes, *words):
    """What the tool tells of runs that it killed."""
    code, out, err = processes.end(processes.python(TOOL, *words))
    assert code == 0, out + err
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def unfinished(small_data, bc, tmp_path_factory):
    """A run with two checkpoints, the newer of which is between two lines of metrics."""
    out = tmp_path_factory.mktemp("unfinished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PARENT, "2")  # Who started it is gone: it stops at its first look.
        for _ in range(2):
            with pytest.raises(Interrupted):
                gemrl.train(small_data, bc, out, resume=True, quiet=True)
    assert [path.stem for path in checkpoints(out)] == ["0000000020", "0000000040"]
    return out


# Kills


def test_a_run_that_is_killed_again_and_again_ends_as_one_left_alone(processes):
    seen = killed(processes, "--kills", "2", "--method", "bc")
    assert seen["kills"] == 2
    assert seen["runs"] >= 1
    assert seen["different"] == 0


@pytest.mark.long
def test_fifty_kills_some_inside_the_writing_of_a_checkpoint_change_nothing(processes):
    seen = killed(processes, "--kills", "50")
    assert seen["kills"] == 50
    assert seen["inside_a_write"] > 0
    assert seen["before_the_first_update"] > 0
    assert seen["different"] == 0


# A full disk


# Trains where a file may grow to what the metrics are at a checkpoint, which itself is larger.
# To the process that is what a full disk is: a write fails.
LIMITED = """
import resource, sys
from gemrl.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (2100, 2100))
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def full(all_processes, unfinished, small_file, bc_words, tmp_path_factory):
    """An unfinished run that went on and found no room for its next checkpoint."""
    out = shutil.copytree(unfinished, tmp_path_factory.mktemp("full") / "run")
    words = ("train", small_file, *bc_words, "--out", out, "--resume")
    # Nor can it keep compiled programs, which others of these tests use.
    environment = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1000"}
    process = all_processes.python("-c", LIMITED, *words, environment=environment)
    return out, all_processes.end(process)


def test_a_checkpoint_that_finds_no_room_ends_training_in_one_clear_line(full):
    out, (code, printed, said) = full
    assert (code, printed) == (2, "")
    assert said.count("gemrl: ") == 1
    assert "Traceback" not in said
    last = said.splitlines()[-1]
    assert last.startswith(f"gemrl: cannot write {out}/checkpoints/0000001500.safetensors: ")
    assert "file too large" in last
    assert f"the last state saved is {checkpoints(out)[-1]}: go on with --resume" in last


def test_a_full_disk_leaves_the_checkpoints_before_it_intact_and_no_half_ones(full, unfinished):
    out, _ = full
    assert {path.name: path.read_bytes() for path in checkpoints(out)} == {
        path.name: path.read_bytes() for path in checkpoints(unfinished)
    }
    assert last_update(out) == 1500
    assert not list(out.rglob("*.tmp"))
    assert not (out / "manifest.json").exists()


def test_once_there_is_room_again_a_resumed_run_ends_as_one_left_alone(
    full, small_data, bc, bc_alone, contents, tmp_path
):
    run = shutil.copytree(full[0], tmp_path / "run")
    gemrl.train(small_data, bc, run, resume=True, quiet=True)
    assert contents(run) == contents(bc_alone)


# Damaged checkpoints


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-100])


def cut_to_half_a_header(path):
    path.write_bytes(path.read_bytes()[:50])


def empty(path):
    path.write_bytes(b"")


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def flip_in_the_number_of_updates(path):
    data = path.read_bytes()
    flip(path, data.index(b'"done":"') + len(b'"done":"'))


def flip_in_the_identity(path):
    data = path.read_bytes()
    flip(path, data.index(b'"identity":"') + len(b'"identity":"'))


def flip_in_the_digest(path):
    data = path.read_bytes()
    flip(path, data.index(b'"sha256":"') + len(b'"sha256":"'))


def flip_in_the_length_of_the_header(path):
    flip(path, 0)


def flip_in_a_weight(path):
    flip(path, -5)


def zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


def longer(path):
    path.write_bytes(path.read_bytes() + b"more")


def another_file(path):
    path.write_text("nothing of the kind\n" * 100)


@pytest.mark.parametrize(
    "damage",
    [
        cut_short,
        cut_to_half_a_header,
        empty,
        flip_in_the_number_of_updates,
        flip_in_the_identity,
        flip_in_the_digest,
        flip_in_the_length_of_the_header,
        flip_in_a_weight,
        zeros,
        longer,
        another_file,
    ],
)
def test_a_damaged_newest_checkpoint_is_said_and_the_one_before_leads_to_the_same_end(
    damage, unfinished, small_data, bc, bc_alone, contents, tmp_path, capfd
):
    run = shutil.copytree(unfinished, tmp_path / "run")
    before, newest = checkpoints(run)
    damage(newest)
    gemrl.train(small_data, bc, run, resume=True, quiet=True)
    said = capfd.readouterr().err
    assert f"skipping a checkpoint that cannot be read: {newest}: " in said
    assert f"going on from {before}, after 20 updates" in said
    assert contents(run) == contents(bc_alone)


def test_no_flipped_bit_of_a_checkpoints_header_goes_unnoticed_and_changes_something(
    unfinished, tmp_path
):
    original = checkpoints(unfinished)[-1].read_bytes()
    header = 8 + int.from_bytes(original[:8], "little")
    arrays, metadata = load_arrays(checkpoints(unfinished)[-1])
    path = tmp_path / "flipped.safetensors"
    rng = np.random.default_rng(0)
    noticed = 0
    for at in range(header):
        data = bytearray(original)
        data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            found, about = load_arrays(path)
        except BundleError:
            noticed += 1
            continue
        # What is left are blanks, and the name of the digest.
        assert {name: about[name] for name in metadata} == metadata
        assert found.keys() == arrays.keys()
        assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    assert noticed > 0.9 * header


# Metrics


def test_metrics_past_a_checkpoint_are_not_counted_twice_on_resuming(
    unfinished, small_data, bc, bc_alone, contents, tmp_path
):
    run = shutil.copytree(unfinished, tmp_path / "run")
    later = (bc_alone / METRICS).read_text().splitlines(keepends=True)
    (run / METRICS).write_text("".join(later[:3]) + later[3][:17])
    assert last_update(run) == json.loads(later[2])["update"]
    gemrl.train(small_data, bc, run, resume=True, quiet=True)
    assert contents(run) == contents(bc_alone)
