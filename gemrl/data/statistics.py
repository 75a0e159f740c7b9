"""Statistics of values that come block after block."""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float64

# Rows that are added up at once. The same for every dataset, so that sums round alike whether its
# rows are in memory or on disk.
_BLOCK = 16_384


def mean_and_std(
    rows: np.ndarray, values: Callable[[np.ndarray], np.ndarray]
) -> tuple[Float64[np.ndarray, " s"], Float64[np.ndarray, " s"]]:
    """Mean and standard deviation of each column over the rows whose numbers are given.

    `values` gives the values of a few rows; each row is asked for twice.
    """

    def total(made: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        sums = []
        for start in range(0, len(rows), _BLOCK):
            block = np.ascontiguousarray(values(rows[start : start + _BLOCK]), dtype=np.float64)
            sums.append(made(block).sum(axis=0))
        return np.sum(sums, axis=0)

    mean = total(lambda block: block) / len(rows)
    return mean, np.sqrt(total(lambda block: np.square(block - mean)) / len(rows))


class Tails:
    """The least and greatest of many values: enough for quantiles as exact as of all at once.

    Of at most `most` values, `share` at either end and the next ones are kept; none is NaN.
    """

    def __init__(self, most: int, share: float) -> None:
        self.share = share
        self.size = math.ceil(share * most) + 2
        self.count = 0
        self.lowest = self.highest = np.empty(0, np.float32)

    def add(self, values: np.ndarray) -> None:
        """Take in a block."""
        self.count += len(values)
        self.lowest = self._least(np.concatenate([self.lowest, values]))
        self.highest = -self._least(-np.concatenate([self.highest, values]))

    def _least(self, values: np.ndarray) -> np.ndarray:
        if len(values) > self.size:
            values = np.partition(values, self.size - 1)[: self.size]
        return values

    def range(self) -> tuple[float, float]:
        """The least and the greatest value."""
        return self.lowest.min(), self.highest.max()

    def quantiles(self) -> tuple[float, float]:
        """The quantiles of `share` and of 1 - `share`, as `np.quantile` has them."""
        return (
            self._quantile(self.share, np.sort(self.lowest), 0),
            self._quantile(1 - self.share, np.sort(self.highest), self.count - len(self.highest)),
        )

    def _quantile(self, share: float, tail: np.ndarray, first: int) -> float:
        """A quantile out of the sorted values, of which the tail holds those from `first` on."""
        place = (self.count - 1) * share
        below = math.floor(place)
        pair = tail[[below - first, min(below + 1, self.count - 1) - first]]
        return np.quantile(pair, [place - below])[0]  # Which rounds as it does among all values.
