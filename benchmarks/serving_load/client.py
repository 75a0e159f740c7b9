"""The process of the clients: `python -m serving_load.client CORES`.

It answers lines of JSON. {"kind", "port", "clients", "seconds", "dimensions", "fields"} has so many
clients ask one request after another, packing and reading each, and gives the seconds that each
answer took. The kinds are ws, http and library, which is one client with the package `websockets`.
{"kind", "port", "clients", "seconds", "rate", ...} sends requests at fixed moments, whatever the
answers do, and gives the seconds of each answer, those refused, and how many candidates were
scored; a request that finds all connections busy is counted as unsent.
"""

import asyncio
import gc
import json
import sys
import time
from collections import deque
from functools import cache
from itertools import count
from typing import Any

from deciders.policies import states_of
from peers.worker import alone_on

from serving_load.lines import Line, message, opened, packed, read

# Seconds before a turn is counted, in which caches become warm.
BEFORE = 0.1
states = cache(states_of)


async def one_after_another(order: dict[str, Any]) -> dict[str, Any]:
    """Each client asks again as soon as it has its answer."""
    kind, fields, obs = order["kind"], order["fields"], states(order["dimensions"])
    seeds, waits = count(), list[float]()
    refused = 0
    begin = end = 0.0
    done, going = asyncio.Event(), order["clients"]

    def ask(line: Line) -> None:
        seed = next(seeds)
        packing = time.perf_counter()
        line.ask(message(kind, obs[seed % len(obs)], {**fields, "seed": seed}))
        line.sent = packing

    def answered(line: Line, answer: bytes, no: bool, came: float) -> None:
        nonlocal refused, going
        if not no:
            read(kind, answer)
        now = time.perf_counter()  # Not when it came: reading it is part of the job.
        if no:
            refused += 1
        elif begin <= now < end:
            waits.append(now - line.sent)
        if now < end:
            ask(line)
        else:
            going -= 1
            if not going:
                done.set()

    lines = await opened(kind, order["port"], order["clients"], answered)
    begin = time.perf_counter() + BEFORE
    end = begin + order["seconds"]
    cpu = time.process_time()
    for line in lines:
        ask(line)
    await asyncio.wait_for(done.wait(), 60)
    cpu = time.process_time() - cpu
    await closed(lines)
    # All that were asked, before and after the counted time too.
    number = next(seeds)
    return {"seconds": waits, "refused": refused, "answers": number, "own_seconds": cpu / number}


def a_talk(port: int, dimensions: int) -> tuple[bytes, bytes]:
    """What a server says to a client that comes, and its answer to a request."""
    from websockets.sync.client import connect

    with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None) as line:
        hello = line.recv(decode=False)
        line.send(packed(states(dimensions)[0], {"seed": 0}))
        return hello, line.recv(decode=False)


async def by_the_library(order: dict[str, Any]) -> dict[str, Any]:
    """The same with the package `websockets`, as a robot's program would have it."""
    from websockets.asyncio.client import connect

    obs, waits = states(order["dimensions"]), list[float]()
    number, cpu = 0, time.process_time()
    async with connect(f"ws://127.0.0.1:{order['port']}", compression=None, max_size=None) as line:
        await line.recv()
        begin = time.perf_counter() + BEFORE
        end = begin + order["seconds"]
        while (start := time.perf_counter()) < end:
            fields = {**order["fields"], "seed": number}
            await line.send(packed(obs[number % len(obs)], fields))
            number += 1
            answer = await line.recv()
            assert isinstance(answer, bytes), answer
            read("ws", answer)
            if start >= begin:
                waits.append(time.perf_counter() - start)
    cpu = time.process_time() - cpu
    return {"seconds": waits, "refused": 0, "answers": number, "own_seconds": cpu / number}


async def at_fixed_moments(order: dict[str, Any]) -> dict[str, Any]:
    """Requests at a rate that does not wait for answers."""
    kind, obs = order["kind"], states(order["dimensions"])
    # Packed before, and read after: at these rates the clients must not be late themselves.
    ready = [
        message(kind, obs[seed % len(obs)], {**order["fields"], "seed": seed})
        for seed in range(512)
    ]
    waits: list[float] = []
    answers: list[bytes] = []
    refusals: list[float] = []
    free: deque[Line] = deque()

    def answered(line: Line, answer: bytes, no: bool, came: float) -> None:
        (refusals if no else waits).append(came - line.sent)
        if not no:
            answers.append(answer)
        free.append(line)

    lines = await opened(kind, order["port"], order["clients"], answered)
    free.extend(lines)
    total, rate = int(order["rate"] * order["seconds"]), order["rate"]
    unsent, latest = 0, 0.0
    start = time.perf_counter() + BEFORE
    number = 0
    while number < total:
        now = time.perf_counter()
        while number < total and start + number / rate <= now:
            if free:
                free.popleft().ask(ready[number % len(ready)])
            else:
                unsent += 1
            latest = max(latest, now - start - number / rate)
            number += 1
        # A loop that never sleeps would take a core from the server.
        await asyncio.sleep(max(1e-3, start + number / rate - time.perf_counter()))
    for _ in range(2000):
        if len(free) == len(lines):
            break
        await asyncio.sleep(0.005)
    unanswered = len(lines) - len(free)
    await closed(lines)
    found = [read(kind, answer) for answer in answers]
    return {
        "seconds": waits,
        "refused_seconds": refusals,
        "unsent": unsent,
        "unanswered": unanswered,
        "latest": latest,
        "scored": [int(one["n_scored"]) for one in found],
        "fallbacks": sum(one["fallback"] is not None for one in found),
    }


async def closed(lines: list[Line]) -> None:
    """Close the connections."""
    for line in lines:
        line.transport.close()
    await asyncio.sleep(0.02)


def main() -> None:
    """Answer until the lines end."""
    answers = alone_on(int(sys.argv[1]))
    print(json.dumps({"ready": True}), file=answers)
    try:
        import uvloop as loops
    except ImportError:
        import asyncio as loops
    # What it would stop for is small, and what it would find is nothing.
    gc.disable()
    for line in sys.stdin:
        order = json.loads(line)
        if "rate" in order:
            work = at_fixed_moments(order)
        elif order["kind"] == "library":
            work = by_the_library(order)
        else:
            work = one_after_another(order)
        print(json.dumps(loops.run(work)), file=answers)


if __name__ == "__main__":
    main()
