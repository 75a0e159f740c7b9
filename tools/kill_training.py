"""Kill training with `kill -9` at random instants, resume it, and compare with a run left alone.

    python tools/kill_training.py --kills 50

A small run is trained once without interruption. Then the same run is started again and again,
killed at a random moment, and resumed with `--resume`, until as many kills as asked for have been
made; every third kill waits for a checkpoint that is being written, and some of the others fall
into reading and compiling. Whenever the run reaches its end, its weights, its manifest and its
metrics must equal those of the run left alone, bit for bit, and a new one is begun. The exit code
is 0 only if all did. The last line is JSON.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gemrl.data.recipes import make_dataset
from gemrl.data.tasks import task_named
from gemrl.learn.bundle import MANIFEST, WEIGHTS
from gemrl.learn.metrics import METRICS, last_update

TASK = "maze2d-umaze-v1"
SETTINGS = ("--batch-size", "32", "--checkpoint-every", "150")
METHODS = {
    "gem": (
        *("--steps", "4500", "--pretrain-steps", "1500", "--hidden", "128", "128"),
        *("--critics", "2", "--components", "4"),
    ),
    "bc": ("--method", "bc", "--steps", "3000", "--hidden", "8"),
}
COMPARED = (WEIGHTS, MANIFEST, METRICS)


@dataclass
class Tally:
    """What happened."""

    kills: int = 0
    inside_a_write: int = 0
    before_the_first_update: int = 0
    runs: int = 0
    different: int = 0


@dataclass(frozen=True)
class Training:
    """The run that is to be killed, and how long one of its kind takes."""

    data: Path
    method: str
    startup: float = 0.0
    """Seconds before the first line of metrics."""
    rest: float = 0.0
    """Seconds from there to the end."""

    def start(self, out: Path) -> subprocess.Popen[bytes]:
        """The run's process, which goes on where the last one stopped."""
        words = ["train", str(self.data), *SETTINGS, *METHODS[self.method]]
        with open(out.with_suffix(".log"), "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "gemrl", *words, "--out", str(out), "--resume"],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                # Kills may hit a compiled program that is being kept: not among the user's own.
                env={**os.environ, "GEMRL_HOME": str(self.data.parent / "home")},
            )

    def to_the_end(self, out: Path) -> "Training":
        """Let the run come to its end; the same training with the times that this took."""
        began = time.monotonic()
        before, first = last_update(out), None
        process = self.start(out)
        while process.poll() is None:
            if first is None and last_update(out) != before:
                first = time.monotonic()
            time.sleep(0.01)
        if process.returncode != 0:
            raise SystemExit(f"a run failed: see {out.with_suffix('.log')}")
        first = first or time.monotonic()
        return replace(self, startup=first - began, rest=time.monotonic() - first)


def writing(out: Path) -> bool:
    """Whether a checkpoint is being written."""
    return any((out / "checkpoints").glob(".*.tmp"))


def kill_once(training: Training, out: Path, rng: random.Random, tally: Tally) -> None:
    """Start or resume the run and kill it at a random instant, unless it ends before."""
    left_by_the_last = writing(out)
    before = last_update(out)
    process = training.start(out)
    if tally.kills % 5 == 1:
        moment = time.monotonic() + rng.uniform(0, training.startup / 2)
    elif tally.kills % 3 == 2 and not left_by_the_last:
        wait_for(lambda: writing(out), process, 0.0005)
        moment = 0.0
    else:
        wait_for(lambda: last_update(out) > before, process, 0.005)
        moment = time.monotonic() + rng.uniform(0, training.rest / 2)
    wait_for(lambda: time.monotonic() >= moment, process, 0.001)
    if process.poll() is not None:
        if process.returncode != 0:
            raise SystemExit(f"a run failed: see {out.with_suffix('.log')}")
        return
    process.kill()
    process.wait()
    tally.kills += 1
    tally.inside_a_write += writing(out) and not left_by_the_last
    tally.before_the_first_update += last_update(out) <= before


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[bytes], pause: float) -> None:
    """Until something has happened or the process has ended."""
    while not happened() and process.poll() is None:
        time.sleep(pause)


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="how many (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="of the random instants")
    parser.add_argument("--method", choices=METHODS, default="gem", help="(default gem)")
    parser.add_argument("--keep", type=Path, help="folder to leave the runs in")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    tally = Tally()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        data = folder / "data.hdf5"
        make_dataset(task_named(TASK), 3000, 0, data)
        alone, killed = folder / "alone", folder / "killed"
        training = Training(data, args.method).to_the_end(alone)
        while tally.kills < args.kills:
            kill_once(training, killed, rng, tally)
            if (killed / MANIFEST).exists():
                finish(training, alone, killed, tally)
        if killed.exists():
            finish(training, alone, killed, tally)
    print(json.dumps(vars(tally)))
    sys.exit(1 if tally.different else 0)


def finish(training: Training, alone: Path, killed: Path, tally: Tally) -> None:
    """Let the killed run come to its end, compare it, and make room for the next."""
    if not (killed / MANIFEST).exists():
        training.to_the_end(killed)
    tally.runs += 1
    pairs = {name: (alone / name, killed / name) for name in COMPARED}
    differ = [name for name, (a, b) in pairs.items() if a.read_bytes() != b.read_bytes()]
    tally.different += bool(differ)
    which = f" ({', '.join(differ)})" if differ else ""
    print(f"{tally.kills} kills, {tally.runs} runs, {tally.different} different{which}", flush=True)
    if differ:
        killed.rename(killed.with_name(f"different-{tally.different}"))
    else:
        shutil.rmtree(killed)


if __name__ == "__main__":
    main()
