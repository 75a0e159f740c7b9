"""How long `load_dataset` takes beside h5py's bare reading of the same arrays.

    python benchmarks/reading.py [--quick]

Both read a file of a million rows (observation 17, action 6) from the page cache: h5py every array
into memory, `load_dataset` into a checked dataset with episodes, masks and successors. Where the
file has no next observations the dataset makes them and holds 1.7 times what was read. Repeats are
interleaved, and each ratio is the median of those of neighbouring repeats.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from gemrl import load_dataset
from gemrl.progress import console

OBSERVATION, ACTION, EPISODE = 17, 6, 1000


def make_arrays(rows: int, with_next: bool) -> dict[str, np.ndarray]:
    """Random transitions in episodes of a thousand steps, each ended by a timeout."""
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.standard_normal((rows, OBSERVATION), dtype=np.float32),
        "actions": rng.uniform(-1, 1, (rows, ACTION)).astype(np.float32),
        "rewards": rng.standard_normal(rows, dtype=np.float32),
        "terminals": np.zeros(rows, dtype=bool),
        "timeouts": np.arange(1, rows + 1) % EPISODE == 0,
    }
    if with_next:
        following = np.roll(arrays["observations"], -1, axis=0)
        arrays["next_observations"] = following
    return arrays


def write(path: Path, arrays: dict[str, np.ndarray], compression: str | None) -> Path:
    """A file in D4RL's layout."""
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, compression=compression)
    return path


def read_bare(path: Path) -> dict[str, np.ndarray]:
    """Every array, and nothing else."""
    with h5py.File(path, "r") as file:
        return {name: file[name][()] for name in file}


def seconds(read: Callable[[Path], object], path: Path) -> float:
    """Time of one reading; what was read is thrown away outside."""
    start = time.perf_counter()
    result = read(path)
    taken = time.perf_counter() - start
    del result
    return taken


def measured(path: Path, repeats: int) -> list[tuple[float, float]]:
    """Seconds of h5py and of `load_dataset`, taking turns at being first."""
    pairs = []
    for repeat in range(repeats + 1):
        readers = (read_bare, load_dataset)
        times = {r: seconds(r, path) for r in (readers if repeat % 2 else readers[::-1])}
        pairs.append((times[read_bare], times[load_dataset]))
    return pairs[1:]  # The first finds the file and imports.


def main() -> None:
    """Measure, print a table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats, a minute at most")
    parser.add_argument("--rows", type=int, default=1_000_000)
    args = parser.parse_args()
    console.quiet = True  # What reading says would stand between the lines of the table.
    repeats = 15 if args.quick else 61
    cases = {
        "hdf5_over_h5py": (args.rows, True, None),
        "hdf5_without_next_over_h5py": (args.rows, False, None),
        # Unpacking takes so long that a fifth of the rows will do.
        "gzip_over_h5py": (args.rows // 5, True, "gzip"),
        "gzip_without_next_over_h5py": (args.rows // 5, False, "gzip"),
    }
    ratios = {}
    print(f"{'medians':32} {'rows':>9} {'h5py':>9} {'load_dataset':>14}  ratio")
    with tempfile.TemporaryDirectory() as folder:
        for name, (rows, with_next, compression) in cases.items():
            path = write(Path(folder) / "data.hdf5", make_arrays(rows, with_next), compression)
            pairs = measured(path, repeats)
            bare, loaded = (statistics.median(times) for times in zip(*pairs, strict=True))
            ratios[name] = round(statistics.median(b / a for a, b in pairs), 3)
            print(f"{name:32} {rows:9,} {bare:7.3f} s {loaded:12.3f} s {ratios[name]:6.2f}")
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
