"""Phase I as a process: interruption, resuming, locks, divergence, determinism, every method."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import jax
import numpy as np
import pytest

import gemrl
from gemrl.data.recipes import make_dataset
from gemrl.data.tasks import task_named
from gemrl.errors import (
    BundleError,
    DataError,
    DivergedError,
    GemrlError,
    MissingExtraError,
    TrainingError,
)
from gemrl.learn.bundle import MANIFEST, WEIGHTS, config_from_json, load_manifest
from gemrl.learn.divergence import divergence_of
from gemrl.learn.metrics import METRICS, last_update, read_metrics
from gemrl.learn.tensors import load_arrays
from gemrl.learn.train import STARTED
from gemrl.methods import METHODS, method_named
from gemrl.methods.sacn import SacNConfig

UMAZE = "maze2d-umaze-v1"
BC = gemrl.BcConfig(steps=60, hidden=(8,), batch_size=32, checkpoint_every=20)
IQL = gemrl.IqlConfig(steps=60, hidden=(8,), batch_size=32, critics=1)

# Long enough to be killed twice on the way, short enough to be trained many times.
EVERY = 100
LONG = gemrl.GemConfig(
    steps=3000,
    pretrain_steps=1000,
    hidden=(8,),
    batch_size=32,
    critics=1,
    components=2,
    checkpoint_every=EVERY,
)
LONG_WORDS = (
    *("--method", "gem", "--steps", "3000", "--pretrain-steps", "1000"),
    *("--hidden", "8", "--batch-size", "32", "--critics", "1", "--components", "2"),
    *("--checkpoint-every", "100"),
)


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "umaze.hdf5"
    make_dataset(task_named(UMAZE), 2000, 0, path)
    return path


@pytest.fixture(scope="module")
def data(data_file):
    return gemrl.load_dataset(data_file)


def weights(run):
    return (run / WEIGHTS).read_bytes()


def checkpoints(run):
    return sorted((run / "checkpoints").glob("*.safetensors"))


def leaves(policy):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(policy.models)]


class Interrupted:
    """A run that was killed twice by the system, without a chance to say goodbye."""

    def __init__(self, data_file, data, out):
        self.out = out
        self.kills = []
        self.refusal = None
        words = [str(data_file), *LONG_WORDS, "--out", str(out), "--resume"]
        started = time.monotonic()
        for wanted in (300, 1400):
            process = subprocess.Popen(
                [sys.executable, "-m", "gemrl", "train", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                while last_update(out) < wanted and process.poll() is None:
                    time.sleep(0.002)
                    if time.monotonic() > started + 600:
                        pytest.fail(f"no {wanted} updates after ten minutes")
                if self.refusal is None:
                    with pytest.raises(TrainingError) as caught:
                        gemrl.train(data, LONG, out, resume=True, quiet=True)
                    self.refusal = str(caught.value)
            finally:
                process.kill()
            self.kills.append((process.wait(), last_update(out)))


@pytest.fixture(scope="module")
def interrupted(data_file, data, tmp_path_factory):
    return Interrupted(data_file, data, tmp_path_factory.mktemp("killed") / "run")


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    gemrl.train(data, LONG, out, quiet=True)
    return out


@pytest.fixture
def killed(interrupted, tmp_path):
    """A copy of the killed run."""
    shutil.copytree(interrupted.out, tmp_path / "run")
    return tmp_path / "run"


def assert_metrics_without_gaps_or_repeats(run):
    lines = read_metrics(run)
    assert [line["update"] for line in lines] == list(range(EVERY, 4000 + EVERY, EVERY))
    phases = ["behavior"] * 10 + ["main"] * 30
    assert [line["phase"] for line in lines] == phases


# Interruption


def test_the_run_was_really_killed_twice_past_a_checkpoint_and_before_its_end(interrupted):
    for (code, update), wanted in zip(interrupted.kills, (300, 1400), strict=True):
        assert code == -signal.SIGKILL
        assert wanted <= update < 4000
    assert not (interrupted.out / MANIFEST).exists()
    assert not (interrupted.out / WEIGHTS).exists()
    # Two are kept; a kill can come between writing one more and dropping the oldest.
    assert 1 <= len(checkpoints(interrupted.out)) <= 3


def test_a_run_killed_twice_and_resumed_equals_an_uninterrupted_one_bit_for_bit(
    killed, uninterrupted, data
):
    gemrl.train(data, LONG, killed, resume=True, quiet=True)
    assert weights(killed) == weights(uninterrupted)
    assert len(checkpoints(killed)) == len(checkpoints(uninterrupted)) == 2
    one, other = load_manifest(killed), load_manifest(uninterrupted)
    assert one == other


def test_the_metrics_of_a_run_killed_twice_have_no_gaps_and_no_repeats(killed, uninterrupted, data):
    gemrl.train(data, LONG, killed, resume=True, quiet=True)
    assert_metrics_without_gaps_or_repeats(killed)
    assert read_metrics(killed) == read_metrics(uninterrupted)


def test_a_damaged_newest_checkpoint_is_skipped_for_the_one_before(
    killed, uninterrupted, data, capsys
):
    assert len(checkpoints(killed)) >= 2
    newest = checkpoints(killed)[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    gemrl.train(data, LONG, killed, resume=True, quiet=True)
    assert weights(killed) == weights(uninterrupted)
    assert_metrics_without_gaps_or_repeats(killed)
    assert newest.name in "".join(capsys.readouterr().err.split())


def test_half_a_line_of_metrics_is_dropped_on_resuming(killed, data):
    with open(killed / METRICS, "a") as file:
        file.write('{"update": 99999, "pha')
    gemrl.train(data, LONG, killed, resume=True, quiet=True)
    assert_metrics_without_gaps_or_repeats(killed)


def test_a_run_whose_checkpoints_are_gone_starts_afresh_and_ends_the_same(
    killed, uninterrupted, data
):
    shutil.rmtree(killed / "checkpoints")
    gemrl.train(data, LONG, killed, resume=True, quiet=True)
    assert weights(killed) == weights(uninterrupted)
    assert_metrics_without_gaps_or_repeats(killed)


def test_another_config_is_not_resumed_into_an_unfinished_run(killed, data):
    before = sorted(path.name for path in (killed / "checkpoints").iterdir())
    with pytest.raises(TrainingError, match="another method, configuration or dataset"):
        gemrl.train(data, replace(LONG, expectile=0.8), killed, resume=True, quiet=True)
    assert sorted(path.name for path in (killed / "checkpoints").iterdir()) == before


def test_other_data_are_not_resumed_into_an_unfinished_run(killed, data):
    with pytest.raises(TrainingError, match="another method, configuration or dataset"):
        gemrl.train(data.select(np.arange(1500)), LONG, killed, resume=True, quiet=True)


def test_an_unfinished_run_is_not_trained_over_without_resume(killed, data):
    with pytest.raises(TrainingError, match="unfinished") as caught:
        gemrl.train(data, LONG, killed, quiet=True)
    assert str(killed) in str(caught.value)
    assert checkpoints(killed)


def test_a_second_process_is_kept_out_while_the_first_trains(interrupted):
    assert interrupted.refusal == f"another process is training into {interrupted.out}"


def test_a_lock_left_by_a_dead_process_is_ignored(interrupted, data, tmp_path):
    assert (interrupted.out / ".lock").exists()
    out = tmp_path / "run"
    out.mkdir()
    shutil.copy(interrupted.out / ".lock", out / ".lock")
    gemrl.train(data, BC, out, quiet=True)
    assert gemrl.load(out).method == "bc"


def test_a_refused_resume_leaves_what_the_run_was_started_with(killed, data):
    before = (killed / STARTED).read_bytes()
    with pytest.raises(TrainingError, match="another method, configuration or dataset"):
        gemrl.train(data, replace(LONG, expectile=0.8), killed, resume=True, quiet=True)
    assert (killed / STARTED).read_bytes() == before


# Folders


def test_a_sink_that_cannot_be_opened_leaves_the_folder_free(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError):
        gemrl.train(data, BC, tmp_path / "run", quiet=True, wandb="project")
    gemrl.train(data, BC, tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / MANIFEST).exists()


@pytest.mark.long
def test_compiled_programs_that_were_damaged_are_compiled_anew_once(data_file, tmp_path):
    home = tmp_path / "home"

    def start(name):
        words = ["train", str(data_file), "--method", "bc", "--steps", "5", "--hidden", "8"]
        return subprocess.run(
            [sys.executable, "-m", "gemrl", *words, "--out", str(tmp_path / name)],
            env={**os.environ, "GEMRL_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stderr

    start("first")
    entries = list((home / "compiled").glob("*-cache"))
    assert entries
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[: entry.stat().st_size // 2])
    said = start("second")
    assert " ".join(said.split()).count("cannot be read; they are compiled anew") == 1
    assert "UserWarning" not in said
    assert "compiled anew" not in start("third")
    assert weights(tmp_path / "first") == weights(tmp_path / "third")


@pytest.fixture(scope="module")
def bc_run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("bc") / "run"
    gemrl.train(data, BC, out, quiet=True)
    return out


@pytest.fixture
def finished(bc_run, tmp_path):
    shutil.copytree(bc_run, tmp_path / "run")
    return tmp_path / "run"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_resuming_a_finished_run_does_nothing_and_succeeds(finished, data, capsys):
    before = contents(finished)
    policy = gemrl.train(data, BC, finished, resume=True)
    assert contents(finished) == before
    assert policy.digest == gemrl.load(finished).digest
    assert "nothing to do" in " ".join(capsys.readouterr().err.split())


def test_resuming_where_there_is_no_run_yet_starts_one(data, bc_run, tmp_path):
    gemrl.train(data, BC, tmp_path / "new", resume=True, quiet=True)
    assert weights(tmp_path / "new") == weights(bc_run)


def test_a_finished_run_is_not_trained_over_without_resume(finished, data):
    before = contents(finished)
    with pytest.raises(TrainingError, match="finished run") as caught:
        gemrl.train(data, BC, finished, quiet=True)
    assert isinstance(caught.value, GemrlError)
    assert str(finished) in str(caught.value)
    assert contents(finished) == before


def test_another_config_is_not_resumed_into_a_finished_run(finished, data):
    before = contents(finished)
    for config in (replace(BC, steps=61), replace(BC, seed=1), IQL):
        with pytest.raises(TrainingError, match="another method, configuration or dataset"):
            gemrl.train(data, config, finished, resume=True, quiet=True)
    assert contents(finished) == before


def test_a_finished_run_that_was_damaged_is_not_taken_for_finished(finished, data):
    (finished / WEIGHTS).write_bytes(weights(finished)[:-1])
    with pytest.raises(GemrlError, match="damaged"):
        gemrl.train(data, BC, finished, resume=True, quiet=True)


# Divergence


@pytest.mark.parametrize(("name", "scaled"), [("iql", True), ("td3bc", True), ("rebrac", False)])
def test_rewards_are_scaled_but_for_methods_published_beside_rewards_as_they_are(
    name, scaled, tmp_path
):
    """Locomotion's scale is 1000 / (best - worst return); AntMaze's shift is every method's."""
    rows, rng = 40, np.random.default_rng(0)
    rewards = rng.uniform(0, 1, rows).astype(np.float32)
    returns = rewards.reshape(4, 10).sum(axis=1, dtype=np.float64)
    for task, scale, shift in [
        ("hopper-medium-v2", 1000 / (returns.max() - returns.min()) if scaled else 1.0, 0.0),
        ("antmaze-umaze-v2", 1.0, -1.0),
    ]:
        sizes = task_named(task)
        data = gemrl.from_arrays(
            rng.normal(size=(rows, sizes.obs_dim)),
            rng.uniform(-1, 1, (rows, sizes.action_dim)),
            rewards,
            np.zeros(rows, bool),
            np.arange(rows) % 10 == 9,
            rng.normal(size=(rows, sizes.obs_dim)),
            task=task,
        )
        config = method_named(name).config(steps=0, hidden=(4,), batch_size=4)
        spec = gemrl.train(data, config, tmp_path / task, quiet=True).spec
        assert spec.reward_scale == pytest.approx(scale, rel=1e-5)
        assert spec.reward_shift == shift


