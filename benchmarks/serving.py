"""How fast a policy server answers, how much it can hold, and what it does with more.

    python benchmarks/serving.py [--quick] [--markdown]

`gemrl serve` runs as a user starts it, in a process of its own, with a trained policy that has 4
critics of 256x256 and 6 action dimensions. Clients are another process: 1, 8 and 64 of them ask
over WebSocket (the OpenPI wire) and over HTTP, each packing its request, waiting, and reading the
whole answer, with N = 0, 64 and 1024. `library` is one client with the package `websockets`; the
others are leaner. `echo` is a server in the place of ours that answers with the same bytes at once:
what a client waits for it is the wire's and the client's own. The table also says what an answer
costs the server and the client in time of a core. `bare` is `policy.decide` in a loop in a process
of its own. `unbatched` is the same server with `--batch 1`. All take turns in rounds; a ratio or a
difference is taken within a round, and the median of the rounds is printed.

Overload: requests with N = 1024 and a deadline come at fixed moments, whatever the answers do. The
load that the server holds is the highest rate at which 99 % of them are answered before their
deadline by the client's clock. Twice that is then offered to a server that turns away what it
cannot decide in time (shed), and to one that answers it with the anchor (anchor).

The last line is a JSON object: `ws_added_ms_one_client_n64` is what the server adds to the bare
decision at the median for one client, `library_added_ms_one_client_n64` the same for the package's
client, and `echo_ms_one_client` what an echo takes; `throughput_64_clients_over_unbatched` is for
WebSocket and N = 64, beside it `..._over_bare_loop`, against one decision after another without a
server, and the same for `http`; `deadlines_kept_shed` is the share of answers that came before
their deadline at twice the load, `turned_away_shed` the share of requests that got none,
`scored_shed` the candidates scored on average; `..._anchor` likewise, and `fallbacks_anchor` the
share of answers that are the anchor.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

from peers.contenders import Worker, busy_seconds
from serving_load import overload
from serving_load.client import a_talk
from serving_load.overload import quantile
from serving_load.process import ServerProcess, cores, cpu_seconds, write_policy

DIMENSIONS = 6
BUDGETS = (0, 64, 1024)
CLIENTS = (1, 8, 64)
BATCHED_AT = 64
HEADER = (
    "N",
    "way",
    "clients",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "answers/s",
    "CPU ms, server",
    "client",
)


class Case(NamedTuple):
    """One line of the table."""

    n: int
    way: str
    clients: int


class Turn(NamedTuple):
    """What came of one turn."""

    waits: list[float]
    seconds: float
    server_cpu: float
    """Seconds of a core that the server worked for an answer."""
    client_cpu: float
    """Likewise the client."""

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.waits) / self.seconds


class Bench:
    """The processes, and turns with them."""

    def __init__(self, servers: dict[str, ServerProcess]) -> None:
        self.servers = servers
        self.clients = Worker("serving_load.client", here=True, cores=cores())
        self.bare = Worker("deciders.worker", "gemrl_fast", here=True, cores=cores())
        talk = (part.hex() for part in a_talk(servers["main"].port, DIMENSIONS))
        self.echo = Worker("serving_load.echo", *talk, here=True, cores=cores())
        self.turns: dict[Case, list[Turn]] = defaultdict(list)

    def ask(self, server: str, **order: Any) -> dict[str, Any]:
        """Have the clients do something with a server."""
        whole = {"port": self.servers[server].port, "dimensions": DIMENSIONS, **order}
        return self.clients.ask(json.dumps(whole))

    def turn(self, case: Case, seconds: float) -> None:
        """One turn of a case."""
        if case.way == "bare":
            order = {"dimensions": DIMENSIONS, "n": case.n, "batch": 1}
            tried = self.bare.ask(json.dumps(order | {"count": 5}))["seconds"]
            many = max(5, round(seconds / statistics.median(tried)))
            waits = self.bare.ask(json.dumps(order | {"count": many}))["seconds"]
            self.turns[case].append(Turn(waits, sum(waits), nan, nan))
            return
        server, way = ("unbatched", "ws") if case.way == "unbatched" else ("main", case.way)
        order = {"kind": way, "clients": case.clients, "seconds": seconds}
        pid = self.servers[server].process.pid
        if case.way == "echo":
            order |= {"kind": "ws", "port": self.echo.said["port"]}
            pid = self.echo.process.pid
        before = cpu_seconds(pid)
        answer = self.ask(server, **order, fields={"knobs": {"n": case.n}})
        worked = (cpu_seconds(pid) - before) / answer["answers"]
        if answer["refused"]:
            print(f"{case}: {answer['refused']} were turned away", file=sys.stderr)
        self.turns[case].append(Turn(answer["seconds"], seconds, worked, answer["own_seconds"]))

    def paired(self, one: Case, other: Case) -> list[tuple[Turn, Turn]]:
        """Turns of two cases, round by round."""
        return list(zip(self.turns[one], self.turns[other], strict=True))

    def added_ms(self, n: int, way: str) -> float:
        """What one client waits beyond the bare decision, at the median."""
        pairs = self.paired(Case(n, way, 1), Case(n, "bare", 1))
        median = statistics.median
        return 1e3 * median(median(served.waits) - median(bare.waits) for served, bare in pairs)

    def times(self, one: Case, other: Case) -> float:
        """How many times the other's throughput."""
        return statistics.median(a.rate / b.rate for a, b in self.paired(one, other))

    def close(self) -> None:
        """End the clients."""
        for worker in (self.clients, self.bare, self.echo):
            worker.close()


