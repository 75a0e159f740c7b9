"""Policy files and the data that is collected with them."""

import json

import h5py
import numpy as np
import pytest

import gemrl
from gemrl.data.behavior import load_behavior
from gemrl.data.recipes import collect_dataset
from gemrl.data.recipes.locomotion import collect
from gemrl.errors import ConfigError, DataError

HOPPER = "Hopper-v4"


def arrays(rng, squash=True, wide=8):
    return {
        "W0": rng.standard_normal((11, wide)),
        "b0": rng.standard_normal(wide),
        "W1": rng.standard_normal((wide, wide)),
        "b1": rng.standard_normal(wide),
        "Wmu": rng.standard_normal((wide, 3)),
        "bmu": rng.standard_normal(3),
        "logstd": rng.standard_normal(3),
        "obs_mean": rng.standard_normal(11),
        "obs_std": rng.uniform(0.5, 2, 11),
        "activation": np.array("tanh"),
        "squash_tanh": np.array(squash),
        "obs_clip": np.array(1.5),
    }


@pytest.fixture
def policy_file(tmp_path):
    np.savez(tmp_path / "p.npz", **arrays(np.random.default_rng(0)))
    return tmp_path / "p.npz"


def test_actions_are_those_of_the_formula(policy_file):
    rng = np.random.default_rng(1)
    obs, noise = 3 * rng.standard_normal((5, 11)), rng.standard_normal((5, 3))
    w = np.load(policy_file)
    x = np.clip((obs - w["obs_mean"]) / w["obs_std"], -1.5, 1.5)
    x = np.tanh(np.tanh(x @ w["W0"] + w["b0"]) @ w["W1"] + w["b1"])
    expected = np.tanh(x @ w["Wmu"] + w["bmu"] + np.exp(w["logstd"]) * noise)
    np.testing.assert_allclose(load_behavior(policy_file).act(obs, noise), expected)


def test_a_description_beside_the_file_serves_where_the_file_has_none(policy_file, tmp_path):
    inside = load_behavior(policy_file)
    with np.load(policy_file) as file:
        bare = {k: file[k] for k in file.files if file[k].dtype.kind == "f" and k != "obs_clip"}
    np.savez(tmp_path / "bare.npz", **bare)
    with pytest.raises(DataError, match="activation"):
        load_behavior(tmp_path / "bare.npz")
    said = {"bare": {"activation": "tanh", "squash_tanh": True, "obs_clip": 1.5}}
    (tmp_path / "META.json").write_text(json.dumps(said))
    obs = np.random.default_rng(0).standard_normal((4, 11))
    assert np.array_equal(load_behavior(tmp_path / "bare.npz").act(obs, 0.0), inside.act(obs, 0.0))


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("Wmu", None, "lacks Wmu"),
        ("b1", np.zeros(5), "b1"),
        ("W1", np.zeros((7, 8)), "do not fit"),
        ("W0", np.full((11, 8), np.nan), "finite"),
        ("logstd", np.zeros(2), "logstd|do not fit"),
        ("obs_std", np.zeros(11), "obs_std"),
        ("activation", np.array("gelu"), "activation"),
        ("logstd_clip", np.zeros(3), "logstd_clip"),
        ("logstd_clip", np.array([2.0, -2.0]), "rising"),
        ("activation", np.array(["tanh"]), "activation"),
        ("squash_tanh", np.array("false"), "squash_tanh"),
        ("obs_clip", np.array(np.nan), "obs_clip"),
        ("obs_clip", np.array("wide"), "obs_clip"),
        ("obs_mean", np.array(0.0), "obs_mean"),
        ("logstd", np.full(3, 1e4), "logstd"),
        ("W1", None, "b1"),
        ("W3", np.zeros((8, 8)), "no layer uses"),
        ("W0", np.array([None]), "W0|object|not"),
    ],
)
def test_a_broken_policy_file_is_refused_by_what_is_wrong(tmp_path, name, value, complaint):
    content = arrays(np.random.default_rng(0))
    content[name] = value
    if value is None:
        del content[name]
    np.savez(tmp_path / "p.npz", **content)
    with pytest.raises(DataError, match=complaint):
        load_behavior(tmp_path / "p.npz")


