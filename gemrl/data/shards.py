"""Datasets larger than memory: packed rows in files on disk, written once and mapped by every run.

A dataset's rows are kept as the training loop wants them: observation, action, reward, next
observation and mask, one after the other. Gathering a minibatch touches the pages that it needs
and gives them back, so that the process holds next to nothing of the dataset.
"""

import contextlib
import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int

from gemrl.data.bounds import Pair
from gemrl.data.dataset import Dataset, split_rows
from gemrl.data.limits import opened_hdf5
from gemrl.data.readers import HDF5, check_is_file, described_hdf5, identified, requested
from gemrl.data.readers.minari import PREFIX
from gemrl.data.shard_files import (
    EPISODES,
    check_digests,
    damaged,
    folder_of,
    mapped_shards,
    one_writer,
    read_episodes,
    read_meta,
    source_of,
)
from gemrl.data.sharding import SHARD, convert
from gemrl.data.statistics import mean_and_std
from gemrl.data.stream import block_size
from gemrl.errors import ConfigError, DataError
from gemrl.progress import say

# Bytes from one row to the next, on average, up to which the system reads on by itself in large
# pieces. Further apart it would read megabytes for each row.
_NEAR = 16 * 1024
_UNITS = {"": 1, "b": 1} | {
    name: base**power
    for power, letter in enumerate("kmgt", 1)
    for name, base in ((f"{letter}b", 1000), (f"{letter}ib", 1024))
}


