"""A policy's weights as plain NumPy arrays, from which the peers build their own networks."""

import json
from typing import NamedTuple

import numpy as np

from deciders.policies import file_of

Layer = tuple[np.ndarray, np.ndarray]


class Mixture(NamedTuple):
    """Layers, and standard deviations [K, A] in environment units."""

    layers: list[Layer]
    stds: np.ndarray


class Critic(NamedTuple):
    """The first layer in two parts, and the others."""

    state: np.ndarray
    state_bias: np.ndarray
    action: np.ndarray
    layers: list[Layer]


class Weights(NamedTuple):
    """All that a decision needs."""

    obs_mean: np.ndarray
    obs_std: np.ndarray
    low: np.ndarray
    high: np.ndarray
    middle: np.ndarray
    half: np.ndarray
    actor: Mixture
    behavior: Mixture
    critics: list[Critic]


def read_weights(dimensions: int) -> Weights:
    """The weights of a policy, read without gemrl."""
    with np.load(file_of(dimensions), allow_pickle=False) as kept:
        spec = json.loads(str(kept["about"]))["spec"]
        arrays = {name: kept[name].astype(np.float32) for name in kept.files if "/" in name}
    mean, std, low, high = (
        np.array(spec[name], np.float32)
        for name in ("obs_mean", "obs_std", "action_low", "action_high")
    )
    half = (high - low) / 2

    def layers(net: str) -> list[Layer]:
        count = sum(name.startswith(f"{net}/layers/") for name in arrays) // 2
        return [
            (arrays[f"{net}/layers/{i}/weight"], arrays[f"{net}/layers/{i}/bias"])
            for i in range(count)
        ]

    actor, behavior = (
        Mixture(layers(f"{name}/net"), np.exp(arrays[f"{name}/log_std"]) * half)
        for name in ("actor", "behavior")
    )
    count = len({name.split("/")[1] for name in arrays if name.startswith("critics/")})
    critics = [
        Critic(
            arrays[f"critics/{m}/from_state/weight"],
            arrays[f"critics/{m}/from_state/bias"],
            arrays[f"critics/{m}/from_action"],
            layers(f"critics/{m}/net"),
        )
        for m in range(count)
    ]
    return Weights(mean, std, low, high, (low + high) / 2, half, actor, behavior, critics)
