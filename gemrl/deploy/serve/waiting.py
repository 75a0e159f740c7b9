"""A request in the queue: its deadline, its turn, and what it leaves for its answer's way."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemrl.decide.search import CHUNK
from gemrl.deploy.serve.decider import Outcome
from gemrl.deploy.serve.requests import Ask

if TYPE_CHECKING:
    from gemrl.deploy.serve.lent import Lent

# What passes between a decision and its answer on the wire, beside the measured cost.
REPLY_SECONDS = 1e-3
# The client's clock runs while the request waits to be read, too: longer where more wait.
REPLY_SHARE = 0.45
# A request without a deadline has its turn before those whose deadline is later than this.
PATIENCE_SECONDS = 0.05


@dataclass(eq=False)
class Waiting:
    """A request in the queue and where its answer goes."""

    ask: Ask
    decided: Callable[[Outcome | Exception], None]
    """Hears of its end, in the event loop unless it came directly."""
    deadline: float
    """When it is given up, by `time.perf_counter()`."""
    fallback: str | None = None
    gone: bool = False
    """Whether nobody waits for it any more."""
    lent: "Lent | None" = None
    """The connection that the deciding thread has read it from, and answers it by."""

    @property
    def timed(self) -> bool:
        """Whether it has a deadline of its own."""
        return self.ask.deadline_ms is not None

    @property
    def first(self) -> int:
        """Candidates that are scored at least: a first chunk, or all where there is no deadline."""
        count = self.ask.candidates
        return min(CHUNK, count) if self.timed else count


def reply_seconds(one: Waiting) -> float:
    """Seconds that a search leaves for what its request and answer spend on the way."""
    share = REPLY_SHARE * (one.deadline - one.ask.arrived) if one.timed else 0.0
    return max(REPLY_SECONDS, share)


def turn(one: Waiting) -> float:
    """When a request has its turn: the earlier the sooner."""
    return one.deadline if one.timed else one.ask.arrived + PATIENCE_SECONDS
