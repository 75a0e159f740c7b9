"""The errors a user can cause. Each says what was wrong, where, and what to do about it."""

from typing import Any


class GemrlError(Exception):
    """Base of every error that a user can mend; commands print it as one line and exit with 2."""


class ConfigError(GemrlError, ValueError):
    """A training setting is out of its range, or two settings contradict each other."""


class DataError(GemrlError, ValueError):
    """A dataset is missing, broken in structure, or holds values that cannot be trained on."""


class TaskError(GemrlError, ValueError):
    """A task name is unknown, or something was asked of a task that it does not have."""


class BundleError(GemrlError, ValueError):
    """A saved policy is missing, damaged, edited or of a format that this version cannot read."""


class KnobError(GemrlError, ValueError):
    """A knob of a decision is out of its range or contradicts another."""


class ObservationError(GemrlError, ValueError):
    """An observation has the wrong size or type, or holds a value that is not finite."""


class RefusedError(GemrlError, RuntimeError):
    """A guard's ladder ended with `refuse`: no action that it may take is safe enough to take.

    `rows` are the refused rows of the batch, and `decision` is the whole record: the actions of
    other rows may be executed, those of refused rows are NaN.
    """

    def __init__(self, message: str, rows: Any = (0,), decision: Any = None) -> None:
        super().__init__(message)
        self.rows = rows
        self.decision = decision


class RequestError(GemrlError, ValueError):
    """A request to the server is malformed, or beyond the limits that it was started with."""


class OverloadError(GemrlError, RuntimeError):
    """The server cannot answer in time: too much waits, a deadline is too near, or it is stopping.

    `retry_after` is the number of seconds after which it is worth asking again.
    """

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TrainingError(GemrlError, RuntimeError):
    """Training diverged, or a run folder is in use or does not fit the run."""


class DivergedError(TrainingError):
    """Training stopped making sense; `why` says how that showed."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why


class EvaluationError(GemrlError, RuntimeError):
    """Episodes could not be run: a worker failed, died again and again, or cannot be reached."""


class MissingExtraError(GemrlError, ImportError):
    """Something was asked for that needs an optional part of the installation."""
