"""Behaviour policies as small files of plain arrays: a perceptron that gives a Gaussian.

An .npz file has `W0, b0, W1, b1, ...`, the mean's `Wmu, bmu`, and `logstd` or `Wlogstd, blogstd`;
perhaps `obs_mean, obs_std`. How they are put together is said by arrays without axes in the same
file, or by an entry of the file's name in a `META.json` beside it: `activation` ("tanh" or
"relu"), `squash_tanh`, and where used `obs_clip` and `logstd_clip`.
"""

import hashlib
import json
import math
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
    said = _checked(path, _beside(path) | {name: value.tolist() for name, value in said.items()})
    weights = {}
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            raise DataError(f"{path}: {name} must be finite numbers")
        weights[name] = np.asarray(array, dtype=np.float64)
    used = set()

    def pair(suffix: str) -> tuple[np.ndarray, np.ndarray]:
        names = (f"W{suffix}", f"b{suffix}")
        missing = [name for name in names if name not in weights]
        if missing:
            raise DataError(f"{path}: lacks {', '.join(missing)}; it has {', '.join(arrays)}")
        used.update(names)
        weight, bias = (weights[name] for name in names)
        if weight.ndim != 2 or bias.shape != weight.shape[1:]:
            raise DataError(
                f"{path}: {names[0]} has shape {weight.shape} and {names[1]} {bias.shape}; must be "
                "[in, out] and [out]"
            )
        return weight, bias

    def vector(name: str, size: int, default: float | None = None) -> np.ndarray:
        used.add(name)
        found = weights.get(name, None if default is None else np.full(size, default))
        if found is None or found.shape != (size,):
            shape = "none" if found is None else found.shape
            raise DataError(f"{path}: {name} has shape {shape}; must be [{size}]")
        return found

    layers = []
    while f"W{len(layers)}" in weights or not layers:
        layers.append(pair(str(len(layers))))
    mean = pair("mu")
    wide, actions = layers[0][0].shape[0], mean[0].shape[1]
    own_std = "logstd" not in weights
    log_std = pair("logstd") if own_std else (None, vector("logstd", actions))
    policy = BehaviorPolicy(
        layers=tuple(layers),
        mean=mean,
        log_std=log_std,
        obs_mean=vector("obs_mean", wide, 0.0),
        obs_std=vector("obs_std", wide, 1.0),
        **said,
        source=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )
    if unused := sorted(weights.keys() - used):
        raise DataError(f"{path}: no layer uses {', '.join(unused)}; layers are W0, W1, ... Wmu")
    if not (policy.obs_std > 0).all():
        raise DataError(f"{path}: obs_std must be positive")
    if policy.logstd_clip is None and not own_std and (log_std[1] > 20).any():
        raise DataError(f"{path}: logstd above 20 is no standard deviation")
    try:
        shape = policy.act(np.zeros((1, wide)), np.zeros((1, actions))).shape
    except ValueError as error:
        raise DataError(f"{path}: the sizes of its layers do not fit ({error})") from error
    if shape != (1, actions):
        raise DataError(f"{path}: the standard deviation must be one number an action")
    return policy


def _checked(path: Path, said: dict[str, Any]) -> dict[str, Any]:
    """The description with each entry of its own kind."""
    activation, squash = said.get("activation"), said.get("squash_tanh", False)
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise DataError(
            f"{path}: does not say its activation; add an array `activation` with one of "
            f"{', '.join(ACTIVATIONS)} (and `squash_tanh`), or a META.json beside it"
        )
    if squash not in (True, False):
        raise DataError(f"{path}: squash_tanh = {squash!r}: must be true or false")
    clip, log_std_clip = said.get("obs_clip"), said.get("logstd_clip")
    if clip is not None and not (_is_number(clip) and clip > 0):
        raise DataError(f"{path}: obs_clip = {clip!r}: must be a number above 0")
    if log_std_clip is not None:
        numbers = isinstance(log_std_clip, list) and all(map(_is_number, log_std_clip))
        if not numbers or len(log_std_clip) != 2 or not log_std_clip[0] < log_std_clip[1]:
            raise DataError(f"{path}: logstd_clip = {log_std_clip!r}: must be two numbers, rising")
        log_std_clip = (float(log_std_clip[0]), float(log_std_clip[1]))
    return {
        "activation": activation,
        "squash_tanh": bool(squash),
        "obs_clip": None if clip is None else float(clip),
        "logstd_clip": log_std_clip,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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
