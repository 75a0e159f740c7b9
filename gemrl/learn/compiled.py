"""Compiled programs are kept between runs. Damaged ones are dropped."""

import glob
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax

from gemrl.data.storage import home
from gemrl.progress import say

_FOLDER = "jax_compilation_cache_dir"
_SHORTEST = "jax_persistent_cache_min_compile_time_secs"
_COMPLAINT = re.compile(r"Error (\w+) persistent compilation cache entry for '(.*?)'")


@contextmanager
def kept_programs() -> Iterator[None]:
    """Let JAX keep compiled programs in the cache folder, or where the user has told it to.

    JAX is set so for the rest of the process. An entry that cannot be read, because a run was
    killed while it wrote it, JAX would compile anew at every start: it is removed.
    """
    own = home() / "compiled"
    if jax.config.values[_FOLDER] is None:
        jax.config.update(_FOLDER, str(own))
    if _SHORTEST.upper() not in os.environ:
        # The smallest as well: fresh networks take a hundred of them, which would cost seconds.
        jax.config.update(_SHORTEST, 0.0)
    with warnings.catch_warnings():
        show = warnings.showwarning
        dropped: list[str] = []

        def heed(message: Warning | str, *about: Any, **more: Any) -> None:
            found = _COMPLAINT.match(str(message))
            if found is None:
                show(message, *about, **more)
            elif found[1] == "reading" and jax.config.values[_FOLDER] == str(own):
                _drop(own, found[2])
                if not dropped:
                    say(f"{own} held compiled programs that cannot be read; they are compiled anew")
                dropped.append(found[2])

        warnings.showwarning = heed
        yield


def _drop(folder: Path, name: str) -> None:
    """Remove the programs of a name; JAX does not tell which of them it was."""
    for entry in folder.glob(f"{glob.escape(name)}-*"):
        with suppress(OSError):  # Somebody else's, in a folder that is shared.
            entry.unlink(missing_ok=True)
