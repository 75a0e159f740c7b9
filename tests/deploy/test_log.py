"""The decision log: private, bounded, without what was redacted, and replayed bit for bit."""

import dataclasses
import fcntl
import json
import os
import stat
import time

import numpy as np
import pytest
from asking import ask, patient, talking

import gemrl
from gemrl.decide.gates import Gates
from gemrl.deploy.serve import Server
from gemrl.deploy.serve.log import LogConfig, read_log
from gemrl.deploy.serve.replay import replay
from gemrl.errors import BundleError, ConfigError, DataError

KNOBS = gemrl.Knobs(n=32, wp=gemrl.Cosine(0.3, 20))


def logged(policy, folder, run, requests, log=None, **parts):
    """Serve some requests with a log, and give their answers."""
    log = LogConfig(folder) if log is None else log
    with Server(policy, patient(gates=parts.pop("mode", "auto")), run=run, log=log,
                knobs=KNOBS, **parts) as server:  # fmt: skip
        return [ask(server, **request)[2] for request in requests]


def some_requests(observations):
    states = observations.tolist()
    return [
        {"observation": states[0], "episode": "a", "seed": 1},
        {"observation": states[1], "episode": "a"},
        {"observation": states[2:5], "t": 4, "seed": 3},
        {"observation": states[2:4], "t": [4, 9], "seed": [3, 4], "knobs": {"k_smooth": 5}},
        {"observation": states[5], "t": 0, "knobs": {"n": 0}},
        {"observation": states[6], "t": 0, "knobs": {"n": 2000}, "deadline_ms": 9000},
        {"observation": states[7], "t": 0, "knobs": {"source": "behavior", "anchor": "none"}},
        {"observation": [1], "t": 0},
    ]


def test_every_decision_is_logged_and_decided_again_bit_for_bit(
    fast_policy, run_folder, observations, tmp_path
):
    answers = logged(fast_policy, tmp_path, run_folder, some_requests(observations))
    [(_, header, lines)] = read_log(tmp_path)
    assert header["digest"] == fast_policy.digest
    assert len(lines) == 7
    assert [line["action"] for line in lines[:2]] == [[one["action"]] for one in answers[:2]]
    assert lines[1]["t"] == 1
    found = replay(tmp_path)
    assert (found.requests, found.decisions, found.same) == (7, 10, 10)
    assert found.different == []


def test_the_log_is_readable_by_its_owner_alone(fast_policy, run_folder, observations, tmp_path):
    folder = tmp_path / "log"
    logged(fast_policy, folder, run_folder, some_requests(observations)[:1])
    [file] = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_changed_record_is_found(fast_policy, run_folder, observations, tmp_path):
    logged(fast_policy, tmp_path, run_folder, some_requests(observations))
    [file] = tmp_path.iterdir()
    lines = file.read_text().splitlines()
    record = json.loads(lines[1])
    record["action"][0][0] = float(np.nextafter(np.float32(record["action"][0][0]), np.float32(9)))
    lines[1] = json.dumps(record)
    file.write_text("\n".join(lines) + "\n")
    found = replay(tmp_path)
    assert found.same == 9
    assert found.different == [f"{file.name}, line 2, row 0: action"]


