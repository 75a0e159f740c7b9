"""Successors for logs that have none: the following row's observation, within an episode."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float32

from gemrl.errors import DataError

_BLOCK = 4096


def with_successors(
    obs: Float32[np.ndarray, "t s"],
    columns: Mapping[str, np.ndarray],
    terminal: Bool[np.ndarray, " t"],
    ends: Bool[np.ndarray, " t"],
    own: bool,
    source: str,
) -> dict[str, np.ndarray]:
    """Rows whose successor is known or, at a terminal, never looked at, beside that successor.

    Arrays of its own it moves together in place: fresh memory costs more than copying.
    """
    last = len(obs) - 1
    keep = terminal | ~ends
    keep[last] = terminal[last]
    if not keep.any():
        raise no_successors(source)
    arrays = {**columns, "observations": obs}
    if keep[:last].all() and not keep[last]:  # One long episode: nothing need be copied.
        kept = {name: array[:last] for name, array in arrays.items()}
        return kept | {"next_observations": obs[1:]}
    runs = np.flatnonzero(np.diff(keep, prepend=False, append=False)).reshape(-1, 2)
    count = int(np.diff(runs).sum())
    if len(runs) > count / 16:
        rows = np.flatnonzero(keep)
        kept = {name: array.take(rows, axis=0) for name, array in arrays.items()}
        return kept | {"next_observations": obs.take(np.minimum(rows + 1, last), axis=0)}
    following = np.empty((count, obs.shape[1]), dtype=obs.dtype)
    following[-1] = obs[-1]  # Of a terminal at the very end, which has no following row.
    _gather(following, obs, np.minimum(runs + 1, last + 1).tolist())
    for name, array in arrays.items():
        place = array if own else np.empty((count, *array.shape[1:]), dtype=array.dtype)
        _gather(place, array, runs.tolist())
        arrays[name] = place[:count]
    return arrays | {"next_observations": following}


def no_successors(source: str) -> DataError:
    """What is said of a log in which every row is the last of an episode that was cut off."""
    return DataError(f"{source}: no row has a known successor; give next_observations")


def _gather(place: np.ndarray, array: np.ndarray, runs: list[list[int]]) -> None:
    """Copy the rows of all runs to the front of a place, which may be the array itself."""
    at = 0
    for start, stop in runs:
        for block in range(start, stop, _BLOCK):  # NumPy sets overlapping rows aside meanwhile.
            size = min(_BLOCK, stop - block)
            if place is not array or at != block:
                place[at : at + size] = array[block : block + size]
            at += size
