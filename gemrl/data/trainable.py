"""What training cannot take, counted block after block: no dataset need be in memory for it."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool

from gemrl.errors import DataError

MUST_BE_FINITE = ("observations", "actions", "rewards", "next_observations", "masks")


def outside_bounds(
    actions: np.ndarray, low: np.ndarray, high: np.ndarray
) -> Bool[np.ndarray, "t a"]:
    """Where an action lies outside its bounds by more than rounding."""
    slack = 1e-5 * (high - low)
    return (actions < low - slack) | (actions > high + slack)


class Faults:
    """Counts what cannot be trained on, and remembers where each kind was first met."""

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        self.low, self.high = low, high
        finite = np.isfinite(low).all() and np.isfinite(high).all()
        self.has_good_bounds = bool(finite and (low < high).all())
        self.not_finite: dict[str, int] = {}
        self.not_finite_row: dict[str, int] = {}
        self.outside = 0
        self.outside_first = ""

    def __bool__(self) -> bool:
        return bool(self.not_finite or self.outside or not self.has_good_bounds)

    def look(self, columns: Mapping[str, np.ndarray], start: int = 0) -> None:
        """Take in a block of rows, the first of which is row `start` of the dataset."""
        for name in MUST_BE_FINITE:
            bad = ~np.isfinite(columns[name])
            if bad.any():
                self.not_finite[name] = self.not_finite.get(name, 0) + int(bad.sum())
                row = start + int(np.argmax(bad.reshape(len(bad), -1).any(axis=1)))
                self.not_finite_row.setdefault(name, row)
        if self.has_good_bounds:
            self._look_outside(columns["actions"], start)

    def _look_outside(self, actions: np.ndarray, start: int) -> None:
        outside = outside_bounds(actions, self.low, self.high)
        if not outside.any():
            return
        if not self.outside:
            row, dimension = (int(i[0]) for i in np.nonzero(outside))
            low, high = self.low[dimension], self.high[dimension]
            self.outside_first = (
                f"row {start + row}: {actions[row, dimension]:g} in dimension {dimension}, whose "
                f"bounds are [{low:g}, {high:g}]"
            )
        self.outside += int(outside.any(axis=1).sum())

    def refuse(self, source: str) -> None:
        """Refuse what was found, naming the array and the first bad row."""
        for name in MUST_BE_FINITE:
            if name in self.not_finite:
                raise DataError(
                    f"{source}: {name} holds {self.not_finite[name]} values that are not finite, "
                    f"the first in row {self.not_finite_row[name]}; mend or drop those rows"
                )
        if not self.has_good_bounds:
            raise DataError(f"{source}: action_low must be finite and below action_high")
        if self.outside:
            raise DataError(
                f"{source}: {self.outside} actions lie outside the bounds, the first in "
                f"{self.outside_first}; clip or rescale them (--outside clip|rescale), or take "
                "the bounds from the data (--bounds data)"
            )
