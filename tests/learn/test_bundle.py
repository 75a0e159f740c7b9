"""Saved policies: what was saved is read back, and a damaged one is refused with a reason."""

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

import gemrl
from gemrl.errors import BundleError, GemrlError
from gemrl.learn.bundle import (
    FORMAT,
    MANIFEST,
    WEIGHTS,
    config_from_json,
    load_bundle,
    load_manifest,
    manifest_digest,
    save_bundle,
)


@pytest.fixture
def folder(run_folder, tmp_path):
    """A copy of a trained run that may be spoiled."""
    copy = tmp_path / "run"
    shutil.copytree(run_folder, copy)
    return copy


def refusal(folder):
    """The message with which a folder is refused."""
    with pytest.raises(BundleError) as caught:
        gemrl.load(folder)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, GemrlError)
    message = str(caught.value)
    assert "\n" not in message
    return message


def edit(folder, change, sign=False):
    """Change a manifest, with a digest that fits again or not."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    change(manifest)
    if sign:
        manifest["digest"] = manifest_digest(manifest)
    path.write_text(json.dumps(manifest))


def replace_weights(folder, data):
    """Put other bytes in the place of the weights, with digests that fit them."""
    (folder / WEIGHTS).write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    edit(folder, lambda manifest: manifest["files"].update({WEIGHTS: digest}), sign=True)


def change_tensors(folder, change):
    """Change the tensors of a bundle, with digests that fit them."""
    tensors = dict(load_tensors((folder / WEIGHTS).read_bytes()))
    change(tensors)
    replace_weights(folder, save_tensors(tensors))


# What is read back


def test_a_loaded_policy_has_the_saved_weights_and_decisions_to_the_last_bit(
    run_folder, maze_data, observations, tmp_path
):
    # A configuration that is compiled already saves half a minute.
    config = config_from_json("gem", load_manifest(run_folder)["config"])
    trained = gemrl.train(maze_data, config, tmp_path / "run", quiet=True)
    loaded = gemrl.load(tmp_path / "run")
    ours, theirs = jax.tree.leaves(trained.models), jax.tree.leaves(loaded.models)
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert jax.tree.structure(trained.models) == jax.tree.structure(loaded.models)
    knobs = gemrl.Knobs(n=16, k_smooth=2)
    one, other = (p.decide(observations, knobs, seed=3) for p in (trained, loaded))
    for name in ("action", "candidates", "q", "lcb", "log_support", "score", "chosen"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert trained.digest == loaded.digest
    assert loaded.bundle.manifest == trained.bundle.manifest


def test_saving_a_loaded_bundle_again_gives_the_same_policy(run_folder, tmp_path):
    bundle = load_bundle(run_folder)
    about = {
        key: value
        for key, value in bundle.manifest.items()
        if key not in ("format", "method", "config", "spec", "software", "files", "digest")
    }
    config = config_from_json("gem", bundle.manifest["config"])
    save_bundle(tmp_path / "again", "gem", config, bundle.models, bundle.spec, **about)
    again = load_bundle(tmp_path / "again")
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (run_folder / WEIGHTS).read_bytes()
    assert again.manifest == bundle.manifest
    for name in ("obs_mean", "obs_std", "action_low", "action_high"):
        assert np.array_equal(getattr(again.spec, name), getattr(bundle.spec, name))


def test_the_manifest_holds_all_that_a_policy_must_know_of_itself(run_folder, maze_data):
    manifest = load_manifest(run_folder)
    assert manifest["format"] == FORMAT
    assert manifest["method"] == "gem"
    assert manifest["task"] == "maze2d-umaze-v1"
    assert manifest["dataset"]["fingerprint"] == maze_data.fingerprint
    assert manifest["dataset"]["origin"] == "regenerated"
    assert manifest["updates"] == {"behavior": 600, "main": 600}
    assert manifest["reference"]["low"] == 23.85
    assert set(manifest["calibration"]) == {"actor", "behavior"}
    assert {"gemrl", "jax", "numpy", "python"} <= set(manifest["software"])
    weights = (run_folder / WEIGHTS).read_bytes()
    assert manifest["files"] == {WEIGHTS: hashlib.sha256(weights).hexdigest()}
    assert manifest["digest"] == manifest_digest(manifest)


# What is refused


def test_a_missing_folder_is_refused(tmp_path):
    message = refusal(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in message
    assert "no such folder" in message


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    assert str(tmp_path / "run") in refusal(tmp_path / "run")


def test_a_folder_without_a_manifest_is_refused(folder):
    (folder / MANIFEST).unlink()
    assert "not finished" in refusal(folder)


def test_a_folder_of_several_seeds_is_refused_with_the_name_of_one(folder, tmp_path):
    runs = tmp_path / "seeds"
    for seed in (0, 1):
        shutil.copytree(folder, runs / f"seed-{seed}")
    message = refusal(runs)
    assert "several seeds" in message
    assert str(runs / "seed-0") in message
    assert gemrl.load(runs / "seed-1").method == "gem"


def test_a_missing_weights_file_is_refused(folder):
    (folder / WEIGHTS).unlink()
    assert WEIGHTS in refusal(folder)


@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999])
def test_truncated_weights_are_refused_wherever_they_were_cut(folder, share):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: int(share * len(data))])
    message = refusal(folder)
    assert WEIGHTS in message
    assert "damaged" in message


@pytest.mark.parametrize("share", [0, 0.0005, 0.3, 0.7, 0.9999])
def test_a_flipped_bit_in_the_weights_is_refused(folder, share):
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[int(share * len(data))] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    message = refusal(folder)
    assert WEIGHTS in message
    assert "damaged" in message


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.95])
def test_a_truncated_manifest_is_refused_wherever_it_was_cut(folder, share):
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text[: int(share * len(text))])
    assert MANIFEST in refusal(folder)


def test_a_manifest_that_is_no_text_is_refused(folder):
    (folder / MANIFEST).write_bytes(b"\xff\xfe\x00\x81")
    assert MANIFEST in refusal(folder)


EDITS = {
    "a config value": lambda m: m["config"].update(expectile=0.9),
    "another width": lambda m: m["config"].update(hidden=[64, 64]),
    "the scaler's mean": lambda m: m["spec"]["obs_mean"].__setitem__(0, 0.0),
    "the scaler's std": lambda m: m["spec"]["obs_std"].__setitem__(0, 2.0),
    "the lower bound": lambda m: m["spec"]["action_low"].__setitem__(0, -2.0),
    "the upper bound": lambda m: m["spec"]["action_high"].__setitem__(0, 2.0),
    "the reward scale": lambda m: m["spec"].update(reward_scale=10.0),
    "the method": lambda m: m.update(method="iql"),
    "the task": lambda m: m.update(task="maze2d-large-v1"),
    "the origin of the data": lambda m: m["dataset"].update(origin="genuine"),
    "a new field": lambda m: m.update(note="hello"),
    "a field less": lambda m: m.pop("calibration"),
    "the digest": lambda m: m.update(digest="0" * 64),
    "no digest": lambda m: m.pop("digest"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_manifest_edited_by_hand_is_refused(folder, name):
    edit(folder, EDITS[name])
    message = refusal(folder)
    assert MANIFEST in message
    assert "edited or damaged" in message


def test_a_manifest_written_anew_with_the_same_contents_is_accepted(folder):
    edit(folder, lambda manifest: None)
    assert gemrl.load(folder).method == "gem"


@pytest.mark.parametrize(("number", "word"), [(FORMAT + 1, "newer"), (99, "newer"), (0, "older")])
def test_another_format_is_refused_with_what_to_do(folder, number, word):
    edit(folder, lambda manifest: manifest.update(format=number), sign=True)
    message = refusal(folder)
    assert f"format {number}" in message
    assert word in message
    assert gemrl.__version__ in message


@pytest.mark.parametrize("text", ["[]", '[{"format": 1}]', "3", "null", '"gem"', "{}"])
def test_json_that_is_no_manifest_is_refused(folder, text):
    (folder / MANIFEST).write_text(text)
    assert "not a policy's manifest" in refusal(folder)


@pytest.mark.parametrize("number", ["1", None, 1.5, [1]])
def test_a_format_that_is_no_whole_number_is_refused(folder, number):
    edit(folder, lambda manifest: manifest.update(format=number), sign=True)
    assert "not a policy's manifest" in refusal(folder)


def test_weights_of_another_run_are_refused(folder, maze_data, tmp_path):
    config = gemrl.GemConfig(steps=0, pretrain_steps=0, hidden=(32, 32), components=4, critics=3)
    gemrl.train(maze_data, config, tmp_path / "other", quiet=True)
    shutil.copy(tmp_path / "other" / WEIGHTS, folder / WEIGHTS)
    message = refusal(folder)
    assert WEIGHTS in message
    assert "another run" in message


def test_a_tensor_too_many_is_refused_by_its_name(folder):
    change_tensors(folder, lambda t: t.update({"actor/extra": np.zeros(3, np.float32)}))
    assert "actor/extra" in refusal(folder)


def test_a_missing_tensor_is_refused_by_its_name(folder):
    change_tensors(folder, lambda t: t.pop("actor/log_std"))
    assert "actor/log_std" in refusal(folder)


def test_a_tensor_of_another_shape_is_refused_by_its_name(folder):
    change_tensors(folder, lambda t: t.update({"actor/log_std": np.zeros((4, 3), np.float32)}))
    assert "actor/log_std" in refusal(folder)


def test_a_tensor_of_another_type_is_refused_by_its_name(folder):
    change_tensors(folder, lambda t: t.update({"actor/log_std": t["actor/log_std"].astype("f8")}))
    assert "actor/log_std" in refusal(folder)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(folder, bad):
    def spoil(tensors):
        log_std = tensors["actor/log_std"].copy()
        log_std[0, 0] = bad
        tensors["actor/log_std"] = log_std

    change_tensors(folder, spoil)
    message = refusal(folder)
    assert WEIGHTS in message
    assert "not finite" in message


SIGNED = {
    "obs_std of zero": lambda m: m["spec"]["obs_std"].__setitem__(0, 0.0),
    "obs_mean of NaN": lambda m: m["spec"]["obs_mean"].__setitem__(0, float("nan")),
    "a scaler cut short": lambda m: m["spec"]["obs_mean"].pop(),
    "bounds without room": lambda m: m["spec"].update(action_low=[1.0, 1.0]),
    "a scaler of words": lambda m: m["spec"].update(obs_mean=["a", "b", "c", "d"]),
    "no spec": lambda m: m.pop("spec"),
    "a spec that is a list": lambda m: m.update(spec=[]),
    "no files": lambda m: m.pop("files"),
    "no config": lambda m: m.pop("config"),
    "a config that is a list": lambda m: m.update(config=[]),
    "a config value out of range": lambda m: m["config"].update(batch_size=0),
    "no method": lambda m: m.pop("method"),
    "an unknown method": lambda m: m.update(method="no-such-method"),
}


@pytest.mark.parametrize("name", SIGNED)
def test_contents_that_cannot_be_used_are_refused_though_their_digest_fits(folder, name):
    edit(folder, SIGNED[name], sign=True)
    with pytest.raises(GemrlError) as caught:
        gemrl.load(folder)
    assert isinstance(caught.value, ValueError)


class _Touch:
    """Unpickling one of these leaves a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("signed", [False, True])
def test_a_pickle_in_the_place_of_the_weights_is_refused_and_does_not_run(folder, signed):
    witness = folder / "witness"
    data = pickle.dumps(_Touch(witness))
    if signed:
        replace_weights(folder, data)
    else:
        (folder / WEIGHTS).write_bytes(data)
    assert WEIGHTS in refusal(folder)
    assert not witness.exists()
    pickle.loads(data)
    assert witness.exists()
