"""Behaviour policies as small files of plain arrays: a perceptron that gives a Gaussian.

An .npz file has `W0, b0, W1, b1, ...`, the mean's `Wmu, bmu`, and `logstd` or `Wlogstd, blogstd`;
perhaps `obs_mean, obs_std`. How they are put together is said by arrays without axes in the same
file, or by an entry of the file's name in a `META.json` beside it: `activation` ("tanh" or
"relu"), `squash_tanh`, and where used `obs_clip` and `logstd_clip`.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemrl.data.limits import read_npz
from gemrl.errors import DataError

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
}
_DESCRIPTION = ("activation", "squash_tanh", "obs_clip", "logstd_clip")


@dataclass(frozen=True, eq=False)
class BehaviorPolicy:
    """A Gaussian policy of observations, squashed by tanh or clipped onto the action bounds."""

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    mean: tuple[np.ndarray, np.ndarray]
    log_std: tuple[np.ndarray | None, np.ndarray]
    obs_mean: np.ndarray
    obs_std: np.ndarray
    activation: str
    squash_tanh: bool
    obs_clip: float | None
    logstd_clip: tuple[float, float] | None
    source: str
    sha256: str

    @property
    def obs_dim(self) -> int:
        """Observation dimensions."""
        return len(self.obs_mean)

    @property
    def action_dim(self) -> int:
        """Action dimensions."""
        return len(self.mean[1])

    def act(self, observations: np.ndarray, noise: np.ndarray | float) -> np.ndarray:
        """Actions [E, A] for observations [E, S], with standard normal noise [E, A] or 0.

        A squashed policy's lie in [-1, 1]; another's are yet to be clipped.
        """
        x = (observations - self.obs_mean) / self.obs_std
        if self.obs_clip is not None:
            x = np.clip(x, -self.obs_clip, self.obs_clip)
        for weight, bias in self.layers:
            x = ACTIVATIONS[self.activation](x @ weight + bias)
        weight, bias = self.log_std
        log_std = bias if weight is None else x @ weight + bias
        if self.logstd_clip is not None:
            log_std = np.clip(log_std, *self.logstd_clip)
        action = x @ self.mean[0] + self.mean[1] + np.exp(log_std) * noise
        return np.tanh(action) if self.squash_tanh else action


def load_behavior(path: str | Path) -> BehaviorPolicy:
    """Read a policy file, with what is wrong or missing in it named."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such policy file")
    arrays = read_npz(path)
    said: dict[str, Any] = {name: arrays.pop(name) for name in _DESCRIPTION if name in arrays}
    said = _beside(path) | {name: value.tolist() for name, value in said.items()}
    if said.get("activation") not in ACTIVATIONS:
        raise DataError(
            f"{path}: does not say its activation; add an array `activation` with one of "
            f"{', '.join(ACTIVATIONS)} (and `squash_tanh`), or a META.json beside it"
        )
    weights = {
        name: np.asarray(array, dtype=np.float64)
        for name, array in arrays.items()
        if array.dtype.kind in "fiu"
    }
    bad = [name for name, array in weights.items() if not np.isfinite(array).all()]
    if bad:
        raise DataError(f"{path}: {', '.join(bad)} holds values that are not finite")

    def pair(suffix: str) -> tuple[np.ndarray, np.ndarray]:
        missing = [name for name in (f"W{suffix}", f"b{suffix}") if name not in weights]
        if missing:
            raise DataError(f"{path}: lacks {', '.join(missing)}; it has {', '.join(arrays)}")
        weight, bias = weights[f"W{suffix}"], weights[f"b{suffix}"]
        if weight.ndim != 2 or bias.shape != weight.shape[1:]:
            raise DataError(
                f"{path}: W{suffix} has shape {weight.shape} and b{suffix} {bias.shape}; must be "
                "[in, out] and [out]"
            )
        return weight, bias

    layers = []
    while f"W{len(layers)}" in weights or not layers:
        layers.append(pair(str(len(layers))))
    mean = pair("mu")
    log_std = (None, weights["logstd"]) if "logstd" in weights else pair("logstd")
    wide = layers[0][0].shape[0]
    policy = BehaviorPolicy(
        layers=tuple(layers),
        mean=mean,
        log_std=log_std,
        obs_mean=weights.get("obs_mean", np.zeros(wide)),
        obs_std=weights.get("obs_std", np.ones(wide)),
        activation=said["activation"],
        squash_tanh=bool(said.get("squash_tanh", False)),
        obs_clip=None if said.get("obs_clip") is None else float(said["obs_clip"]),
        logstd_clip=_pair_of_numbers(path, said.get("logstd_clip")),
        source=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )
    if not (policy.obs_std > 0).all():
        raise DataError(f"{path}: obs_std must be positive")
    try:
        shape = policy.act(np.zeros((1, wide)), np.zeros((1, policy.action_dim))).shape
    except ValueError as error:
        raise DataError(f"{path}: the sizes of its layers do not fit ({error})") from error
    if shape != (1, policy.action_dim):
        raise DataError(f"{path}: logstd must be one number an action")
    return policy


def _beside(path: Path) -> dict[str, Any]:
    """What a META.json beside the file says of it; nothing where there is none."""
    meta = path.with_name("META.json")
    if not meta.exists():
        return {}
    try:
        entry = json.loads(meta.read_text(encoding="utf-8")).get(path.stem, {})
        return {name: entry[name] for name in _DESCRIPTION if name in entry}
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(f"{meta}: not a description of policies ({error})") from error


def _pair_of_numbers(path: Path, value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    try:
        low, high = map(float, value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: logstd_clip = {value!r}: must be two numbers") from error
    return low, high
