"""Two processes, or two devices of one, train what a single one trains, up to rounding."""

import shutil
import signal
import socket
from dataclasses import replace

import numpy as np
import pytest

import gemrl
from gemrl.cli import main
from gemrl.learn.metrics import METRICS, read_metrics
from gemrl.learn.tensors import load_arrays

STEPS = 60
# Sums in another order differ by rounding. Measured after 60 updates: 7.5e-9 for weights, of which
# the largest is about 1, and nothing that a metric shows.
CLOSE = 1e-5


@pytest.fixture(scope="module")
def config(bc):
    return replace(bc, steps=STEPS)


@pytest.fixture(scope="module")
def words(small_file, bc_words):
    return ("train", small_file, *bc_words, "--steps", str(STEPS))


@pytest.fixture(scope="module")
def alone(small_data, config, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    gemrl.train(small_data, config, out, quiet=True)
    return out


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def two(processes, *words, second=()):
    """Two processes that train together, the second of which may be told more."""
    together = ("--coordinator", f"localhost:{free_port()}", "--processes", "2")
    return [
        processes.start(*words, *together, "--process", number, *more)
        for number, more in (("0", ()), ("1", second))
    ]


def saved(run):
    return [int(path.stem) for path in sorted((run / "checkpoints").glob("*.safetensors"))]


def largest_difference(one, other):
    a, b = (load_arrays(run / "weights.safetensors")[0] for run in (one, other))
    assert a.keys() == b.keys()
    return max(np.abs(a[name] - b[name]).max() for name in a)


def assert_close(run, alone):
    assert largest_difference(run, alone) < CLOSE
    lines, wanted = read_metrics(run), read_metrics(alone)
    assert [line["update"] for line in lines] == [line["update"] for line in wanted]
    for line, other in zip(lines, wanted, strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            assert value == other[name] or value == pytest.approx(other[name], rel=1e-4, abs=1e-5)


class Stopped:
    """Two processes, of which the second gets SIGTERM before their first look at signals."""

    def __init__(self, processes, words, folder):
        self.out, self.elsewhere = folder / "run", folder / "elsewhere"
        # The second has another folder for an output, as on another machine.
        both = two(processes, *words, "--out", self.out, second=("--out", self.elsewhere))
        processes.wait_for((self.out / METRICS).exists, *both)
        both[1].send_signal(signal.SIGTERM)
        self.ends = [processes.end(process) for process in both]


@pytest.fixture(scope="module")
def stopped(all_processes, words, tmp_path_factory):
    return Stopped(all_processes, words, tmp_path_factory.mktemp("two"))


def test_sigterm_to_one_process_stops_both_with_the_state_saved(stopped):
    (first, _, lead_said), (second, _, other_said) = stopped.ends
    assert (first, second) == (1, 1)
    (done,) = saved(stopped.out)
    assert 0 < done < STEPS
    assert lead_said.splitlines()[-1] == (
        f"gemrl: stopped by another process after {done} updates, which are saved in "
        f"{stopped.out}; go on with --resume"
    )
    assert f"gemrl: stopped by SIGTERM after {done} updates" in other_said.splitlines()[-1]


def test_only_the_first_process_writes_files(stopped):
    assert not stopped.elsewhere.exists()


def test_what_two_processes_began_a_single_one_ends_with_the_weights_of_one_alone(
    stopped, small_data, config, alone, tmp_path
):
    run = shutil.copytree(stopped.out, tmp_path / "run")
    gemrl.train(small_data, config, run, resume=True, quiet=True)
    assert_close(run, alone)


def test_what_stops_the_first_process_alone_stops_both_and_neither_waits(processes, words, stopped):
    both = two(processes, *words, "--out", stopped.out)
    first, second = (processes.end(process) for process in both)
    assert (first[0], second[0]) == (2, 2)
    assert f"gemrl: {stopped.out} holds an unfinished run" in first[2].splitlines()[-1]
    said = "gemrl: another process of this run has stopped and says why"
    assert second[2].splitlines()[-1] == said


@pytest.mark.long
def test_what_two_processes_began_two_end_with_the_weights_of_one_alone(
    processes, words, stopped, alone, tmp_path
):
    run = shutil.copytree(stopped.out, tmp_path / "run")
    for code, _, said in map(processes.end, two(processes, *words, "--out", run, "--resume")):
        assert code == 0, said
        assert "Traceback" not in said
    assert_close(run, alone)
    assert gemrl.load(run).method == "bc"


@pytest.mark.long
def test_two_processes_left_alone_end_with_the_weights_of_one(processes, words, alone, tmp_path):
    elsewhere = ("--out", tmp_path / "elsewhere")
    both = two(processes, *words, "--out", tmp_path / "run", second=elsewhere)
    for code, _, said in map(processes.end, both):
        assert code == 0, said
    assert_close(tmp_path / "run", alone)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.long
def test_two_devices_of_one_process_give_the_weights_and_metrics_of_one(
    processes, words, alone, tmp_path
):
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    words = (*words, "--data-parallel", "--out", tmp_path / "run")
    code, printed, said = processes.run(*words, environment=environment)
    assert code == 0, said
    assert printed == f"{tmp_path / 'run'}\n"
    assert_close(tmp_path / "run", alone)


def test_a_batch_that_the_devices_cannot_share_is_refused_before_anything_is_written(
    processes, words, tmp_path
):
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    words = (*words, "--data-parallel", "--batch-size", "33", "--out", tmp_path / "run")
    code, printed, said = processes.run(*words, environment=environment)
    assert (code, printed) == (2, "")
    assert said == "gemrl: batch_size = 33: must be a multiple of the 2 devices that share it\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--coordinator needs --processes and --process as well, or is auto"),
        (("--processes", "2"), "--coordinator needs --processes and --process as well"),
        (("--process", "0"), "--coordinator needs --processes and --process as well"),
        (("--processes", "2", "--process", "2"), "process = 2: must be from 0 to 1"),
        (("--processes", "2", "--process", "-1"), "process = -1: must be from 0 to 1"),
        (("--processes", "0", "--process", "0"), "processes = 0: must be at least 1"),
    ],
)
def test_flags_that_name_no_process_are_refused(flags, said, words, tmp_path, capfd):
    words = (*words, "--coordinator", "localhost:1", *flags, "--out", tmp_path / "run")
    assert main([str(word) for word in words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert said in err


@pytest.mark.parametrize("flag", [("--processes", "2"), ("--process", "0")])
def test_flags_of_several_processes_need_a_coordinator(flag, words, tmp_path, capfd):
    assert main([str(word) for word in (*words, *flag, "--out", tmp_path / "run")]) == 2
    assert "--processes and --process go with --coordinator" in capfd.readouterr().err


@pytest.mark.long
def test_two_processes_refuse_a_batch_that_they_cannot_share(processes, words, tmp_path):
    both = two(processes, *words, "--batch-size", "33", "--out", tmp_path / "run")
    for code, _, said in map(processes.end, both):
        assert code == 2
        assert said.splitlines()[-1] == (
            "gemrl: batch_size = 33: must be a multiple of the 2 devices that share it"
        )


@pytest.mark.long
def test_processes_that_were_started_differently_refuse_to_train_together(
    processes, words, tmp_path
):
    both = two(processes, *words, "--out", tmp_path / "run", second=("--seed", "1"))
    for code, _, said in map(processes.end, both):
        assert code == 2
        assert "differ in method, configuration or dataset" in said.splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_dataset_that_one_process_lacks_stops_both(processes, words, small_file, tmp_path):
    here = shutil.copy(small_file, tmp_path / "here.hdf5")
    words = list(words)
    words[1] = here
    both = two(processes, *words, "--out", tmp_path / "run", second=("--task", "hopper-medium-v2"))
    (first, _, lead_said), (second, _, other_said) = map(processes.end, both)
    assert (first, second) == (2, 2)
    assert "another process" in lead_said.splitlines()[-1]
    assert "contradicts 'hopper-medium-v2'" in other_said.splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 1])
def test_when_a_process_is_killed_the_other_ends_too_and_both_can_go_on(
    killed, processes, words, alone, tmp_path
):
    words = (*words, "--checkpoint-every", "20", "--out", tmp_path / "run")
    both = two(processes, *words)
    processes.wait_for(lambda: saved(tmp_path / "run"), *both)
    both[killed].kill()
    codes = [processes.end(process)[0] for process in both]
    assert codes[killed] == -signal.SIGKILL
    assert codes[1 - killed] != 0
    both = two(processes, *words, "--resume")
    assert [processes.end(process)[0] for process in both] == [0, 0]
    assert largest_difference(tmp_path / "run", alone) < CLOSE
