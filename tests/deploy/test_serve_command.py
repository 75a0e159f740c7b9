"""`gemrl serve` and `gemrl replay` as processes: started, asked, stopped and killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from asking import ask, talking

import gemrl

WORDS = [sys.executable, "-m", "gemrl"]
PATIENCE = 240


@pytest.fixture
def start(fast_policy, run_folder):
    """A function that starts a server as a person would, and waits until it is ready."""
    started = []

    def begin(*words, run=run_folder, **environment):
        process = subprocess.Popen(
            [*WORDS, "serve", str(run), "--port", "0", *words],
            env=os.environ | {"GEMRL_BACKEND": "fast", "PYTHONUNBUFFERED": "1"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        lines = []
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"ready: (http\S+)", line):
                watchdog.cancel()
                return SimpleNamespace(url=found[1], process=process, said=lines)
        raise AssertionError("".join(lines))

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def run(*words):
    return subprocess.run([*WORDS, *words], capture_output=True, text=True, timeout=PATIENCE)


def test_a_server_is_started_asked_and_drained_by_sigterm(
    start, fast_policy, observations, tmp_path
):
    patience = ["--wait-ms", str(1000 * PATIENCE), "--drain-seconds", str(PATIENCE)]
    server = start("--log", str(tmp_path / "log"), "--n", "16", "--wp", "0.5", *patience)
    knobs = gemrl.Knobs(n=16, wp=0.5, lam=fast_policy.default_knobs.lam)
    status, _, answer = ask(server, observation=observations[0].tolist(), seed=1)
    assert status == 200
    assert answer["action"] == fast_policy.decide(observations[0], knobs, seed=1).action.tolist()
    # A request that is being decided when the signal comes is still answered.
    found = {}
    slow = {"observation": np.tile(observations[:1], (60, 1)).tolist(), "knobs": {"n": 4000}}
    waiting = threading.Thread(target=lambda: found.update(answer=ask(server, **slow)))
    with talking(server) as say:
        waiting.start()
        while "gemrl_requests_in_progress 1.0" not in ask(server, "/metrics")[2]:
            assert waiting.is_alive(), "answered before it was seen"
        server.process.send_signal(signal.SIGTERM)
        waiting.join()
        assert found["answer"][0] == 200
        assert say.metadata["backend"] == "fast"
    assert server.process.wait(timeout=60) == 0
    assert "stopped" in server.process.stdout.read()
    replayed = run("replay", str(tmp_path / "log"), "--json")
    assert replayed.returncode == 0, replayed.stderr
    counts = json.loads(replayed.stdout)
    assert counts["same"] == counts["decisions"] == 61


def test_a_server_that_is_told_to_stop_while_it_compiles_stops(fast_policy, run_folder, tmp_path):
    process = subprocess.Popen(
        [*WORDS, "serve", str(run_folder), "--port", "0"],
        env=os.environ | {"GEMRL_BACKEND": "fast", "NUMBA_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "getting ready" in line:
                break
        process.send_signal(signal.SIGTERM)
        said = "".join(lines) + process.stdout.read()
        assert process.wait() == 0
    finally:
        watchdog.cancel()
        process.kill()
    assert "stopped" in said
    assert "ready: " not in said


def test_a_server_that_is_killed_leaves_a_log_that_replays(start, observations, tmp_path):
    server = start("--log", str(tmp_path / "log"), "--n", "8")
    with talking(server) as say:
        for seed, obs in enumerate(observations):
            assert "action" in say(observation=obs, seed=seed)
        server.process.kill()
        server.process.wait()
    replayed = run("replay", str(tmp_path / "log"))
    assert replayed.returncode == 0, replayed.stderr
    assert "0 different" in replayed.stdout
    [file] = (tmp_path / "log").iterdir()
    header, first, *rest = file.read_text().splitlines()
    changed = json.loads(first)
    changed["seed"] += 1
    file.write_text("\n".join([header, json.dumps(changed), *rest]) + "\n")
    replayed = run("replay", str(tmp_path / "log"))
    assert replayed.returncode == 2
    assert "1 decisions differ, the first at" in replayed.stderr


def test_the_token_comes_from_the_environment_or_a_file(start, tmp_path):
    server = start(GEMRL_TOKEN="from-the-environment")
    assert ask(server, "/readyz")[0] == 401
    right = {"authorization": "Bearer from-the-environment"}
    assert ask(server, "/readyz", right)[0] == 200


MISTAKES = [
    (["--host", "0.0.0.0"], "token"),
    (["--host", "not.a.host.example"], "token"),
    (["--token", "short"], "token"),
    (["--token", "long-enough-1", "--token-file", "x"], "exclude"),
    (["--token-file", "/nowhere"], "token-file"),
    (["--profiles", "/nowhere.json"], "profiles"),
    (["--redact", "seed"], "--log"),
    (["--gates", "act"], "gates"),
    (["--ladder", "anchor"], "--gates act"),
    (["--gates", "perhaps"], "perhaps"),
    (["--queue", "0"], "--queue"),
    (["--deadline-ms", "-1"], "deadline"),
    (["--n", "9999"], "--max-candidates"),
    (["--states", "/nowhere.hdf5"], "nowhere"),
    (["--shadow", "/nowhere"], "nowhere"),
    (["--alpha", "0.5"], "--alpha"),
    (["--alpha", "0.5", "--gates", "off"], "--alpha"),
    (["--log-days", "3"], "--log"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_is_one_clear_line_and_exit_code_two(
    run_folder, words, said, capsys, monkeypatch
):
    from gemrl.cli import main

    monkeypatch.delenv("GEMRL_TOKEN", raising=False)
    assert main(["serve", str(run_folder), *words]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert said in error[-1]
    assert error[-1].startswith("gemrl: ")


def test_a_taken_port_is_said_at_once(run_folder, capsys):
    from gemrl.cli import main

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(run_folder), "--port", str(port)]) == 2
    assert "cannot listen" in capsys.readouterr().err


def test_a_log_that_is_not_there_is_told_with_exit_code_two(run_folder, tmp_path, capsys):
    from gemrl.cli import main

    assert main(["replay", str(tmp_path / "none")]) == 2
    assert "no file of decisions" in capsys.readouterr().err
