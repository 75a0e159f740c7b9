"""The decision log: files of JSON lines, only ever appended to, which the owner alone can read.

Each file begins with a header that says which policy decided and how. A line holds all that is
needed to decide again bit for bit, but for what the operator chose to leave out.
"""

import fcntl
import json
import math
import os
import queue
import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemrl.data.storage import FULL
from gemrl.decide.policy import Policy
from gemrl.deploy.serve import answers
from gemrl.deploy.serve.decider import Outcome
from gemrl.errors import ConfigError, DataError

FORMAT = 1
REDACTABLE = ("observation", "action", "episode")
OF_A_DECISION = ("n_scored", "block", "chosen", "score", "wp", "audit", "gates", "rung")
# Lines that wait for a slow disk, and the memory that those of single states may take; a number in
# a line is an object and its place in a list.
WAITING = 10_000
WAITING_BYTES, NUMBER_BYTES = 256 * 2**20, 32
PATTERN = "decisions-*.jsonl"
# What this module names its files, by time, process and number: nothing else is ever removed.
OWN_NAME = re.compile(r"decisions-\d{8}T\d{6}-\d+-\d{6}\.jsonl")


@dataclass(frozen=True)
class LogConfig:
    """Where the log goes and how much of it is kept."""

    folder: Path
    """Folder of the log's files."""
    file_mb: float = 64.0
    """A file larger than this is followed by a new one."""
    total_mb: float = 1024.0
    """The oldest files are removed where all of them are larger than this."""
    days: float = 30.0
    """Files last written to longer ago are removed."""
    redact: tuple[str, ...] = ()
    """Fields that are not written: observation, action, episode."""

    def __post_init__(self) -> None:
        for name in ("file_mb", "total_mb", "days"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"log {name} = {getattr(self, name)}: must be above 0")
        for name in self.redact:
            if name not in REDACTABLE:
                raise ConfigError(f"redact has {name!r}: must be of {', '.join(REDACTABLE)}")


