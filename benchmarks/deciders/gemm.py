"""The matrix products of the critics' dense evaluation and nothing else, by MKL."""

from collections.abc import Callable

import torch

from deciders.weights import read_weights


def make(dimensions: int, n: int, batch: int) -> Callable[[int], None]:
    """One state at a time."""
    critics = read_weights(dimensions).critics
    products = []
    for critic in critics:
        for weight in (critic.action, *(weight for weight, _ in critic.layers)):
            left = torch.randn(n + 1, weight.shape[0])
            products.append((left, torch.from_numpy(weight), torch.empty(n + 1, weight.shape[1])))

    @torch.inference_mode()
    def decide(number: int) -> None:
        for _ in range(batch):
            for left, right, out in products:
                torch.mm(left, right, out=out)

    return decide
