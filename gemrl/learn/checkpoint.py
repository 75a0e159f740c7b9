"""Checkpoints: the whole state of training, so that a resumed run equals an uninterrupted one.

Random keys are functions of the seed, the phase and the step, so the step is all there is to keep
of them. A checkpoint is one file, written atomically; the last two are kept.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemrl.errors import BundleError, TrainingError
from gemrl.learn.tensors import as_tree, load_arrays, save_tree

KEPT = 2


def folder_of(run: Path) -> Path:
    """Where a run's checkpoints live."""
    return run / "checkpoints"


def identity(config: dict[str, Any], method: str, fingerprint: str, task: str | None) -> str:
    """What must agree for a run to be continued: method, configuration, data and its task."""
    text = json.dumps([method, config, fingerprint, task], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def save_checkpoint(run: Path, state: Any, done: int, run_identity: str) -> None:
    """Write the state after `done` updates and drop checkpoints that are no longer needed."""
    metadata = {"done": str(done), "identity": run_identity}
    save_tree(folder_of(run) / f"{done:010d}.safetensors", state, metadata)
    for path in sorted(folder_of(run).glob("*.safetensors"))[:-KEPT]:
        path.unlink(missing_ok=True)
    for leftover in folder_of(run).glob(".*.tmp"):
        leftover.unlink(missing_ok=True)  # Of a process that was killed while it wrote.


def newest_checkpoint(run: Path) -> Path | None:
    """The file with the most updates."""
    return max(folder_of(run).glob("*.safetensors"), default=None)


def load_checkpoint(
    run: Path, like: Callable[[int], Any], run_identity: str, warn: Callable[[str], None]
) -> tuple[Any, int] | None:
    """The newest readable checkpoint and its number of updates; None where there is none at all.

    `like(done)` tells the structure of what was saved after so many updates.
    """
    paths = sorted(folder_of(run).glob("*.safetensors"), reverse=True)
    for path in paths:
        try:
            arrays, metadata = load_arrays(path)
            if metadata.get("identity") != run_identity:
                raise TrainingError(
                    f"{path} belongs to another method, configuration or dataset; resume with the "
                    "settings it was started with, or choose another output folder"
                )
            done = int(metadata["done"])
            state = as_tree(arrays, like(done), path)
        except BundleError as error:
            warn(f"skipping a checkpoint that cannot be read: {error}")
            continue
        if path != paths[0]:
            warn(f"going on from {path}, after {done:,} updates")
        return state, done
    if paths:
        raise TrainingError(
            f"no checkpoint in {folder_of(run)} can be read; remove {run} to start afresh"
        )
    return None
