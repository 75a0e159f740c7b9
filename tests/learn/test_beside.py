"""Policies that come with a training: baselines beside GEM, and snapshots on the way."""

import pytest
from safetensors.numpy import load_file

import gemrl
from gemrl.errors import ConfigError
from gemrl.learn.bundle import WEIGHTS, load_bundle
from gemrl.learn.train import baseline, snapshot

GEM = {"steps": 30, "hidden": (8,), "batch_size": 32, "critics": 2}
CONFIG = gemrl.GemConfig(**GEM, components=2, pretrain_steps=10)


@pytest.fixture(scope="module")
def beside(small_data, tmp_path_factory):
    """GEM with its baselines and snapshots."""
    out = tmp_path_factory.mktemp("beside") / "run"
    gemrl.train(small_data, CONFIG, out, baselines=True, snapshot_every=12, quiet=True)
    return out


@pytest.fixture(scope="module")
def alone(small_data, tmp_path_factory):
    """GEM alone."""
    out = tmp_path_factory.mktemp("alone") / "run"
    gemrl.train(small_data, CONFIG, out, quiet=True)
    return out


def weights(run):
    return load_file(run / WEIGHTS)


def same(first, second):
    first, second = weights(first), weights(second)
    assert set(first) == set(second)
    return all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("iql", gemrl.IqlConfig(**GEM)),
        ("bc", gemrl.BcConfig(steps=30, hidden=(8,), batch_size=32)),
    ],
)
def test_a_baseline_trained_beside_gem_is_the_one_trained_alone(
    name, config, beside, small_data, tmp_path
):
    gemrl.train(small_data, config, tmp_path / "run", quiet=True)
    assert same(baseline(beside, name), tmp_path / "run")
    found = load_bundle(baseline(beside, name)).manifest
    other = load_bundle(tmp_path / "run").manifest
    for key in ("method", "config", "spec", "dataset", "updates", "calibration"):
        assert found[key] == other[key]


def test_baselines_beside_it_leave_gem_as_it_is(beside, alone):
    assert same(beside, alone)


def test_a_snapshot_is_the_policy_of_a_training_that_stops_there(beside, small_data, tmp_path):
    assert sorted(path.name for path in (beside / "snapshots").iterdir()) == [
        "0000000012",
        "0000000024",
    ]
    short = gemrl.GemConfig(**(GEM | {"steps": 12}), components=2, pretrain_steps=10)
    gemrl.train(small_data, short, tmp_path / "run", baselines=True, quiet=True)
    at = snapshot(beside, 12)
    assert same(at, tmp_path / "run")
    assert same(baseline(at, "iql"), baseline(tmp_path / "run", "iql"))
    assert gemrl.load(at).bundle.manifest["updates"]["main"] == 12


def test_a_finished_run_with_baselines_is_not_one_without(beside, small_data):
    with pytest.raises(gemrl.errors.TrainingError, match="another method"):
        gemrl.train(small_data, CONFIG, beside, resume=True, quiet=True)
    gemrl.train(small_data, CONFIG, beside, resume=True, baselines=True, quiet=True)


def test_baselines_without_gem_and_snapshots_of_no_length_are_refused(small_data, tmp_path):
    with pytest.raises(ConfigError, match="baselines go with gem"):
        gemrl.train(small_data, gemrl.BcConfig(), tmp_path / "run", baselines=True)
    with pytest.raises(ConfigError, match="snapshot_every = 0"):
        gemrl.train(small_data, CONFIG, tmp_path / "run", snapshot_every=0)
