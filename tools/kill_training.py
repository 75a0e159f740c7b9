"""Kill training with `kill -9` at random instants, resume it, and compare with a run left alone.

    python tools/kill_training.py --kills 50

A small GEM run is trained once without interruption. Then the same run is started again and again,
killed at a random moment, and resumed with `--resume`, until as many kills as asked for have been
made; every third kill waits for a checkpoint that is being written. Whenever the run reaches its
end, its weights, its manifest and its metrics must equal those of the run left alone, bit for bit,
and a new one is begun. The exit code is 0 only if all did. The last line is JSON.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gemrl.data.recipes import make_dataset
from gemrl.data.tasks import task_named
from gemrl.learn.bundle import MANIFEST, WEIGHTS
from gemrl.learn.metrics import METRICS, last_update

TASK = "maze2d-umaze-v1"
UPDATES = 6000
SETTINGS = (
    *("--steps", "4500", "--pretrain-steps", "1500", "--checkpoint-every", "150"),
    *("--hidden", "128", "128", "--batch-size", "32", "--critics", "2", "--components", "4"),
)
COMPARED = (WEIGHTS, MANIFEST, METRICS)


@dataclass
class Tally:
    """What happened."""

    kills: int = 0
    inside_a_write: int = 0
    before_the_first_update: int = 0
    runs: int = 0
    different: int = 0


def start(data: Path, out: Path) -> subprocess.Popen[bytes]:
    """The run's process, which goes on where the last one stopped."""
    words = ["train", str(data), *SETTINGS, "--out", str(out), "--resume"]
    log = open(out.with_suffix(".log"), "ab")  # noqa: SIM115
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", "gemrl", *words],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )


def writing(out: Path) -> bool:
    """Whether a checkpoint is being written."""
    return any((out / "checkpoints").glob(".*.tmp"))


def kill_once(data: Path, out: Path, rng: random.Random, tally: Tally) -> None:
    """Start or resume the run and kill it at a random instant, unless it ends before."""
    left_by_the_last = writing(out)
    process = start(data, out)
    in_a_write = tally.kills % 3 == 2 and not left_by_the_last
    # Some instants fall before the first update, most after it.
    begun = last_update(out)
    moment = time.monotonic() + rng.uniform(0.2, 3.0)
    while process.poll() is None:
        if in_a_write and writing(out):
            break
        if not in_a_write and time.monotonic() > moment:
            break
        if last_update(out) == begun and rng.random() < 0.999:
            moment += 0.002  # Compiling and reading take long; do not only ever kill those.
        time.sleep(0.002)
    if process.poll() is not None:
        if process.returncode != 0:
            raise SystemExit(f"a run failed: see {out.with_suffix('.log')}")
        return
    process.kill()
    process.wait()
    tally.kills += 1
    tally.inside_a_write += writing(out) and not left_by_the_last
    tally.before_the_first_update += last_update(out) == 0


def same(one: Path, other: Path) -> bool:
    """Whether two finished runs agree, bit for bit."""
    pairs = [(one / name, other / name) for name in COMPARED]
    return all(a.read_bytes() == b.read_bytes() for a, b in pairs)


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="how many (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="of the random instants")
    parser.add_argument("--keep", type=Path, help="folder to leave the runs in")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    tally = Tally()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        data = folder / "data.hdf5"
        make_dataset(task_named(TASK), 3000, 0, data)
        alone = folder / "alone"
        if start(data, alone).wait() != 0:
            raise SystemExit(f"the run left alone failed: see {alone.with_suffix('.log')}")
        killed = folder / "killed"
        while tally.kills < args.kills:
            kill_once(data, killed, rng, tally)
            if (killed / MANIFEST).exists():
                finish(data, alone, killed, tally)
        finish(data, alone, killed, tally)
    print(json.dumps(vars(tally)))
    sys.exit(1 if tally.different else 0)


def finish(data: Path, alone: Path, killed: Path, tally: Tally) -> None:
    """Let the killed run come to its end, compare it, and make room for the next."""
    if start(data, killed).wait() != 0:
        raise SystemExit(f"a resumed run failed: see {killed.with_suffix('.log')}")
    tally.runs += 1
    tally.different += not same(alone, killed)
    print(f"{tally.kills} kills, {tally.runs} runs, {tally.different} different", flush=True)
    shutil.rmtree(killed)


if __name__ == "__main__":
    main()
