"""Train for a long time and watch the memory: it must stay flat.

    python tools/soak.py DATASET --minutes 60 --out soak.json

A real `gemrl train` runs for as long as asked, with a checkpoint every 2,000 updates, and is then
stopped by SIGTERM, which must save. Its resident memory is read every ten seconds. It moves up and
down by some windows of minibatches, so what is judged is the least of each ten minutes: the exit
code is 0 only if the last of these is at most 10 MB above the first. The last line is JSON, which
`--out` writes as well.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from gemrl.learn.checkpoint import newest_checkpoint
from gemrl.learn.metrics import last_update

EVERY = 10.0
SETTLED = 5 * 60.0
TEN_MINUTES = 60  # samples
ALLOWED = 10.0  # megabytes


def resident(process: int) -> float:
    """Megabytes of a process that are in memory."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("the run has ended")


def soak(dataset: str, minutes: float, run: Path) -> dict[str, Any]:
    """Train, watch, stop; what was seen."""
    words = ["train", dataset, "--steps", "100000000", "--pretrain-steps", "2000"]
    words += ["--checkpoint-every", "2000", "--out", str(run)]
    with open(run.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gemrl", *words],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    started = time.monotonic()
    samples = []
    while (passed := time.monotonic() - started) < 60 * minutes:
        time.sleep(EVERY)
        samples.append((passed + EVERY, resident(process.pid)))
    process.send_signal(signal.SIGTERM)
    code = process.wait()
    settled = np.array([sample for sample in samples if sample[0] > min(SETTLED, 30 * minutes)])
    slope = float(np.polyfit(settled[:, 0] / 60, settled[:, 1], 1)[0])
    starts = range(0, len(settled), TEN_MINUTES)
    floors = [round(float(settled[i : i + TEN_MINUTES, 1].min()), 1) for i in starts]
    newest = newest_checkpoint(run)
    return {
        "minutes": round(minutes, 1),
        "updates": int(newest.stem) if newest else 0,
        "updates_logged": last_update(run),
        "saved_on_sigterm": code == 1 and newest is not None and int(newest.stem) % 2000 != 0,
        "resident_mb_first": round(float(settled[0, 1]), 1),
        "resident_mb_last": round(float(settled[-1, 1]), 1),
        "resident_mb_largest": round(float(settled[:, 1].max()), 1),
        "growth_mb_per_minute": round(slope, 4),
        "least_of_ten_minutes_mb": floors,
    }


def main() -> None:
    """Soak and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="file or task's name")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        seen = soak(args.dataset, args.minutes, Path(scratch) / "run")
    text = json.dumps(seen)
    if args.out:
        args.out.write_text(text + "\n")
    print(text)
    floors = seen["least_of_ten_minutes_mb"]
    sys.exit(0 if floors[-1] - floors[0] <= ALLOWED and seen["saved_on_sigterm"] else 1)


if __name__ == "__main__":
    main()
