"""What deciding costs, so that a request which cannot be in time is known at once."""

import time
from collections.abc import Callable

# Rows of the batch that is timed beside a single row.
ROWS_TIMED = 16
# One hiccup of the machine must not turn away what follows.
MOST_SLOWED = 20.0


class Costs:
    """What deciding costs: seconds for a call, for each row and each candidate, and a factor.

    The three are measured once. The factor follows what the machine's other work makes of them: up
    fast, down slowly.
    """

    def __init__(self) -> None:
        self.call = 1e-4
        self.row = 5e-5
        self.candidate = 1e-6
        self.factor = 1.0

    def measure(self, decide: Callable[[int, int], None], most: int) -> None:
        """Time decisions of one row and of several, with no candidate and with `most` of them."""
        alone, together = (
            min(_timed(decide, rows, 0) for _ in range(5)) for rows in (1, ROWS_TIMED)
        )
        self.row = max(0.0, together - alone) / (ROWS_TIMED - 1)
        self.call = max(0.0, alone - self.row)
        if most:
            all_of_them = min(_timed(decide, 1, most) for _ in range(5))
            self.candidate = max(0.0, all_of_them - alone) / most

    def seconds(self, rows: int, candidates: float, calls: int = 1) -> float:
        """What so many rows with so many candidates each should take now."""
        return self.factor * (calls * self.call + rows * (self.row + self.candidate * candidates))

    def learn(self, expected: float, took: float) -> None:
        """Compare what was expected (at the present factor) with what it took."""
        ratio = min(MOST_SLOWED, self.factor * took / max(expected, 1e-9))
        weight = 0.2 if ratio > self.factor else 0.02
        self.factor = max(1.0, self.factor + weight * (ratio - self.factor))


def _timed(decide: Callable[[int, int], None], rows: int, count: int) -> float:
    start = time.perf_counter()
    decide(rows, count)
    return time.perf_counter() - start