CHANGES = [
    ("action", lambda line: line.update(action=None)),
    ("decisions", lambda line: line.update(decisions=[])),
    ("decisions", lambda line: line["decisions"].append(line["decisions"][0])),
    ("audit", lambda line: line["decisions"][0]["audit"]["executed"].update(support_z=0.5)),
    ("gates", lambda line: line["decisions"][0].update(gates={"flagged": False})),
    ("rung", lambda line: line["decisions"][0].update(rung="refuse")),
    ("score", lambda line: line["decisions"][0].update(score=1.0)),
    ("chosen", lambda line: line["decisions"][0].update(chosen=3)),
    ("extra", lambda line: line["decisions"][0].update(extra=3)),
    ("observation", lambda line: line.pop("observation")),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_a_record_that_was_falsified_is_never_the_same(
    fast_policy, run_folder, observations, tmp_path, name, change
):
    logged(fast_policy, tmp_path, run_folder, some_requests(observations)[:1])
    [file] = tmp_path.iterdir()
    header, first = file.read_text().splitlines()
    record = json.loads(first)
    change(record)
    file.write_text(f"{header}\n{json.dumps(record)}\n")
    if name in ("decisions", "observation") or record["action"] is None:
        with pytest.raises(DataError, match="line 2"):
            replay(tmp_path)
    else:
        found = replay(tmp_path)
        assert found.same == 0
        assert name in found.different[0]


def test_what_is_redacted_is_not_written(fast_policy, run_folder, observations, tmp_path):
    log = LogConfig(tmp_path, redact=("observation", "episode"))
    logged(fast_policy, tmp_path, run_folder, some_requests(observations)[:2], log)
    [(_, header, lines)] = read_log(tmp_path)
    assert header["redacted"] == ["observation", "episode"]
    for line in lines:
        assert "observation" not in line
        assert "episode" not in line
        assert "action" in line
    assert replay(tmp_path).redacted == 2


def test_files_are_bounded_and_the_oldest_go_first(fast_policy, run_folder, observations, tmp_path):
    log = LogConfig(tmp_path, file_mb=0.002, total_mb=0.008)
    old = tmp_path / "decisions-20200101T000000-1-000000.jsonl"
    old.write_text("x" * 100)
    os.utime(old, (1, 1))
    requests = [{"observation": obs.tolist(), "t": 0} for obs in observations]
    logged(fast_policy, tmp_path, run_folder, requests, log)
    files = sorted(tmp_path.iterdir())
    assert not old.exists()
    assert len(files) > 1
    assert sum(file.stat().st_size for file in files) < 0.013e6
    found = replay(tmp_path)
    assert found.same == found.decisions > 0


def test_files_older_than_the_retention_are_removed(fast_policy, run_folder, tmp_path):
    kept = tmp_path / "decisions-20200101T000000-1-000000.jsonl"
    gone = tmp_path / "decisions-20200101T000000-1-000001.jsonl"
    written = tmp_path / "decisions-20200101T000000-1-000002.jsonl"
    others = [tmp_path / "notes.txt", tmp_path / "decisions-report.jsonl"]
    for file, days in ((kept, 6), (gone, 8), (written, 8), *((other, 99) for other in others)):
        file.write_text("")
        os.utime(file, (time.time() - 86_400 * days,) * 2)
    with written.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # As another server does with its file.
        logged(fast_policy, tmp_path, run_folder, [], LogConfig(tmp_path, days=7))
    assert kept.exists()
    assert written.exists()
    assert all(other.exists() for other in others)
    assert not gone.exists()


def test_the_rungs_of_a_guard_are_replayed_too(
    fast_policy, run_folder, maze_data, observations, tmp_path
):
    knobs = dataclasses.replace(KNOBS, wp=0.5)
    gates = Gates.calibrate(fast_policy, maze_data, knobs, states=600, components=4)
    gates.save(run_folder)
    strange = observations[:6] + np.float32(20)
    requests = [{"observation": obs.tolist(), "t": 1} for obs in (*strange, *observations[:6])]
    requests.append({"observation": [strange[0].tolist(), observations[0].tolist()], "t": 1})
    try:
        answers = logged(fast_policy, tmp_path, run_folder, requests, mode="act")
        found = replay(tmp_path)
    finally:
        (run_folder / "gates.safetensors").unlink()
    rungs = [record["rung"] for _, _, lines in read_log(tmp_path) for line in lines
             for record in line["decisions"]]  # fmt: skip
    assert "search" in rungs
    assert {"refuse"} < set(rungs)
    assert any(answer.get("error", {}).get("type") == "RefusedError" for answer in answers)
    assert found.same == found.decisions == 14


def test_a_log_that_was_cut_short_is_read_to_its_last_whole_line(
    fast_policy, run_folder, observations, tmp_path
):
    logged(fast_policy, tmp_path, run_folder, some_requests(observations))
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-40])
    assert replay(tmp_path).requests == 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a log"),
        ("{}\n", "not a log"),
        ("x\n", "line 1"),
        ('{"gemrl_decisions": 99}\n', "not a log"),
        ("HEADER[1]\n", "line 2"),
        ('HEADER{"observation": [[0,0,0,0]]}\n', "line 2"),
        ("HEADER" + "[" * 9999 + "\n", "line 2"),
    ],
)
def test_a_file_that_is_no_log_is_refused_by_name(fast_policy, run_folder, tmp_path, text, said):
    header = {
        "gemrl_decisions": 1,
        "digest": fast_policy.digest,
        "backend": "fast",
        "run": str(run_folder),
        "gates": None,
        "redacted": [],
    }
    file = tmp_path / "decisions-1.jsonl"
    file.write_text(text.replace("HEADER", json.dumps(header) + "\n"))
    with pytest.raises(DataError, match=said):
        replay(file)


def test_the_log_of_another_policy_is_refused(
    fast_policy, run_folder, maze_data, observations, tmp_path
):
    config = gemrl.GemConfig(steps=5, pretrain_steps=5, components=2, hidden=(32, 32), critics=2)
    gemrl.train(maze_data, config, tmp_path / "other", quiet=True)
    logged(fast_policy, tmp_path / "log", run_folder, some_requests(observations)[:1])
    with pytest.raises(BundleError, match="--run"):
        replay(tmp_path / "log", tmp_path / "other")
    with pytest.raises(DataError, match="no file of decisions"):
        replay(tmp_path / "nothing")


@pytest.mark.parametrize(
    "bad", [{"file_mb": 0}, {"days": -1}, {"total_mb": float("nan")}, {"redact": ("seed",)}]
)
def test_bad_settings_of_the_log_are_refused(tmp_path, bad):
    with pytest.raises(ConfigError):
        LogConfig(tmp_path, **bad)


def test_a_folder_that_cannot_be_written_is_said_at_the_start(fast_policy, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ConfigError, match="cannot write a log"):
        Server(fast_policy, patient(), log=LogConfig(blocked / "log"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a disk that is always full")
def test_a_full_disk_costs_log_lines_that_are_counted_and_no_decision(
    fast_policy, run_folder, observations, tmp_path, capfd
):
    log = LogConfig(tmp_path)
    with Server(fast_policy, patient(), run=run_folder, log=log, knobs=KNOBS) as server:
        # The file that is written becomes one on a disk that has no room left.
        with open("/dev/full", "wb", buffering=0) as full:
            os.dup2(full.fileno(), server.service.log._file)
        answers = []
        with talking(server) as say:
            for obs in observations[:3]:
                done = server.service.log.written + server.service.log.lost
                answers.append(say(observation=obs, t=0))
                for _ in range(1000):
                    if server.service.log.written + server.service.log.lost > done:
                        break
                    time.sleep(0.01)
    assert all("action" in answer for answer in answers)
    assert server.service.log.lost == 1
    found = replay(tmp_path)
    assert (found.missing, found.same) == (1, 2)
    assert "missing in the log" in capfd.readouterr().err