def test_values_are_in_units_of_the_datas_rewards_whatever_a_method_learns_from(data, tmp_path):
    """w_p weighs support against them, and must mean the same for every method."""
    factor = 16.0
    larger = replace(data, rewards=np.float32(factor) * data.rewards)
    config = method_named("rebrac").config(steps=20, hidden=(8, 8), batch_size=16)
    plain = gemrl.train(larger, config, tmp_path / "larger rewards", quiet=True)
    scaled = replace(config, reward_scale=factor)
    own = gemrl.train(data, scaled, tmp_path / "its own scale", quiet=True)
    obs = data.observations[:5]
    actions = np.zeros((5, 3, data.actions.shape[1]), np.float32)
    expected = plain.q_values(obs, actions) / factor
    np.testing.assert_allclose(own.q_values(obs, actions), expected, rtol=1e-5, atol=1e-7)
    assert np.abs(expected).max() > 1e-3
    assert own.spec.reward_scale == 1.0
    for name in METHODS:
        kind = method_named(name).config.for_task("antmaze-umaze-v2")
        assert kind.value_scale == getattr(kind, "reward_scale", 1.0)


def test_a_learning_rate_that_diverges_is_an_error_that_names_update_and_culprit(data, tmp_path):
    with pytest.raises(
        TrainingError, match=r"diverged \(main\): not finite at update \d+: .*actor/nll nan"
    ):
        gemrl.train(data, replace(BC, learning_rate=1e38), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / MANIFEST).exists()


