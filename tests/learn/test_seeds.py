"""`gemrl train --seeds`: several runs side by side, each as it would be alone, whatever happens."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import gemrl
from gemrl.cli import main
from gemrl.learn.metrics import METRICS

SEEDS = (4, 5, 6)
CORES = sorted(os.sched_getaffinity(0))
# Those that run first, on a core each.
FIRST = SEEDS[: len(CORES)]


def saved(run):
    """The updates of a run's newest checkpoint; 0 where there is none."""
    return max((int(path.stem) for path in (run / "checkpoints").glob("*.safetensors")), default=0)


def generation(run):
    """Another number whenever a run is begun or resumed; None where none was."""
    path = run / METRICS
    return path.stat().st_ino if path.exists() else None


def children(process):
    """The processes that a process has started, by their seeds."""
    numbers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = {}
    for number in map(int, numbers):
        words = Path(f"/proc/{number}/cmdline").read_text().split("\0")
        folder = Path(words[words.index("--out") + 1])
        if folder.name.startswith("seed-"):
            found[int(folder.name.removeprefix("seed-"))] = number
    return found


class Runs:
    """Three seeds, some of which are held when they are about to train."""

    def __init__(self, processes, data, words, out):
        self.processes, self.out = processes, out
        self.words = ["train", data, *words, "--seeds", "3", "--seed", "4", "--out", out]

    def saved(self):
        return {seed: saved(self.folder(seed)) for seed in FIRST}

    def folder(self, seed):
        return self.out / f"seed-{seed}"

    def begin(self, *words):
        """Start, and hold the first seeds when they are about to train: parent and children."""
        waiting = {seed: generation(self.folder(seed)) for seed in FIRST}
        held = {}
        parent = self.processes.start(*self.words, *words)

        def hold():
            for seed, before in list(waiting.items()):
                if generation(self.folder(seed)) not in (None, before):
                    held[seed] = children(parent)[seed]
                    os.kill(held[seed], signal.SIGSTOP)
                    del waiting[seed]
            return not waiting

        self.processes.wait_for(hold, parent)
        return parent, held


class Story(Runs):
    """A parent that gets SIGTERM, and one that goes on to the end."""

    def __init__(self, *about):
        super().__init__(*about)
        parent, held = self.begin()
        parent.terminate()
        release(held)
        self.stopped = self.processes.end(parent)
        self.left = [number for number in held.values() if is_alive(number)]
        self.after_sigterm = self.saved()
        self.end = self.processes.run(*self.words, "--resume")


def release(held):
    for number in held.values():
        os.kill(number, signal.SIGCONT)


