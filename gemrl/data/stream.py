"""An HDF5 file in D4RL's layout, read block after block to the columns that `from_arrays` makes.

row       0    1    2    3    4    5         of the file
ends                x         x    (x)       the last row ends what was not ended
dropped             -              -         where no successor is known: not at a terminal (row 4)
rows      0    1         2    3              of the dataset, as everything outside this file counts
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from gemrl.data.dataset import COLUMNS, Raw, check_shapes, do_terminals_end, flags, float32
from gemrl.data.readers import check_dimensions
from gemrl.data.successors import no_successors
from gemrl.errors import DataError

_SMALL = 16 * 2**20
# NumPy adds up shorter stretches in another way.
_SHORTEST_SUM = 128


def block_size(memory: int) -> int:
    """Bytes to work on at a time, where the process may have so many in all."""
    return max(1, min(64 * 2**20, memory // 8))


class Stream:
    """Columns of an open file, read with little memory."""

    def __init__(self, raw: Raw, task: str | None, path: Path, memory: int) -> None:
        self.arrays = raw.arrays
        self.task = task
        self.source = str(path.resolve())
        self.block = block_size(memory)
        self._check_chunks(max(_SMALL, memory // 4))
        self._find_episodes()
        shapes = {name: (len(self),) for name in COLUMNS}
        for name in ("observations", "actions"):
            shapes[name] = (len(self), *self.arrays[name].shape[1:])
        following = self.arrays[self._holder("next_observations")]
        shapes["next_observations"] = (len(self), *following.shape[1:])
        check_shapes(shapes, self.source)
        check_dimensions(task, self.obs_dim, self.action_dim, self.source)
        self.shapes = shapes

    def __len__(self) -> int:
        return self.file_rows - len(self.dropped)

    @property
    def file_rows(self) -> int:
        """Rows of the file."""
        return self.arrays["observations"].shape[0]

    @property
    def obs_dim(self) -> int:
        """Observation dimensions."""
        return self.arrays["observations"].shape[1]

    @property
    def action_dim(self) -> int:
        """Action dimensions."""
        return self.arrays["actions"].shape[1]

    def _check_chunks(self, most: int) -> None:
        """HDF5 unpacks a chunk whole, however little of it is asked for."""
        for name, array in self.arrays.items():
            is_packed = array.id.get_create_plist().get_nfilters() > 0
            size = math.prod(array.chunks or ()) * array.dtype.itemsize
            if is_packed and size > most:
                raise DataError(
                    f"{self.source}: {name} is compressed in chunks of {size:,} bytes, and the "
                    f"memory given allows {most:,}; write it anew in smaller chunks, or give more"
                )

    # Episodes

    def _find_episodes(self) -> None:
        last = self.file_rows - 1
        ends, dropped = [], []
        for start, stop in self._spans(("masks", "episodes")):
            terminal, ended = self._ends(start, stop)
            ends.append(start + np.flatnonzero(ended))
            ended[last - start :] = True  # Rows there are only in the last block.
            dropped.append(start + np.flatnonzero(ended & ~terminal))
        derives = "next_observations" not in self.arrays
        self.ends = np.concatenate(ends)
        self.dropped = np.concatenate(dropped) if derives else np.empty(0, dtype=np.int64)
        if len(self) == 0:
            raise no_successors(self.source)
        # An episode's kept rows follow one another in the file: only its last one may be dropped.
        file_starts = np.concatenate([[0], self.ends[self.ends < last] + 1])
        starts = file_starts - np.searchsorted(self.dropped, file_starts)
        lengths = np.diff(starts, append=len(self))
        kept = np.flatnonzero(lengths)
        self.episode_numbers = kept.astype(np.int32)
        self.episode_starts = starts[kept]
        self._file_starts, self._file_stops = file_starts[kept], (file_starts + lengths)[kept]

    def _ends(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Which rows of the file are terminal, and which end an episode."""
        terminal = flags("terminals", self.arrays["terminals"][start:stop], self.source, start)
        if "timeouts" not in self.arrays:
            return terminal, terminal.copy()
        timeout = flags("timeouts", self.arrays["timeouts"][start:stop], self.source, start)
        return terminal, terminal | timeout if do_terminals_end(self.task) else timeout

    @cached_property
    def episode_returns(self) -> np.ndarray:
        """Sum of rewards of each episode, rounded as `np.add.reduceat` rounds it."""
        most = max(self._block_rows(("rewards",)), _SHORTEST_SUM)
        starts, stops = self._file_starts, self._file_stops
        returns = np.empty(len(starts))
        episode = 0
        while episode < len(starts):
            first = starts[episode]
            until = int(np.searchsorted(stops, first + most, side="right"))
            if until == episode:  # Longer than a block.
                rest = self._sum(int(first) + 1, int(stops[episode]), most)
                returns[episode] = self._rewards(int(first), int(first) + 1)[0] + rest
                until += 1
            else:
                edges = np.stack([starts[episode:until], stops[episode:until]], axis=1) - first
                rewards = self._rewards(int(first), int(stops[until - 1]))
                sums = np.add.reduceat(rewards, edges.reshape(-1)[:-1])
                returns[episode:until] = sums[::2]
            episode = until
        return returns

    def _sum(self, start: int, stop: int, most: int) -> float:
        """Sum of the rewards of rows of the file, halved where NumPy's pairwise sum halves them."""
        if stop - start <= most:
            return np.add.reduce(self._rewards(start, stop), initial=0.0)
        half = (stop - start) // 2
        half -= half % 8
        return self._sum(start, start + half, most) + self._sum(start + half, stop, most)

    def _rewards(self, start: int, stop: int) -> np.ndarray:
        return self._column("rewards", start, stop).astype(np.float64)

    # Columns

    def blocks(self, names: Sequence[str] = COLUMNS) -> Iterator[dict[str, np.ndarray]]:
        """All rows of the named columns in order, some at a time."""
        for start, stop in self._spans(names):
            first, last = np.searchsorted(self.dropped, [start, stop])
            dropped = self.dropped[first:last] - start
            if len(dropped) == stop - start:
                continue
            columns = self._columns(names, start, stop)
            if len(dropped):
                columns = {n: np.delete(column, dropped, axis=0) for n, column in columns.items()}
            yield columns

    def _spans(self, names: Sequence[str]) -> Iterator[tuple[int, int]]:
        size = self._block_rows(names)
        for start in range(0, self.file_rows, size):
            yield start, min(start + size, self.file_rows)

    def _block_rows(self, names: Sequence[str]) -> int:
        """Rows whose values fit a block as they are read, as float32 and when they are packed."""
        wide = 0
        for name in names:
            array = self.arrays[self._holder(name)]
            wide += math.prod(array.shape[1:]) * (array.dtype.itemsize + 8) + 16
        return max(1, self.block // wide)

    def _holder(self, name: str) -> str:
        """The array of the file that a column is made of."""
        if name == "next_observations" and name not in self.arrays:
            return "observations"
        return "terminals" if name in ("masks", "episodes") else name

    def _columns(self, names: Sequence[str], start: int, stop: int) -> dict[str, np.ndarray]:
        given = "next_observations" in self.arrays
        if given or "next_observations" not in names:
            return {name: self._column(name, start, stop) for name in names}
        # Each row's observation is the one before's successor. The very last row has none.
        beyond = self._column("observations", start, min(stop + 1, self.file_rows))
        if stop == self.file_rows:
            beyond = np.concatenate([beyond, beyond[-1:]])
        pair = {"observations": beyond[:-1], "next_observations": beyond[1:]}
        return {n: pair[n] if n in pair else self._column(n, start, stop) for n in names}

    def _column(self, name: str, start: int, stop: int) -> np.ndarray:
        if name == "episodes":
            return np.searchsorted(self.ends, np.arange(start, stop)).astype(np.int32)
        values = self.arrays[self._holder(name)][start:stop]
        if name == "masks":
            return (~flags("terminals", values, self.source, start)).astype(np.float32)
        return float32(values.reshape(-1) if name == "rewards" else values)
