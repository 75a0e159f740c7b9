"""Datasets of a local Minari store, each written by the Minari library itself."""

import json
import re

import h5py
import numpy as np
import pytest

import gemrl
from gemrl.errors import DataError

gym = pytest.importorskip("gymnasium")
minari = pytest.importorskip("minari")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")

ID = "test/plant-v0"
BOX = gym.spaces.Box


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    return tmp_path / "store"


def episode(number, steps, observe, terminated=False):
    """Observations hold 100 * episode + step, so that rows can be told apart."""
    states = 100.0 * number + np.arange(steps + 1)
    return minari.data_collector.EpisodeBuffer(
        observations=observe(states),
        actions=[np.array([0.1 * number, -0.5], np.float32) for _ in range(steps)],
        rewards=[float(step) for step in range(steps)],
        terminations=[terminated and step == steps - 1 for step in range(steps)],
        truncations=[not terminated and step == steps - 1 for step in range(steps)],
    )


def write(episodes, observation_space, action_space=None, **options):
    minari.create_dataset_from_buffers(
        ID,
        episodes,
        observation_space=observation_space,
        action_space=action_space or BOX(np.array([-1, -2]), np.array([3, 2]), dtype=np.float32),
        **options,
    )
    return f"minari:{ID}"


def vector(states):
    return [np.array([state, -state]) for state in states]


def vectors(count=12, **options):
    episodes = [episode(n, 3 + n % 2, vector, terminated=n % 3 == 0) for n in range(count)]
    return write(episodes, BOX(-np.inf, np.inf, (2,), np.float64), **options)


def refusal(source, **kwargs):
    with pytest.raises(DataError) as caught:
        gemrl.load_dataset(source, **kwargs)
    return str(caught.value)


def test_a_store_is_read_as_the_library_reads_it(capsys):
    data = gemrl.load_dataset(vectors())
    theirs = list(minari.load_dataset(ID).iterate_episodes())
    assert len(data) == sum(len(e.rewards) for e in theirs)
    for ours, name in ((data.actions, "actions"), (data.rewards, "rewards")):
        assert np.allclose(ours, np.concatenate([getattr(e, name) for e in theirs]))
    assert np.allclose(data.observations, np.concatenate([e.observations[:-1] for e in theirs]))
    assert np.allclose(data.next_observations, np.concatenate([e.observations[1:] for e in theirs]))
    assert (data.source, data.task, data.origin) == (f"minari:{ID}", None, "unknown")
    assert capsys.readouterr().out == ""


def test_episodes_come_in_the_order_of_their_numbers():
    data = gemrl.load_dataset(vectors(count=12))
    first = data.observations[data.episode_starts, 0]
    assert first.tolist() == [100.0 * n for n in range(12)]


def test_a_termination_ends_bootstrapping_and_a_truncation_only_the_episode():
    data = gemrl.load_dataset(vectors(count=4))
    lengths = [3, 4, 3, 4]
    assert data.episodes.tolist() == np.repeat(range(4), lengths).tolist()
    masks = np.ones(14)
    masks[[2, 13]] = 0
    assert data.masks.tolist() == masks.tolist()
    # No row is lost: every last observation is in the file.
    assert data.next_observations[2, 0] == 3
    assert data.next_observations[6, 0] == 104


def test_an_episode_that_neither_terminates_nor_is_cut_ends_all_the_same(store):
    source = vectors(count=2)
    with h5py.File(store / ID / "data" / "main_data.hdf5", "a") as file:
        file["episode_1/truncations"][:] = False
    assert gemrl.load_dataset(source).episodes.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_the_bounds_are_those_of_the_action_space(capsys):
    data = gemrl.load_dataset(vectors())
    assert data.bounds_origin == "file"
    assert (data.action_low.tolist(), data.action_high.tolist()) == ([-1, -2], [3, 2])
    assert "action bounds: [-1, -2] to [3, 2], as the file has them" in capsys.readouterr().err


def test_an_open_action_space_leaves_the_bounds_to_the_data():
    data = gemrl.load_dataset(vectors(action_space=BOX(-np.inf, np.inf, (2,), np.float32)))
    assert data.bounds_origin == "data"
    assert data.action_low[0] == 0
    assert data.action_high[0] == np.float32(1.1)


def test_dictionaries_are_joined_in_the_order_of_their_keys_and_it_is_said(capsys):
    space = gym.spaces.Dict(
        {
            "observation": BOX(-np.inf, np.inf, (3,), np.float64),
            "desired_goal": BOX(-np.inf, np.inf, (2,), np.float64),
            "achieved_goal": gym.spaces.Dict(
                {name: BOX(-np.inf, np.inf, (1,), np.float64) for name in ("y", "x")}
            ),
        }
    )

    def observe(states):
        return {
            "observation": [np.full(3, state) for state in states],
            "desired_goal": [np.full(2, state + 0.25) for state in states],
            "achieved_goal": {
                "y": [np.full(1, state + 0.5) for state in states],
                "x": [np.full(1, state + 0.75) for state in states],
            },
        }

    data = gemrl.load_dataset(write([episode(n, 3, observe) for n in range(2)], space))
    assert data.observations[1].tolist() == [1.75, 1.5, 1.25, 1.25, 1, 1, 1]
    assert data.next_observations[1].tolist() == [2.75, 2.5, 2.25, 2.25, 2, 2, 2]
    note = (
        "observations are joined in the order of their keys: achieved_goal.x [0:1], "
        "achieved_goal.y [1:2], desired_goal [2:4], observation [4:7]"
    )
    assert note in data.notes
    assert note in capsys.readouterr().err