def test_rewards_that_diverge_are_an_error_with_the_very_update(data, tmp_path):
    huge = replace(data, rewards=np.full(len(data), 1e30, np.float32))
    with pytest.raises(
        TrainingError, match=r"diverged \(main\): not finite at update 1: critic/loss inf"
    ) as caught:
        gemrl.train(huge, IQL, tmp_path / "run", quiet=True)
    assert "no checkpoint had been written yet" in str(caught.value)
    assert not (tmp_path / "run" / MANIFEST).exists()


def test_a_run_that_diverges_leaves_word_of_it_until_it_is_tried_again(data, tmp_path):
    out = tmp_path / "run"
    config = SacNConfig(steps=4, hidden=(8,), batch_size=8, critics=2, learning_rate=1e38)
    with pytest.raises(DivergedError, match=r"Try more --critics or a lower --learning") as caught:
        gemrl.train(data, config, out, quiet=True)
    assert divergence_of(out) == caught.value.why
    assert caught.value.why.startswith("not finite at")
    with pytest.raises(BundleError, match="its training diverged: not finite at"):
        gemrl.load(out)
    with pytest.raises(TrainingError, match=r"a run that diverged: not finite .*another output"):
        gemrl.train(data, replace(config, learning_rate=1e-3), out, quiet=True)
    gemrl.train(data, replace(config, learning_rate=1e-3), out, resume=True, quiet=True)
    assert divergence_of(out) is None


