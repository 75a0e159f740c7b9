"""What a person sees of a long step: a bar with rate and time left, or plain lines in a log."""

import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

# Seconds between two lines about a step where standard error is no terminal.
LINE_EVERY = 10.0
BAR_WIDTH = 28


class Report(Protocol):
    """Called with the units done so far and, where there is news, a word on how it goes.

    The word stays until there is another.
    """

    def __call__(self, done: int, detail: str = "") -> None: ...


class TitledReport(Protocol):
    """A report on one of several steps, which its title names."""

    def __call__(self, title: str, done: int, detail: str = "") -> None: ...


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


def silent(done: int, detail: str = "") -> None:
    """A report that says nothing."""


def later_part(report: Report, before: int) -> Report:
    """A report on a part of a step that begins when `before` units are done."""
    return lambda done, detail="": report(before + done, detail)


class RateAndTimeLeft(ProgressColumn):
    """Units a second and the time left at that rate."""

    def __init__(self, unit: str) -> None:
        super().__init__(table_column=Column(no_wrap=True))
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


class Bars(Progress):
    """Bars in a table, and beneath it a line for each step that has a detail.

    Beside the bar a detail would not fit into 80 columns. The bar shrinks first where the terminal
    is narrow, and a detail that is too long ends in an ellipsis.
    """

    def get_renderables(self) -> Iterable[RenderableType]:
        """The table, then the details."""
        yield from super().get_renderables()
        for task in self.tasks:
            if detail := task.fields.get("detail"):
                whose = f"{task.description}: " if len(self.tasks) > 1 else ""
                yield Text(f"  {whose}{detail}", style="dim", no_wrap=True, overflow="ellipsis")


def make_progress(unit: str) -> Progress:
    """Bars for steps counted in one unit."""
    return Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None, table_column=Column(max_width=BAR_WIDTH)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        RateAndTimeLeft(unit),
        console=console,
        speed_estimate_period=20,
    )


@contextmanager
def bar(title: str, total: int, unit: str, quiet: bool = False) -> Iterator[Report]:
    """A progress bar for one step."""
    with bars(unit, {title: total}, quiet) as report:
        yield lambda done, detail="": report(title, done, detail)


@contextmanager
def bars(unit: str, totals: dict[str, int], quiet: bool = False) -> Iterator[TitledReport]:
    """Progress bars for steps that run side by side: call with a title and the units done.

    Where standard error is no terminal there is a line for each every ten seconds instead.
    """
    _release()
    if quiet:
        yield lambda title, done, detail="": None
    elif console.is_terminal:
        with make_progress(unit) as progress:
            tasks = {t: progress.add_task(t, total=n, start=False) for t, n in totals.items()}

            def update(title: str, done: int, detail: str = "") -> None:
                progress.start_task(tasks[title])
                progress.update(tasks[title], completed=done)
                if detail:
                    progress.update(tasks[title], detail=detail)

            yield update
    else:
        yield _Lines(unit, totals)


class _Lines:
    """Progress as lines of a log."""

    def __init__(self, unit: str, totals: dict[str, int]) -> None:
        self.unit = unit
        self.totals = totals
        self.started: dict[str, tuple[float, int]] = {}
        self.said: dict[str, float] = {}
        self.details: dict[str, str] = {}

    def __call__(self, title: str, done: int, detail: str = "") -> None:
        now = time.monotonic()
        total = self.totals[title]
        self.details[title] = detail or self.details.get(title, "")
        # A resumed step has units done already, which say nothing of the rate.
        started, first = self.started.setdefault(title, (now, done))
        if done >= total and self.said.get(title) != math.inf:
            self.said[title] = math.inf
            self._say(title, f"{total:,} {self.unit} done in {clock(now - started)}")
        elif done < total and now - self.said.setdefault(title, now) >= LINE_EVERY:
            self.said[title] = now
            rate = (done - first) / (now - started)
            left = f", {clock((total - done) / rate)} left" if rate else ""
            self._say(title, f"{done:,} of {total:,}, {rate:,.0f} {self.unit}/s{left}")

    def _say(self, title: str, words: str) -> None:
        detail = self.details[title]
        print(f"{title}: {words}{'; ' if detail else ''}{detail}", file=sys.stderr, flush=True)
