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
        raise DataError(f"{source}: no row has a known successor; give next_observations")
    arrays = {**columns, "observations": obs}
    if keep[:last].all() and not keep[last]:  # One long episode: nothing need be copied.
        kept = {name: array[:last] for name, array in arrays.items()}
        return kept | {"next_observations": obs[1:]}
    rows = np.flatnonzero(keep)
    following = obs.take(np.minimum(rows + 1, last), axis=0)
    edges = np.flatnonzero(np.diff(keep, prepend=False, append=False))
    if own and len(edges) < len(rows) / 16:
        runs = edges.reshape(-1, 2).tolist()
        kept = {name: _moved(array, runs) for name, array in arrays.items()}
    else:
        kept = {name: array.take(rows, axis=0) for name, array in arrays.items()}
    return kept | {"next_observations": following}


def _moved(array: np.ndarray, runs: list[list[int]]) -> np.ndarray:
    """The rows of all runs, moved together at the front of the array itself."""
    at = 0
    for start, stop in runs:
        for block in range(start, stop, _BLOCK):  # NumPy sets overlapping rows aside meanwhile.
            size = min(_BLOCK, stop - block)
            if at != block:
                array[at : at + size] = array[block : block + size]
            at += size
    return array[:at]