def test_a_divergence_that_cannot_be_noted_is_told_all_the_same(data, tmp_path, monkeypatch):
    def full(path, text):
        raise DataError(f"cannot write {path}: no space left")

    monkeypatch.setattr("gemrl.learn.divergence.write_text", full)
    with pytest.raises(DivergedError, match=r"training diverged .*Try a lower .*no space left"):
        gemrl.train(data, replace(BC, learning_rate=1e38), tmp_path / "run", quiet=True)


def test_a_note_of_divergence_that_cannot_be_read_is_an_error_that_names_it(tmp_path):
    (tmp_path / "diverged.json").write_text('{"why": "no')
    with pytest.raises(DataError, match=r"diverged\.json cannot be read: .*train again"):
        divergence_of(tmp_path)


def test_q_that_explodes_is_an_error_before_anything_is_infinite(data, tmp_path):
    config = replace(IQL, learning_rate=1000.0)
    with pytest.raises(TrainingError, match=r"Q explodes: \|Q\| reached .* by update"):
        gemrl.train(data, config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / MANIFEST).exists()


def test_q_that_explodes_is_not_saved_where_a_signal_stops_the_run_before_a_line(data, tmp_path):
    out = tmp_path / "run"

    def press():
        while not (out / METRICS).exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    finger = threading.Thread(target=press)
    finger.start()
    with pytest.raises(DivergedError, match="Q explodes"):
        gemrl.train(data, replace(IQL, learning_rate=1000.0, steps=5000), out, quiet=True)
    finger.join()
    assert checkpoints(out) == []


