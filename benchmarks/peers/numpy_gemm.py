"""The products of an update and nothing else, in NumPy (OpenBLAS)."""

from collections.abc import Callable

import numpy as np

from peers.products import operands


def make(critics: int) -> Callable[[int], None]:
    """`run(n)` makes all products of an update n times."""
    products = list(operands(critics))

    def run(count: int) -> None:
        for _ in range(count):
            for left, right, result in products:
                np.matmul(left, right, out=result)

    return run
