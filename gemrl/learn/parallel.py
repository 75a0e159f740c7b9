"""Several training runs at once, each in a process of its own on cores of its own.

The runs are ordinary `gemrl train` commands, so each can be resumed alone, and two on a core each
are faster than one after the other on two cores. Their weights are the same either way.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO

from gemrl.errors import DivergedError, TrainingError
from gemrl.learn.checkpoint import newest_checkpoint
from gemrl.learn.divergence import NOTE, divergence_of
from gemrl.learn.interrupts import PARENT, Interrupted, stop_on_signals
from gemrl.learn.metrics import last_metrics
from gemrl.learn.run import shown
from gemrl.methods import method_of
from gemrl.methods.protocol import MethodConfig
from gemrl.progress import bars, say


@dataclass(frozen=True)
class Job:
    """A training run: the words after `gemrl train`, its folder and its number of updates."""

    title: str
    arguments: tuple[str, ...]
    out: Path
    updates: int
    may_diverge: bool = False
    """Whether the other jobs go on when this one diverges, and so does whoever asked for it."""


def job(
    title: str, data: str, config: MethodConfig, out: Path, *more: str, may_diverge: bool = False
) -> Job:
    """The job of a training with these settings; `more` are further words."""
    method = method_of(config)
    words = (data, "--method", method.name, *more, *settings_words(config))
    updates = sum(phase.steps for phase in method.phases(config))
    return Job(title, words, out, updates, may_diverge)


def settings_words(config: MethodConfig) -> list[str]:
    """Settings as flags of `gemrl train`: all, as the task can have another default than the class.

    A switch takes no word after it.
    """
    words = []
    for setting in fields(config):
        name, value = setting.name.replace("_", "-"), getattr(config, setting.name)
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    return words


class Worker:
    """A running job."""

    def __init__(self, job: Job, cores: Sequence[int]) -> None:
        self.job = job
        self.cores = cores
        job.out.mkdir(parents=True, exist_ok=True)
        self._old_note = _stamp(job.out / NOTE)
        self._log: IO[bytes] = open(job.out / "train.log", "ab")  # noqa: SIM115
        self._read = self._log.tell()
        command = [sys.executable, "-m", "gemrl", "train", *job.arguments]
        command += ["--out", str(job.out), "--resume"]
        self._process = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, PARENT: str(os.getpid())},
        )
        if cores:
            os.sched_setaffinity(self._process.pid, cores)

    def finished(self) -> bool:
        """Has it ended? An end with an error is raised with the log's last line."""
        code = self._process.poll()
        if code is None:
            return False
        self._log.close()
        if code != 0:
            log = self.job.out / "train.log"
            words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            said = words[-1].removeprefix("gemrl: ") if words else f"exit code {code}"
            if code < 0:  # It had no time for a word.
                said = f"ended by {signal.Signals(-code).name}"
            message = f"{self.job.title} failed: {said} ({log})"
            # A note from before says nothing of this end: a run that is tried again takes it away.
            new = _stamp(self.job.out / NOTE) != self._old_note
            why = divergence_of(self.job.out) if new else None
            raise TrainingError(message) if why is None else DivergedError(message, why)
        return True

    def news(self) -> list[str]:
        """What its log has told of its health since the last look."""
        with open(self.job.out / "train.log", "rb") as log:
            log.seek(self._read)
            whole, _, _ = log.read().rpartition(b"\n")
        self._read += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        return [line for line in lines if line.startswith("after ")]

    def stop(self) -> None:
        """End it; it saves before it goes."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._log.close()


def _stamp(path: Path) -> tuple[int, int] | None:
    """What a file differs in once it is written anew; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def core_sets(jobs: int) -> list[list[int]]:
    """The cores of each job that runs at a time: as many jobs as there are cores, at most.

    On an accelerator the jobs take turns, since a process claims its memory.
    """
    if _has_accelerator() or not hasattr(os, "sched_getaffinity"):
        return [[]]
    cores = sorted(os.sched_getaffinity(0))
    count = max(1, min(jobs, len(cores)))
    return [cores[i::count] for i in range(count)]


def _has_accelerator() -> bool:
    """Whether JAX would use one, told without claiming it: the runs need it."""
    if os.environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return False
    return any(importlib.util.find_spec(name) for name in ("jax_plugins", "libtpu"))


def run_jobs(jobs: Sequence[Job]) -> None:
    """Run all jobs, as many at a time as there are cores, and show how far each has come."""
    sets = core_sets(len(jobs))
    waiting = list(jobs)
    running: list[Worker] = []
    titles = {job.title: job.updates for job in jobs}
    with stop_on_signals() as wish, bars("updates", titles) as report:
        try:
            while waiting or running:
                while waiting and len(running) < len(sets):
                    taken = [worker.cores for worker in running]
                    free = next(cores for cores in sets if cores not in taken)
                    running.append(Worker(waiting.pop(0), free))
                time.sleep(0.2)
                if wish:
                    break
                for worker in list(running):
                    metrics = last_metrics(worker.job.out)
                    report(worker.job.title, metrics.get("update", 0), shown(metrics))
                    for line in worker.news():
                        say(f"{worker.job.title}, {line}")
                    try:
                        ended = worker.finished()
                    except DivergedError as error:
                        if not worker.job.may_diverge:
                            raise
                        running.remove(worker)
                        say(f"{worker.job.title} diverged, and the others go on: {error.why}")
                        continue
                    if ended:
                        running.remove(worker)
                        report(worker.job.title, worker.job.updates)
        except TrainingError:
            if not wish:  # Ctrl-C reaches all processes, and a worker may be the first to stop.
                raise
        finally:
            for worker in running:
                worker.stop()
    if wish:
        folders = ", ".join(str(job.out) for job in jobs if newest_checkpoint(job.out))
        saved = f"saved in {folders}" if folders else "nothing was there to save"
        raise Interrupted(f"stopped by {wish.by}; {saved}; go on with --resume")