class DecisionLog:
    """Writes in a thread of its own. Lines that it cannot write in time are counted, and the log
    itself says how many are missing.
    """

    def __init__(self, config: LogConfig, policy: Policy, about: dict[str, Any]) -> None:
        self.config = config
        self.written = 0
        self.lost = 0
        self._unsaid = 0
        self._header = {
            "gemrl_decisions": FORMAT,
            "digest": policy.digest,
            "backend": policy.backend.name,
            "redacted": list(config.redact),
            **about,
        }
        try:
            config.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file, self._size = self._new_file(), 0.0
        except OSError as error:
            raise ConfigError(f"cannot write a log in {config.folder}: {error.strerror}") from error
        self._retain()
        of_one = NUMBER_BYTES * policy.input_spec.obs_dim
        most = min(WAITING, max(1, WAITING_BYTES // of_one))
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(most)
        self._thread = threading.Thread(target=self._work, name="logging", daemon=True)
        self._thread.start()

    def write(self, outcome: Outcome) -> None:
        """Queue a decision to be written."""
        try:
            # The line now: the outcome has all candidates, and many may wait.
            self._queue.put_nowait(record(outcome, time.time(), self.config.redact))
        except queue.Full:
            self._lose(1, "the disk is too slow")

    def close(self) -> None:
        """Write what waits and close the file."""
        self._queue.put(None)
        self._thread.join()
        os.close(self._file)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            lines = [item]
            while not self._queue.empty() and len(lines) < 256:
                following = self._queue.get()
                if following is None:
                    self._queue.put(None)
                    break
                lines.append(following)
            try:
                self._append(lines)
            except OSError as error:
                reason = "the disk is full" if error.errno in FULL else error.strerror
                self._lose(len(lines), str(reason))
            except Exception as error:
                # A defect of ours must not end the thread: nothing would be written any more.
                self._lose(len(lines), repr(error))

    def _append(self, records: list[dict[str, Any]]) -> None:
        missing = self._unsaid
        lines = [{"missing": missing}, *records] if missing else records
        room, waiting = self.config.file_mb * 1e6, b""
        for line in lines:
            text = (json.dumps(line, separators=(",", ":")) + "\n").encode()
            if self._size and self._size + len(waiting) + len(text) > room:
                self._write_whole(waiting)
                waiting = b""
                following = self._new_file()
                os.close(self._file)
                self._file, self._size = following, 0
                self._retain()
            waiting += text
        self._write_whole(waiting)
        self._unsaid -= missing
        self.written += len(records)

    def _write_whole(self, text: bytes) -> None:
        """Append all of it, or none: half a line would be taken for a damaged file."""
        start = os.fstat(self._file).st_size
        try:
            done = 0
            while done < len(text):
                done += os.write(self._file, text[done:])
        except OSError:
            try:
                os.ftruncate(self._file, start)
            except OSError:
                self._size = math.inf  # So that the next line begins a new file.
            raise
        self._size = start + len(text)

    def _lose(self, count: int, reason: str) -> None:
        if not self.lost:
            print(f"gemrl: decisions are missing in the log: {reason}", file=sys.stderr)
        self.lost += count
        self._unsaid += count

    def _new_file(self) -> int:
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        for number in range(1_000_000):
            name = self.config.folder / f"decisions-{moment}-{os.getpid()}-{number:06}.jsonl"
            try:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
                file = os.open(name, flags, 0o600)
            except FileExistsError:
                continue
            try:
                # Held as long as it is written, so that no other server removes it.
                fcntl.flock(file, fcntl.LOCK_EX)
                os.write(file, (json.dumps(self._header) + "\n").encode())
            except OSError:
                os.close(file)
                name.unlink(missing_ok=True)
                raise
            self._name = name
            return file
        raise OSError("no name is left for a new file of the log")

    def _retain(self) -> None:
        """Remove the oldest files beyond the limits, never the one that is written."""
        oldest = time.time() - self.config.days * 86_400
        total = 0
        own = [path for path in self.config.folder.iterdir() if OWN_NAME.fullmatch(path.name)]
        found = [(path.stat(), path) for path in own]
        for stat, path in sorted(found, key=lambda pair: pair[0].st_mtime_ns, reverse=True):
            total += stat.st_size
            beyond = total > self.config.total_mb * 1e6 or stat.st_mtime < oldest
            if beyond and path != self._name and not _is_written(path):
                path.unlink(missing_ok=True)


def _is_written(path: Path) -> bool:
    """Whether a server is writing to a file."""
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def record(outcome: Outcome, moment: float, redact: tuple[str, ...] = ()) -> dict[str, Any]:
    """A request and its decisions as a line of the log."""
    ask = outcome.ask
    rows = [answers.row(outcome, place) for place in range(len(outcome.decisions))]
    line = {
        "time": moment,
        "source": ask.source,
        "episode": ask.episode,
        "observation": ask.rows.tolist(),
        "knobs": answers.plain_knobs(ask.knobs),
        "seed": answers.plain(ask.seed),
        "t": answers.plain(ask.t),
        "deadline_ms": ask.deadline_ms,
        "fallback": outcome.fallback,
        **answers.timings(outcome),
        "action": [row["action"] for row in rows],
        "decisions": [about(row) for row in rows],
    }
    return {name: value for name, value in line.items() if name not in redact}


def about(row: dict[str, Any]) -> dict[str, Any]:
    """What the log has of one decision beside its action."""
    return {name: row[name] for name in OF_A_DECISION}


def read_log(path: Path) -> list[tuple[Path, dict[str, Any], list[dict[str, Any]]]]:
    """Each file of a folder, or the one given, oldest first, with its header and its lines."""
    files = sorted(path.glob(PATTERN)) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise DataError(f"{path}: no file of decisions there")
    return [(file, *_read_file(file)) for file in files]


def _read_file(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = path.read_bytes().split(b"\n")
    # A server that was killed may have left half a line; nothing follows it.
    whole = lines[:-1]
    values = []
    for number, line in enumerate(whole, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(value, dict):
            raise DataError(f"{path}, line {number}: not a record of a decision")
        values.append(value)
    if not values or values[0].get("gemrl_decisions") != FORMAT:
        raise DataError(f"{path}: not a log of decisions that this version reads")
    return values[0], values[1:]
