"""What a person sees of a long step: a bar with rate and time left, or plain lines in a log."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

Report = Callable[[int], None]
"""Called with the number of units done so far."""

console = Console(stderr=True, highlight=False)


_held: ContextVar[list[str] | None] = ContextVar("held", default=None)


def say(text: str) -> None:
    """A line on standard error, as it is: never wrapped, and brackets are no markup."""
    held = _held.get()
    if held is None:
        console.print(text, markup=False, soft_wrap=True)
    else:
        held.append(text)


@contextmanager
def said_on_success() -> Iterator[None]:
    """Hold back what is said until the block is done, or its first bar shows that the work has
    begun: so a mistake stays one line.
    """
    token = _held.set([])
    try:
        yield
        _release()
    finally:
        _held.reset(token)


def _release() -> None:
    lines = _held.get() or []
    _held.set(None)
    for line in lines:
        say(line)


def silent(done: int) -> None:
    """A report that says nothing."""


class RateAndTimeLeft(ProgressColumn):
    """Units a second and the time left at that rate."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """The column's text."""
        if task.finished:
            return Text(f"in {clock(task.finished_time or 0.0)}", style="dim")
        speed = task.speed
        if not speed:
            return Text("starting", style="dim")
        left = (task.remaining or 0.0) / speed
        return Text(f"{speed:,.0f} {self.unit}/s, {clock(left)} left", style="dim")


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def make_progress(unit: str) -> Progress:
    """Bars for steps counted in one unit."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        RateAndTimeLeft(unit),
        console=console,
        speed_estimate_period=20,
    )


@contextmanager
def bar(title: str, total: int, unit: str, quiet: bool = False) -> Iterator[Report]:
    """A progress bar for one step."""
    with bars(unit, {title: total}, quiet) as report:
        yield lambda done: report(title, done)


@contextmanager
def bars(
    unit: str, totals: dict[str, int], quiet: bool = False
) -> Iterator[Callable[[str, int], None]]:
    """Progress bars for steps that run side by side: call with a title and the units done.

    Where standard error is no terminal there is a line for each every ten seconds instead.
    """
    _release()
    if quiet:
        yield lambda title, done: None
    elif console.is_terminal:
        with make_progress(unit) as progress:
            tasks = {t: progress.add_task(t, total=n, start=False) for t, n in totals.items()}

            def update(title: str, done: int) -> None:
                progress.start_task(tasks[title])
                progress.update(tasks[title], completed=done)

            yield update
    else:
        yield _Lines(unit, totals)


class _Lines:
    """Progress as lines of a log."""

    def __init__(self, unit: str, totals: dict[str, int]) -> None:
        self.unit = unit
        self.totals = totals
        self.started: dict[str, float] = {}
        self.said: dict[str, float] = {}

    def __call__(self, title: str, done: int) -> None:
        now = time.monotonic()
        total = self.totals[title]
        started = self.started.setdefault(title, now)
        if done >= total and self.said.get(title) != math.inf:
            self.said[title] = math.inf
            self._say(f"{title}: {total:,} {self.unit} done in {clock(now - started)}")
        elif done < total and now - self.said.setdefault(title, now) >= 10 and now > started:
            self.said[title] = now
            rate = done / (now - started)
            left = f", {clock((total - done) / rate)} left" if rate else ""
            self._say(f"{title}: {done:,} of {total:,}, {rate:,.0f} {self.unit}/s{left}")

    @staticmethod
    def _say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
