"""Does a policy server stay well for an hour with clients that come, go and die?

    python benchmarks/soak.py [--minutes 60 | --quick]

`gemrl serve` runs in a process of its own, with a decision log that is rotated and limited.
Processes of clients visit it: some check every answer, deciding it again bit for bit as it says it
was decided, deadlines included; a crowd asks without end and is killed with SIGKILL every few
seconds; some break off in the middle of a frame or of a request, do not read what they asked for,
or say nothing. Memory, open files and threads of the server are read every second.

It is well where, said before:

- no answer is wrong, and at least one was checked;
- resident memory in the last quarter is, at the median, at most 5 % or 20 MB above that in the
  second quarter, whichever is more;
- 5 seconds after the last client has gone it has at most 5 more files open than before the first
  came, and no more threads than its pool may have;
- it answered none with a 5xx but 503, and wrote no traceback;
- it ends with code 0 when told to stop, and `gemrl replay` finds each decision of its log the same.

The last line is a JSON object with what was seen and `well`; the exit code is 1 where it is not.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from serving_load.process import ServerProcess, write_policy

DIMENSIONS = 6
CHECKING, CROWDS, RUDE = 1, 2, 1
KILL_EVERY = 3
MOST_GROWTH, MOST_MB = 0.05, 20.0
FILES_LEFT = 5
# Python's own pool for work outside the event loop has at most this many threads.
POOL = min(32, (os.cpu_count() or 1) + 4)
LOG = ("--log-file-mb", "8", "--log-total-mb", "64")


class Sample(NamedTuple):
    """What the server's process takes."""

    megabytes: float
    files: int
    threads: int


def sample(process: int) -> Sample:
    """Read it from the system."""
    folder = Path(f"/proc/{process}")
    pages = int((folder / "statm").read_text().split()[1])
    threads = len(list((folder / "task").iterdir()))
    megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return Sample(megabytes, len(list((folder / "fd").iterdir())), threads)


def visitors(kind: str, server: ServerProcess, run: Path, seconds: float, seed: int) -> Any:
    """A process of clients."""
    here = Path(__file__).resolve().parent
    paths = [str(here), *filter(None, [os.environ.get("PYTHONPATH")])]
    words = [kind, str(server.port), str(run), str(seconds), str(seed)]
    return subprocess.Popen(
        [sys.executable, "-m", "serving_load.visitors", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
    )


def visited(server: ServerProcess, run: Path, seconds: float) -> tuple[list[Sample], Counter[str]]:
    """Samples of every second, and what the visitors counted."""
    end = time.monotonic() + seconds
    staying = [
        visitors(kind, server, run, seconds, number)
        for kind, count in (("checking", CHECKING), ("rude", RUDE))
        for number in range(count)
    ]
    seeds = iter(range(1000, 10**9))
    crowd = [visitors("crowd", server, run, seconds, next(seeds)) for _ in range(CROWDS)]
    samples: list[Sample] = []
    counts: Counter[str] = Counter()
    while time.monotonic() < end:
        time.sleep(1.0)
        samples.append(sample(server.process.pid))
        if len(samples) % KILL_EVERY == 0:
            place = len(samples) // KILL_EVERY % len(crowd)
            crowd[place].kill()
            crowd[place].wait()
            counts["crowds killed"] += 1
            crowd[place] = visitors("crowd", server, run, seconds, next(seeds))
    for one in crowd:
        one.kill()
        one.wait()
    for one in staying:
        said, _ = one.communicate(timeout=120)
        if one.returncode != 0:
            raise RuntimeError(f"clients ended with code {one.returncode}")
        found = json.loads(said.splitlines()[-1])
        counts.update(found["counts"])
        for request in found.get("wrong", []):
            print(f"a wrong answer to {request}", file=sys.stderr)
    return samples, counts


def growth(samples: list[Sample]) -> tuple[float, float]:
    """Memory in the second and in the last quarter, at the median."""
    quarter = len(samples) // 4
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    return statistics.median(s.megabytes for s in second), statistics.median(
        s.megabytes for s in last
    )


def server_errors(server: ServerProcess) -> float:
    """Answers with a 5xx but 503, as the server counted them."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    odd = [
        line for line in lines if line.startswith("gemrl_requests_total") and 'status="5' in line
    ]
    return sum(float(line.split()[-1]) for line in odd if 'status="503"' not in line)


def replayed(log: Path, run: Path) -> dict[str, Any]:
    """What `gemrl replay` says of the log."""
    command = [sys.executable, "-m", "gemrl", "replay", str(log), "--run", str(run), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    with contextlib.suppress(IndexError, ValueError):
        return json.loads(done.stdout.splitlines()[-1])
    return {"decisions": 0, "different": [f"replay ended with code {done.returncode}"]}


def soak(seconds: float, folder: Path) -> dict[str, Any]:
    """All of it: what was seen, and which promises were broken."""
    run, log = write_policy(DIMENSIONS, folder / "policy"), folder / "log"
    with ServerProcess(run, "--log", str(log), *LOG) as server:
        before = sample(server.process.pid)
        samples, counts = visited(server, run, seconds)
        time.sleep(5.0)
        after, errors = sample(server.process.pid), server_errors(server)
        code = server.stop()
    print(f"replaying {sum(f.stat().st_size for f in log.iterdir()) / 1e6:.0f} MB", file=sys.stderr)
    again = replayed(log, run)
    second, last = growth(samples)
    broken = {
        "wrong answers": counts["wrong"] > 0,
        "nothing was checked": counts["right"] == 0,
        "memory": last > second + max(MOST_GROWTH * second, MOST_MB),
        "files": after.files > before.files + FILES_LEFT,
        "threads": after.threads > before.threads + POOL,
        "server errors": errors > 0,
        "traceback": any("Traceback" in line for line in server.said),
        "exit code": code != 0,
        "replay": bool(again["different"]) or not again["decisions"],
    }
    return {
        "minutes": round(seconds / 60, 2),
        "counts": dict(sorted(counts.items())),
        "memory_mb": {
            "before": round(before.megabytes, 1),
            "second_quarter": round(second, 1),
            "last_quarter": round(last, 1),
            "peak": round(max(s.megabytes for s in samples), 1),
            "after": round(after.megabytes, 1),
        },
        "files": {
            "before": before.files,
            "peak": max(s.files for s in samples),
            "after": after.files,
        },
        "threads": {"before": before.threads, "after": after.threads},
        "server_errors": errors,
        "exit_code": code,
        "replayed": again,
        "said": [line.strip() for line in server.said if "serving" not in line][-5:],
        "broken": [name for name, is_broken in broken.items() if is_broken],
        "well": not any(broken.values()),
    }


def main() -> None:
    """Soak, print what was seen."""
    parser = argparse.ArgumentParser(
        description="A policy server and clients that come, go and die"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="how long")
    parser.add_argument("--quick", action="store_true", help="one minute")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(60.0 * (1.0 if args.quick else args.minutes), Path(folder))
    print(json.dumps(found))
    sys.exit(0 if found["well"] else 1)


if __name__ == "__main__":
    main()
