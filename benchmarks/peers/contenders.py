"""Contenders as the benchmark sees them: which process runs each, on how many cores, how fast."""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.environment import peers_python

OURS = "gemrl_gem"
GEM_PEERS = ("eager_gem", "compiled_gem")
IQL_PEERS = ("corl_iql", "d3rlpy_iql")
GEMMS = ("jax_gemm", "tuned_gemm", "numpy_gemm", "mkl_gemm")
HERE = (OURS, "jax_gemm", "tuned_gemm", "numpy_gemm")
"""Those that run in gemrl's own interpreter."""

BENCHMARKS = Path(__file__).resolve().parents[1]


class Missing(Exception):
    """A contender cannot run here, and why."""


def busy_seconds() -> float:
    """What all cores of the machine have worked since it was started."""
    numbers = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, numbers)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class Worker:
    """A contender's process on some cores."""

    def __init__(self, module: str, *words: str, here: bool, cores: int) -> None:
        """`python -m MODULE CORES WORDS`, in gemrl's own interpreter (`here`) or the peers'."""
        python = sys.executable if here else str(peers_python())
        paths = [str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [python, "-m", module, str(cores), *words],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.cores = cores
        self.said = self._answer()
        """Its first line."""
        if "missing" in self.said:
            self.close()
            raise Missing(self.said["missing"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise Missing(f"its process ended with exit code {self.process.wait()}")
        return json.loads(line)

    def ask(self, order: str) -> dict[str, Any]:
        """The answer to one line."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # The answer that is not there says it.
            print(order, file=self.process.stdin, flush=True)
        return self._answer()

    def rate(self, updates: int) -> float:
        """Updates a second over that many."""
        return updates / self.ask(f"go {updates}")["seconds"]

    def close(self) -> None:
        """End the process: it stops where its orders do."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


@dataclass
class Contender:
    """One row of the table."""

    name: str
    critics: int
    missing: str | None = None
    trial: dict[int, float] = field(default_factory=dict)
    """Updates a second in the trial, by cores."""
    rates: list[float] = field(default_factory=list)
    """Updates a second of each round."""
    others: list[float] = field(default_factory=list)
    """Share of the machine's cores that other processes took in each round."""
    megabytes: float | None = None
    worker: Worker | None = None

    def start(self, seconds: float) -> None:
        """Try one core and all of them, and keep the process that was faster."""
        workers: list[Worker] = []
        try:
            for cores in sorted({1, len(os.sched_getaffinity(0))}):
                words = (self.name, str(self.critics))
                here = self.name in HERE
                workers.append(Worker("peers.worker", *words, here=here, cores=cores))
        except Missing as reason:
            self.missing = str(reason)
        else:
            for worker in 3 * workers:
                rate = worker.rate(max(1, round(worker.rate(3) * seconds)))
                self.trial[worker.cores] = max(rate, self.trial.get(worker.cores, 0.0))
            self.worker = max(workers, key=lambda worker: self.trial[worker.cores])
        for worker in workers:
            if worker is not self.worker:
                worker.close()

    def turn(self, seconds: float) -> None:
        """About so many seconds of updates, as the trial promised.

        A quarter as many come first and are not counted: caches, and on some machines memory, have
        gone cold while the process slept.
        """
        if not self.worker:
            return
        updates = max(1, round(seconds * max(self.trial.values())))
        try:
            self.worker.rate(max(1, updates // 4))
            before = busy_seconds()
            answer = self.worker.ask(f"go {updates}")
        except Missing as reason:
            self.missing, self.worker = str(reason), None
            return
        others = busy_seconds() - before - answer["cpu_seconds"]
        self.rates.append(updates / answer["seconds"])
        self.others.append(others / answer["seconds"] / (os.cpu_count() or 1))

    def finish(self) -> None:
        """Ask for the peak of memory and end the process."""
        if self.worker:
            self.megabytes = self.worker.ask("memory")["megabytes"]
            self.worker.close()