def test_divergence_names_the_last_good_checkpoint_which_is_kept(data, tmp_path):
    out = tmp_path / "run"
    rewards = data.rewards.copy()
    rewards[::100] = 1e30  # Some minibatches have one of these, and some have none.
    config = replace(IQL, steps=200, batch_size=8, checkpoint_every=1)
    with pytest.raises(TrainingError, match="the last good state is") as caught:
        gemrl.train(replace(data, rewards=rewards), config, out, quiet=True)
    newest = checkpoints(out)[-1]
    assert str(newest) in str(caught.value)
    arrays, _ = load_arrays(newest)
    assert all(np.isfinite(array).all() for array in arrays.values())


def test_a_run_whose_very_last_update_diverges_is_not_saved_as_finished(data, tmp_path):
    config = replace(BC, steps=1, learning_rate=1e39)
    with pytest.raises(TrainingError, match="diverged"):
        gemrl.train(data, config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / MANIFEST).exists()


# Determinism


def test_the_same_seed_gives_the_same_gem_weights_bit_for_bit(run_folder, maze_data, tmp_path):
    config = config_from_json("gem", load_manifest(run_folder)["config"])
    gemrl.train(maze_data, config, tmp_path / "again", quiet=True)
    assert weights(tmp_path / "again") == weights(run_folder)
    assert load_manifest(tmp_path / "again") == load_manifest(run_folder)


def test_another_seed_gives_other_weights(data, bc_run, tmp_path):
    gemrl.train(data, BC, tmp_path / "same", quiet=True)
    assert weights(tmp_path / "same") == weights(bc_run)
    gemrl.train(data, replace(BC, seed=1), tmp_path / "other", quiet=True)
    one, other = leaves(gemrl.load(bc_run)), leaves(gemrl.load(tmp_path / "other"))
    kernels = [(a, b) for a, b in zip(one, other, strict=True) if a.size > 20]
    assert kernels
    for a, b in kernels:
        assert np.abs(a - b).mean() > 0.01


def test_gems_and_iqls_critics_are_the_same_for_the_same_seed(policy, maze_data, tmp_path):
    shared = {
        name: value
        for name, value in policy.bundle.manifest["config"].items()
        if name in gemrl.IqlConfig.__dataclass_fields__
    }
    config = gemrl.IqlConfig(**shared | {"hidden": tuple(shared["hidden"])})
    iql = gemrl.train(maze_data, config, tmp_path / "iql", quiet=True)
    assert config.steps == 600
    for name in ("critics", "value"):
        ours = jax.tree.leaves(getattr(policy.models, name))
        theirs = jax.tree.leaves(getattr(iql.models, name))
        for one, other in zip(ours, theirs, strict=True):
            assert np.allclose(one, other, rtol=1e-3, atol=1e-4)


# Data


def test_observation_dimensions_that_never_change_do_not_divide_by_zero(data, tmp_path):
    observations, following = data.observations.copy(), data.next_observations.copy()
    observations[:, 1] = following[:, 1] = 0.1
    observations[:, 3] = following[:, 3] = 0
    constant = replace(data, observations=observations, next_observations=following)
    policy = gemrl.train(constant, BC, tmp_path / "run", quiet=True)
    assert policy.spec.obs_std[[1, 3]].tolist() == [1, 1]
    assert policy.spec.obs_mean[[1, 3]] == pytest.approx([0.1, 0])
    assert np.isfinite(gemrl.load(tmp_path / "run").decide(observations[0]).action).all()


