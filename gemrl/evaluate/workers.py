"""Cells in processes of this machine, one a core. Work and rows travel as lines of JSON."""

import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from gemrl.errors import ConfigError, EvaluationError, GemrlError
from gemrl.evaluate.cells import TRIES, Done, Runner, Work, describe, evaluate_work
from gemrl.evaluate.rows import Row, row_from_json
from gemrl.learn.parallel import core_sets


def processes(count: int | None = None) -> Runner:
    """Run cells in so many processes, each on cores of its own; by default one a core."""
    if count is not None and count < 1:
        raise ConfigError(f"processes = {count}: must be at least 1")

    def run(jobs: Sequence[Work]) -> Iterator[Done]:
        wanted = len(jobs) if count is None else min(count, len(jobs))
        sets = core_sets(wanted)
        if count is not None:  # More than there are cores share them.
            sets = [sets[i % len(sets)] for i in range(wanted)]
        return _spread(jobs, sets)

    return run


def answer(job: Work, evaluate: Callable[[Work], list[Row]]) -> str:
    """What a worker sends back: a line with the cell's rows, or with what went wrong."""
    try:
        return json.dumps({"rows": [asdict(row) for row in evaluate(job)]})
    except GemrlError as error:
        words = str(error)
    except Exception as error:  # Not the user's mistake: the worker's log has all of it.
        traceback.print_exc()
        words = f"{type(error).__name__}: {error}"
    return json.dumps({"error": " ".join(words.split())})


def rows_in(line: str, job: Work) -> list[Row]:
    """The rows of a worker's answer. What went wrong there is raised here."""
    found: dict[str, Any] = json.loads(line)
    if "error" in found:
        raise EvaluationError(f"{describe(job)}: {found['error']}")
    return [row_from_json(row, describe(job)) for row in found["rows"]]


def gave_up(job: Work) -> EvaluationError:
    """The error for a cell that no worker survives."""
    return EvaluationError(
        f"{describe(job)}: its process died {TRIES} times; the machine may be short of memory"
    )


def _spread(jobs: Sequence[Work], sets: Sequence[Sequence[int]]) -> Iterator[Done]:
    """Hand the jobs out, the next to whoever is free, and yield what comes back."""
    waiting: queue.Queue[tuple[Work, int]] = queue.Queue()
    for job in jobs:
        waiting.put((job, 1))
    ended: queue.Queue[Done | Exception] = queue.Queue()
    workers = [_Worker(cores) for cores in sets]

    def serve(worker: _Worker) -> None:
        try:
            while True:
                job, tries = waiting.get_nowait()
                line = worker.ask(job)
                if line is not None:
                    ended.put((job, rows_in(line, job)))
                elif tries < TRIES:
                    waiting.put((job, tries + 1))
                else:
                    raise gave_up(job)
        except queue.Empty:
            return
        except Exception as error:  # It belongs to whoever asked for the rows.
            ended.put(error)

    threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for _ in jobs:
            found = ended.get()
            if isinstance(found, Exception):
                raise found
            yield found
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process that evaluates cells, started when it is needed and again when it has died."""

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = cores
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        # One thread asks and another stops: no process may start after the stop.
        self._lock = threading.Lock()

    def ask(self, job: Work) -> str | None:
        """The worker's answer; None where the process died over it."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line.endswith("\n"):
            return line
        process.kill()
        process.wait()
        self._process = None
        return None

    def _start(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise EvaluationError("stopped")
            # Ctrl-C in a terminal reaches the driver alone, which ends its workers.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gemrl.evaluate.workers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        if self._cores:
            with suppress(ProcessLookupError):  # It died already: asking it will tell.
                os.sched_setaffinity(self._process.pid, self._cores)
        return self._process

    def stop(self) -> None:
        """End the process; what it was at is lost."""
        with self._lock:
            self._stopped = True
            process = self._process
        if process is not None:
            process.kill()
            process.wait()


def serve() -> None:
    """Read work from standard input, a line each, and answer each with a line."""
    # Answers alone go to standard output: what a library prints there goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    while True:
        print(answer(json.loads(lines.get()), evaluate_work), file=answers, flush=True)


def _listen(lines: queue.SimpleQueue[str]) -> None:
    """Pass on the lines of standard input. Its end is the driver's, and so the worker's."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    serve()
