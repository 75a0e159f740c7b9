"""Cells in processes of this machine, one a core. Work and rows travel as lines of JSON."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from gemrl.errors import EvaluationError, GemrlError
from gemrl.evaluate.cells import TRIES, Done, Runner, Work, describe, evaluate_work
from gemrl.evaluate.rows import row_from_json
from gemrl.learn.parallel import core_sets


def processes(count: int | None = None) -> Runner:
    """Run cells in so many processes, each on cores of its own; by default one a core."""

    def run(jobs: Sequence[Work]) -> Iterator[Done]:
        sets = core_sets(len(jobs))
        if count is not None:
            sets = [sets[i % len(sets)] for i in range(min(count, len(jobs)))]
        return _spread(jobs, sets)

    return run


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
                rows = worker.ask(job)
                if rows is not None:
                    ended.put((job, [row_from_json(row, describe(job)) for row in rows]))
                elif tries < TRIES:
                    waiting.put((job, tries + 1))
                else:
                    raise EvaluationError(f"{describe(job)}: its process died {TRIES} times")
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

    def ask(self, job: Work) -> list[object] | None:
        """The cell's rows as JSON values; None where the process died over it."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer.endswith("\n"):
            process.kill()
            process.wait()
            self._process = None
            return None
        found = json.loads(answer)
        if "error" in found:
            raise EvaluationError(f"{describe(job)}: {found['error']}")
        return found["rows"]

    def _start(self) -> subprocess.Popen[str]:
        if self._stopped:
            raise EvaluationError("stopped")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gemrl.evaluate.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._cores:
            os.sched_setaffinity(self._process.pid, self._cores)
        return self._process

    def stop(self) -> None:
        """End the process; what it was at is lost."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def serve() -> None:
    """Read work from standard input, a line each, and answer each with a line."""
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = {"rows": [asdict(row) for row in evaluate_work(job)]}
        except GemrlError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
