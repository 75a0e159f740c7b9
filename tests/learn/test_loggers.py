"""TensorBoard and Weights & Biases: what a viewer sees of runs that were cut off and resumed."""

import gzip
import json
import struct
import sys
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog

from gemrl.errors import DataError, MissingExtraError, TrainingError
from gemrl.learn.loggers import WANDB_ID, Guarded, TensorBoard, open_sinks

CONFIG = {"steps": 100, "hidden": (8, 8), "pretrain_steps": None}


def open_tensorboard(out, done=0):
    (sink,) = open_sinks(out, tensorboard=True, wandb=None, config=CONFIG, done=done, name="run")
    return sink


def log_updates(sink, first, last, every=10):
    for update in range(first, last + 1, every):
        sink.log(update, {"actor/loss": update / 4, "critic/loss": update + 0.5})


# TensorBoard


def records(path):
    """The records of an event file, up to half a one at its end."""
    raw = path.read_bytes()
    at = 0
    while at + 12 <= len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        at += 12 + length + 4
        if at > len(raw):
            return
        yield raw[at - length - 4 : at - 4]


def seen_by_rule(folder):
    """Steps and values of each tag: a file's start forgets what came at its step or later."""
    seen = defaultdict(list)
    for path in sorted(folder.iterdir()):
        for record in records(path):
            event = Event.FromString(record)
            if event.session_log.status == SessionLog.START:
                for tag in seen:
                    seen[tag] = [pair for pair in seen[tag] if pair[0] < event.step]
            for value in event.summary.value:
                seen[value.tag].append((event.step, value.simple_value))
    return dict(seen)


