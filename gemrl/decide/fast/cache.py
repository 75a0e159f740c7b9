"""Numba's compiled programs, kept between runs in the cache folder."""

import atexit
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config

from gemrl.data.storage import home
from gemrl.progress import say

SETTINGS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
KEPT = "CACHE_DIR"


def _folder() -> Path:
    """A folder for these very sources: numba itself would notice a change in one of them only."""
    digest = hashlib.sha256(version("numba").encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    folder = home() / "numba" / digest.hexdigest()[:16]
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK):
        return folder
    # Numba would quietly go elsewhere, where it misses changes.
    temporary = Path(tempfile.mkdtemp(prefix="gemrl-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    say(f"{folder} cannot be written: fast decisions are compiled for this process alone")
    return temporary


FOLDER = _folder()


class Entry:
    """A function that Python calls: compiled at its first call, and kept.

    Where the user has set NUMBA_CACHE_DIR, that is where it is kept. Of processes that start
    together, as those of a sweep do, one compiles, and the others wait for what it keeps.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        before: str = getattr(config, KEPT)
        setattr(config, KEPT, before or str(FOLDER))
        try:
            self.compiled = njit(cache=True, **SETTINGS)(function)
        finally:
            setattr(config, KEPT, before)
        self._lock = _kept_in() / f".{function.__name__}.lock"
        self._ready = False

    def __call__(self, *arguments: Any) -> Any:
        if self._ready:
            return self.compiled(*arguments)
        with _turn(self._lock):
            result = self.compiled(*arguments)
        self._ready = True
        return result


def _kept_in() -> Path:
    return Path(getattr(config, KEPT) or FOLDER)


@contextmanager
def _turn(lock: Path) -> Iterator[None]:
    """One process or thread after another, where the folder lets them have a lock."""
    with ExitStack() as stack:
        with suppress(OSError):
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(lock, "w"))
            fcntl.flock(file, fcntl.LOCK_EX)
            # Closing it would not do: a child that was forked meanwhile has it open too.
            stack.callback(fcntl.flock, file, fcntl.LOCK_UN)
        yield


@cache
def announce() -> None:
    """Say once that compiling takes a while, where nothing is kept yet."""
    folder = _kept_in()
    if not any(folder.rglob("*decide_rows*.nbi")):
        say(f"fast decisions are compiled once, for a minute or so, and kept in {folder}")
