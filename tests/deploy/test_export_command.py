"""`gemrl export` as a person meets it: what it writes, what it checks, and what it refuses."""

import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import onnx
import pytest
from agreement import random_policy

import gemrl
from gemrl.cli import main
from gemrl.deploy.export import verify as verify_module
from gemrl.deploy.export.contract import Fixed
from gemrl.deploy.export.verify import sidecar_digest
from gemrl.deploy.export.write import build, export_policy

SCRIPT = verify_module.__file__


@pytest.fixture(scope="module")
def exported(run_folder, tmp_path_factory):
    """A trained policy's two files, as the command writes them."""
    path = tmp_path_factory.mktemp("exported") / "policy.onnx"
    assert main(["export", str(run_folder), str(path), "--lam", "0.5", "--k-smooth", "2"]) == 0
    return path


@pytest.fixture
def copy(exported, tmp_path):
    """A copy of the two files that may be spoilt."""
    for path in (exported, exported.with_suffix(".json")):
        shutil.copy(path, tmp_path)
    return tmp_path / exported.name


@pytest.fixture
def mistake(capsys):
    """Run a command that must fail as a user's mistake; gives the line it complained with."""

    def call(*words):
        capsys.readouterr()
        code = main(["export", *map(str, words)])
        told = capsys.readouterr()
        assert (code, told.out) == (2, "")
        assert told.err.count("\n") == 1, told.err
        return told.err

    return call


def change(path, **fields):
    """Edit the JSON of a model and make its digest right again, as a forger would."""
    place = path.with_suffix(".json")
    about = json.loads(place.read_text()) | fields
    about["digest"] = sidecar_digest(about)
    place.write_text(json.dumps(about))


def test_the_json_tells_what_an_integrator_needs(exported, policy):
    about = json.loads(exported.with_suffix(".json").read_text())
    assert about["policy"] == policy.digest
    assert about["sha256"] == hashlib.sha256(exported.read_bytes()).hexdigest()
    assert (about["method"], about["task"]) == ("gem", "maze2d-umaze-v1")
    assert about["action"]["low"] == [-1.0, -1.0]
    assert about["action"]["units"] == about["observation"]["units"] == "environment units"
    assert about["observation"]["size"] == 4
    assert (about["knobs"]["lam"], about["knobs"]["k_smooth"]) == (0.5, 2)
    defaults = {port["name"]: port.get("default") for port in about["inputs"]}
    assert defaults["lam"] == 0.5
    assert defaults["k_smooth"] == 2
    assert defaults["observation"] is None
    assert len(about["outputs"]) == 12
    assert all(port["meaning"] for port in (*about["inputs"], *about["outputs"]))
    assert [case["n"] for case in about["golden"]["cases"]] == [0, 1, 64, 64]
    assert exported.with_suffix(".json").stat().st_size < 1_000_000
    held = {prop.key: prop.value for prop in onnx.load(exported).metadata_props}
    assert held["policy"] == policy.digest
    assert json.loads(held["knobs"]) == about["knobs"]


