"""Robot programs that speak to an OpenPI policy server get actions from gemrl's unchanged."""

import json
import subprocess
import venv

import numpy as np
import pytest
from asking import patient
from clients import WireClient, packed

import gemrl
from gemrl.deploy.serve import Server

KNOBS = gemrl.Knobs(n=16)
TOKEN = "a-token-for-tests"
SEEDS = (0, 1, 2**32 - 1)
# The client's own list of requirements lacks typing-extensions, which it imports.
PACKAGES = ("openpi-client", "typing-extensions")
# What a robot's program does with the package, told in JSON: bytes of arrays as hexadecimal.
PROGRAM = """
import json, sys
import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

given = json.load(sys.stdin)
observation = np.array(given["observation"], np.float32)
policy = WebsocketClientPolicy("127.0.0.1", given["port"], given["api_key"])

def ask(**fields):
    actions = policy.infer({"observation": observation, **fields})["actions"]
    assert isinstance(actions, np.ndarray)
    return {"dtype": actions.dtype.str, "shape": actions.shape, "data": actions.tobytes().hex()}

answers = [ask(seed=seed) for seed in given["seeds"]]
try:
    policy.infer({"observation": observation[:-1]})
    error = None
except RuntimeError as raised:
    error = str(raised)
answers += [ask(seed=np.uint32(seed)) for seed in given["seeds"]]
said = {"metadata": policy.get_server_metadata(), "answers": answers, "error": error}
print(json.dumps(said))
"""


@pytest.fixture(scope="module", params=[None, TOKEN], ids=["open", "with a key"])
def server(request, policy):
    config = patient(token=request.param)
    with Server(policy, config, knobs=KNOBS) as running:
        yield running


@pytest.fixture(scope="module")
def openpi_python(request):
    """An interpreter that has openpi-client and an older NumPy, kept from run to run."""
    folder = request.config.cache.mkdir("openpi-client")
    python = folder / "bin" / "python"
    imports = [python, "-c", "import openpi_client.websocket_client_policy"]
    if python.exists() and subprocess.run(imports, capture_output=True).returncode == 0:
        return python
    venv.create(folder, with_pip=True, clear=True)
    options = ("--quiet", "--only-binary", ":all:", "--retries", "1", "--timeout", "15")
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", *options, *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip cannot install openpi-client: {done.stderr.strip()[-300:]}")
    return python


def run(python, **given):
    """The program of a robot, with what it is told on its standard input."""
    given = json.dumps(given)
    return subprocess.run([python, "-c", PROGRAM], input=given, capture_output=True, text=True)


def expected(policy, observation, seed):
    return policy.decide(observation, KNOBS, seed=seed).action


def test_the_openpi_client_gets_metadata_and_the_very_actions(
    server, policy, observations, openpi_python
):
    observation = observations[7]
    done = run(
        openpi_python,
        port=server.port,
        api_key=server.config.token,
        observation=observation.tolist(),
        seeds=SEEDS,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["metadata"]["digest"] == policy.digest
    assert said["metadata"]["observation_size"] == len(observation)
    assert len(said["answers"]) == 2 * len(SEEDS)
    for answer, seed in zip(said["answers"], SEEDS + SEEDS, strict=True):
        action = expected(policy, observation, seed)
        assert answer["shape"] == [1, len(action)]
        assert (answer["dtype"], answer["data"]) == (action.dtype.str, action.tobytes().hex())


def test_a_bad_observation_raises_in_the_openpi_client_with_the_typed_message(
    server, observations, openpi_python
):
    done = run(
        openpi_python,
        port=server.port,
        api_key=server.config.token,
        observation=observations[7].tolist(),
        seeds=[],
    )
    assert done.returncode == 0, done.stderr
    error = json.loads(done.stdout)["error"]
    said = json.loads(error[error.index("{") :])["error"]
    assert said["type"] == "ObservationError"
    assert "has shape (3,): must be [4]" in said["message"]


def test_the_openpi_client_without_its_key_is_turned_away(policy, observations, openpi_python):
    given = {"api_key": None, "observation": observations[0].tolist(), "seeds": [0]}
    with Server(policy, patient(token=TOKEN), knobs=KNOBS) as server:
        done = run(openpi_python, port=server.port, **given)
    assert done.returncode != 0
    assert "HTTP 401" in done.stderr


def test_arrays_with_keys_of_bytes_are_understood_and_sent_back(server, policy, observations):
    """The same wire without the package: the bytes of an array are as its client sends them."""
    observation = observations[3]
    message = packed({"observation": observation, "seed": 5})
    array = b"\x84\xc4\x0b__ndarray__\xc3\xc4\x04data\xc4\x10" + observation.tobytes()
    array += b"\xc4\x05dtype\xa3<f4\xc4\x05shape\x91\x04"
    assert message == b"\x82\xabobservation" + array + b"\xa4seed\x05"
    token = server.config.token
    headers = {"Authorization": f"Api-Key {token}"} if token else None
    with WireClient(server.url, headers) as client:
        assert client.metadata["digest"] == policy.digest
        action = expected(policy, observation, 5)
        answer = client.ask(observation=observation, seed=5)
        assert answer["actions"].dtype == np.float32
        assert answer["actions"].shape == (1, len(action))
        assert answer["actions"].tobytes() == action.tobytes()
        # A batch gets a row for each, decided as that row of that seed's batch.
        batch = client.ask(observation=observations[:3], seed=9)["actions"]
        rows = [
            expected(policy, observations[row : row + 1], np.array([[9, row]])) for row in range(3)
        ]
        assert batch.tobytes() == np.concatenate(rows).tobytes()


def test_a_mistake_is_text_and_the_connection_goes_on(server, policy, observations):
    token = server.config.token
    headers = {"Authorization": f"Api-Key {token}"} if token else None
    with WireClient(server.url, headers) as client:
        said = client.send(packed({"observation": observations[0], "knobs": {"n": -1}}))
        assert isinstance(said, str)
        assert json.loads(said)["error"]["type"] == "KnobError"
        answer = client.ask(observation=observations[0], seed=1)
        assert answer["actions"].tobytes() == expected(policy, observations[0], 1).tobytes()
