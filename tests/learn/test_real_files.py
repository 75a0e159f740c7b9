"""GEM on genuine files, with no simulator to be had."""

import json
import subprocess
import sys

import numpy as np
import pytest

import gemrl

WITHOUT_SIMULATOR = """
import sys
for name in ("mujoco", "gymnasium", "gymnasium_robotics", "minari"):
    sys.modules[name] = None
from gemrl.cli import main
sys.exit(main(sys.argv[1:]))
"""
SMALL = ("--steps", "60", "--hidden", "32", "32", "--batch-size", "64")
FEW = ("--pretrain-steps", "60", "--components", "2", "--critics", "2")


def run(*words):
    command = [sys.executable, "-c", WITHOUT_SIMULATOR, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("name", "words", "dimensions"),
    [
        ("door-human-demos", ("--outside", "clip"), (39, 28)),
        pytest.param("kitchen-complete-v0", (), (60, 9), marks=pytest.mark.long),
        pytest.param("kitchen-human-demos", ("--bounds", "data"), (59, 9), marks=pytest.mark.long),
    ],
)
def test_gem_trains_audits_and_decides_with_no_simulator(
    test_data_folder, tmp_path, name, words, dimensions
):
    file = test_data_folder / "real" / f"{name}.hdf5"
    done = run("train", file, *words, *SMALL, *FEW, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    policy = gemrl.load(tmp_path / "run")
    assert (policy.spec.obs_dim, policy.spec.action_dim) == dimensions
    # The audit reads the file again, in the same way.
    audit = run("audit", tmp_path / "run", "--n", "16", "--states", "8", "--json")
    assert audit.returncode == 0, audit.stderr
    assert np.isfinite(json.loads(audit.stdout)["likelihood"]["behavior"]["nll"])
    decision = policy.decide(np.zeros(dimensions[0]), gemrl.Knobs(n=8))
    assert (policy.spec.action_low <= decision.action).all()
    assert (decision.action <= policy.spec.action_high).all()


@pytest.mark.parametrize("name", ["door-human-demos", "kitchen-human-demos"])
def test_training_refuses_actions_outside_the_bounds_until_told_what_to_do(
    test_data_folder, tmp_path, name
):
    file = test_data_folder / "real" / f"{name}.hdf5"
    done = run("train", file, *SMALL, "--out", tmp_path / "run")
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert "outside" in last
    assert "--outside" in last
    assert "--bounds" in last
    assert "Traceback" not in done.stderr


def test_an_evaluation_without_a_simulator_names_the_extra(test_data_folder, tmp_path):
    file = test_data_folder / "real" / "hopper-expert-rollouts-v4.hdf5"
    task = ("--task", "hopper-expert-v2")
    words = ("--method", "bc", "--outside", "clip", *task, *SMALL, "--out", tmp_path / "run")
    done = run("train", file, *words)
    assert done.returncode == 0, done.stderr
    refused = run("eval", tmp_path / "run", "--episodes", "1", "--n", "0")
    assert refused.returncode == 2
    assert "gemrl[eval]" in refused.stderr
