"""`gemrl train --from RUN`: the same thing again, or the same but for what is said."""

import json
import shutil

import h5py
import numpy as np
import pytest

import gemrl
from gemrl.cli import main
from gemrl.learn.bundle import load_manifest
from gemrl.learn.interrupts import PARENT

WORDS = ("--method", "bc", "--steps", "60", "--hidden", "8", "--batch-size", "32", "--seed", "2")
MAPPING = """
observations = ["obs_*"]
actions = ["act_*"]
reward = "gain"
episode = "batch"
"""


def train(*words):
    """`gemrl train`, which must succeed."""
    assert main(["train", *map(str, words)]) == 0


@pytest.fixture
def refusal(capfd):
    """The one line of a command that is refused."""

    def call(*words):
        capfd.readouterr()
        assert main(["train", *map(str, words)]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("gemrl: ")
        assert err.count("\n") == 1, err
        return err

    return call


@pytest.fixture
def data_file(small_file, tmp_path):
    return shutil.copy(small_file, tmp_path / "data.hdf5")


@pytest.fixture
def run(data_file, tmp_path):
    train(data_file, *WORDS, "--out", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def log(small_data, tmp_path):
    """The same data as a log whose actions are in units of their own, some outside their bounds."""
    data, path = small_data, tmp_path / "log.csv"
    columns = {f"obs_{i}": column for i, column in enumerate(data.observations.T)}
    columns |= {f"act_{i}": 3 * column for i, column in enumerate(data.actions.T)}
    columns |= {"gain": data.rewards, "batch": data.episodes}
    lines = [",".join(columns)]
    lines += [",".join(f"{value:g}" for value in row) for row in zip(*columns.values())]  # noqa: B905
    path.write_text("\n".join(lines) + "\n")
    (tmp_path / "log.toml").write_text(MAPPING)
    return path


def weights(run):
    return (run / "weights.safetensors").read_bytes()


def test_a_run_is_repeated_beside_it_with_the_same_weights_metrics_and_manifest(
    run, contents, capfd
):
    before = contents(run)
    capfd.readouterr()
    train("--from", run)
    again = run.with_name("run-again")
    assert capfd.readouterr().out == f"{again}\n"
    assert contents(again) == before == contents(run)
    train(f"--from={run}", "--out", run.with_name("third"))
    assert contents(run.with_name("third")) == before


def test_flags_override_what_the_run_says(run, data_file, small_data, tmp_path):
    train("--from", run, "--seed", "3", "--steps", "70", "--out", tmp_path / "other")
    made = load_manifest(tmp_path / "other")["config"]
    before = load_manifest(run)["config"]
    assert made == before | {"seed": 3, "steps": 70}
    config = gemrl.BcConfig(steps=70, hidden=(8,), batch_size=32, seed=3)
    gemrl.train(gemrl.load_dataset(data_file), config, tmp_path / "afresh", quiet=True)
    assert weights(tmp_path / "other") == weights(tmp_path / "afresh") != weights(run)


def test_another_dataset_can_be_named(run, small_data, tmp_path):
    fewer = small_data.select(np.arange(1500))
    with h5py.File(tmp_path / "fewer.hdf5", "w") as file:
        for name in ("observations", "actions", "rewards", "next_observations"):
            file[name] = getattr(fewer, name)
        file["terminals"] = fewer.masks == 0
        file["timeouts"] = np.append(np.diff(fewer.episodes) > 0, True)
        file.attrs["gemrl_task"] = fewer.task
    train(tmp_path / "fewer.hdf5", "--from", run, "--out", tmp_path / "other")
    assert load_manifest(tmp_path / "other")["dataset"]["rows"] == 1500
    assert load_manifest(tmp_path / "other")["config"] == load_manifest(run)["config"]


def test_a_run_whose_dataset_has_changed_is_not_repeated(run, data_file, refusal):
    then = load_manifest(run)["dataset"]["fingerprint"]
    with h5py.File(data_file, "r+") as file:
        file["rewards"][7] += 1
    now = gemrl.load_dataset(data_file).fingerprint
    said = refusal("--from", run)
    assert f"{data_file} has changed since that run" in said
    assert f"its fingerprint is {now[:12]} and was {then[:12]}" in said
    assert not run.with_name("run-again").exists()


def test_a_run_whose_dataset_is_gone_is_not_repeated(run, data_file, refusal):
    data_file.unlink()
    assert str(data_file) in refusal("--from", run)


def test_an_unfinished_run_is_repeated_from_the_start(
    data_file, small_data, bc, bc_words, tmp_path, monkeypatch, contents
):
    run = tmp_path / "unfinished"
    with monkeypatch.context() as patch:
        patch.setenv(PARENT, "2")  # Who started it is gone: it stops at its first look.
        assert main(["train", str(data_file), *bc_words, "--out", str(run)]) == 1
    assert not (run / "manifest.json").exists()
    left = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    train("--from", run)
    gemrl.train(gemrl.load_dataset(data_file), bc, tmp_path / "afresh", quiet=True)
    assert contents(tmp_path / "unfinished-again") == contents(tmp_path / "afresh")
    assert left == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_how_a_log_was_read_is_repeated_with_it(log, tmp_path, contents, capfd):
    mapping = tmp_path / "log.toml"
    run = tmp_path / "run"
    train(log, *WORDS, "--columns", mapping, "--bounds=-2,2", "--outside", "clip", "--out", run)
    mapping.unlink()
    before = json.loads((run / "run.json").read_text())["dataset"]["reading"]
    assert before["bounds"] == [-2, 2]
    assert before["outside"] == "clip"
    assert before["columns"]["observations"] == ["obs_*"]
    train("--from", run)
    assert contents(tmp_path / "run-again") == contents(run)
    # A flag for one of them leaves the others as they were.
    train("--from", run, "--outside", "rescale", "--out", tmp_path / "rescaled")
    after = load_manifest(tmp_path / "rescaled")["dataset"]
    assert after["reading"] == before | {"outside": "rescale"}
    assert weights(tmp_path / "rescaled") != weights(run)


def test_a_log_can_be_repeated_on_the_same_data_in_another_kind_of_file(
    log, data_file, tmp_path, capfd
):
    words = ("--columns", tmp_path / "log.toml", "--bounds=-3,3")
    train(log, *WORDS, *words, "--out", tmp_path / "run")
    train(data_file, "--from", tmp_path / "run", "--out", tmp_path / "other")
    about = load_manifest(tmp_path / "other")["dataset"]
    assert about["source"] == str(data_file)
    assert about["reading"] == {"bounds": [-3, 3]}


def test_a_folder_that_is_no_run_is_refused(run, tmp_path, refusal):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "missing"):
        said = refusal("--from", folder)
        assert f"{folder} is no run of `gemrl train`: it has no run.json" in said


@pytest.mark.parametrize(
    "damage",
    [
        lambda started: "",
        lambda started: "[]",
        lambda started: "{}",
        lambda started: "[" * 100_000,
        lambda started: json.dumps(started)[:-20],
        lambda started: json.dumps(replaced(started, config=[])),
        lambda started: json.dumps(replaced(started, method=3)),
        lambda started: json.dumps(replaced(started, method="magic")),
        lambda started: json.dumps(replaced(started, task=["maze"])),
        lambda started: json.dumps(replaced(started, config={"steps": 10})),
        lambda started: json.dumps(replaced(started, dataset={})),
        lambda started: json.dumps(replaced(started, dataset="memory")),
        lambda started: json.dumps(replaced(started, dataset={"source": "x", "reading": {}})),
    ],
)
def test_a_run_whose_description_is_damaged_is_refused(damage, bc_alone, tmp_path, refusal):
    started = json.loads((bc_alone / "run.json").read_text())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(damage(started))
    refusal("--from", tmp_path / "run")
    assert not (tmp_path / "run-again").exists()


def replaced(started, **values):
    return started | values


def test_another_method_than_the_runs_is_refused(run, refusal):
    assert f"{run} was trained with bc, and --method says iql" in refusal(
        "--from", run, "--method", "iql"
    )
    train("--from", run, "--method", "bc", "--out", run.with_name("same"))
    assert weights(run.with_name("same")) == weights(run)


def test_the_run_in_the_working_folder_can_be_repeated(run, monkeypatch, capfd):
    monkeypatch.chdir(run)
    capfd.readouterr()
    train("--from", ".")
    assert capfd.readouterr().out == f"{run}-again\n"
    assert weights(run.with_name("run-again")) == weights(run)


def test_help_shows_the_settings_of_the_run_as_defaults(bc_alone, capfd):
    assert main(["train", "--from", str(bc_alone), "--help"]) == 0
    assert "(default: 4000)" in " ".join(capfd.readouterr().out.split())
