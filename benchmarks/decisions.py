"""How long a decision takes in gemrl, beside the same decision by others.

    python benchmarks/decisions.py [--quick] [--markdown]

Trained policies with 4 critics of 256x256 and 2, 6 and 28 action dimensions decide at one state
with N = 0, 1, 64, 1024 and 2048, and at batches of states, on one thread and on two (`--quick`: one
thread, fewer N). `gemrl_fast` and `gemrl_jax` are `policy.decide` with its two backends,
`ort_dense` is ONNX Runtime on a graph of the whole decision, `torch_eager` and `numpy_dense` the
same decision written plainly. All draw their noise, evaluate, rank, audit and return the whole
record. `gemm` makes the matrix products of the dense evaluation and nothing else, by MKL: less than
that is less than dense evaluation can take.

Every contender is a process that sleeps while another has its turn. A round gives each a turn, in
an order that rotates; a ratio is taken between medians of a round, and the median of the rounds is
printed. The table has milliseconds, the median and for gemrl the 95th percentile, and in brackets
how many times gemrl's the others take. Other processes on the machine spoil it: what they took is
printed.

The last line is a JSON object: `ort_n64_a6` is ONNX Runtime's time over gemrl's (fast) for N = 64
and 6 action dimensions on one thread, and so on; `torch_batch_a6` PyTorch's over gemrl's for a
batch of 64 states with N = 256 on all cores, `torch_batch_a6_jax` over that of its JAX backend, and
`torch_batch_large` for 1024 states with N = 1024; `gemm_n1024_a6` the bare products' time over
gemrl's; `growth_a6` gemrl's time at N = 1024 over that at N = 64;
`share_n1024_a6` the share of the dense arithmetic that is left; `least` the least ratio to ONNX
Runtime of all that was measured.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from typing import Any, NamedTuple

from deciders.policies import DIMENSIONS, load_policy, states_of
from peers.contenders import Worker, busy_seconds

OURS, THEIRS = "gemrl_fast", "ort_dense"
HERE = ("gemrl_fast", "gemrl_jax")
SINGLE = (OURS, THEIRS, "torch_eager", "numpy_dense", "gemrl_jax", "gemm")
BATCH = (OURS, "gemrl_jax", "torch_eager")
HEADER = ("action dims", "N", "threads", OURS, *SINGLE[1:])


class Case(NamedTuple):
    """What is decided."""

    dimensions: int
    n: int
    batch: int
    threads: int


class Times:
    """Seconds of every decision, by contender and round."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[list[float]]] = defaultdict(list)

    def median(self, name: str) -> float:
        """Of all decisions."""
        return statistics.median(x for round in self.rounds[name] for x in round)

    def late(self, name: str) -> float:
        """The 95th percentile."""
        every = sorted(x for round in self.rounds[name] for x in round)
        return every[min(len(every) - 1, int(0.95 * len(every)))]

    def ratio(self, name: str) -> float:
        """The median of the rounds' ratios to gemrl's."""
        pairs = zip(self.rounds[name], self.rounds[OURS], strict=True)
        return statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)


def measure(case: Case, workers: dict[str, Worker], rounds: int, seconds: float) -> Times:
    """Rounds of one case. Each turn takes about so many seconds."""
    times = Times()
    names = list(workers)
    order: dict[str, Any] = {"dimensions": case.dimensions, "n": case.n, "batch": case.batch}
    counts = {}
    for name in names:
        # The one that is not counted compiles.
        tried = workers[name].ask(json.dumps(order | {"count": 1}))["seconds"]
        counts[name] = max(1, min(200, round(seconds / tried[0])))
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            answer = workers[name].ask(json.dumps(order | {"count": counts[name]}))
            times.rounds[name].append(answer["seconds"])
    return times


def started(names: tuple[str, ...], threads: int) -> dict[str, Worker]:
    """A process for each contender."""
    found = {}
    for name in names:
        print(f"{name} starts, {threads} threads", file=sys.stderr)
        found[name] = Worker("deciders.worker", name, here=name in HERE, cores=threads)
    return found