def is_alive(number):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def one_core(all_processes, small_file, bc_words, tmp_path_factory):
    """The first seed alone on one core."""
    out = tmp_path_factory.mktemp("one-core") / "run"
    program = (
        f"import os, sys; os.sched_setaffinity(0, [{CORES[0]}])\n"
        "from gemrl.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ("train", small_file, *bc_words, "--seed", "4", "--out", out)
    code, _, said = all_processes.end(all_processes.python("-c", program, *words))
    assert code == 0, said
    return out


@pytest.fixture(scope="module")
def story(all_processes, small_file, bc_words, one_core, tmp_path_factory):
    # After the run on one core, which has compiled what each of these needs.
    return Story(all_processes, small_file, bc_words, tmp_path_factory.mktemp("seeds") / "run")


@pytest.fixture(scope="module")
def alone(small_data, bc, tmp_path_factory):
    """Each seed by itself on all cores."""
    out = tmp_path_factory.mktemp("alone")
    for seed in SEEDS:
        gemrl.train(small_data, replace(bc, seed=seed), out / f"seed-{seed}", quiet=True)
    return out


def only_error(said):
    """The one line about what went wrong, after what may have been said of progress."""
    assert said.count("gemrl: ") == 1
    assert "Traceback" not in said
    return said.splitlines()[-1]


def test_sigterm_to_the_parent_stops_the_children_which_save_and_exits_with_1(story):
    code, printed, said = story.stopped
    assert (code, printed) == (1, "")
    # Those that had begun.
    folders = ", ".join(str(story.folder(seed)) for seed in FIRST)
    assert only_error(said) == (
        f"gemrl: stopped by SIGTERM; saved in {folders}; go on with --resume"
    )
    assert story.left == []
    assert all(0 < story.after_sigterm[seed] < 4000 for seed in FIRST)


def test_resumed_to_the_end_it_prints_the_folders_of_all_seeds(story):
    code, printed, _ = story.end
    assert code == 0
    assert printed.splitlines() == [str(story.folder(seed)) for seed in SEEDS]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_seed_is_bit_for_bit_the_run_that_it_is_alone_on_all_cores(
    seed, story, alone, contents
):
    assert contents(story.folder(seed)) == contents(alone / f"seed-{seed}")
    assert gemrl.load(story.folder(seed)).bundle.manifest["config"]["seed"] == seed


def test_a_seed_alone_on_one_core_is_bit_for_bit_that_on_all_cores(one_core, alone, contents):
    assert contents(one_core) == contents(alone / "seed-4")


def refusal(capfd, *words):
    """The one line of a command that is refused."""
    assert main([str(word) for word in words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    return err


def test_a_folder_with_runs_is_refused_without_resume(story, small_file, bc_words, capfd):
    words = ("train", small_file, *bc_words, "--seeds", "3", "--seed", "6", "--out", story.out)
    said = refusal(capfd, *words)
    assert str(story.folder(6)) in said
    assert "--resume" in said
    assert "seed-7" not in said
    assert not story.folder(7).exists()


@pytest.mark.parametrize("seeds", ["0", "-2"])
def test_no_seeds_at_all_are_refused(seeds, small_file, tmp_path, capfd):
    said = refusal(capfd, "train", small_file, "--seeds", seeds, "--out", tmp_path / "run")
    assert f"seeds = {seeds}: must be at least 1" in said
    assert not (tmp_path / "run").exists()


def test_seeds_and_several_devices_are_refused(small_file, tmp_path, capfd):
    words = ("train", small_file, "--seeds", "2", "--data-parallel", "--out", tmp_path / "run")
    assert "--seeds goes with one machine" in refusal(capfd, *words)


@pytest.mark.long
def test_when_the_parent_is_killed_the_children_save_and_stop_and_can_go_on(
    processes, small_file, bc_words, alone, contents, tmp_path
):
    runs = Runs(processes, small_file, bc_words, tmp_path / "run")
    parent, held = runs.begin()
    parent.kill()
    parent.wait()
    release(held)
    processes.wait_for(lambda: not any(map(is_alive, held.values())))
    for seed, done in runs.saved().items():
        assert 0 < done < 4000
        said = (runs.folder(seed) / "train.log").read_text().splitlines()[-1]
        assert said == (
            f"gemrl: stopped by the end of the process that started it after {done:,} updates, "
            f"which are saved in {runs.folder(seed)}; go on with --resume"
        )
    # All of them at once.
    parent, held = runs.begin("--resume")
    for process in (parent.pid, *held.values()):
        os.kill(process, signal.SIGKILL)
    parent.wait()
    code, _, said = processes.run(*runs.words, "--resume")
    assert code == 0, said
    for seed in SEEDS:
        assert contents(runs.folder(seed)) == contents(alone / f"seed-{seed}")


@pytest.mark.long
def test_a_child_that_is_killed_ends_all_with_one_line_and_the_others_save(
    processes, small_file, bc_words, tmp_path
):
    runs = Runs(processes, small_file, bc_words, tmp_path / "run")
    parent, held = runs.begin()
    os.kill(held[4], signal.SIGKILL)
    release(held)
    code, printed, said = processes.end(parent)
    assert (code, printed) == (2, "")
    log = runs.folder(4) / "train.log"
    assert only_error(said) == f"gemrl: seed 4 failed: ended by SIGKILL ({log})"
    assert runs.saved()[4] == 0
    assert all(runs.saved()[seed] > 0 for seed in FIRST[1:])


@pytest.mark.long
def test_a_seed_that_cannot_go_on_is_named_with_its_log(
    processes, small_file, bc_words, alone, tmp_path
):
    # Seed 5 goes on from a run with other settings, which is refused.
    shutil.copytree(alone / "seed-5", tmp_path / "seed-5")
    (tmp_path / "seed-5" / "manifest.json").unlink()
    words = ("train", small_file, *bc_words, "--seeds", "2", "--seed", "4")
    code, printed, said = processes.run(
        *words, "--learning-rate", "1e-4", "--out", tmp_path, "--resume"
    )
    assert (code, printed) == (2, "")
    error = only_error(said)
    assert error.startswith("gemrl: seed 5 failed: ")
    assert "another method, configuration or dataset" in error
    assert error.endswith(f"({tmp_path / 'seed-5' / 'train.log'})")


def test_seeds_that_diverge_end_no_other_and_are_all_named_and_kept_until_tried_again(
    processes, small_file, bc_words, tmp_path, capfd
):
    words = ("train", small_file, *bc_words, "--steps", "20", "--seeds", "3", "--seed", "4")
    words = (*words, "--out", tmp_path)
    code, printed, said = processes.run(*words, "--learning-rate", "1e38")
    assert (code, printed) == (2, "")
    for seed in SEEDS:
        assert f"{tmp_path / f'seed-{seed}'} (not finite at update" in only_error(said)
    assert "Try a lower --learning-rate" in only_error(said)
    said = refusal(capfd, *words, "--learning-rate", "1e-3")
    assert f"{tmp_path / 'seed-6'} is in use; go on with --resume" in said
    assert all((tmp_path / f"seed-{seed}" / "diverged.json").exists() for seed in SEEDS)
    code, printed, said = processes.run(*words, "--learning-rate", "1e-3", "--resume")
    assert code == 0, said
    assert printed.splitlines() == [str(tmp_path / f"seed-{seed}") for seed in SEEDS]
    assert not list(tmp_path.glob("*/diverged.json"))


def test_several_seeds_do_not_go_into_the_folder_of_a_run_that_diverged(
    small_file, bc_words, tmp_path, capfd
):
    (tmp_path / "diverged.json").write_text('{"why": "so"}')
    said = refusal(capfd, "train", small_file, *bc_words, "--seeds", "2", "--out", tmp_path)
    assert f"{tmp_path} is a run of its own" in said
    assert not list(tmp_path.glob("seed-*"))


def test_a_note_of_an_earlier_divergence_is_not_taken_for_another_end_and_stays(
    processes, bc_words, tmp_path
):
    folders = [tmp_path / f"seed-{seed}" for seed in (4, 5)]
    for folder in folders:
        folder.mkdir()
        (folder / "diverged.json").write_text('{"why": "so"}')
    words = ("train", tmp_path / "none.hdf5", *bc_words, "--seeds", "2", "--seed", "4")
    code, printed, said = processes.run(*words, "--out", tmp_path, "--resume")
    assert (code, printed) == (2, "")
    assert "diverged" not in only_error(said)
    assert "none.hdf5" in only_error(said)
    assert all((folder / "diverged.json").exists() for folder in folders)


@pytest.mark.long
def test_ctrl_c_reaches_parent_and_children_alike_and_is_one_line_and_exit_code_1(
    processes, small_file, bc_words, tmp_path
):
    for attempt in range(3):
        out = tmp_path / str(attempt)
        process = processes.start(
            *("train", small_file, *bc_words, "--seeds", "2", "--out", out),
            start_new_session=True,
        )
        runs = [out / "seed-0", out / "seed-1"][: len(CORES)]
        processes.wait_for(lambda runs=runs: all(map(generation, runs)), process)
        os.killpg(process.pid, signal.SIGINT)
        code, printed, said = processes.end(process)
        assert (code, printed) == (1, "")
        assert only_error(said).startswith("gemrl: stopped by Ctrl-C; saved in ")
        assert all(map(saved, runs))
