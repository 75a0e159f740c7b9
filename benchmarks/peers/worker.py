"""The process of one contender: `python -m peers.worker CORES NAME CRITICS`.

It warms up, says so, and then answers lines: "go N" makes N updates and gives their seconds,
by the clock and of all cores; "memory" gives the peak of resident memory. Between lines it sleeps.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TextIO

WARM_UP = 10


def alone_on(cores: int) -> TextIO:
    """Keep to so many cores, and print to standard output nothing but what goes to the result.

    Before anything is imported: JAX, OpenMP and OpenBLAS start as many threads as there are cores
    to run on.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def peak_memory() -> float:
    """The peak of this process's resident memory in megabytes.

    Not getrusage's, which a process inherits from the one that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    """Answer until the lines end. Every answer is one line of JSON."""
    cores, name, critics = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    answers = alone_on(cores)
    try:
        run = importlib.import_module(f"peers.{name}").make(critics)
        run(WARM_UP)
    except Exception as error:
        words = str(error).strip().splitlines() or [""]
        print(json.dumps({"missing": f"{type(error).__name__}: {words[0]}"}), file=answers)
        return
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        order, *rest = line.split()
        if order == "go":
            start, cpu = time.perf_counter(), time.process_time()
            run(int(rest[0]))
            answer = {
                "seconds": time.perf_counter() - start,
                "cpu_seconds": time.process_time() - cpu,
            }
        else:
            answer = {"megabytes": peak_memory()}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
