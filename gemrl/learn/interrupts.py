"""Ctrl-C and SIGTERM as a wish to stop, which training fulfils after it has saved."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Set for runs that another gemrl process started: they stop when it is gone.
PARENT = "GEMRL_PARENT"


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop, and has saved what it had."""


class Wish:
    """Whether somebody wants the run to stop, and who."""

    def __init__(self) -> None:
        self.by: str | None = None

    def __bool__(self) -> bool:
        if self.by is None and os.environ.get(PARENT, str(os.getppid())) != str(os.getppid()):
            self.by = "the end of the process that started it"
        return self.by is not None


@contextmanager
def stop_on_signals() -> Iterator[Wish]:
    """Note SIGINT and SIGTERM while the block runs. A second Ctrl-C interrupts at once.

    Outside the main thread, where Python lets nobody handle signals, nothing is noted.
    """
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return

    def note(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and wish.by is not None:
            raise KeyboardInterrupt
        wish.by = wish.by or ("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
