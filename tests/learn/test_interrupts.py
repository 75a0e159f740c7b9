"""Ctrl-C and SIGTERM: what was reached is saved, said, and gone on with to the same end."""

import os
import shutil
import signal
import threading
import time

import pytest

import gemrl
from gemrl.learn.interrupts import PARENT, Interrupted
from gemrl.learn.metrics import METRICS

GEM = gemrl.GemConfig(
    steps=90,
    pretrain_steps=50,
    hidden=(8,),
    batch_size=32,
    critics=1,
    components=2,
    checkpoint_every=30,
)


def saved(run):
    """The updates after which there are checkpoints."""
    return [int(path.stem) for path in sorted((run / "checkpoints").glob("*.safetensors"))]


@pytest.fixture(scope="module")
def stopped(all_processes, small_file, bc_words, tmp_path_factory):
    """A run that got SIGTERM before its first look at signals, and what it said."""
    processes, out = all_processes, tmp_path_factory.mktemp("stopped") / "run"
    process = processes.start("train", small_file, *bc_words, "--out", out)
    processes.wait_for((out / METRICS).exists, process)
    process.send_signal(signal.SIGTERM)
    return out, processes.end(process)


@pytest.fixture
def stopped_run(stopped, tmp_path):
    """A copy of it."""
    return shutil.copytree(stopped[0], tmp_path / "stopped")


def test_sigterm_makes_training_save_where_it_is_and_exit_with_1(stopped, bc):
    out, (code, printed, _) = stopped
    assert code == 1
    assert printed == ""
    (done,) = saved(out)
    assert 0 < done < bc.steps
    assert done % bc.checkpoint_every != 0
    assert not (out / "manifest.json").exists()


def test_sigterm_is_answered_with_one_line_that_tells_where_and_how_to_go_on(stopped):
    out, (_, _, said) = stopped
    last = said.splitlines()[-1]
    assert last == (
        f"gemrl: stopped by SIGTERM after {saved(out)[0]:,} updates, which are saved in {out}; "
        "go on with --resume"
    )
    assert said.count("gemrl: ") == 1
    assert "Traceback" not in said


def test_a_run_that_sigterm_stopped_and_that_was_resumed_equals_one_left_alone_bit_for_bit(
    stopped_run, small_data, bc, bc_alone, contents
):
    gemrl.train(small_data, bc, stopped_run, resume=True, quiet=True)
    assert contents(stopped_run) == contents(bc_alone)


def test_a_second_ctrl_c_ends_training_at_once_and_leaves_nothing_corrupt(
    processes, stopped_run, small_file, small_data, bc, bc_words, bc_alone, contents
):
    words = ["train", small_file, *bc_words, "--out", stopped_run, "--resume"]
    said = "stopped by Ctrl-C"
    while "stopped by Ctrl-C" in said:  # The system took two for one, or the second came too late.
        before = saved(stopped_run)
        # The handlers are set before a resumed run cuts its metrics, which makes a new file.
        old = (stopped_run / METRICS).stat().st_ino
        process = processes.start(*words)
        processes.wait_for(lambda old=old: (stopped_run / METRICS).stat().st_ino != old, process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.25)
        process.send_signal(signal.SIGINT)
        code, printed, said = processes.end(process)
    assert (code, printed) == (1, "")
    assert said.splitlines()[-1] == "gemrl: interrupted"
    assert "Traceback" not in said
    assert saved(stopped_run) == before
    assert not list(stopped_run.rglob("*.tmp"))
    gemrl.train(small_data, bc, stopped_run, resume=True, quiet=True)
    assert contents(stopped_run) == contents(bc_alone)


def test_ctrl_c_in_somebodys_program_is_a_keyboard_interrupt_after_training_has_saved(
    small_data, bc, bc_alone, contents, tmp_path
):
    def press():
        while not (tmp_path / METRICS).exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    finger = threading.Thread(target=press)
    finger.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        gemrl.train(small_data, bc, tmp_path, quiet=True)
    finger.join()
    assert isinstance(caught.value, Interrupted)
    assert not isinstance(caught.value, Exception)
    (done,) = saved(tmp_path)
    assert str(caught.value).startswith(f"stopped by Ctrl-C after {done:,} updates")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    gemrl.train(small_data, bc, tmp_path, resume=True, quiet=True)
    assert contents(tmp_path) == contents(bc_alone)


def test_training_outside_the_main_thread_is_the_same_training(
    small_data, bc, bc_alone, contents, tmp_path
):
    thread = threading.Thread(
        target=gemrl.train, args=(small_data, bc, tmp_path), kwargs={"quiet": True}
    )
    thread.start()
    thread.join()
    assert contents(tmp_path) == contents(bc_alone)


def test_a_run_that_is_stopped_at_every_look_in_both_phases_equals_one_left_alone(
    small_data, contents, tmp_path, monkeypatch
):
    gemrl.train(small_data, GEM, tmp_path / "alone", quiet=True)
    monkeypatch.setenv(PARENT, "1" if os.getppid() != 1 else "2")  # A parent that is gone.
    # A look every 20 updates, at checkpoints, and at the ends of phases (50 and 140).
    for stop in (20, 30, 50, 60, 80, 90, 110, 120, 140):
        with pytest.raises(Interrupted, match="the end of the process that started it"):
            gemrl.train(small_data, GEM, tmp_path / "run", resume=True, quiet=True)
        assert saved(tmp_path / "run")[-1] == stop
    gemrl.train(small_data, GEM, tmp_path / "run", resume=True, quiet=True)
    assert contents(tmp_path / "run") == contents(tmp_path / "alone")
