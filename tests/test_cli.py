"""The command line as a person and a script meet it: exit codes, one line for a mistake, JSON."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import gemrl
from gemrl.cli import COMMANDS, main

UMAZE = "maze2d-umaze-v1"
FLAGS = {
    "demo": ["--steps", "--seeds", "--episodes", "--out"],
    "data list": ["--json"],
    "data make": ["--steps", "--seed", "--out"],
    "data fetch": ["--source", "--mirror", "--sha256", "--timeout"],
    "data collect": ["--env", "--policy", "--out", "--steps", "--seed", "--task"],
    "data inspect": ["--task", "--json", "--html", "--columns", "--bounds", "--outside"],
    "train": [
        *("--method", "--steps", "--seed", "--out", "--resume", "--task", "--pretrain-steps"),
        *("--columns", "--observations", "--actions", "--reward", "--bounds", "--outside"),
        *("--hidden", "--batch-size", "--expectile", "--components", "--checkpoint-every"),
    ],
    "eval": [
        *("--n", "--lam", "--wp", "--wp-end", "--k-smooth", "--source", "--anchor", "--support"),
        *("--value", "--temperature", "--decide", "--behavior", "--episodes", "--protocol"),
        *("--task", "--json"),
    ],
    "sweep": [
        *("--n", "--lam", "--wp", "--wp-end", "--episodes", "--protocol", "--cluster"),
        *("--processes", "--json"),
    ],
    "tune": ["--dataset", "--n", "--lams", "--wps", "--states", "--episodes", "--rows", "--json"],
    "reproduce": [
        *("--tasks", "--steps", "--seeds", "--episodes", "--out", "--rows", "--cluster"),
        *("--knobs", "--data-steps", "--methods", "--method-steps"),
    ],
    "audit": ["--n", "--lam", "--wp", "--dataset", "--states", "--json"],
    "bench": ["--methods", "--rounds", "--calls", "--out", "--json"],
    "report": ["--out"],
    "export": ["--n", "--lam", "--wp", "--k-smooth", "--fixed-n", "--batch", "--verify", "--json"],
    "serve": [
        *("--host", "--port", "--token", "--token-file", "--profiles", "--gates", "--ladder"),
        *("--deadline-ms", "--overload", "--shadow", "--states", "--log", "--redact", "--n"),
    ],
    "replay": ["--run", "--json"],
}


def strict_json(text):
    """JSON as every parser takes it: no NaN, no Infinity."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def run(capsys):
    """Run a command; gives its exit code, what it printed and what it complained about."""

    def call(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def mistake(run):
    """Run a command that must fail as a user's mistake; gives the line it complained with."""

    def call(*words):
        code, out, err = run(*words)
        assert code == 2
        assert out == ""
        assert err.endswith("\n")
        assert err.count("\n") == 1, err
        assert err.startswith("gemrl: ")
        assert "Traceback" not in err
        return err

    return call


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "umaze.hdf5"
    assert main(["data", "make", UMAZE, "--steps", "3000", "--seed", "7", "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def trained(data_file, tmp_path_factory):
    """A run trained by the command, with networks of the sizes that other tests have compiled."""
    out = tmp_path_factory.mktemp("cli") / "run"
    words = ["train", str(data_file), "--method", "gem", "--steps", "50", "--pretrain-steps", "50"]
    words += ["--hidden", "32", "32", "--critics", "3", "--components", "4", "--batch-size", "64"]
    assert main([*words, "--seed", "1", "--out", str(out)]) == 0
    return out


# Help


def test_help_and_version_exit_with_0(run):
    for words in ([], ["--help"], ["-h"]):
        code, out, err = run(*words)
        assert (code, err) == (0, "")
        for name in COMMANDS:
            assert f"gemrl {name}" in out
    assert run("--version") == (0, f"{gemrl.__version__}\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_exits_with_0_and_mentions_its_flags(name, run):
    code, out, err = run(*name.split(), "--help")
    assert (code, err) == (0, "")
    for flag in FLAGS[name]:
        assert flag in out


def test_help_of_the_data_commands_together_lists_them(run):
    code, out, _ = run("data", "--help")
    assert code == 0
    for name in ("list", "make", "inspect"):
        assert f"data {name}" in out


def test_the_settings_of_train_are_those_of_its_method(run):
    _, gem, _ = run("train", "--help")
    _, iql, _ = run("train", "--method", "iql", "--help")
    _, bc, _ = run("train", "--method=bc", "--help")
    assert "--pretrain-steps" in gem
    assert "--pretrain-steps" not in iql
    assert "--expectile" in iql
    assert "--expectile" not in bc


# Mistakes


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["fly"], "fly"),
        (["data"], "data"),
        (["data", "fly"], "data fly"),
        (["data", "make"], "task"),
        (["data", "make", UMAZE, "--colour", "red"], "--colour"),
        (["data", "make", UMAZE, "--steps", "many"], "many"),
        (["data", "make", UMAZE, "--steps", "0", "--out", "x.hdf5"], "0"),
        (["data", "make", UMAZE, "--steps", "-5", "--out", "x.hdf5"], "-5"),
        (["data", "make", UMAZE, "--steps", "9", "--seed", "-1", "--out", "x.hdf5"], "-1"),
        (["data", "make", "no-such-task"], "no-such-task"),
        (["data", "inspect", "no/such/file.hdf5"], "no/such/file.hdf5"),
        (["data", "inspect", UMAZE], "gemrl data make"),
        (["data", "list", "everything"], "everything"),
        (["train"], ".hdf5"),
        (["train", "no/such/file.npz"], "no/such/file.npz"),
        (["train", "x.npz", "--method", "magic"], "magic"),
        (["train", "x.npz", "--method"], "--method"),
        (["train", "x.npz", "--batch-size", "0"], "batch_size = 0"),
        (["train", "x.npz", "--discount", "1.5"], "discount = 1.5"),
        (["train", "x.npz", "--learning-rate", "nan"], "learning_rate = nan"),
        (["train", "x.npz", "--steps", "1.5"], "1.5"),
        (["train", "x.npz", "--method", "bc", "--expectile", "0.9"], "--expectile"),
        (["eval"], "run"),
        (["eval", "no/such/run"], "no/such/run"),
        (["eval", "no/such/run", "--protocol", "training"], "training"),
        (["eval", "no/such/run", "--source", "nowhere"], "nowhere"),
        (["audit", "no/such/run"], "no/such/run"),
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_exits_with_2(
    words, named, mistake, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert named.lower() in mistake(*words).lower()
    assert not (tmp_path / "x.hdf5").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--wp", "0.5", "--wp-end", "0.4"], "--wp-end"),
        (["--n", "-1"], "n = -1"),
        (["--n", "99999999"], "n = 99999999"),
        (["--lam", "nan"], "lam = nan"),
        (["--wp", "-0.5"], "wp = -0.5"),
        (["--wp-end", "inf"], "wp.end = inf"),
        (["--k-smooth", "0"], "k_smooth = 0"),
        (["--n", "0", "--anchor", "none"], "anchor = 'none'"),
        (["--episodes", "0"], "episodes = 0"),
        (["--episodes", "-2"], "episodes = -2"),
        (["--task", "no-such-task"], "no-such-task"),
    ],
)
def test_a_knob_out_of_range_is_one_line_that_names_it_and_exits_with_2(
    words, named, mistake, trained
):
    assert named in mistake("eval", trained, *words)


def test_an_audit_of_no_states_or_of_other_data_is_a_mistake(mistake, trained, tmp_path, run):
    assert "states = 0" in mistake("audit", trained, "--states", "0")
    other = tmp_path / "other.hdf5"
    assert run("data", "make", UMAZE, "--steps", "50", "--out", other)[0] == 0
    assert str(other) in mistake("audit", trained, "--dataset", other)


def test_files_that_cannot_be_read_are_mistakes(mistake, tmp_path):
    broken = tmp_path / "broken.hdf5"
    broken.write_text("not HDF5")
    assert str(broken) in mistake("data", "inspect", broken)
    assert str(broken) in mistake("train", broken, "--out", tmp_path / "run")
    assert str(tmp_path) in mistake("data", "inspect", tmp_path)
    assert str(tmp_path) in mistake("eval", tmp_path)


def test_a_file_in_the_place_of_a_folder_is_a_mistake_that_names_it(mistake, data_file, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("")
    words = ["--method", "bc", "--steps", "1", "--hidden", "8"]
    assert str(taken) in mistake("train", data_file, *words, "--out", taken)
    assert str(taken) in mistake("train", data_file, *words, "--out", taken / "run")
    assert str(taken) in mistake("eval", taken)
    assert taken.read_text() == ""


def test_a_folder_in_the_place_of_a_file_is_a_mistake_that_names_it(run, tmp_path):
    folder = tmp_path / "data.hdf5"
    folder.mkdir()
    code, out, err = run("data", "make", UMAZE, "--steps", "10", "--out", folder)
    assert (code, out) == (2, "")
    # There may be a line of progress before it.
    assert str(folder) in err.splitlines()[-1]
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_with_a_run_is_not_trained_over(mistake, trained, data_file):
    words = ["--method", "gem", "--steps", "50", "--hidden", "8", "--out", trained]
    assert str(trained) in mistake("train", data_file, *words)
    assert str(trained) in mistake("train", data_file, *words, "--resume")


def test_data_that_cannot_be_trained_on_is_a_mistake_that_names_array_and_row(
    mistake, data_file, tmp_path
):
    with h5py.File(data_file) as file:
        arrays = {name: item[()] for name, item in file.items()}
    arrays["rewards"][17] = np.nan
    np.savez(tmp_path / "bad.npz", **arrays)
    message = mistake("train", tmp_path / "bad.npz", "--out", tmp_path / "run")
    assert "rewards" in message
    assert "row 17" in message


def test_a_flag_that_there_is_not_is_named_once_and_without_a_heading(mistake):
    said = mistake("data", "list", "--colour", "red")
    wrong = "Unrecognized options: --colour, red"
    assert said == f"gemrl: data list: {wrong} (see `gemrl data list --help`)\n"


def test_a_mistake_exits_with_2_and_one_line_from_the_shell_too(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "gemrl", "eval", str(tmp_path / "nowhere")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "nowhere") in done.stderr


def test_help_comes_without_loading_jax_or_a_simulator():
    program = (
        "import sys\n"
        "sys.modules['jax'] = sys.modules['mujoco'] = None\n"
        "from gemrl.cli import main\n"
        "sys.exit(main(['--help']) or main(['--version']) or main(['data', 'list', '--json']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "gemrl eval" in done.stdout


# Data


def test_data_make_says_where_it_wrote_and_writes_what_was_asked_for(run, tmp_path):
    path = tmp_path / "new" / "data.hdf5"
    code, out, _ = run("data", "make", UMAZE, "--steps", "200", "--seed", "3", "--out", path)
    assert (code, out) == (0, f"{path}\n")
    data = gemrl.load_dataset(path)
    assert (len(data), data.task, data.origin) == (200, UMAZE, "regenerated")


def test_data_make_without_a_file_serves_the_task_by_its_name(run):
    assert run("data", "make", UMAZE, "--steps", "100")[0] == 0
    code, out, _ = run("data", "list", "--json")
    assert code == 0
    listed = {row["task"]: row for row in strict_json(out)}
    assert listed[UMAZE]["regenerated"]
    assert not listed[UMAZE]["genuine"]
    assert not listed["maze2d-large-v1"]["regenerated"]
    code, out, err = run("data", "inspect", UMAZE, "--json")
    assert code == 0
    assert strict_json(out)["rows"] == 100
    assert "regenerated" in err


def test_data_inspect_prints_json_or_text(run, data_file):
    code, out, _ = run("data", "inspect", data_file, "--json")
    report = strict_json(out)
    assert code == 0
    assert (report["rows"], report["task"], report["origin"]) == (3000, UMAZE, "regenerated")
    assert report["fingerprint"] == gemrl.load_dataset(data_file).fingerprint
    code, out, _ = run("data", "inspect", data_file)
    assert code == 0
    assert "3,000" in out
    assert report["fingerprint"][:16] in out


# Training, evaluation, audit


def test_train_leaves_a_policy_and_resuming_it_does_nothing(run, trained, data_file):
    policy = gemrl.load(trained)
    assert policy.bundle.manifest["updates"] == {"behavior": 50, "main": 50}
    assert policy.bundle.manifest["config"]["hidden"] == [32, 32]
    assert policy.bundle.manifest["config"]["seed"] == 1
    assert policy.bundle.manifest["task"] == UMAZE
    words = ["--method", "gem", "--steps", "50", "--pretrain-steps", "50", "--seed", "1"]
    words += ["--hidden", "32", "32", "--critics", "3", "--components", "4", "--batch-size", "64"]
    code, out, err = run("train", data_file, *words, "--out", trained, "--resume")
    assert (code, out) == (0, f"{trained}\n")
    assert "nothing to do" in " ".join(err.split())
    assert gemrl.load(trained).digest == policy.digest


def test_eval_prints_json_and_keeps_rows(run, trained):
    words = ["--n", "4", "--lam", "1", "--wp", "0.5", "--episodes", "2"]
    code, out, _ = run("eval", trained, *words, "--protocol", "validation", "--json")
    assert code == 0
    answer = strict_json(out)
    assert (answer["protocol"], answer["task"], answer["episodes"]) == ("validation", UMAZE, 2)
    assert (answer["data"], answer["method"], answer["updates"]) == ("regenerated", "gem", 50)
    knobs = gemrl.Knobs.from_json(answer["knobs"])
    assert knobs == gemrl.Knobs(n=4, lam=1.0, wp=0.5)
    assert answer["score"] == pytest.approx(100 * (answer["return"] - 23.85) / (161.86 - 23.85))
    rows = [json.loads(line) for line in (trained / "rows.jsonl").read_text().splitlines()]
    mine = [row for row in rows if row["knobs"] == answer["knobs"]]
    assert [row["episode_seed"] for row in mine] == [0, 1]
    assert np.mean([row["score"] for row in mine]) == pytest.approx(answer["score"])


def test_eval_with_a_schedule_uses_the_tasks_horizon_and_test_seeds(run, trained):
    code, out, _ = run("eval", trained, "--n", "4", "--wp-end", "0.4", "--episodes", "2", "--json")
    assert code == 0
    answer = strict_json(out)
    assert answer["protocol"] == "test"
    assert answer["knobs"]["wp"] == {"end": 0.4, "horizon": 300, "start": 1.0}


def test_eval_prints_text_that_names_task_data_protocol_and_rows(run, trained):
    code, out, _ = run("eval", trained, "--n", "4", "--wp-end", "0.4", "--episodes", "2")
    assert code == 0
    for words in (UMAZE, "regenerated data", "2 test episodes", "score", str(trained)):
        assert words in out


def test_eval_of_one_episode_prints_json_though_it_has_no_standard_error(run, trained):
    words = ["--n", "4", "--wp", "0.5", "--episodes", "1", "--protocol", "validation", "--json"]
    code, out, _ = run("eval", trained, *words)
    assert code == 0
    assert strict_json(out)["episodes"] == 1


def test_audit_prints_json_and_text_from_the_data_it_was_trained_on(run, trained):
    code, out, _ = run("audit", trained, "--states", "50", "--json")
    assert code == 0
    report = strict_json(out)
    assert report["run"]["bundle"] == gemrl.load(trained).digest
    assert report["rows"]["states"] == 50
    assert np.isfinite(report["likelihood"]["behavior"]["gap"])
    code, out, _ = run("audit", trained, "--states", "50")
    assert code == 0
    assert "NLL gap" in out


def test_a_clone_trained_by_the_command_can_be_evaluated_and_audited(run, data_file, tmp_path):
    words = ["--method", "bc", "--steps", "10", "--hidden", "8", "--out", tmp_path / "bc"]
    assert run("train", data_file, *words)[0] == 0
    code, out, _ = run("eval", tmp_path / "bc", "--episodes", "2", "--json")
    assert code == 0
    answer = strict_json(out)
    assert (answer["method"], answer["violation"], answer["support_z"]) == ("bc", None, None)
    code, out, _ = run("audit", tmp_path / "bc", "--states", "5", "--json")
    assert code == 0
    assert [found["knobs"]["n"] for found in strict_json(out)["decisions"]] == [0]


# Data


def test_a_logs_columns_may_be_given_as_flags_or_as_a_file_and_read_the_same(run, tmp_path):
    rows = [f"{i},{np.sin(i):.3f},{np.cos(i):.3f},{i % 3 - 1}" for i in range(40)]
    (tmp_path / "plant.csv").write_text("\n".join(["t,heat,flow,valve", *rows]))
    (tmp_path / "map.toml").write_text(
        'observations = ["heat", "flow"]\nactions = ["valve"]\ntime = "t"\n'
    )
    flags = ("--observations", "heat", "flow", "--actions", "valve", "--time", "t")
    reports = []
    for words in (flags, ("--columns", tmp_path / "map.toml")):
        code, out, _ = run("data", "inspect", tmp_path / "plant.csv", *words, "--json")
        assert code == 0
        reports.append(strict_json(out))
    assert reports[0] == reports[1]
    assert (reports[0]["observation_dim"], reports[0]["action_dim"]) == (2, 1)


def test_flags_and_a_file_of_columns_exclude_each_other(mistake, tmp_path):
    (tmp_path / "plant.csv").write_text("a,b\n1,2\n")
    (tmp_path / "map.toml").write_text('observations = ["a"]\nactions = ["b"]\n')
    words = ("--columns", tmp_path / "map.toml", "--actions", "b")
    assert "exclude" in mistake("data", "inspect", tmp_path / "plant.csv", *words)


@pytest.mark.parametrize("words", [("--bounds", "-2,2"), ("--bounds=-2,2",)])
def test_bounds_may_be_two_numbers_and_the_first_negative(run, data_file, words):
    code, out, _ = run("data", "inspect", data_file, "--json", *words)
    assert code == 0
    assert strict_json(out)["action_low"] == [-2, -2]


def test_inspection_reports_bad_values_and_training_refuses_them(run, mistake, data_file, tmp_path):
    with h5py.File(data_file) as file:
        arrays = {name: item[()] for name, item in file.items()}
    arrays["observations"][5, 1] = np.inf
    np.savez(tmp_path / "bad.npz", **arrays)
    code, out, _ = run("data", "inspect", tmp_path / "bad.npz", "--json")
    assert code == 0
    assert any("not finite" in text for text in strict_json(out)["warnings"])
    assert "not finite" in mistake("train", tmp_path / "bad.npz", "--out", tmp_path / "run")
    (tmp_path / "broken.hdf5").write_bytes(data_file.read_bytes()[:3000])
    for words in (("data", "inspect"), ("train",)):
        assert "broken.hdf5" in mistake(*words, tmp_path / "broken.hdf5")


def test_a_missing_dataset_is_told_how_to_be_had(mistake):
    message = mistake("train", "hopper-medium-v2")
    assert "gemrl data fetch hopper-medium-v2" in message
    assert "gemrl data make hopper-medium-v2" in message


def test_training_defaults_follow_the_task_but_what_is_said_counts(run, tmp_path):
    data = tmp_path / "ant.hdf5"
    assert run("data", "make", "antmaze-umaze-v2", "--steps", "400", "--out", data)[0] == 0
    short = ("--steps", "0", "--pretrain-steps", "0", "--hidden", "8")
    for words, expectile in (((), 0.9), (("--expectile", "0.7"), 0.7)):
        out = tmp_path / f"run{expectile}"
        assert run("train", data, *short, *words, "--out", out)[0] == 0
        config = gemrl.load(out).bundle.manifest["config"]
        assert (config["expectile"], config["beta"]) == (expectile, 10.0)


def test_collecting_needs_no_more_than_an_environment_and_a_policy(run, tmp_path):
    policy = next((Path(gemrl.__file__).parent / "data" / "policies").glob("hopper-medium.npz"))
    words = ("--env", "Hopper-v4", "--policy", policy, "--steps", "300")
    code, out, _ = run("data", "collect", *words, "--out", tmp_path / "mine.hdf5")
    assert code == 0
    assert out.strip() == str(tmp_path / "mine.hdf5")
    assert len(gemrl.load_dataset(out.strip())) == 300


def test_a_reader_that_leaves_early_is_no_error(data_file):
    command = f"{sys.executable} -m gemrl data inspect {data_file} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