def cases() -> list[Case]:
    """All turns of a round; those that are compared lie beside one another."""
    found = []
    for n in BUDGETS:
        found += [Case(n, "ws", 1), Case(n, "bare", 1), Case(n, "library", 1), Case(n, "http", 1)]
        found += [Case(n, way, clients) for way in ("ws", "http") for clients in CLIENTS[1:]]
        if n == BATCHED_AT:
            found.insert(-3, Case(n, "unbatched", max(CLIENTS)))
    found.insert(2, Case(0, "echo", 1))
    return found


def row_of(case: Case, turns: list[Turn]) -> tuple[str, ...]:
    """A case's line of the table."""
    waits = sorted(wait for turn in turns for wait in turn.waits)
    quantiles = (f"{1e3 * quantile(waits, share):.3f}" for share in (0.5, 0.9, 0.99))
    rate = statistics.median(turn.rate for turn in turns)
    worked = (
        statistics.median(turn.server_cpu for turn in turns),
        statistics.median(turn.client_cpu for turn in turns),
    )
    cpu = ("" if isnan(seconds) else f"{1e3 * seconds:.3f}" for seconds in worked)
    return (str(case.n), case.way, str(case.clients), *quantiles, f"{rate:,.0f}", *cpu)


def printed(header: tuple[str, ...], rows: list[tuple[str, ...]], markdown: bool) -> str:
    """A table for a terminal or for a page."""
    if markdown:
        marks = ("---:",) * len(header)
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, marks, *rows))
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = (
        "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        for cells in (header, *rows)
    )
    return "\n".join(lines)


def ratios(bench: Bench) -> dict[str, float]:
    """The differences and ratios of the last line."""
    found = {}
    for way in ("ws", "library", "http"):
        for n in BUDGETS:
            found[f"{way}_added_ms_one_client_n{n}"] = round(bench.added_ms(n, way), 4)
    echoes = [statistics.median(turn.waits) for turn in bench.turns[Case(0, "echo", 1)]]
    found["echo_ms_one_client"] = round(1e3 * statistics.median(echoes), 4)
    most, n = max(CLIENTS), BATCHED_AT
    served, bare = Case(n, "ws", most), Case(n, "bare", 1)
    unbatched, http = Case(n, "unbatched", most), Case(n, "http", most)
    found["throughput_64_clients_over_unbatched"] = round(bench.times(served, unbatched), 3)
    found["throughput_64_clients_over_bare_loop"] = round(bench.times(served, bare), 3)
    found["http_throughput_64_clients_over_bare_loop"] = round(bench.times(http, bare), 3)
    return found


def main() -> None:
    """Measure, print the tables and the ratios."""
    parser = argparse.ArgumentParser(description="How fast a policy server answers")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--markdown", action="store_true", help="tables for a Markdown page")
    args = parser.parse_args()
    rounds, seconds = (3, 0.5) if args.quick else (7, 1.2)
    with tempfile.TemporaryDirectory() as folder:
        run = write_policy(DIMENSIONS, Path(folder) / "policy")
        with (
            ServerProcess(run) as main_server,
            ServerProcess(run, "--batch", "1") as unbatched,
            ServerProcess(run, "--overload", "anchor") as anchor,
        ):
            bench = Bench({"main": main_server, "unbatched": unbatched, "anchor": anchor})
            before, start, used = busy_seconds(), time.perf_counter(), own_seconds(bench)
            every = cases()
            for number in range(rounds):
                shift = number * len(every) // rounds
                for case in every[shift:] + every[:shift]:
                    bench.turn(case, seconds)
                print(f"round {number + 1} of {rounds}", file=sys.stderr)
            rows, shares = overload.measured(bench.ask, max(BUDGETS), args.quick)
            worked = own_seconds(bench) - used
            busy, took = busy_seconds() - before, time.perf_counter() - start
            bench.close()
    table = sorted(bench.turns, key=lambda case: (case.n, case.way != "bare", case.way))
    print(printed(HEADER, [row_of(case, bench.turns[case]) for case in table], args.markdown))
    print()
    print(printed(overload.HEADER, rows, args.markdown))
    others = (busy - worked) / took / cores()
    print(f"\nOther processes took {others:.1%} of the machine.\n")
    print(json.dumps(ratios(bench) | shares | {"others_share": round(others, 3)}))


def own_seconds(bench: Bench) -> float:
    """What the benchmark's processes have worked so far, in seconds of a core."""
    workers = [bench.clients, bench.bare, bench.echo, *bench.servers.values()]
    return time.process_time() + sum(cpu_seconds(worker.process.pid) for worker in workers)


if __name__ == "__main__":
    main()
