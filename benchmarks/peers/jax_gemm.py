"""The products of an update and nothing else, in JAX."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gemrl.learn.loop import compiler_options
from peers.products import operands

TRIAL = 50
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


def make(critics: int) -> Callable[[int], None]:
    """`run(n)` makes all products of an update n times, as fast as JAX can be told to."""
    lefts, rights, results = (
        [jnp.asarray(matrix) for matrix in column]
        for column in zip(*operands(critics), strict=True)
    )

    def compiled(options: dict[str, Any]) -> Callable[[int], None]:
        passes = jax.jit(_passes, compiler_options=options)
        return lambda count: jax.block_until_ready(passes(count, lefts, rights, results))

    def seconds(run: Callable[[int], None]) -> float:
        run(1)  # compiles
        start = time.perf_counter()
        run(TRIAL)
        return time.perf_counter() - start

    return min((compiled(options) for options in ({}, compiler_options())), key=seconds)
