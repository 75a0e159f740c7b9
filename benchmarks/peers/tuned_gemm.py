"""The products of an update in JAX, with the compiler options of gemrl's training."""

from collections.abc import Callable

from gemrl.learn.loop import compiler_options
from peers.jax_gemm import passes_of


def make(critics: int) -> Callable[[int], None]:
    """`run(n)` makes all products of an update n times."""
    return passes_of(critics, compiler_options())