@dataclass(frozen=True, eq=False)
class ShardedDataset:
    """A dataset on disk: what training asks of a `Dataset`, with no rows in memory."""

    folder: Path
    rows: int
    obs_dim: int
    action_dim: int
    action_low: Float32[np.ndarray, " a"]
    action_high: Float32[np.ndarray, " a"]
    episode_starts: Int[np.ndarray, " e"]
    """Row at which each episode starts."""
    episode_numbers: Int[np.ndarray, " e"]
    """Number of each episode in its file, where some may have no rows that are kept."""
    episode_returns: Float64[np.ndarray, " e"]
    """Sum of rewards of each episode."""
    reward_range: tuple[float, float]
    """The least and the greatest reward."""
    fingerprint: str
    """That of the same dataset in memory."""
    task: str | None
    origin: str
    source: str
    bounds_origin: str
    notes: tuple[str, ...]
    reading: Mapping[str, Any]
    rows_per_shard: int
    window: int
    """Bytes of mapped pages that are touched before they are given back."""
    maps: tuple[mmap.mmap, ...] = field(repr=False)

    def __len__(self) -> int:
        return self.rows

    @property
    def width(self) -> int:
        """Numbers in a packed row."""
        return 2 * self.obs_dim + self.action_dim + 2

    @property
    def row_bytes(self) -> int:
        """Bytes of a packed row."""
        return 4 * self.width

    @cached_property
    def _shards(self) -> list[np.ndarray]:
        return [np.frombuffer(m, np.dtype("<f4")).reshape(-1, self.width) for m in self.maps]

    @cached_property
    def _windows(self) -> np.ndarray:
        """Rows at which the windows of all shards start."""
        size = max(1, self.window // self.row_bytes)
        starts = np.arange(0, self.rows_per_shard, size)
        shards = np.arange(len(self.maps)) * self.rows_per_shard
        return (shards[:, None] + starts).reshape(-1)

    def require_trainable(self) -> None:
        """Nothing to refuse: what cannot be trained on was refused before it was written."""

    def split_episodes(self, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers for training and held out, those of `Dataset.split_episodes`."""
        return split_rows(self.episode_starts, len(self), share, seed)

    def packed(self, rows: Int[np.ndarray, " n"]) -> Float32[np.ndarray, "n w"]:
        """Observation, action, reward, next observation and mask of the rows, in their order.

        They are gathered in ascending order, which a disk likes, and then put into the one asked
        for.
        """
        rows = np.asarray(rows).astype(np.int64, casting="same_kind")
        if len(rows) == 0:
            return np.empty((0, self.width), np.float32)
        order = np.argsort(rows)
        ascending = rows[order]
        if ascending[0] < 0 or ascending[-1] >= len(self):
            raise IndexError(f"rows must lie in 0 to {len(self) - 1}")
        gathered = self._gathered(ascending)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return gathered.take(place, axis=0)

    def _gathered(self, rows: np.ndarray) -> np.ndarray:
        """Rows in ascending order, window after window."""
        result = np.empty((len(rows), self.width), np.float32)
        edges = np.append(np.searchsorted(rows, self._windows), len(rows))
        is_dense = (rows[-1] - rows[0]) * self.row_bytes <= _NEAR * len(rows)
        for window in np.flatnonzero(np.diff(edges)):
            number = int(self._windows[window] // self.rows_per_shard)
            place = slice(edges[window], edges[window + 1])
            wanted = rows[place] - number * self.rows_per_shard
            mapped = self.maps[number]
            mapped.madvise(mmap.MADV_NORMAL if is_dense else mmap.MADV_RANDOM)
            if not is_dense:
                self._announce(mapped, wanted)
            # The mode spares a copy: the rows are known to be within their shard.
            self._shards[number].take(wanted, axis=0, out=result[place], mode="clip")
            mapped.madvise(mmap.MADV_DONTNEED)
        return result

    def _announce(self, mapped: mmap.mmap, rows: np.ndarray) -> None:
        """Have the system read all of these rows at once, and not each as it is touched."""
        starts = rows * self.row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        lengths = (rows + 1) * self.row_bytes - starts
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            mapped.madvise(mmap.MADV_WILLNEED, start, length)

    def select(self, rows: Int[np.ndarray, " n"]) -> Dataset:
        """The given rows as a dataset in memory."""
        rows = np.asarray(rows)
        obs, action = self.obs_dim, self.action_dim
        shapes = {"observations": (obs,), "actions": (action,), "rewards": ()}
        shapes |= {"next_observations": (obs,), "masks": ()}
        columns = {n: np.empty((len(rows), *s), np.float32) for n, s in shapes.items()}
        size = max(1, self.window // self.row_bytes)
        for start in range(0, len(rows), size):
            block = self.packed(rows[start : start + size])
            parts = np.split(block, np.cumsum([obs, action, 1, obs]), axis=1)
            for column, part in zip(columns.values(), parts, strict=True):
                place = column[start : start + size]
                place[...] = part.reshape(place.shape)
        episode = np.searchsorted(self.episode_starts, rows, side="right") - 1
        return Dataset(
            **columns,
            episodes=self.episode_numbers[episode],
            action_low=self.action_low,
            action_high=self.action_high,
            task=self.task,
            origin=self.origin,
            source=self.source,
            bounds_origin=self.bounds_origin,
            notes=self.notes,
            reading=self.reading,
        )

    def blocks(self, rows: Int[np.ndarray, " n"], size: int) -> Iterator[Dataset]:
        """The given rows in order, `size` of them in memory at a time."""
        for start in range(0, len(rows), size):
            yield self.select(rows[start : start + size])

    def observation_statistics(
        self, rows: Int[np.ndarray, " n"]
    ) -> tuple[Float64[np.ndarray, " s"], Float64[np.ndarray, " s"]]:
        """Mean and standard deviation of the observations of some rows, in double precision."""
        return mean_and_std(rows, lambda some: self.packed(some)[:, : self.obs_dim])

    def release(self) -> None:
        """Give all mapped pages back to the system, whose cache keeps them while it has room."""
        for mapped in self.maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    def verify(self) -> None:
        """Read every file and refuse what is not as it was written."""
        check_digests(self.folder, read_meta(self.folder))


def open_sharded(
    source: str | Path,
    *,
    task: str | None = None,
    bounds: str | Pair | None = None,
    outside: str = "refuse",
    memory: int,
    shard: int = SHARD,
) -> ShardedDataset:
    """The dataset that `load_dataset` gives of an HDF5 file or a task's name, on disk.

    The first call writes its rows into the cache folder, in files of about `shard` bytes; later
    ones find them there until the file changes. It works in a fraction of `memory` bytes, and
    refuses what cannot be trained on.
    """
    request = requested(source, task, bounds, outside)
    path = request.path
    if not request.name.startswith(PREFIX):
        check_is_file(request)
    if request.name.startswith(PREFIX) or path.suffix.lower() not in HDF5:
        raise DataError(
            f"{source}: training from disk reads HDF5 files only ({', '.join(HDF5)}); load it on "
            "a machine with enough memory, and write its arrays to an HDF5 file in D4RL's layout "
            "with h5py"
        )
    state = source_of(path)
    with opened_hdf5(path) as file:
        raw = described_hdf5(file, path)
    named, origin = identified(raw, request)
    about = {"task": named, "origin": origin, "reading": request.reading()}
    folder = folder_of(state, about)
    if not folder.exists():
        with one_writer(folder):
            if not folder.exists():
                rows = convert(request, about, folder, state, memory, shard)
                say(f"wrote {rows:,} rows as shards to {folder}: used by later runs")
    data = _opened(folder, block_size(memory))
    for note in data.notes:
        say(note)
    return data


def _opened(folder: Path, window: int) -> ShardedDataset:
    """Shards that were written, mapped and not yet read."""
    meta = read_meta(folder)
    starts, numbers, returns = (read_episodes(folder, what) for what in EPISODES)
    if not (len(starts) == len(numbers) == len(returns) > 0 and starts[0] == 0):
        raise damaged(folder, "the files of its episodes contradict each other")
    same = ("rows", "obs_dim", "action_dim", "fingerprint", "task", "origin", "bounds_origin")
    try:
        return ShardedDataset(
            **{name: meta[name] for name in (*same, "reading", "rows_per_shard")},
            folder=folder,
            source=meta["source"]["path"],
            notes=tuple(meta["notes"]),
            reward_range=tuple(meta["reward_range"]),
            action_low=np.array(meta["action_low"], np.float32),
            action_high=np.array(meta["action_high"], np.float32),
            episode_starts=starts,
            episode_numbers=numbers,
            episode_returns=returns,
            window=window,
            maps=mapped_shards(folder, meta),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(folder, f"shards.json cannot be understood ({error!r})") from error


def bytes_in_memory(source: str | Path) -> int | None:
    """Bytes that a dataset takes in memory, as the headers of an HDF5 file tell; else None."""
    with contextlib.suppress(Exception):  # Loading it will say what is wrong with it.
        path = requested(source, None, None, "refuse").path
        if path.suffix.lower() in HDF5:
            with opened_hdf5(path) as file:
                shapes = {n: a.shape for n, a in described_hdf5(file, path).arrays.items()}
            rows, obs_dim = shapes["observations"]
            return 4 * rows * (2 * obs_dim + shapes["actions"][1] + 3)  # Reward, mask, episode.
    return None


def parse_size(text: str) -> int:
    """Bytes in a size such as "2GB" (10^9 each), "1.5GiB" (2^30 each) or "500000000"."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = found[2].lower() if found else None
    size = round(Fraction(found[1]) * _UNITS[unit]) if found and unit in _UNITS else 0
    if size < 1 or (unit == "" and "." in text):
        raise ConfigError(
            f"memory {text!r}: must be a size such as 2GB, 512MB or 1.5GiB, or a whole number of "
            "bytes"
        )
    return size
