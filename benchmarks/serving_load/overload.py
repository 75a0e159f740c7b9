"""What a server does with twice the load that it can hold, when every request has a deadline."""

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

DEADLINE_MS = 20.0
HOLDS = 0.99
# Fewer than a server takes, and more than can wait for an answer within the deadline.
CONNECTIONS = 240
HEADER = (
    "at overload", "requests/s", "answered", "in time, of these", "turned away",
    "anchor, of answers", "candidates", "p50 ms", "p99.9 ms",
)  # fmt: skip


@dataclass(frozen=True)
class Offered:
    """What came of requests at fixed moments."""

    requests: int
    waits: list[float]
    """Seconds of each answer."""
    scored: list[int]
    """Candidates of each answer."""
    fallbacks: int
    """Answers that are the anchor for want of time."""
    unsent: int
    """Requests that found all connections busy."""

    @property
    def in_time(self) -> int:
        """Answers before their deadline, by the client's clock."""
        return sum(wait <= DEADLINE_MS / 1e3 for wait in self.waits)

    def and_also(self, other: "Offered") -> "Offered":
        """Both together."""
        return Offered(
            self.requests + other.requests,
            self.waits + other.waits,
            self.scored + other.scored,
            self.fallbacks + other.fallbacks,
            self.unsent + other.unsent,
        )

    def row(self, name: str, rate: float) -> tuple[str, ...]:
        """A line of the table."""
        waits, answered = sorted(self.waits), max(1, len(self.waits))
        return (
            name,
            f"{rate:,.0f}",
            f"{len(waits) / self.requests:.1%}",
            f"{self.in_time / answered:.2%}",
            f"{1 - len(waits) / self.requests:.1%}",
            f"{self.fallbacks / answered:.1%}",
            f"{statistics.fmean(self.scored or [0]):,.0f}",
            f"{1e3 * quantile(waits, 0.5):.2f}",
            f"{1e3 * quantile(waits, 0.999):.2f}",
        )

    def shares(self, name: str) -> dict[str, float]:
        """What the benchmark's last line says of it."""
        answered = max(1, len(self.waits))
        return {
            f"deadlines_kept_{name}": round(self.in_time / answered, 5),
            f"turned_away_{name}": round(1 - len(self.waits) / self.requests, 4),
            f"fallbacks_{name}": round(self.fallbacks / answered, 4),
            f"scored_{name}": round(statistics.fmean(self.scored or [0]), 1),
            f"unsent_{name}": round(self.unsent / self.requests, 4),
        }


Ask = Callable[..., dict[str, Any]]
"""Has the clients do something with a server: its name, and an order for them."""


def offer(ask: Ask, n: int, server: str, rate: float, seconds: float) -> Offered:
    """Requests at a rate, to one server."""
    fields = {"knobs": {"n": n}, "deadline_ms": DEADLINE_MS}
    order = {"kind": "ws", "clients": CONNECTIONS, "seconds": seconds, "rate": rate}
    found = ask(server, **order, fields=fields)
    if found["unanswered"]:
        raise RuntimeError(f"{found['unanswered']} requests got no answer at all")
    if found["latest"] > DEADLINE_MS / 4e3:
        late = f"{1e3 * found['latest']:.0f} ms"
        print(
            f"the clients themselves sent up to {late} late: the machine is busy", file=sys.stderr
        )
    parts = (found[name] for name in ("seconds", "scored", "fallbacks", "unsent"))
    return Offered(int(rate * seconds), *parts)


def held(offered: Callable[[float], Offered]) -> float:
    """The highest rate at which nearly all requests are answered in time, to a tenth or so."""

    def holds(rate: float) -> bool:
        # Twice, since the machine's hiccups are not the server's.
        for _ in range(2):
            found = offered(rate)
            if found.in_time >= HOLDS * found.requests:
                return True
        return False

    low = 50.0
    while holds(2 * low) and low < 50_000:
        low *= 2
    high = 2 * low
    for _ in range(3):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def measured(ask: Ask, n: int, quick: bool) -> tuple[list[tuple[str, ...]], dict[str, float]]:
    """The table's lines and the shares, of the servers `main` (it sheds) and `anchor`."""
    rounds, seconds, trial = (3, 3.0, 1.0) if quick else (5, 10.0, 2.0)
    rate = held(partial(offer, ask, n, "main", seconds=trial))
    sides = {
        "held": ("main", rate),
        "twice, shed": ("main", 2 * rate),
        "twice, anchor": ("anchor", 2 * rate),
    }
    totals: dict[str, Offered] = {}
    for number in range(rounds):
        for name in list(sides)[number % 3 :] + list(sides)[: number % 3]:
            one = offer(ask, n, *sides[name], seconds)
            totals[name] = totals[name].and_also(one) if name in totals else one
            print(f"{name}: {one.in_time} of {len(one.waits)} in time", file=sys.stderr)
    rows = [totals[name].row(name, sides[name][1]) for name in sides]
    shares = {"held_per_second": round(rate, 1)}
    for name in ("shed", "anchor"):
        shares |= totals[f"twice, {name}"].shares(name)
    return rows, shares


def quantile(ordered: list[float], share: float) -> float:
    """Of an ordered list."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
