"""Several training runs at once, each in a process of its own on a core of its own.

The runs are ordinary `gemrl train` commands, so each can be resumed alone, and two on a core each
are faster than one on two cores.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gemrl.errors import TrainingError
from gemrl.learn.train import METRICS, last_update
from gemrl.progress import bars


@dataclass(frozen=True)
class Job:
    """A training run: the words after `gemrl train`, its folder and its number of updates."""

    title: str
    arguments: tuple[str, ...]
    out: Path
    updates: int


class Worker:
    """A running job."""

    def __init__(self, job: Job, core: int | None) -> None:
        self.job = job
        self.core = core
        job.out.mkdir(parents=True, exist_ok=True)
        self._log: IO[bytes] = open(job.out / "train.log", "wb")  # noqa: SIM115
        command = [sys.executable, "-m", "gemrl", "train", *job.arguments]
        command += ["--out", str(job.out), "--resume"]
        self._process = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        if core is not None:
            os.sched_setaffinity(self._process.pid, {core})

    def finished(self) -> bool:
        """Has it ended? An end with an error is raised with the log's last line."""
        code = self._process.poll()
        if code is None:
            return False
        self._log.close()
        if code != 0:
            log = self.job.out / "train.log"
            words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise TrainingError(f"{self.job.title} failed: {words[-1] if words else code} ({log})")
        return True

    def stop(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._log.close()


def available_cores() -> list[int]:
    """The cores this process may use; empty where the platform does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def run_jobs(jobs: Sequence[Job]) -> None:
    """Run all jobs, as many at a time as there are cores, and show how far each has come."""
    cores: list[int | None] = list(available_cores()) or [None]
    waiting = list(jobs)
    running: list[Worker] = []
    with bars("updates", {job.title: job.updates for job in jobs}) as report:
        try:
            while waiting or running:
                while waiting and len(running) < len(cores):
                    taken = {worker.core for worker in running}
                    core = next((c for c in cores if c not in taken), None)
                    running.append(Worker(waiting.pop(0), core))
                time.sleep(0.5)
                for worker in list(running):
                    report(worker.job.title, last_update(worker.job.out / METRICS))
                    if worker.finished():
                        running.remove(worker)
                        report(worker.job.title, worker.job.updates)
        finally:
            for worker in running:
                worker.stop()
