"""Where files live, and how they are written so that a reader never meets half of one."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gemrl.errors import DataError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when a disk, a quota or a file has no room left."""


def home() -> Path:
    """The cache folder: `GEMRL_HOME`, else the platform's cache folder."""
    if chosen := os.environ.get("GEMRL_HOME"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "gemrl"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "gemrl"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gemrl"


def genuine_path(task: str) -> Path:
    """Where a task's published file is kept."""
    return home() / "datasets" / "genuine" / f"{task}.hdf5"


def regenerated_path(task: str) -> Path:
    """Where a task's regenerated file is kept."""
    return home() / "datasets" / "regenerated" / f"{task}.hdf5"


def minari_store() -> Path:
    """Minari's local store: `MINARI_DATASETS_PATH`, else its folder in the user's home."""
    chosen = os.environ.get("MINARI_DATASETS_PATH")
    return Path(chosen) if chosen else Path.home() / ".minari" / "datasets"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its name once the block ends without an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from error
    if path.is_dir():
        raise DataError(f"cannot write {path}: it is a folder")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DataError(
            f"cannot write {path}: {(error.strerror or 'no room').lower()}; free some space and "
            "try again"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the platform can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
