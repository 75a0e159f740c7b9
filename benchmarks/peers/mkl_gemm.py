"""The products of an update and nothing else, in PyTorch (MKL)."""

from collections.abc import Callable

import torch

from peers.products import operands


def make(critics: int) -> Callable[[int], None]:
    """`run(n)` makes all products of an update n times."""
    products = [tuple(map(torch.from_numpy, matrices)) for matrices in operands(critics)]

    def run(count: int) -> None:
        for _ in range(count):
            for left, right, result in products:
                torch.mm(left, right, out=result)

    return run
