"""From an open HDF5 file to a folder of shards, block after block."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gemrl.data.bounds import ChosenBounds, choose_bounds
from gemrl.data.dataset import COLUMNS, Raw, fingerprint_of
from gemrl.data.limits import opened_hdf5
from gemrl.data.readers import Request, described_hdf5
from gemrl.data.shard_files import ShardWriter, Source, source_of
from gemrl.data.stream import Stream
from gemrl.data.trainable import Faults
from gemrl.errors import DataError
from gemrl.progress import Report, bar

SHARD = 256 * 10**6
"""Bytes of a shard."""
# Every mapping holds a file open, of which a process may have a thousand or so.
_MOST_SHARDS = 256
_PACKED = ("observations", "actions", "rewards", "next_observations", "masks")


def convert(
    request: Request,
    about: dict[str, Any],
    folder: Path,
    source: Source,
    memory: int,
    shard: int,
) -> int:
    """Write a file's rows as shards of about `shard` bytes, and give their number.

    Values that cannot be trained on are refused, and then nothing is left behind.
    """
    with opened_hdf5(request.path) as file:
        raw = described_hdf5(file, request.path)
        stream = Stream(raw, about["task"], request.path, memory)
        _convert(stream, raw, request, about, folder, source, shard)
        return len(stream)


def _convert(
    stream: Stream,
    raw: Raw,
    request: Request,
    about: dict[str, Any],
    folder: Path,
    source: Source,
    shard: int,
) -> None:
    row_bytes = 4 * (2 * stream.obs_dim + stream.action_dim + 2)
    rows_per_shard = max(1, shard // row_bytes, -(-len(stream) // _MOST_SHARDS))
    needed = len(stream) * row_bytes + 20 * len(stream.episode_starts) + 2**16
    with ShardWriter(folder, rows_per_shard, needed, stream.source) as writer:
        chosen = choose_bounds(
            stream,
            lambda: (block["actions"] for block in stream.blocks(("actions",))),
            request.bounds,
            outside=request.outside,
            file=raw.bounds,
        )
        reward_range = _write_rows(stream, chosen, writer)
        fingerprint = _fingerprint(stream, chosen)
        episodes = {
            "starts": stream.episode_starts,
            "numbers": stream.episode_numbers,
            "returns": stream.episode_returns,
        }
        if source_of(request.path) != source:
            raise DataError(f"{stream.source}: changed while it was read; try again")
        found = {
            "obs_dim": stream.obs_dim,
            "action_dim": stream.action_dim,
            "action_low": chosen.low.tolist(),
            "action_high": chosen.high.tolist(),
            "bounds_origin": chosen.origin,
            "notes": [*raw.notes, *chosen.notes],
            "reward_range": reward_range,
            "fingerprint": fingerprint,
            "source": asdict(source),
        }
        writer.close(episodes, about | found)


def _write_rows(stream: Stream, chosen: ChosenBounds, writer: ShardWriter) -> tuple[float, float]:
    """Write all rows, unless some cannot be trained on, and give the range of their rewards."""
    faults = Faults(chosen.low, chosen.high)
    least, greatest = np.inf, -np.inf
    start = 0
    with bar(f"write shards of {Path(stream.source).name}", len(stream), "rows") as report:
        for block in _blocks(stream, chosen, _PACKED):
            faults.look(block, start)
            start += len(block["rewards"])
            if not faults:  # Once something is wrong, the rest is only looked at.
                least = min(least, float(block["rewards"].min()))
                greatest = max(greatest, float(block["rewards"].max()))
                columns = [block[name].reshape(len(block[name]), -1) for name in _PACKED]
                writer.append(np.concatenate(columns, axis=1))
            report(start)
    faults.refuse(stream.source)
    return least, greatest


def _fingerprint(stream: Stream, chosen: ChosenBounds) -> str:
    """The fingerprint of the dataset in memory, for which columns are read one after the other."""

    def arrays(report: Report) -> Iterator[tuple[np.dtype, tuple[int, ...], Any]]:
        for number, name in enumerate(COLUMNS):
            dtype = np.dtype(np.int32 if name == "episodes" else np.float32)
            blocks = _blocks(stream, chosen, (name,))
            yield dtype, stream.shapes[name], (block[name] for block in blocks)
            report(number + 1)
        for bound in (chosen.low, chosen.high):
            yield bound.dtype, bound.shape, [bound]

    title = f"fingerprint {Path(stream.source).name}"
    with bar(title, len(COLUMNS), "columns") as report:
        return fingerprint_of(arrays(report))


def _blocks(
    stream: Stream, chosen: ChosenBounds, names: Sequence[str]
) -> Iterator[dict[str, np.ndarray]]:
    """Columns as the dataset has them, with actions moved inside their bounds."""
    for block in stream.blocks(names):
        if "actions" in block:
            block["actions"] = chosen.moved(block["actions"])
        yield block