def test_a_copy_verifies_and_says_so(copy, capsys):
    assert main(["export", "--verify", str(copy)]) == 0
    assert "16 golden decisions agree" in capsys.readouterr().out
    assert main(["export", "--verify", str(copy), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["decisions"] == 16
    assert 0 <= found["worst_deviation"] < 0.5


def test_a_damaged_model_is_refused(copy, mistake):
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    assert "SHA-256 differs" in mistake("--verify", copy)
    change(copy, sha256=hashlib.sha256(data[:1000]).hexdigest())
    copy.write_bytes(data[:1000])
    assert "ONNX Runtime cannot load it" in mistake("--verify", copy)
    copy.unlink()
    assert "cannot be read" in mistake("--verify", copy)


def test_a_json_that_is_missing_edited_or_of_another_format_is_refused(copy, mistake):
    place = copy.with_suffix(".json")
    about = json.loads(place.read_text())
    place.write_text(json.dumps(about | {"task": "another"}))
    assert "edited or damaged" in mistake("--verify", copy)
    change(copy, format=99)
    assert "format 99" in mistake("--verify", copy)
    place.write_text("{")
    assert "not readable as JSON" in mistake("--verify", copy)
    place.write_text("[]")
    assert "not the JSON of an exported policy" in mistake("--verify", copy)
    place.unlink()
    assert "cannot be read" in mistake("--verify", copy)


@pytest.mark.parametrize("part", ["critics", "scaler", "bounds"])
def test_a_model_that_decides_otherwise_is_refused(copy, mistake, part):
    model = onnx.load(copy)
    nodes = {node.op_type: node for node in reversed(model.graph.node)}
    last = [node for node in model.graph.node if node.op_type == "Gemm"][-1]
    spoilt = {"critics": last.input[1], "scaler": nodes["Sub"].input[1], "bounds": nodes["Max"]}
    name = spoilt[part].input[1] if part == "bounds" else spoilt[part]
    constant = next(c for c in model.graph.initializer if c.name == name)
    values = onnx.numpy_helper.to_array(constant)
    constant.CopyFrom(onnx.numpy_helper.from_array(values * 0.9 + np.float32(0.05), name))
    data = model.SerializeToString()
    copy.write_bytes(data)
    change(copy, sha256=hashlib.sha256(data).hexdigest())
    assert "is off by" in mistake("--verify", copy)


def test_a_model_in_half_precision_is_refused(copy, mistake):
    model = onnx.load(copy)
    for constant in model.graph.initializer:
        values = onnx.numpy_helper.to_array(constant)
        if values.dtype == np.float32 and values.ndim == 2:  # Weights, not limits.
            half = values.astype(np.float16).astype(np.float32)
            constant.CopyFrom(onnx.numpy_helper.from_array(half, constant.name))
    data = model.SerializeToString()
    copy.write_bytes(data)
    change(copy, sha256=hashlib.sha256(data).hexdigest())
    assert "this runtime decides otherwise" in mistake("--verify", copy)


def test_a_model_of_another_policy_is_refused(copy, mistake):
    model = onnx.load(copy)
    next(prop for prop in model.metadata_props if prop.key == "policy").value = "0" * 64
    data = model.SerializeToString()
    copy.write_bytes(data)
    change(copy, sha256=hashlib.sha256(data).hexdigest())
    assert "another policy" in mistake("--verify", copy)


def test_words_that_make_no_sense_are_refused_and_write_nothing(run_folder, tmp_path, mistake):
    out = tmp_path / "policy.onnx"
    assert "needs a run and a file" in mistake(run_folder)
    assert "must end with .onnx" in mistake(run_folder, tmp_path / "policy.bin")
    assert "--batch needs --fixed-n" in mistake(run_folder, out, "--batch", 2)
    assert "batch = 0" in mistake(run_folder, out, "--fixed-n", 4, "--batch", 0)
    assert "--n does not go" in mistake(run_folder, out, "--fixed-n", 4, "--n", 5)
    assert "--wp does not go" in mistake("--verify", out, "--wp", 1)
    assert "schedule" in mistake(run_folder, out, "--wp-end", 0.3)
    assert "lam" in mistake(run_folder, out, "--lam", -1)
    assert "no policy in" in mistake(tmp_path / "nowhere", out)
    assert "fixed-n does not go" in mistake("--verify", out, "--fixed-n", 1)
    assert list(tmp_path.iterdir()) == []
    manifest = (run_folder / "manifest.json").read_bytes()
    assert "is in the way" in mistake(run_folder, run_folder / "manifest.onnx")
    assert (run_folder / "manifest.json").read_bytes() == manifest


def test_columns_of_a_log_become_names():
    policy = random_policy(0)
    columns = {"observations": ["a", "b", "c", "d", "e"], "actions": ["valve_*"]}
    manifest = policy.bundle.manifest | {"dataset": {"reading": {"columns": columns}}}
    named = gemrl.Policy(dataclasses.replace(policy.bundle, manifest=manifest), "jax")
    props = onnx.load_from_string(build(named, gemrl.Knobs())).metadata_props
    held = {prop.key: prop.value for prop in props}
    assert json.loads(held["observation"])["names"] == columns["observations"]
    assert json.loads(held["action"])["names"] is None


def test_the_lines_in_the_documentation_run(copy, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"```python\n(.*?)```", page, flags=re.S))
    monkeypatch.chdir(copy.parent)
    names = {}
    exec(compile(code, "docs/export.md", "exec"), names)
    assert names["action"].shape == (1, 2)
    assert names["violation"].dtype == bool


def test_the_check_runs_with_numpy_and_onnxruntime_alone(copy):
    blocked = ("gemrl", "jax", "jaxlib", "equinox", "onnx", "safetensors", "h5py")
    code = (
        "import runpy, sys; "
        f"sys.modules.update(dict.fromkeys({blocked!r})); "
        f"sys.argv = ['verify.py', {str(copy)!r}]; "
        f"runpy.run_path({SCRIPT!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "16 golden decisions agree" in done.stdout
    copy.with_suffix(".json").unlink()
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("verify: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(
    run_folder, copy, mistake, monkeypatch, tmp_path, missing
):
    monkeypatch.setitem(sys.modules, missing, None)
    for name in ("builder", "graph", "write"):
        monkeypatch.delitem(sys.modules, f"gemrl.deploy.export.{name}")
    told = mistake(run_folder, tmp_path / "new.onnx")
    assert missing in told
    assert "pip install 'gemrl[export]'" in told
    if missing == "onnxruntime":
        assert "pip install 'gemrl[export]'" in mistake("--verify", copy)


def test_a_fixed_file_is_written_and_checked_whatever_its_batch(tmp_path):
    policy = random_policy(1)
    for batch in (1, 7):
        path = tmp_path / f"{batch}.onnx"
        found = export_policy(policy, path, gemrl.Knobs(k_smooth=3), fixed=Fixed(16, batch))
        assert found["decisions"] == 4
        about = json.loads(path.with_suffix(".json").read_text())
        assert about["fixed"] == {"n": 16, "batch": batch}
        assert about["inputs"][1]["shape"] == [batch, 16]
        assert {port["name"] for port in about["inputs"]} >= {"lam", "wp"}
        assert not any("default" in port for port in about["inputs"])


def test_a_check_that_fails_leaves_the_old_files_alone(tmp_path, monkeypatch):
    path = tmp_path / "policy.onnx"
    path.write_text("old")
    monkeypatch.setattr("gemrl.deploy.export.golden.TOLERANCE", 0.0)
    with pytest.raises(gemrl.GemrlError, match="was not written"):
        export_policy(random_policy(1), path, gemrl.Knobs(k_smooth=3), fixed=Fixed(16, 7))
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy.onnx"]
    assert path.read_text() == "old"


@pytest.mark.long
def test_the_check_runs_in_a_fresh_environment(copy, tmp_path):
    """Installs NumPy and ONNX Runtime from the package index."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "numpy", "onnxruntime"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip()[-200:]}")
    script = shutil.copy(SCRIPT, tmp_path)
    done = subprocess.run([python, script, copy], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "16 golden decisions agree" in done.stdout
    assert subprocess.run([python, "-c", "import jax"], capture_output=True).returncode
