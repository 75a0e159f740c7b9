"""Several seeds beside one, data on disk beside data in memory, and a second start beside a first.

    python benchmarks/scaling.py [--quick]

Real `gemrl train` commands on a dataset of a million rows (observation 17, action 6), each timed
whole, from its start to its exit, interleaved; the compiled programs are in the cache and the
shards are written, as on any run but the first. `four_seeds` is the updates a second of `--seeds 4`
over those of one seed, which has all cores; `from_disk` those of `--memory 1GB` over those in
memory, with the peak of its resident memory beside it. A start is timed until the first update is
logged, with an empty cache and with a filled one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import h5py
from reading import make_arrays

from gemrl.learn.metrics import METRICS

ROWS = 1_000_000
LIMIT = "1GB"


def command(*words: str) -> list[str]:
    """A `gemrl` command."""
    return [sys.executable, "-m", "gemrl", *words]


def seconds(words: Sequence[str], home: Path) -> float:
    """Wall time of a command that must succeed."""
    start = time.perf_counter()
    subprocess.run(
        command(*words),
        env={**os.environ, "GEMRL_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start


def peak_megabytes(words: Sequence[str], home: Path) -> float:
    """The most resident memory that a command had, as the system tells after its end."""
    program = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, "
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    environment = {**os.environ, "GEMRL_HOME": str(home)}
    words = [sys.executable, "-c", program, *command(*words)]
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return int(said.stdout) / 1024


def start_seconds(data: Path, out: Path, home: Path) -> float:
    """From the start of a process to its first update."""
    words = ["train", str(data), "--steps", "1", "--pretrain-steps", "0", "--out", str(out)]
    start = time.perf_counter()
    process = subprocess.Popen(
        command(*words),
        env={**os.environ, "GEMRL_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    path = out / METRICS
    while not (path.exists() and path.stat().st_size):
        if process.poll() is not None:
            sys.exit("the run ended before its first update")
        time.sleep(0.01)
    taken = time.perf_counter() - start
    process.wait()
    return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repeat of shorter runs")
    args = parser.parse_args()
    repeats, updates = (1, 1500) if args.quick else (3, 6000)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data, home = folder / "data.hdf5", folder / "home"
        with h5py.File(data, "w") as file:
            for name, array in make_arrays(ROWS, with_next=True).items():
                file.create_dataset(name, data=array)
        starts = [start_seconds(data, folder / f"start-{i}", home) for i in range(3)]
        train = ["train", str(data), "--steps", str(updates), "--pretrain-steps", "0"]
        kinds = {"one": [], "seeds": ["--seeds", "4"], "disk": ["--memory", LIMIT]}
        # The first of each compiles, and writes the shards.
        for name, flags in kinds.items():
            seconds([*train, "--steps", "1", *flags, "--out", str(folder / f"warm-{name}")], home)
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for repeat in range(repeats):
            for name in list(kinds)[:: 1 if repeat % 2 else -1]:
                out = folder / f"{name}-{repeat}"
                times[name].append(seconds([*train, *kinds[name], "--out", str(out)], home))
        pairs = list(zip(times["one"], times["seeds"], times["disk"], strict=True))
        peak = peak_megabytes([*train, *kinds["disk"], "--out", str(folder / "peak")], home)
    for name, values in times.items():
        count = 4 * updates if name == "seeds" else updates
        rates = ", ".join(f"{count / value:.1f}" for value in values)
        print(f"{name:6} updates a second, whole runs of {updates}: {rates}")
    found = {
        "four_seeds": statistics.median(4 * one / seeds for one, seeds, _ in pairs),
        "from_disk": statistics.median(one / disk for one, _, disk in pairs),
        "from_disk_peak_mb": peak,
        "first_start_s": starts[0],
        "second_start_s": statistics.median(starts[1:]),
    }
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main()
