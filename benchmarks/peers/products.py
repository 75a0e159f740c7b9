"""The matrix products of one GEM update, which are nearly all of its arithmetic."""

import itertools
from collections.abc import Iterator

import numpy as np

from peers.setting import ACTION, BATCH, COMPONENTS, HIDDEN, OBSERVATION

Product = tuple[int, int, int]
"""(m, k, n): an m-by-k matrix times a k-by-n one."""


def _layers(inputs: int, outputs: int) -> list[tuple[int, int]]:
    sizes = (inputs, *HIDDEN, outputs)
    return list(itertools.pairwise(sizes))


def _forward(inputs: int, outputs: int) -> list[Product]:
    return [(BATCH, k, n) for k, n in _layers(inputs, outputs)]


def _backward(inputs: int, outputs: int) -> list[Product]:
    """Gradients of every weight, and of every layer's input but the first's, which is data."""
    layers = _layers(inputs, outputs)
    return [(k, BATCH, n) for k, n in layers] + [(BATCH, n, k) for k, n in layers[1:]]


def gem_products(critics: int) -> list[Product]:
    """Target critics forward, V forward at both states, and critics, V and actor trained."""
    critic, value = (OBSERVATION + ACTION, 1), (OBSERVATION, 1)
    actor = (OBSERVATION, COMPONENTS * (1 + ACTION))
    return [
        *critics * (_forward(*critic) + _forward(*critic) + _backward(*critic)),
        *(_forward(*value) + _forward(*value) + _backward(*value)),
        *(_forward(*actor) + _backward(*actor)),
    ]


def gem_flops(critics: int) -> int:
    """Floating-point operations of the products of one update."""
    return sum(2 * m * k * n for m, k, n in gem_products(critics))


def operands(critics: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Left, right and room for the result, of each product its own, as in an update."""
    rng = np.random.default_rng(0)
    for m, k, n in gem_products(critics):
        left = rng.standard_normal((m, k), dtype=np.float32)
        right = rng.standard_normal((k, n), dtype=np.float32) / np.float32(k)
        yield left, right, np.zeros((m, n), np.float32)
