"""What a person sees of a long step: a bar with rate and time left, or plain lines in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

Report = Callable[[int], None]
"""Called with the number of units done so far."""

console = Console(stderr=True, highlight=False)


def silent(done: int) -> None:
    """A report that says nothing."""


class RateAndTimeLeft(ProgressColumn):
    """Units a second and the time left at that rate."""

    def __init__(self, unit: str):
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
    """A progress bar for one step. Where standard error is no terminal, a line every ten seconds."""
    if quiet:
        yield silent
        return
    if not console.is_terminal:
        with _lines(title, total, unit) as report:
            yield report
        return
    with make_progress(unit) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def _lines(title: str, total: int, unit: str) -> Iterator[Report]:
    started = last = time.monotonic()
    print(f"{title}: {total:,} {unit}", file=sys.stderr, flush=True)

    def report(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < 10 or done <= 0:
            return
        last = now
        rate = done / (now - started)
        left = clock((total - done) / rate)
        line = f"{title}: {done:,} of {total:,}, {rate:,.0f} {unit}/s, {left} left"
        print(line, file=sys.stderr, flush=True)

    yield report
    print(f"{title}: done in {clock(time.monotonic() - started)}", file=sys.stderr, flush=True)