def seen_by_tensorboard(folder):
    """The same, as TensorBoard itself reads it."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard's own reader is not installed",
    )
    found = accumulator.EventAccumulator(str(folder))
    found.Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


@pytest.fixture(params=[seen_by_rule, seen_by_tensorboard])
def seen(request):
    return request.param


def whole(last):
    return {
        "actor/loss": [(update, update / 4) for update in range(10, last + 1, 10)],
        "critic/loss": [(update, update + 0.5) for update in range(10, last + 1, 10)],
    }


def test_tensorboard_reads_what_was_logged(tmp_path, seen):
    sink = open_tensorboard(tmp_path)
    log_updates(sink, 10, 50)
    sink.close()
    assert seen(tmp_path / "tensorboard") == whole(50)


def test_a_run_that_is_killed_loses_no_record(tmp_path, seen):
    log_updates(open_tensorboard(tmp_path), 10, 50)  # Never closed.
    assert seen(tmp_path / "tensorboard") == whole(50)


def test_resumed_runs_leave_neither_gaps_nor_repeats(tmp_path, seen):
    # All within one second, and the first killed while it wrote a record.
    log_updates(open_tensorboard(tmp_path), 10, 80)
    (first,) = (tmp_path / "tensorboard").iterdir()
    with open(first, "ab") as file:
        file.write(first.read_bytes()[:20])
    for done, last in ((40, 60), (40, 90), (70, 120)):
        sink = open_tensorboard(tmp_path, done)
        log_updates(sink, done + 10, last)
        sink.close()
    assert seen(tmp_path / "tensorboard") == whole(120)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 4


def test_a_run_that_starts_over_is_shown_from_its_start(tmp_path, seen):
    log_updates(open_tensorboard(tmp_path), 10, 80)
    log_updates(open_tensorboard(tmp_path, 0), 10, 30)
    assert seen(tmp_path / "tensorboard") == whole(30)


def test_a_new_event_file_comes_after_all_others_whatever_was_deleted(tmp_path):
    for done in (0, 10, 20):
        open_tensorboard(tmp_path, done).close()
    folder = tmp_path / "tensorboard"
    (folder / "notes.txt").write_text("mine")
    before = sorted(folder.glob("events*"))
    before[0].unlink()
    before[1].unlink()
    open_tensorboard(tmp_path, 30).close()
    (new,) = set(folder.glob("events*")) - set(before)
    assert new.name > before[-1].name


def test_a_full_disk_is_told_once_and_training_goes_on(tmp_path, capsys):
    sink = open_tensorboard(tmp_path)
    log_updates(sink, 10, 20)
    assert isinstance(sink, Guarded)
    assert isinstance(sink.sink, TensorBoard)
    sink.sink._writer = RecordWriter("/dev/full")
    log_updates(sink, 30, 60)
    sink.close()
    assert capsys.readouterr().err.splitlines() == [
        "TensorBoard failed after update 30: [Errno 28] No space left on device. Training goes on "
        "without it; the metrics are in the run's metrics.jsonl"
    ]
    assert seen_by_rule(tmp_path / "tensorboard") == whole(20)


def test_a_sink_that_cannot_be_opened_stops_the_run_before_it_begins(tmp_path):
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    with pytest.raises(TrainingError, match=r"TensorBoard cannot take metrics: .*File exists"):
        open_tensorboard(tmp_path)


def test_no_sinks_are_opened_unless_asked_for(tmp_path):
    assert (
        open_sinks(tmp_path, tensorboard=False, wandb=None, config=CONFIG, done=0, name="run") == []
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("package", "asked", "extra"),
    [
        ("tensorboardX", {"tensorboard": True, "wandb": None}, r"'gemrl\[tensorboard\]'"),
        ("wandb", {"tensorboard": True, "wandb": "project"}, r"'gemrl\[wandb\]'"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, package, asked, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=f"{package}.*pip install {extra}"):
        open_sinks(tmp_path, config=CONFIG, done=0, name="run", **asked)


# Weights & Biases


@pytest.fixture
def wandb_with(monkeypatch, tmp_path):
    """Gives the package with variables of the environment, which it reads once a session."""
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: gemrl[wandb]")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # With neither keys nor settings.
    monkeypatch.setenv("WANDB_SILENT", "true")

    def with_variables(**variables):
        wandb.teardown()
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return wandb

    yield with_variables
    wandb.teardown()


@pytest.fixture
def wandb(wandb_with):
    """The package, offline."""
    return wandb_with(WANDB_MODE="offline")


def open_wandb(out, done=0):
    (sink,) = open_sinks(out, tensorboard=False, wandb="gemrl", config=CONFIG, done=done, name="r1")
    return sink


def log_records(path):
    """The records of a .wandb file: LevelDB's log format after a header of seven bytes."""
    raw, at, parts = path.read_bytes(), 7, []
    while at + 7 <= len(raw):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", raw, at)
        parts.append(raw[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # A whole record, or the last part of one.
            yield b"".join(parts)
            parts = []


def kept_offline(out):
    """For each start of a run its id, and update, step and loss of what it logged."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # Its own process writes on for a moment after a run's end.
    found = []
    for path in sorted(out.glob("wandb/offline-run-*/*.wandb")):
        run_id, rows = None, []
        for raw in log_records(path):
            record = Record.FromString(raw)
            if record.HasField("run"):
                run_id = record.run.run_id
            if record.HasField("history"):
                items = record.history.item
                values = {item.key or item.nested_key[0]: item.value_json for item in items}
                rows.append(tuple(json.loads(values[k]) for k in ("update", "_step", "actor/loss")))
        found.append((run_id, rows))
    return found


def test_wandb_keeps_metrics_offline_with_updates_as_steps(tmp_path, wandb):
    sink = open_wandb(tmp_path)
    log_updates(sink, 10, 30)
    sink.close()
    run_id = (tmp_path / WANDB_ID).read_text().strip()
    expected = [(10, 10, 2.5), (20, 20, 5.0), (30, 30, 7.5)]
    assert kept_offline(tmp_path) == [(run_id, expected)]


def test_a_resumed_run_has_the_same_id_and_one_that_starts_over_another(tmp_path, wandb):
    ids = []
    for done in (0, 20, 40, 0):
        open_wandb(tmp_path, done).close()
        ids.append((tmp_path / WANDB_ID).read_text())
    assert ids[0] == ids[1] == ids[2] != ids[3]


def test_a_run_of_the_callers_own_is_left_alone(tmp_path, wandb):
    own = wandb.init(project="mine", dir=str(tmp_path), id="mine")
    sink = open_wandb(tmp_path)
    log_updates(sink, 10, 20)
    sink.close()
    own.log({"update": 7, "actor/loss": 1.0}, step=7)
    own.finish()
    run_id = (tmp_path / WANDB_ID).read_text().strip()
    assert dict(kept_offline(tmp_path)) == {
        "mine": [(7, 7, 1.0)],
        run_id: [(10, 10, 2.5), (20, 20, 5.0)],
    }


def test_metrics_can_be_switched_off_from_outside(tmp_path, wandb_with):
    wandb_with(WANDB_MODE="disabled")
    sink = open_wandb(tmp_path)
    log_updates(sink, 10, 20)
    sink.close()
    assert kept_offline(tmp_path) == []


class Server(BaseHTTPRequestHandler):
    """As much of W&B's server as a client needs that resumes a run with steps up to 80."""

    RUN = {  # noqa: RUF012
        "id": "1",
        "name": "resumed",
        "displayName": "r1",
        "project": {"name": "gemrl", "entity": {"name": "me"}},
        "historyLineCount": 8,
        "eventsLineCount": 0,
        "logLineCount": 0,
        "historyTail": json.dumps([json.dumps({"_step": 80})]),
        "eventsTail": "[]",
        "summaryMetrics": "{}",
        "config": "{}",
        "wandbConfig": '{"t": 1}',
        "tags": [],
    }

    def do_POST(self):
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        if self.path.endswith("file_stream"):
            history = json.loads(raw).get("files", {}).get("wandb-history.jsonl", {})
            self.server.history += [json.loads(line) for line in history.get("content", [])]
        query = json.loads(raw).get("query", "") if self.path == "/graphql" else ""
        answers = {
            "Viewer": {"viewer": {"id": "1", "entity": "me", "flags": "{}"}},
            "RunResumeStatus": {"model": {"id": "1", "name": "gemrl", "bucket": self.RUN}},
            "UpsertBucket": {"upsertBucket": {"bucket": self.RUN, "inserted": False}},
            "CreateRunFiles": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}},
        }
        data = next((answer for name, answer in answers.items() if name in query), {})
        answer = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as found:
        found.history = []
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def test_updates_that_wandb_has_already_are_not_sent_again(tmp_path, wandb_with, server):
    address = f"http://127.0.0.1:{server.server_port}"
    wandb_with(WANDB_MODE="online", WANDB_API_KEY="0" * 40, WANDB_BASE_URL=address)
    (tmp_path / WANDB_ID).write_text("resumed\n")
    sink = open_wandb(tmp_path, done=50)
    log_updates(sink, 60, 110)
    sink.close()
    sent = [(row["_step"], row["update"], row["actor/loss"]) for row in server.history]
    assert sent == [(90, 90, 22.5), (100, 100, 25.0), (110, 110, 27.5)]


def test_without_an_account_the_run_does_not_begin(tmp_path, wandb_with, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    wandb_with(WANDB_MODE="online")
    with pytest.raises(TrainingError, match=r"Weights & Biases cannot take.*WANDB_MODE=offline"):
        open_wandb(tmp_path)


def test_a_run_that_cannot_keep_its_id_is_refused_in_words(tmp_path, wandb):
    (tmp_path / WANDB_ID).mkdir()
    with pytest.raises(DataError, match="it is a folder"):
        open_wandb(tmp_path)
