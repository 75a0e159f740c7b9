"""Checkpoints that can be read again: a resumed run continues, it does not start over."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import gemrl
from gemrl.errors import BundleError, TrainingError
from gemrl.learn.checkpoint import folder_of
from gemrl.learn.tensors import load_tree, save_tree

TINY = {"hidden": (8, 8), "batch_size": 16, "checkpoint_every": 100}


def test_a_tree_comes_back_with_every_shape_and_type(tmp_path):
    tree = {"scalar": jnp.asarray(3, jnp.int32), "vector": jnp.arange(4.0), "empty": jnp.ones((0,))}
    save_tree(tmp_path / "tree.safetensors", tree)
    loaded = load_tree(tmp_path / "tree.safetensors", tree)
    for name, leaf in tree.items():
        assert loaded[name].shape == leaf.shape
        assert loaded[name].dtype == leaf.dtype
        np.testing.assert_array_equal(loaded[name], leaf)


def unfinished(tmp_path, data, monkeypatch, config):
    """A run that stops after its last checkpoint, before its bundle is written."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("gemrl.learn.train.save_bundle", stop)
        with pytest.raises(KeyboardInterrupt):
            gemrl.train(data, config, tmp_path, quiet=True)
    return sorted(folder_of(tmp_path).glob("*.safetensors"))


@pytest.mark.parametrize("kind", [gemrl.GemConfig, gemrl.IqlConfig, gemrl.BcConfig])
def test_resuming_goes_on_after_the_last_checkpoint(tmp_path, maze_data, monkeypatch, capfd, kind):
    pretraining = {"pretrain_steps": 150} if kind is gemrl.GemConfig else {}
    config = kind(steps=250, **TINY, **pretraining)
    paths = unfinished(tmp_path, maze_data, monkeypatch, config)
    total = config.steps + pretraining.get("pretrain_steps", 0)
    done = total // 100 * 100
    assert [int(path.stem) for path in paths] == [done - 100, done]
    gemrl.train(maze_data, config, tmp_path, resume=True)
    said = capfd.readouterr().err
    assert f"after {done:,} updates" in said
    assert "cannot be read" not in said
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    updates = [json.loads(line)["update"] for line in lines]
    assert updates == sorted(set(updates))
    assert updates[-1] == total


def flip_a_bit(path):
    """One bit of a weight: still a number, no longer the right one."""
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def test_a_damaged_checkpoint_is_said_and_the_one_before_is_used(
    tmp_path, maze_data, monkeypatch, capfd
):
    config = gemrl.BcConfig(steps=250, **TINY)
    _, newest = unfinished(tmp_path / "damaged", maze_data, monkeypatch, config)
    flip_a_bit(newest)
    gemrl.train(maze_data, config, tmp_path / "damaged", resume=True)
    said = capfd.readouterr().err
    assert newest.name in said
    assert "after 100 updates" in said
    gemrl.train(maze_data, config, tmp_path / "whole", quiet=True)
    weights = [
        (tmp_path / run / "weights.safetensors").read_bytes() for run in ("damaged", "whole")
    ]
    assert weights[0] == weights[1]


def test_a_run_whose_checkpoints_are_all_damaged_stops_and_does_not_start_over(
    tmp_path, maze_data, monkeypatch
):
    config = gemrl.BcConfig(steps=250, **TINY)
    for path in unfinished(tmp_path, maze_data, monkeypatch, config):
        flip_a_bit(path)
    with pytest.raises(TrainingError, match="can be read"):
        gemrl.train(maze_data, config, tmp_path, resume=True)


def test_a_tree_with_a_changed_value_is_refused(tmp_path):
    path = tmp_path / "tree.safetensors"
    save_tree(path, {"weight": jnp.arange(3.0)})
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match="digest"):
        load_tree(path, {"weight": jnp.arange(3.0)})
