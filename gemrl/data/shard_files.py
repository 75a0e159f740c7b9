"""A folder of shards: how it is written so that it is whole or not there, and how it is opened.

rows-00000.f32 ...       packed rows, little-endian float32, nothing else
episode-starts.npy, ...  one number an episode
shards.json              what the rows are, and the size and SHA-256 of every other file
"""

import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from gemrl.data.storage import home, write_text
from gemrl.errors import DataError
from gemrl.progress import say

FORMAT = 1
META = "shards.json"
EPISODES = ("starts", "numbers", "returns")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Source:
    """A file as it was when its shards were written."""

    path: str
    size: int
    mtime_ns: int


def source_of(path: Path) -> Source:
    """A file as it is now."""
    state = path.stat()
    return Source(str(path.resolve()), state.st_size, state.st_mtime_ns)


def folder_of(source: Source, options: dict[str, Any]) -> Path:
    """Where the shards of a file live: another place for each state of it and way to read it."""
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(source.path).stem)[:60].lstrip(".")
    state = [FORMAT, source.size, source.mtime_ns]
    parts = (_short(source.path), _short(json.dumps(state)), _short(json.dumps(options)))
    return home() / "shards" / "-".join([stem, *parts])


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def shard_name(number: int) -> str:
    """The file of a shard."""
    return f"rows-{number:05d}.f32"


def episodes_name(what: str) -> str:
    """The file of what is known of each episode."""
    return f"episode-{what}.npy"


# Writing


@contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Let one process at a time write shards, so that each knows what room there is on the disk.

    The lock ends with its process, however that ends.
    """
    lock = folder.parent / ".lock"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = open(lock, "w")  # noqa: SIM115
    except OSError as error:
        raise DataError(f"cannot write {lock}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that writes shards to {folder.parent}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class ShardWriter:
    """Packed rows into a folder that takes its name once all of it is written.

    On entering, what killed writers left and shards of the same file as it was before are removed.
    Needs `one_writer`.
    """

    def __init__(self, folder: Path, rows_per_shard: int, needed: int, source: str) -> None:
        self.folder = folder
        self.rows_per_shard = rows_per_shard
        self.rows = 0
        self.files: dict[str, dict[str, Any]] = {}
        self._needed, self._source = needed, source
        self._temporary = _temporary(folder)
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()

    def __enter__(self) -> Self:
        for leftover in self.folder.parent.glob(".*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        _remove_stale(self.folder)
        with self._refusals():
            free = shutil.disk_usage(self.folder.parent).free
            if free < self._needed:
                raise self._no_room(f"only {free:,} are free")
            self._temporary.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # What could not be written cannot be at closing either.
                self._file.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def append(self, rows: np.ndarray) -> None:
        """Write rows after those that were written before."""
        with self._refusals():
            while len(rows):
                room = self.rows_per_shard - self.rows % self.rows_per_shard
                part = np.ascontiguousarray(rows[:room], dtype="<f4")
                self._write(part)
                if len(part) == room:
                    self._finish_shard()
                rows = rows[room:]

    def close(self, episodes: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
        """Write what belongs to the rows, and last of all what makes the folder whole."""
        with self._refusals():
            self._finish_shard()
            for what, array in episodes.items():
                path = self._temporary / episodes_name(what)
                with open(path, "wb") as file:
                    np.save(file, array, allow_pickle=False)
                    _sync(file)
                self.files[path.name] = {"bytes": path.stat().st_size, "sha256": digest_of(path)}
            meta = {"format": FORMAT, "rows": self.rows, "rows_per_shard": self.rows_per_shard}
            meta |= {**about, "files": self.files}
            write_text(self._temporary / META, json.dumps(meta, indent=1) + "\n")
            os.rename(self._temporary, self.folder)

    def _write(self, rows: np.ndarray) -> None:
        if self._file is None:
            name = shard_name(self.rows // self.rows_per_shard)
            self._file = open(self._temporary / name, "wb")  # noqa: SIM115
        self._file.write(rows.data)
        self._digest.update(rows.data)
        self.rows += len(rows)

    def _finish_shard(self) -> None:
        if self._file is None:
            return
        _sync(self._file)
        about = {"bytes": self._file.tell(), "sha256": self._digest.hexdigest()}
        self._file.close()
        self.files[Path(self._file.name).name] = about
        self._file, self._digest = None, hashlib.sha256()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """What the system says of writing becomes a `DataError`: reading fails in other words."""
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise self._no_room(f"there is no room ({error.strerror})") from error
            raise DataError(f"cannot write {self.folder}: {error.strerror or error}") from error

    def _no_room(self, why: str) -> DataError:
        return DataError(
            f"{self._source}: training from disk writes {self._needed:,} bytes to "
            f"{self.folder.parent}, and {why}; make room there, or let GEMRL_HOME name a folder on "
            "a larger disk"
        )


def _remove_stale(folder: Path) -> None:
    """Remove shards of the same file in another state."""
    stem, path, state, _ = folder.name.rsplit("-", 3)
    for other in folder.parent.glob(f"{stem}-{path}-*-*"):
        if other.name.split("-")[-2] != state:
            with suppress(OSError):  # Renamed at first: half of it must never look whole.
                os.rename(other, _temporary(other))
            shutil.rmtree(_temporary(other), ignore_errors=True)


def _temporary(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.tmp")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


# Reading


def read_meta(folder: Path) -> dict[str, Any]:
    """What a folder says of its shards; every file must have the size that was written."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        if meta["format"] != FORMAT:
            raise damaged(folder, f"they have format {meta['format']}, not {FORMAT}")
        for name in file_names(meta):
            wanted, found = meta["files"][name]["bytes"], (folder / name).stat().st_size
            if found != wanted:
                raise damaged(folder, f"{name} has {found:,} bytes where {wanted:,} were written")
        wide = 2 * meta["obs_dim"] + meta["action_dim"] + 2
        if sum(meta["files"][name]["bytes"] for name in shard_names(meta)) != (
            4 * wide * meta["rows"]
        ):
            raise damaged(folder, f"the files do not hold {meta['rows']:,} rows of {wide} numbers")
    except DataError:
        raise
    except OSError as error:
        raise damaged(folder, f"{error.filename}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise damaged(folder, f"{META} cannot be understood ({error!r})") from error
    return meta


def file_names(meta: Mapping[str, Any]) -> list[str]:
    """The files that rows and episodes are kept in."""
    return [*shard_names(meta), *map(episodes_name, EPISODES)]


def shard_names(meta: Mapping[str, Any]) -> list[str]:
    """The files that rows are kept in."""
    return [shard_name(number) for number in range(-(-meta["rows"] // meta["rows_per_shard"]))]


def mapped_shards(folder: Path, meta: Mapping[str, Any]) -> tuple[mmap.mmap, ...]:
    """The files of rows, mapped and not yet read."""
    maps = []
    for name in shard_names(meta):
        try:
            with open(folder / name, "rb") as file:
                maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise DataError(f"{folder / name}: cannot be mapped: {error.strerror}") from error
    return tuple(maps)


def read_episodes(folder: Path, what: str) -> np.ndarray:
    """What is known of each episode."""
    try:
        return np.load(folder / episodes_name(what), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise damaged(folder, f"{episodes_name(what)}: {error}") from error


def check_digests(folder: Path, meta: Mapping[str, Any]) -> None:
    """Refuse files whose contents are no longer those that were written."""
    for name in file_names(meta):
        if digest_of(folder / name) != meta["files"][name]["sha256"]:
            raise damaged(folder, f"{name} is not what was written")


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damaged(folder: Path, why: str) -> DataError:
    """The error about shards that cannot be used."""
    return DataError(
        f"{folder}: the shards are damaged: {why}; delete the folder, and the next run writes it "
        "anew"
    )
