"""Compiled programs are kept between runs. Damaged ones are dropped."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from gemrl.data.storage import home
from gemrl.progress import say

_FOLDER = "jax_compilation_cache_dir"
_SHORTEST = "jax_persistent_cache_min_compile_time_secs"


@contextmanager
def kept_programs() -> Iterator[None]:
    """Let JAX keep compiled programs in the cache folder, or where the user has told it to.

    JAX is set so for the rest of the process. An entry that cannot be read, because a run was
    killed while it wrote it, JAX would compile anew at every start: the folder is emptied then.
    """
    own = home() / "compiled"
    if jax.config.values[_FOLDER] is None:
        jax.config.update(_FOLDER, str(own))
    if _SHORTEST.upper() not in os.environ:
        # The smallest as well: fresh networks take a hundred of them, which would cost seconds.
        jax.config.update(_SHORTEST, 0.0)
    with warnings.catch_warnings():
        show = warnings.showwarning

        def heed(message: Warning | str, *about: Any, **more: Any) -> None:
            if "persistent compilation cache entry" not in str(message):
                show(message, *about, **more)
            elif jax.config.values[_FOLDER] == str(own):
                _empty(own)

        warnings.showwarning = heed
        yield


def _empty(folder: Path) -> None:
    entries = list(folder.glob("*-cache")) if folder.is_dir() else []
    for entry in entries:
        entry.unlink(missing_ok=True)
    if entries:
        say(f"{folder} held a compiled program that cannot be read; all are compiled anew")
