"""The compiled training loop: many updates a call, on minibatches that were gathered ahead.

Which rows make minibatch i depends on the phase's key and i alone, so it changes nothing where a
call starts or stops, whether the rows lie in memory or on disk, or how many cores compute.
"""

import os
import zlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from gemrl.learn.spec import unpack
from gemrl.methods.protocol import Batch, MethodConfig, Metrics, Phase
from gemrl.progress import say

Update = Callable[[Any, Batch, Any], tuple[Any, Metrics]]


class Totals(NamedTuple):
    """What is summed up between two lines of metrics."""

    sums: Metrics
    largest: Metrics
    """Of the metrics whose name ends in `largest`."""
    broken: Int[Array, ""]
    """The phase's first update whose losses were not finite; -1 while there is none."""


def phase_key(seed: int, phase: Phase) -> Key[Array, ""]:
    """The key of a phase's minibatches. The main phase's is the same for every method."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(phase.name.encode()))


@partial(jax.jit, static_argnames=("count", "batch_size"))
def minibatch_rows(
    key: Key[Array, ""], first: Int[Array, ""], size: Int[Array, ""], *, count: int, batch_size: int
) -> Int[Array, "n b"]:
    """Row numbers below `size` of minibatches `first` to `first + count - 1`, evenly drawn."""

    def one(step: Int[Array, ""]) -> Int[Array, " b"]:
        return jax.random.randint(jax.random.fold_in(key, step), (batch_size,), 0, size)

    return jax.vmap(one)(first + jnp.arange(count))


def no_totals(update: Update, state: Any, batch: Batch, config: MethodConfig) -> Totals:
    """Totals before the first update; `batch` tells the shapes."""
    metrics = jax.eval_shape(lambda: update(state, batch, config)[1])
    sums = {name: jnp.float32(0) for name in metrics if not _is_largest(name)}
    largest = {name: jnp.float32(0) for name in metrics if _is_largest(name)}
    return Totals(sums, largest, jnp.int32(-1))


def _is_largest(name: str) -> bool:
    return name.endswith("largest")


def _run_updates(
    state: Any,
    totals: Totals,
    window: Float[Array, "n b w"],
    start: Int[Array, ""],
    first: Int[Array, ""],
    last: Int[Array, ""],
    *,
    update: Update,
    config: MethodConfig,
    obs_dim: int,
    action_dim: int,
) -> tuple[Any, Totals]:
    """Updates `first` to `last - 1` of a phase; the window holds minibatches from `start` on."""

    def body(step: Int[Array, ""], carry: tuple[Any, Totals]) -> tuple[Any, Totals]:
        state, totals = carry
        state, metrics = update(state, unpack(window[step - start], obs_dim, action_dim), config)
        finite = jnp.isfinite(sum(metrics.values(), jnp.float32(0)))
        return state, Totals(
            {name: total + metrics[name] for name, total in totals.sums.items()},
            {name: jnp.maximum(most, metrics[name]) for name, most in totals.largest.items()},
            jnp.where((totals.broken < 0) & ~finite, step, totals.broken),
        )

    return jax.lax.fori_loop(first, last, body, (state, totals))


@cache
def run_updates() -> Callable[..., tuple[Any, Totals]]:
    """`_run_updates`, compiled for the machine at hand."""
    return jax.jit(
        _run_updates,
        static_argnames=("update", "config", "obs_dim", "action_dim"),
        donate_argnums=(0, 1),
        compiler_options=compiler_options(),
    )


def compiler_options() -> dict[str, Any]:
    """What makes XLA's programs fastest here; docs/performance.md has the measurements.

    On CPUs each product runs on one thread and independent products run side by side, which is
    faster than sharing every product out. No sum is then split by the number of threads, so weights
    do not depend on how many cores there are. A single core is served best by the order of
    operations that needs the least memory.
    """
    if jax.default_backend() != "cpu":
        return {}
    order = "MEMORY" if usable_cores() == 1 else "CONCURRENCY"
    options = {
        "xla_cpu_scheduler_type": f"CPU_SCHEDULER_TYPE_{order}_OPTIMIZED",
        "xla_cpu_copy_insertion_use_region_analysis": True,
        "xla_cpu_multi_thread_eigen": False,
        "xla_cpu_experimental_ynn_fusion_type": "",
    }
    if _compiles(options):
        return options
    known = {name: value for name, value in options.items() if _compiles({name: value})}
    say(f"this JAX lacks {', '.join(sorted(options.keys() - known.keys()))}: training is slower")
    return known


def _compiles(options: dict[str, Any]) -> bool:
    """Whether the installed XLA knows these options."""
    try:
        jax.jit(jnp.negative, compiler_options=options)(0.0)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def usable_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
