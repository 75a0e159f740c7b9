"""The products of an update and nothing else, in JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from peers.products import operands

Matrices = list[jax.Array]


def _passes(count: int, lefts: Matrices, rights: Matrices, results: Matrices) -> Matrices:
    def one(_: int, carry: tuple[Matrices, Matrices]) -> tuple[Matrices, Matrices]:
        lefts, results = carry
        # One number of each result goes back into its left side: products that stay the same
        # would be taken out of the loop. Whole results are carried: unused ones would be dropped.
        pairs = zip(lefts, results, strict=True)
        lefts = [left.at[0, 0].set(result[0, 0]) for left, result in pairs]
        return lefts, [left @ right for left, right in zip(lefts, rights, strict=True)]

    return jax.lax.fori_loop(0, count, one, (lefts, results))[1]


def passes_of(critics: int, options: dict[str, Any]) -> Callable[[int], None]:
    """`run(n)` makes all products of an update n times, compiled with these options."""
    lefts, rights, results = (
        [jnp.asarray(matrix) for matrix in column]
        for column in zip(*operands(critics), strict=True)
    )
    passes = jax.jit(_passes, compiler_options=options)
    return lambda count: jax.block_until_ready(passes(count, lefts, rights, results))


def make(critics: int) -> Callable[[int], None]:
    """The products as JAX makes them unless it is told otherwise."""
    return passes_of(critics, {})
