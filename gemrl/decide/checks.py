"""What a decision is asked with, checked: observations, seeds, steps and deadlines."""

import numbers
import time
from typing import Any

import numpy as np

from gemrl.errors import KnobError, ObservationError

# A day, in milliseconds.
LONGEST = 86_400_000.0


def observations(obs: Any, size: int) -> np.ndarray:
    """One observation [S] or several [B, S] as float32."""
    try:
        given = np.asarray(obs)
    except ValueError as error:
        raise ObservationError(f"the observation is not an array of numbers: {error}") from error
    if given.ndim not in (1, 2) or given.shape[-1] != size or given.shape[0] == 0:
        raise ObservationError(
            f"the observation has shape {given.shape}: must be [{size}], or [B, {size}] with "
            "at least one row"
        )
    return finite_float32("the observation", given)


def deadline_after(milliseconds: float | np.ndarray, rows: int) -> np.ndarray:
    """When, by `time.perf_counter()`, so many milliseconds from now are over, for each row."""
    now = time.perf_counter()
    number = isinstance(milliseconds, numbers.Real) and not isinstance(milliseconds, bool)
    several = isinstance(milliseconds, np.ndarray) and milliseconds.dtype.kind in "fiu"
    given = np.asarray(milliseconds, np.float64) if number or several else np.zeros(())
    fits = given.shape in ((), (rows,)) and bool(((given > 0) & (given <= LONGEST)).all())
    if not fits:
        raise KnobError(
            f"deadline_ms = {milliseconds!r}: must be above 0, at most {LONGEST:g}; one for all, "
            f"or an array of {rows}, one for each row"
        )
    return np.broadcast_to(now + given / 1000, (rows,))


def whole_numbers(name: str, value: Any, rows: int, limit: int, pairs: bool = False) -> np.ndarray:
    """`value` as whole numbers, one for all or one for each row, checked; `pairs` allows two."""
    try:
        given = np.asarray(value)
    except ValueError as error:
        raise KnobError(f"{name} = {value!r}: must be whole numbers ({error})") from error
    if type(value) is int and 0 <= value < limit:
        return given  # The usual case, and no time lost on it.
    shapes = ((), (rows,), (rows, 2)) if pairs else ((), (rows,))
    if given.dtype.kind not in "iu" or given.shape not in shapes:
        raise KnobError(
            f"{name} = {value!r}: must be a whole number, or an array of {rows}, one for each row"
        )
    if (given < 0).any() or (given >= limit).any():
        raise KnobError(f"{name} = {value!r}: must lie from 0 to {limit - 1}")
    return given


def finite_float32(name: str, given: np.ndarray) -> np.ndarray:
    """`given` as float32, with what is no finite number named."""
    if given.dtype.kind not in "fiu":
        raise ObservationError(f"{name} has type {given.dtype}: must be numbers")
    if given.dtype == np.float32:
        values = given.copy()  # The usual case, and no time lost on it.
    else:
        with np.errstate(over="ignore"):
            values = given.astype(np.float32)
    if not np.isfinite(values).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ObservationError(f"{name} holds {given[place]} at {list(place)}: must be finite")
    return values
