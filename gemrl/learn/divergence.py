"""Training that no longer makes sense is stopped and explained; nothing is repaired in silence."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gemrl.data.storage import write_text
from gemrl.errors import DataError, DivergedError
from gemrl.learn.checkpoint import newest_checkpoint
from gemrl.learn.tensors import tree_names
from gemrl.methods.protocol import MethodConfig

NOTE = "diverged.json"
"""What a run that diverged leaves in its folder."""


def check_metrics(
    metrics: Mapping[str, float], broken: int, limit: float | None, phase: str, done: int
) -> None:
    """Stop where a loss is no number or Q exceeds what the rewards can add up to.

    `broken` is the first update whose losses were not finite, below 0 for none; `done` the last.
    """
    culprits = [name for name, value in metrics.items() if not math.isfinite(value)]
    if broken >= 0 or culprits:
        named = ", ".join(f"{name} {metrics[name]}" for name in culprits) or "a loss"
        where = f"update {broken + 1:,}" if broken >= 0 else f"or before update {done:,}"
        raise _diverged(phase, f"not finite at {where}: {named}")
    largest = metrics.get("critic/largest", 0.0)
    if limit is not None and largest > limit:
        raise _diverged(
            phase,
            f"Q explodes: |Q| reached {largest:.3g} by update {done:,}, and the rewards in the "
            f"data cannot add up to a tenth of {limit:.3g}",
        )


def check_weights(state: Any, phase: str, done: int) -> None:
    """Stop where something that training carries along is not finite."""
    if bool(_all_finite(state)):
        return
    pairs = zip(tree_names(state), jax.tree.leaves(state), strict=True)
    culprits = [name for name, leaf in pairs if not bool(jnp.isfinite(leaf).all())]
    more = f" and {len(culprits) - 3} more" if len(culprits) > 3 else ""
    raise _diverged(
        phase, f"weights not finite at update {done:,}: {', '.join(culprits[:3])}{more}"
    )


def _diverged(phase: str, why: str) -> DivergedError:
    return DivergedError(f"training diverged ({phase}): {why}", why)


def explained(error: DivergedError, out: Path, config: MethodConfig) -> DivergedError:
    """The error with what is left of the run and what to do."""
    good = newest_checkpoint(out)
    left = f"the last good state is {good}" if good else "no checkpoint had been written yet"
    words = (
        f"{error}; {left}. Try {config.steadier} in another output folder, and look at the data "
        "with `gemrl data inspect`"
    )
    return DivergedError(words, error.why)


def noted(error: DivergedError, out: Path) -> DivergedError:
    """Leave word of it in the run's folder; the error, which tells where that was impossible."""
    try:
        write_text(out / NOTE, json.dumps({"why": error.why}) + "\n")
    except DataError as cause:
        return DivergedError(f"{error}; {cause}", error.why)
    return error


def divergence_of(out: Path) -> str | None:
    """How the run of a folder diverged; None where it did not."""
    path = out / NOTE
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["why"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error!r}; remove it and train again") from error


@jax.jit
def _all_finite(tree: Any) -> Any:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()
