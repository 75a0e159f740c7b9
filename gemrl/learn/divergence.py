"""Training that no longer makes sense is stopped and explained; nothing is repaired in silence."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gemrl.errors import TrainingError
from gemrl.learn.checkpoint import newest_checkpoint
from gemrl.learn.tensors import tree_names


def check_metrics(
    metrics: Mapping[str, float], broken: int, limit: float | None, out: Path, phase: str, done: int
) -> None:
    """Stop where a loss is no number or Q exceeds what the rewards can add up to.

    `broken` is the first update whose losses were not finite, below 0 for none; `done` the last.
    """
    culprits = [name for name, value in metrics.items() if not math.isfinite(value)]
    if broken >= 0 or culprits:
        named = ", ".join(f"{name} {metrics[name]}" for name in culprits) or "a loss"
        where = f"update {broken + 1:,}" if broken >= 0 else f"or before update {done:,}"
        raise diverged(out, phase, f"not finite at {where}: {named}")
    largest = metrics.get("critic/largest", 0.0)
    if limit is not None and largest > limit:
        raise diverged(
            out,
            phase,
            f"Q explodes: |Q| reached {largest:.3g} by update {done:,}, and the rewards in the "
            f"data cannot add up to a tenth of {limit:.3g}",
        )


def check_weights(state: Any, out: Path, phase: str, done: int) -> None:
    """Stop where something that training carries along is not finite."""
    if bool(_all_finite(state)):
        return
    pairs = zip(tree_names(state), jax.tree.leaves(state), strict=True)
    culprits = [name for name, leaf in pairs if not bool(jnp.isfinite(leaf).all())]
    more = f" and {len(culprits) - 3} more" if len(culprits) > 3 else ""
    raise diverged(
        out, phase, f"weights not finite at update {done:,}: {', '.join(culprits[:3])}{more}"
    )


def diverged(out: Path, phase: str, what: str) -> TrainingError:
    """The error, with what is left and what to do."""
    good = newest_checkpoint(out)
    left = f"the last good state is {good}" if good else "no checkpoint had been written yet"
    return TrainingError(
        f"training diverged ({phase}): {what}; {left}. Lower --learning-rate or --beta in another "
        "output folder, and look at the data with `gemrl data inspect`"
    )


@jax.jit
def _all_finite(tree: Any) -> Any:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()
