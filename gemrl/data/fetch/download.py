"""A file from the web: resumed, verified, recorded, and under its name only once it is whole.

The bytes so far are in `.NAME.part`, what the server said of them in `.NAME.part.json`, so that
bytes of two versions never mix.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from gemrl.data.fetch.web import Answer, Failure, Part, ask
from gemrl.data.storage import write_text
from gemrl.errors import DataError
from gemrl.progress import bar, say

Report = Callable[[int, int | None], None]
"""Called with the bytes at hand and the bytes of the whole file, where that is known."""
Check = Callable[[Path], str | None]
"""What is wrong with a file's content, if anything."""


@dataclass(frozen=True)
class Record:
    """What is known of a fetched file; kept beside it as `NAME.json`."""

    url: str | None
    """Where it came from; none for a file that was put there by hand."""
    size: int
    sha256: str
    date: str
    verified: str


def silent(done: int, total: int | None) -> None:
    """A report that says nothing."""


def unchecked(path: Path) -> None:
    """A check that finds nothing wrong."""


@contextmanager
def megabytes_bar(title: str, quiet: bool = False) -> Iterator[Report]:
    """A progress bar for a fetch, whose size shows only once a server has answered."""
    with ExitStack() as stack:
        shown: dict[int, Callable[[int], None]] = {}

        def report(done: int, total: int | None) -> None:
            if total is None:
                return
            if total not in shown:
                stack.close()  # It was another mirror's file, or the one before.
                shown.clear()
                shown[total] = stack.enter_context(bar(title, -(-total // 10**6), "MB", quiet))
            shown[total](-(-done // 10**6))

        yield report


def record_path(out: Path) -> Path:
    """Where a file's record is kept."""
    return out.with_name(f"{out.name}.json")


def read_record(out: Path) -> Record | None:
    """The record of an earlier fetch."""
    path = record_path(out)
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path}: not a readable record of a fetch ({error}); delete it to fetch {out.name} "
            "without the checksum that it held"
        ) from error


def write_record(out: Path, url: str | None, sha256: str, size: int, verified: str) -> Record:
    """Record a file that was found whole."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    record = Record(url, size, sha256, date, verified)
    with writing(record_path(out)):
        write_text(record_path(out), json.dumps(asdict(record), indent=2) + "\n")
    return record


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process fetches this. The lock ends with its process, however it ends."""
    with ExitStack() as stack:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path.with_name(f".{path.name}.lock"), "w"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is fetching {path.name}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def writing(path: Path, kept: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """An error of the disk in the project's words."""
    try:
        yield
    except OSError as error:
        text = f"cannot write {path}: {error.strerror or error}"
        if have := kept():
            text += f"; {have:,} bytes are kept, and the next fetch goes on from there"
        raise DataError(text) from error


def digest(path: Path, algorithm: str = "sha256") -> str:
    """A file's checksum in hexadecimal."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


@dataclass
class Download:
    """A file on its way to `out`, and what it must be."""

    out: Path
    sha256: str | None
    trust: str
    """Where the SHA-256 is from."""
    size: int | None
    signature: bytes
    """How the file's content begins."""
    check: Check
    timeout: float
    report: Report

    @property
    def part(self) -> Path:
        """The bytes so far."""
        return self.out.with_name(f".{self.out.name}.part")

    @property
    def notes(self) -> Path:
        """What the server said of them."""
        return self.out.with_name(f".{self.out.name}.part.json")

    def have(self) -> int:
        """How many bytes are at hand."""
        return self.part.stat().st_size if self.part.exists() else 0

    def drop(self) -> None:
        """Forget the bytes at hand."""
        self.part.unlink(missing_ok=True)
        self.notes.unlink(missing_ok=True)

    def attempt(self, url: str) -> Part:
        """Get what is missing from one place. After it the partial file is whole and verified."""
        part, have = self._partial()
        resumed = part is not None
        if part is None or have != part.total:
            part, resumed = self._receive(url, part, have)
        if complaint := self._complaint(part):
            self.drop()
            raise Failure(complaint, again=resumed)
        return part

    def _partial(self) -> tuple[Part | None, int]:
        """What an earlier attempt left that can be gone on with."""
        have = self.have()
        try:
            part = Part(**json.loads(self.notes.read_text(encoding="utf-8")))
            usable = part.total is not None and 0 < have <= part.total
        except (OSError, ValueError, TypeError):
            return None, 0
        return (part, have) if usable and (part.validator or have == part.total) else (None, 0)

    def _receive(self, url: str, part: Part | None, have: int) -> tuple[Part, bool]:
        """Write the missing bytes to the partial file; also whether older ones stand before."""
        known = self.sha256 is not None
        asked = {"Range": f"bytes={have}-", "If-Range": part.validator or ""} if part else {}
        answer = ask(url, self.timeout, asked, known)
        if part and answer.continues(part, have):
            with answer.body:
                self._append(answer.blocks(self.timeout), part.total, have)
            return part, True
        if part and answer.status != 200:
            # The range is past the end, or of another file.
            answer.body.close()
            answer = ask(url, self.timeout, {}, known)
        with answer.body:
            self._judge(answer)
            blocks, head = answer.blocks(self.timeout), b""
            while len(head) < len(self.signature) and (block := next(blocks, b"")):
                head += block
            if head[: len(self.signature)] != self.signature[: len(head)]:
                raise Failure("sent something else than the file: it begins differently")
            part = Part(url, answer.validator, answer.total, answer.digests)
            with writing(self.part):
                # Emptied before the notes change: a kill in between leaves nothing to mix.
                self.part.write_bytes(b"")
                write_text(self.notes, json.dumps(asdict(part)))
            self._append(chain([head], blocks), part.total, 0)
        return part, False

    def _judge(self, answer: Answer) -> None:
        """Refuse what cannot be the file asked for, before it replaces any bytes at hand."""
        if answer.status != 200:
            raise Failure(f"HTTP {answer.status} to a request for the whole file")
        if answer.headers.get_content_type() == "text/html":
            raise Failure("sent a web page, not the file")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise Failure("sent the file in an encoding that was not asked for")
        told = (self.size, answer.total, answer.linked_size)
        sizes = sorted({size for size in told if size is not None})
        if len(sizes) > 1:
            raise Failure(f"the file's size is told as {' and '.join(map(str, sizes))} bytes")
        theirs = answer.digests.get("sha256")
        if self.sha256 and theirs not in (None, self.sha256):
            raise Failure(f"has a file of SHA-256 {theirs}, but {self.trust} is {self.sha256}")
        if not (sizes or self.sha256 or theirs):
            raise Failure("does not say how large the file is, so a cut would go unnoticed")

    def _append(self, blocks: Iterator[bytes], total: int | None, have: int) -> None:
        # Unbuffered, so that a kill loses nothing that has arrived.
        with writing(self.part, self.have), open(self.part, "ab", buffering=0) as file:
            free = shutil.disk_usage(self.part.parent).free
            if total is not None and free < total - have:
                raise DataError(
                    f"cannot fetch {self.out.name}: {total - have:,} bytes are missing and "
                    f"{free:,} are free in {self.part.parent}; free some, or move the folder"
                )
            for block in blocks:
                rest = memoryview(block)
                while rest:
                    written = file.write(rest)
                    have, rest = have + written, rest[written:]
                self.report(have, total)
            os.fsync(file.fileno())
        if total is not None and have != total:
            raise Failure(f"ended after {have:,} of {total:,} bytes", again=True)

    def _complaint(self, part: Part) -> str | None:
        """What is wrong with the partial file now that it should be whole."""
        if self.size is not None and self.have() != self.size:
            return f"sent {self.have():,} bytes where {self.size:,} are expected"
        got = digest(self.part)
        if self.sha256 and got != self.sha256:
            return (
                f"sent a file of SHA-256 {got}, but {self.trust} is {self.sha256}; it was deleted"
            )
        for algorithm, theirs in part.digests.items():
            if digest(self.part, algorithm) != theirs:
                return f"sent a file that is not of the {algorithm} it names; it was deleted"
        try:
            complaint = self.check(self.part)
        except Exception as error:  # Were the part kept, every later fetch would stumble over it.
            complaint = f"{type(error).__name__}: {error}"
        return (
            f"sent a file that cannot be used: {complaint}; it was deleted" if complaint else None
        )