def test_keys_that_would_be_one_when_joined_are_refused(store):
    source = vectors(count=2)
    with h5py.File(store / ID / "data" / "main_data.hdf5", "a") as file:
        for name, steps in (("episode_0", 3), ("episode_1", 4)):
            del file[f"{name}/observations"]
            for key in ("a/x", "a.x"):
                file[f"{name}/observations/{key}"] = np.zeros((steps + 1, 1))
    about = store / ID / "data" / "metadata.json"
    about.write_text("{}")
    assert "observations have 'a.x' twice" in refusal(source)


def test_discrete_actions_are_refused():
    episodes = [
        minari.data_collector.EpisodeBuffer(
            observations=vector(np.arange(4)),
            actions=[0, 1, 0],
            rewards=[0.0] * 3,
            terminations=[False] * 3,
            truncations=[False, False, True],
        )
    ]
    source = write(episodes, BOX(-np.inf, np.inf, (2,), np.float64), gym.spaces.Discrete(2))
    assert "the space of the action is Discrete" in refusal(source)


@pytest.mark.parametrize(
    ("space", "observe", "words"),
    [
        (gym.spaces.Discrete(1000), lambda s: [int(x) for x in s], "observation is Discrete"),
        (gym.spaces.Text(5), lambda s: ["warm" for _ in s], "observation is Text"),
        (
            BOX(0, 255, (8, 8, 3), np.uint8),
            lambda s: [np.zeros((8, 8, 3), np.uint8) for _ in s],
            "images",
        ),
        (
            gym.spaces.Dict({"mode": gym.spaces.Discrete(1000)}),
            lambda s: {"mode": [int(x) for x in s]},
            "observation.mode is Discrete",
        ),
        (
            gym.spaces.Tuple([BOX(-np.inf, np.inf, (2,), np.float64)]),
            lambda s: (vector(s),),
            "observation is Tuple",
        ),
    ],
)
def test_observations_that_are_no_vectors_are_refused(space, observe, words):
    message = refusal(write([episode(0, 3, observe)], space))
    assert words in message
    assert f"minari:{ID}" in message


def test_another_storage_format_is_refused_with_its_name():
    pytest.importorskip("pyarrow")
    message = refusal(vectors(data_format="arrow"))
    assert "'arrow'" in message
    assert "data_format='hdf5'" in message


def test_a_dataset_that_is_not_there_names_the_store_and_the_command(store):
    message = refusal("minari:D4RL/door/human-v2")
    assert str(store) in message
    assert "minari download D4RL/door/human-v2" in message


@pytest.mark.parametrize("name", ["", "../elsewhere", "/etc"])
def test_an_id_cannot_leave_the_store(name):
    assert "not a dataset's ID" in refusal(f"minari:{name}")


def test_a_store_can_be_in_the_home_folder(store, tmp_path, monkeypatch):
    source = vectors()
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".minari").mkdir()
    store.rename(tmp_path / ".minari" / "datasets")
    assert len(gemrl.load_dataset(source)) == 42


# Damaged stores


@pytest.fixture
def damaged(store):
    """A store's HDF5 file, to be damaged."""
    vectors(count=3)
    return store / ID / "data" / "main_data.hdf5"


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminations"])
def test_a_missing_array_is_named_with_its_episode(damaged, name):
    with h5py.File(damaged, "a") as file:
        del file[f"episode_1/{name}"]
    assert f"episode_1 lacks {name}" in refusal(f"minari:{ID}")


def test_an_observation_too_few_is_refused(damaged):
    with h5py.File(damaged, "a") as file:
        file["episode_1/observations"].resize((4, 2))
    message = refusal(f"minari:{ID}")
    assert "episode_1" in message
    assert "a row more than there are actions" in message


def test_an_episode_in_another_file_is_refused(damaged, tmp_path):
    with h5py.File(damaged, "a") as file:
        del file["episode_1"]
        file["episode_1"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "/episode_1")
    assert "leaves the file" in refusal(f"minari:{ID}")


def test_an_episode_of_another_width_is_refused(damaged):
    with h5py.File(damaged, "a") as file:
        del file["episode_2/observations"]
        file["episode_2/observations"] = np.zeros((4, 5))
    assert "episode_2" in refusal(f"minari:{ID}")


def test_a_claim_of_a_billion_steps_is_refused(damaged):
    with h5py.File(damaged, "a") as file:
        for name, shape in (("observations", (10**9 + 1, 2)), ("actions", (10**9, 2))):
            del file[f"episode_1/{name}"]
            file.create_dataset(f"episode_1/{name}", shape, "f4", chunks=(1000, 2))
        for name in ("rewards", "terminations", "truncations"):
            del file[f"episode_1/{name}"]
            file.create_dataset(f"episode_1/{name}", (10**9,), "f4", chunks=(1000,))
    assert re.search("damaged or hostile|interrupted writer", refusal(f"minari:{ID}"))


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"action_space": "{"}', "\x00"])
def test_metadata_that_is_no_json_is_refused(damaged, text):
    (damaged.parent / "metadata.json").write_text(text)
    assert "JSON" in refusal(f"minari:{ID}")


def test_a_store_without_metadata_is_read_with_the_bounds_of_its_data(damaged):
    (damaged.parent / "metadata.json").unlink()
    assert gemrl.load_dataset(f"minari:{ID}").bounds_origin == "data"


def test_bounds_of_another_size_are_refused(damaged):
    path = damaged.parent / "metadata.json"
    about = json.loads(path.read_text())
    about["action_space"] = json.dumps({"type": "Box", "low": [-1] * 5, "high": [1] * 5})
    path.write_text(json.dumps(about))
    assert "5 dimensions" in refusal(f"minari:{ID}")
