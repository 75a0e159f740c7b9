"""What one must know of a dataset before training on it."""

from typing import Any

import numpy as np

from gemrl.data.dataset import Dataset

SATURATED = 0.999


def inspect(data: Dataset) -> dict[str, Any]:
    """Sizes, returns, action use, bad values and warnings in plain words, as JSON values."""
    lengths = np.diff(np.append(data.episode_starts, len(data)))
    returns = data.episode_returns
    unit = (data.actions - (data.action_low + data.action_high) / 2) / (
        (data.action_high - data.action_low) / 2
    )
    bad = {
        name: int((~np.isfinite(getattr(data, name))).sum())
        for name in ("observations", "actions", "rewards", "next_observations")
    }
    report: dict[str, Any] = {
        "source": data.source,
        "task": data.task,
        "origin": data.origin,
        "fingerprint": data.fingerprint,
        "rows": len(data),
        "episodes": len(lengths),
        "observation_dim": data.obs_dim,
        "action_dim": data.action_dim,
        "episode_length": _spread(lengths),
        "episode_return": _spread(returns),
        "reward": _spread(data.rewards) | {"nonzero_share": float((data.rewards != 0).mean())},
        "terminals": int((data.masks == 0).sum()),
        "jumps": _jumps(data),
        "action_low": data.action_low.tolist(),
        "action_high": data.action_high.tolist(),
        "action_min": [_spread(column)["min"] for column in data.actions.T],
        "action_max": [_spread(column)["max"] for column in data.actions.T],
        "saturated_share": float((np.abs(unit) >= SATURATED).mean()),
        "outside_bounds": int(data.outside_bounds().any(axis=1).sum()),
        "constant_observation_dims": np.flatnonzero(
            np.ptp(data.observations, axis=0) == 0
        ).tolist(),
        "not_finite": bad,
    }
    report["warnings"] = warnings(report)
    return report


def warnings(report: dict[str, Any]) -> list[str]:
    """What in a report a person should think about before training."""
    found = []
    for name, count in report["not_finite"].items():
        if count:
            found.append(f"{name}: {count} values are not finite; training will refuse them")
    if report["outside_bounds"]:
        found.append(
            f"{report['outside_bounds']} actions lie outside the bounds; training will refuse them"
        )
    if report["saturated_share"] > 0.1:
        found.append(
            f"{report['saturated_share']:.0%} of action components sit at a bound: Gaussian "
            "densities spike there, and the floor of log-std decides how much"
        )
    if report["reward"]["nonzero_share"] == 0:
        found.append("all rewards are zero: there is nothing to learn a value from")
    if report["jumps"]:
        found.append(
            f"{report['jumps']} rows inside episodes are not followed by their next observation"
        )
    if report["terminals"] == 0 and report["episodes"] > 1:
        found.append(
            "no terminals: every episode end is taken as a cut, and values bootstrap there"
        )
    if report["constant_observation_dims"]:
        found.append(f"observation dimensions {report['constant_observation_dims']} never change")
    return found


def _jumps(data: Dataset) -> int:
    """Rows whose next observation is not the following row's, within an episode."""
    same = data.episodes[1:] == data.episodes[:-1]
    with np.errstate(invalid="ignore"):
        gap = np.abs(data.next_observations[:-1] - data.observations[1:]).max(axis=1)
    return int((same & (gap > 1e-5)).sum())


def _spread(values: np.ndarray) -> dict[str, float | None]:
    """Of the values that are finite; None where there are none, which JSON can hold."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return dict.fromkeys(("min", "median", "mean", "max"))
    return {
        "min": float(finite.min()),
        "median": float(np.median(finite)),
        "mean": float(finite.mean(dtype=np.float64)),
        "max": float(finite.max()),
    }


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)


def describe(report: dict[str, Any]) -> str:
    """The report as lines of text."""
    length, episode_return = report["episode_length"], report["episode_return"]
    lines = [
        f"{report['source']}",
        f"  task            {report['task'] or 'none'} ({report['origin']} data)",
        f"  fingerprint     {report['fingerprint'][:16]}",
        f"  rows            {report['rows']:,} in {report['episodes']:,} episodes, lengths "
        f"{length['min']:.0f} to {length['max']:.0f} (median {length['median']:.0f})",
        f"  observation     {report['observation_dim']} dimensions",
        f"  action          {report['action_dim']} dimensions within {report['action_low']} to "
        f"{report['action_high']}, {report['saturated_share']:.0%} of components at a bound",
        f"  return          {_number(episode_return['min'], '.1f')} to "
        f"{_number(episode_return['max'], '.1f')} an episode, mean "
        f"{_number(episode_return['mean'], '.1f')}; "
        f"{report['reward']['nonzero_share']:.1%} of rewards are not zero",
        f"  terminals       {report['terminals']:,}",
    ]
    lines += [f"  warning         {warning}" for warning in report["warnings"]]
    return "\n".join(lines)