def test_files_that_are_no_policies_are_refused(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    for path in (tmp_path / "text.npz", tmp_path / "none.npz"):
        with pytest.raises(DataError, match=path.name):
            load_behavior(path)


def test_collected_episodes_are_whole_and_their_rows_follow_each_other(policy_file):
    data = collect(HOPPER, [load_behavior(policy_file)], 3_000, [0])
    assert len(data["rewards"]) == 3_000
    ends = data["terminals"] | data["timeouts"]
    inside = ~ends[:-1]
    np.testing.assert_array_equal(
        data["next_observations"][:-1][inside], data["observations"][1:][inside]
    )
    assert data["terminals"].sum() > 10  # An untrained hopper falls.
    assert ends[-1]
    assert (np.abs(data["actions"]) <= 1).all()


def test_the_horizon_cuts_an_episode_without_a_terminal(policy_file):
    data = collect(HOPPER, [load_behavior(policy_file)], 500, [0], horizon=7)
    lengths = np.diff(np.flatnonzero(np.append(True, data["terminals"] | data["timeouts"])))
    assert lengths.max() <= 7
    assert data["timeouts"].sum() > 0
    assert not (data["terminals"] & data["timeouts"]).any()


def test_the_same_seed_gives_the_same_data_and_another_seed_another(policy_file):
    policies = [load_behavior(policy_file)]
    first, again, other = (collect(HOPPER, policies, 400, [seed]) for seed in (3, 3, 4))
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    assert not np.array_equal(first["actions"], other["actions"])


def test_deterministic_data_has_the_mean_action(policy_file):
    policy = load_behavior(policy_file)
    data = collect(HOPPER, [policy], 200, [0], deterministic=True)
    expected = policy.act(data["observations"], 0.0)
    np.testing.assert_allclose(data["actions"], expected, atol=1e-4)


def test_a_collected_file_says_how_it_came_to_be_and_trains(policy_file, tmp_path):
    out = tmp_path / "mine.hdf5"
    collect_dataset(HOPPER, [policy_file, policy_file], 601, 5, out, task="hopper-medium-v2")
    with h5py.File(out) as file:
        recipe = json.loads(file.attrs["gemrl_recipe"])
    assert recipe["environment"] == HOPPER
    assert recipe["policies"] == 2 * [
        {"file": "p.npz", "sha256": load_behavior(policy_file).sha256}
    ]
    data = gemrl.load_dataset(out)
    assert (len(data), data.origin, data.task) == (601, "collected", "hopper-medium-v2")
    config = gemrl.BcConfig(steps=10, hidden=(8,))
    policy = gemrl.train(data, config, tmp_path / "run", quiet=True)
    assert policy.bundle.manifest["dataset"]["origin"] == "collected"


def test_an_environment_with_other_bounds_gets_actions_in_its_own_units(tmp_path):
    content = arrays(np.random.default_rng(0))
    content |= {"W0": np.ones((3, 8)), "obs_mean": np.zeros(3), "obs_std": np.ones(3)}
    content |= {"Wmu": np.ones((8, 1)), "bmu": np.zeros(1), "logstd": np.ones(1)}
    np.savez(tmp_path / "pendulum.npz", **content)
    collect_dataset("Pendulum-v1", [tmp_path / "pendulum.npz"], 300, 0, tmp_path / "d.hdf5")
    data = gemrl.load_dataset(tmp_path / "d.hdf5")
    assert (data.action_low, data.action_high) == ([-2.0], [2.0])
    assert np.abs(data.actions).max() > 1.5


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"env_id": "Walker2d-v4"}, "dimensions"),
        ({"env_id": "Nowhere-v0"}, "Nowhere"),
        ({"env_id": "Hopper-v2"}, "Hopper-v2"),
        ({"env_id": "nosuch:X-v0"}, "nosuch"),
        ({"steps": 0}, "steps"),
        ({"seed": -1}, "seed"),
        ({"horizon": 0}, "horizon"),
        ({"task": "walker2d-medium-v2"}, "Walker2d-v4"),
        ({"policies": []}, "policy"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(policy_file, tmp_path, changes, complaint):
    out = tmp_path / "never.hdf5"
    words = {"env_id": HOPPER, "policies": [policy_file], "steps": 50, "seed": 0, "out": out}
    with pytest.raises(ConfigError, match=complaint):
        collect_dataset(**(words | changes))
    assert not out.exists()


def test_other_peoples_policies_walk_at_their_published_level(test_data_folder):
    """The reader's forward pass against scores that were measured by others."""
    policy = load_behavior(test_data_folder / "policies" / "trpo_hopper_iter0500.npz")
    data = collect(HOPPER, [policy], 4_000, [0])
    returns = np.add.reduceat(
        data["rewards"], np.flatnonzero(np.append(True, data["timeouts"][:-1]))
    )
    assert returns.mean() / 3234.3 > 0.95


def test_an_environment_named_without_its_version_is_the_newest(policy_file):
    with pytest.raises(ConfigError, match=r"dimensions|cannot be made"):
        collect("Walker2d", [load_behavior(policy_file)], 50, [0])


@pytest.mark.parametrize("where", ["/proc/nope/x.hdf5", "folder.hdf5"])
def test_a_place_that_cannot_be_written_to_is_found_before_the_work(policy_file, tmp_path, where):
    (tmp_path / "folder.hdf5").mkdir()
    heard = []
    with pytest.raises(DataError, match="cannot write"):
        collect_dataset(HOPPER, [policy_file], 300, 0, tmp_path / where, report=heard.append)
    assert heard == []