def test_the_scaler_is_that_of_the_training_rows(policy, maze_data):
    config = policy.bundle.manifest["config"]
    training, held = maze_data.split_episodes(config["holdout"], config["seed"])
    assert len(held) == policy.bundle.manifest["dataset"]["held_out_rows"] > 0
    rows = maze_data.observations[training].astype(np.float64)
    assert policy.spec.obs_mean == pytest.approx(rows.mean(axis=0), rel=1e-5, abs=1e-6)
    assert policy.spec.obs_std == pytest.approx(rows.std(axis=0), rel=1e-5)


def test_bounds_of_the_data_are_those_of_the_decisions(data, tmp_path):
    wide = replace(
        data,
        actions=3 + 2 * data.actions,
        action_low=np.full(2, 1, np.float32),
        action_high=np.full(2, 5, np.float32),
    )
    policy = gemrl.train(wide, BC, tmp_path / "run", quiet=True)
    actions = policy.decide(data.observations[:1]).action
    assert (actions >= 1).all()
    assert (actions <= 5).all()
    middle = gemrl.train(data, BC, tmp_path / "unit", quiet=True)
    assert actions == pytest.approx(3 + 2 * middle.decide(data.observations[:1]).action, abs=1e-4)


# Methods


@pytest.fixture(scope="module")
def iql_run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("iql") / "run"
    gemrl.train(data, IQL, out, quiet=True)
    return out


@pytest.mark.parametrize("method", ["gem", "iql", "bc"])
def test_each_method_trains_saves_loads_and_decides(method, request, observations):
    run = request.getfixturevalue({"gem": "run_folder", "iql": "iql_run", "bc": "bc_run"}[method])
    assert {path.name for path in run.iterdir()} >= {MANIFEST, WEIGHTS, METRICS}
    policy = gemrl.load(run)
    assert policy.method == method
    decision = policy.decide(observations, replace(policy.default_knobs, n=0), seed=0)
    assert decision.action.shape == (40, 2)
    assert np.abs(decision.action).max() <= 1
    assert len(np.unique(decision.action, axis=0)) > 1
    assert np.isfinite(decision.q).all()
    assert decision.q.shape[1] == {"gem": 3, "iql": 1, "bc": 0}[method]
    assert np.isfinite(decision.log_support).all() == (method == "gem")


@pytest.mark.parametrize("method", ["gem", "iql", "bc"])
def test_every_line_of_metrics_holds_finite_numbers_of_its_phase(method, request):
    run = request.getfixturevalue({"gem": "run_folder", "iql": "iql_run", "bc": "bc_run"}[method])
    lines = read_metrics(run)
    phases = [line["phase"] for line in lines]
    assert phases == sorted(phases)
    assert set(phases) == ({"behavior", "main"} if method == "gem" else {"main"})
    for line in lines:
        numbers = [value for value in line.values() if not isinstance(value, str)]
        assert len(numbers) > 3
        assert np.isfinite(numbers).all()


def test_the_behaviour_density_fits_the_data_better_as_it_trains(run_folder):
    nll = [line["behavior/nll"] for line in read_metrics(run_folder) if "behavior/nll" in line]
    assert len(nll) == 2
    assert nll[1] < nll[0] - 0.1


def test_no_simulator_is_needed_to_train(maze_arrays, tmp_path):
    log, run = tmp_path / "log.npz", tmp_path / "run"
    np.savez(log, **{name: array[:500] for name, array in maze_arrays.items()})
    program = (
        "import sys\n"
        "sys.modules['mujoco'] = sys.modules['gymnasium'] = None\n"
        "from gemrl.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ["train", str(log), "--method", "bc", "--steps", "20", "--hidden", "8"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words, "--out", str(run)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{run}\n"
    manifest = json.loads((run / MANIFEST).read_text())
    assert (manifest["method"], manifest["task"]) == ("bc", None)
    assert gemrl.load(run).actor(np.zeros(4)).means.shape == (1, 2)