def row_of(case: Case, times: Times) -> tuple[str, ...]:
    """A case's line of the table: milliseconds, and how many times gemrl's the others take."""
    what = str(case.n) if case.batch == 1 else f"{case.n}, {case.batch} states"
    ours = f"{1e3 * times.median(OURS):.3f} (95 %: {1e3 * times.late(OURS):.3f})"
    others = (
        f"{1e3 * times.median(name):.3f} (×{times.ratio(name):.2f})" if name in times.rounds else ""
        for name in SINGLE[1:]
    )
    return (str(case.dimensions), what, str(case.threads), ours, *others)


def printed(rows: list[tuple[str, ...]], markdown: bool) -> str:
    """A table for a terminal or for a page."""
    if markdown:
        marks = ("---:",) * len(HEADER)
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEADER, marks, *rows))
    widths = [max(map(len, column)) for column in zip(HEADER, *rows, strict=True)]
    lines = (
        "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        for cells in (HEADER, *rows)
    )
    return "\n".join(lines)


def shares(budgets: tuple[int, ...]) -> dict[str, float]:
    """The share of the dense arithmetic that is left, on average over the states."""
    import gemrl
    from gemrl.decide.fast.backend import FastBackend
    from gemrl.decide.select import Shape

    found = {}
    for dimensions in DIMENSIONS:
        policy = load_policy(dimensions, "jax")
        backend = FastBackend(policy.models, policy.spec)
        for n in budgets:
            share = backend.dense_share(states_of(dimensions), Shape.of(gemrl.Knobs(n=n)))
            found[f"share_n{n}_a{dimensions}"] = round(float(share.mean()), 4)
    return found


def main() -> None:
    """Measure, print the tables and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one thread, fewer N and rounds")
    parser.add_argument("--markdown", action="store_true", help="tables for a Markdown page")
    args = parser.parse_args()
    rounds, seconds = (5, 0.15) if args.quick else (9, 0.3)
    budgets = (0, 64, 1024) if args.quick else (0, 1, 64, 1024, 2048)
    cores = len(os.sched_getaffinity(0))
    found: dict[str, Any] = shares((64, 1024))
    rows: list[tuple[str, ...]] = []
    ratios: list[float] = []
    before, start, own = busy_seconds(), time.perf_counter(), 0.0
    for threads in (1,) if args.quick else sorted({1, min(2, cores)}):
        workers = started(SINGLE, threads)
        for dimensions in DIMENSIONS:
            medians = {}
            for n in budgets:
                case = Case(dimensions, n, 1, threads)
                times = measure(case, workers, rounds, seconds)
                rows.append(row_of(case, times))
                ratios.append(times.ratio(THEIRS))
                medians[n] = times.median(OURS)
                if threads == 1:
                    found[f"ort_n{n}_a{dimensions}"] = round(times.ratio(THEIRS), 2)
                    found[f"gemm_n{n}_a{dimensions}"] = round(times.ratio("gemm"), 2)
                print(f"{case}: {times.ratio(THEIRS):.2f}", file=sys.stderr)
            if threads == 1:
                found[f"growth_a{dimensions}"] = round(medians[1024] / medians[64], 2)
        own += close(workers)
    workers = started(BATCH, cores)
    # States and candidates; the large batch takes a quarter of a minute a turn in PyTorch.
    large = () if args.quick else ((6, 1024, 1024),)
    for dimensions, states, n in (*((d, 64, 256) for d in DIMENSIONS), *large):
        case = Case(dimensions, n, states, cores)
        times = measure(case, workers, 3, seconds)
        name = f"torch_batch_a{dimensions}" if states == 64 else "torch_batch_large"
        rows.append(row_of(case, times))
        found[name] = round(times.ratio("torch_eager"), 2)
        found[f"{name}_jax"] = round(times.ratio("torch_eager") / times.ratio("gemrl_jax"), 2)
    for name, worker in workers.items():
        found[f"batch_mb_{name}"] = round(worker.ask(json.dumps({"memory": True}))["megabytes"])
    own += close(workers)
    others = (busy_seconds() - before - own) / (time.perf_counter() - start) / cores
    print(printed(rows, args.markdown))
    print(f"\nOther processes took {others:.1%} of the machine.\n")
    found["least"] = round(min(ratios), 2)
    print(json.dumps(found | {"others_share": round(others, 3)}))


def close(workers: dict[str, Worker]) -> float:
    """End the processes; what they worked, in seconds of a core."""
    before = os.times()
    for worker in workers.values():
        worker.close()
    after = os.times()
    return after.children_user + after.children_system - before[2] - before[3]


if __name__ == "__main__":
    main()
