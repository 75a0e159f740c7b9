"""What single dimensions of a dataset do, and which of them deserve a thought."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.data.inspect.probes import draw
from gemrl.data.inspect.words import Said, some

# Columns copied at a time: columns of a row-wise array are far apart in memory.
BLOCK = 8
# A dimension this correlated with another is that one in other units.
CORRELATED = 0.999999
# Training does not standardize a dimension that varies by no more than this.
TINY = 1e-6


def columns(array: np.ndarray) -> Iterator[np.ndarray]:
    """Each column as an array of its own."""
    for start in range(0, array.shape[1], BLOCK):
        yield from np.ascontiguousarray(array[:, start : start + BLOCK].T)


def measure(
    array: np.ndarray,
    sample: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    inside: np.ndarray,
) -> list[dict[str, Any]]:
    """What each dimension does over the rows and within the episodes."""
    found = []
    for dim, column in enumerate(columns(array)):
        finite = column[np.isfinite(column)].astype(np.float64)
        drawn = column[sample]
        drawn = drawn[np.isfinite(drawn)]
        quantiles = np.quantile(drawn, [0.01, 0.5, 0.99]) if drawn.size else [None] * 3
        low, high = (finite.min(), finite.max()) if finite.size else (None, None)
        moves = np.flatnonzero(np.append(~(inside & (column[1:] == column[:-1])), True))
        still = np.minimum.reduceat(column, starts) == np.maximum.reduceat(column, starts)
        long = lengths >= 10
        found.append(
            {
                "dim": dim,
                "min": low,
                "q01": quantiles[0],
                "median": quantiles[1],
                "q99": quantiles[2],
                "max": high,
                "mean": finite.mean() if finite.size else None,
                "std": finite.std() if finite.size else None,
                "constant": bool(finite.size == len(column) and low == high),
                # Continuous values hardly repeat; those of a switch or a counter do.
                "continuous": bool(drawn.size and len(np.unique(drawn)) > drawn.size / 2),
                "at_min": int((finite == low).sum()),
                "at_max": int((finite == high).sum()),
                "unchanged_share": float(1 - len(moves) / len(column)),
                "longest_still": int(np.diff(moves, prepend=-1).max()),
                "still_episodes": int((still & long).sum()),
                "long_episodes": int(long.sum()),
            }
        )
    return found


def copies(data: Dataset, sample: np.ndarray) -> dict[str, Any]:
    """Pairs of dimensions that say the same: equal everywhere, or equal up to units."""
    sample = sample[draw(len(sample), 10_000)]
    table = np.concatenate([data.observations[sample], data.actions[sample]], axis=1)
    table = table[np.isfinite(table).all(axis=1)].astype(np.float64)
    equal, alike = [], []
    if len(table) >= 10:
        table -= table.mean(axis=0)
        norm = np.sqrt((table**2).sum(axis=0))
        table /= np.where(norm > 0, norm, 1.0)
        matrix = np.triu(table.T @ table, 1)
        for i, j in np.argwhere(np.abs(matrix) > CORRELATED).tolist():
            pair = [_name(data, i), _name(data, j)]
            if matrix[i, j] > 0 and np.array_equal(_column(data, i), _column(data, j)):
                equal.append(pair)
            else:
                alike.append(pair)
    return {"duplicated_dims": equal, "correlated_dims": alike}


def _column(data: Dataset, index: int) -> np.ndarray:
    inside = index < data.obs_dim
    return data.observations[:, index] if inside else data.actions[:, index - data.obs_dim]


def _name(data: Dataset, index: int) -> str:
    return f"observation {index}" if index < data.obs_dim else f"action {index - data.obs_dim}"


def about_dimensions(report: dict[str, Any]) -> Said:
    """Findings about the observation's dimensions, and about actions that are copies."""
    if report["constant_observation_dims"]:
        dims = some(report["constant_observation_dims"])
        yield "warning", "constant_observation_dims", f"observation dimensions {dims} never change"
    pairs = [f"{a} = {b}" for a, b in report["duplicated_dims"]]
    if pairs:
        yield "warning", "duplicated_dims", f"dimensions are there twice: {some(pairs)}"
    pairs = [f"{a} and {b}" for a, b in report["correlated_dims"]]
    if pairs:
        yield (
            "note",
            "correlated_dims",
            f"dimensions differ only in sign, scale or offset: {some(pairs)}",
        )
    lively = [c for c in report["observation_dims"] if not c["constant"]]
    # What hardly varies at all is told as that.
    plain = [c for c in lively if c["std"] is None or c["std"] > TINY]
    stuck = [c for c in plain if 0 < c["still_episodes"] <= 0.2 * c["long_episodes"]]
    if stuck:
        worst = max(stuck, key=lambda c: c["still_episodes"])
        yield (
            "warning",
            "observation_dims",
            f"observation dimensions {_dims(stuck)} stand still through whole episodes (dimension "
            f"{worst['dim']} in {worst['still_episodes']} of {worst['long_episodes']}) though they "
            "move in the others: a sensor that is sometimes stuck?",
        )
    frozen = [c for c in plain if c["longest_still"] > 50 and c["unchanged_share"] < 0.05]
    if frozen := [c for c in frozen if c not in stuck]:
        worst = max(frozen, key=lambda c: c["longest_still"])
        yield (
            "warning",
            "observation_dims",
            f"observation dimensions {_dims(frozen)} stop for long (dimension {worst['dim']} for "
            f"{worst['longest_still']} rows) though they otherwise move: a sensor that got stuck?",
        )
    far = [c for c in plain if _stray(c) > 20]
    if far:
        worst = max(far, key=_stray)
        yield (
            "warning",
            "observation_dims",
            f"observation dimensions {_dims(far)} hold values far out (dimension {worst['dim']}: "
            f"{worst['min']:.4g} to {worst['max']:.4g}, where 98% lie within {worst['q01']:.4g} to "
            f"{worst['q99']:.4g}): faults, or rare events that squeeze the rest together",
        )
    spreads = [c for c in lively if c["std"]]
    if tiny := [c for c in spreads if c["std"] <= TINY]:
        yield (
            "warning",
            "observation_dims",
            f"observation dimensions {_dims(tiny)} vary by a millionth or less: training does not "
            "standardize them",
        )
    if spreads := [c for c in spreads if c["std"] > TINY]:
        least, most = (pick(spreads, key=lambda c: c["std"]) for pick in (min, max))
        if most["std"] > 1e4 * least["std"]:
            yield (
                "note",
                "observation_dims",
                f"scales differ much: dimension {most['dim']} varies by {most['std']:.2g}, "
                f"dimension {least['dim']} by {least['std']:.2g}; training standardizes them",
            )
    whole = [c for c in lively if c["still_episodes"] > 0.2 * c["long_episodes"] > 0]
    if report["episodes"] > 1 and whole:
        always = [c for c in whole if c["still_episodes"] == c["long_episodes"]]
        often = [c for c in whole if c not in always]
        if always:
            yield (
                "note",
                "observation_dims",
                f"observation dimensions {_dims(always)} change only between episodes: goals or "
                "parameters",
            )
        if often:
            yield (
                "note",
                "observation_dims",
                f"observation dimensions {_dims(often)} stand still through many whole episodes: "
                "things that are often left alone",
            )
    # A start that is always the same is no clipping.
    limit = max(10, 0.001 * report["rows"], 2 * report["episodes"])
    clipped = [c for c in lively if c["continuous"] and max(c["at_min"], c["at_max"]) > limit]
    if clipped:
        worst = max(clipped, key=lambda c: max(c["at_min"], c["at_max"]))
        value = worst["max"] if worst["at_max"] >= worst["at_min"] else worst["min"]
        yield (
            "note",
            "observation_dims",
            f"observation dimensions {_dims(clipped)} look clipped (dimension {worst['dim']} is "
            f"exactly {value:.6g} in {max(worst['at_min'], worst['at_max'])} rows)",
        )


def _stray(column: dict[str, Any]) -> float:
    """How far out the furthest value lies, in widths of the middle 98%; 0 where they are one."""
    if column["max"] is None or column["q99"] <= column["q01"]:
        return 0.0
    out = max(column["max"] - column["q99"], column["q01"] - column["min"])
    return out / (column["q99"] - column["q01"])


def _dims(columns: Sequence[dict[str, Any]]) -> str:
    return some([column["dim"] for column in columns])
