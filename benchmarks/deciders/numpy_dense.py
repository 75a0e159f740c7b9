"""The decision in plain NumPy, one state at a time."""

import math
from collections.abc import Callable

import numpy as np

from deciders.policies import states_of
from deciders.weights import Layer, Mixture, Weights, read_weights
from deciders.worker import LAMBDA, WEIGHT


def _layers(x: np.ndarray, layers: list[Layer]) -> np.ndarray:
    for number, (weight, bias) in enumerate(layers):
        x = (np.maximum(x, 0) if number else x) @ weight + bias
    return x


def _mixture(net: Mixture, x: np.ndarray, w: Weights) -> tuple[np.ndarray, np.ndarray]:
    components, dims = net.stds.shape
    out = _layers(x, net.layers)
    gates = out[:components] - out[:components].max()
    means = np.tanh(out[components:]).reshape(components, dims) * w.half + w.middle
    return gates - np.log(np.exp(gates).sum()), means


def decide_one(w: Weights, obs: np.ndarray, n: int, seed: int) -> dict[str, np.ndarray]:
    """The fields of a record."""
    x = (obs - w.obs_mean) / w.obs_std
    weights, means = _mixture(w.actor, x, w)
    behavior, behavior_means = _mixture(w.behavior, x, w)
    rng = np.random.default_rng(seed)
    cumulative = np.exp(weights).cumsum()
    picked = np.minimum(np.searchsorted(cumulative, rng.random(n, np.float32)), len(weights) - 1)
    noise = rng.standard_normal((n, len(w.low)), np.float32)
    samples = means[picked] + w.actor.stds[picked] * noise
    candidates = np.concatenate([means[weights.argmax()][None], samples])
    candidates = np.clip(candidates, w.low, w.high)
    unit = (candidates - w.middle) / w.half
    q = np.stack(
        [
            _layers(np.maximum(unit @ c.action + (x @ c.state + c.state_bias), 0), c.layers)[:, 0]
            for c in w.critics
        ]
    )
    lcb = q.mean(0) - LAMBDA * q.std(0)
    standard = (candidates[:, None] - behavior_means) / w.behavior.stds
    joint = behavior - 0.5 * (standard**2 + math.log(2 * math.pi)).sum(-1)
    joint -= np.log(w.behavior.stds).sum(-1)
    most = joint.max(-1, keepdims=True)
    support = most[:, 0] + np.log(np.exp(joint - most).sum(-1))
    z = (support - support.mean()) / max(support.std(), 1e-6)
    score = lcb + WEIGHT * z
    chosen = score.argmax()
    away = np.linalg.norm(behavior_means - candidates[chosen], axis=-1).min()
    return {
        "action": candidates[chosen], "candidates": candidates, "q": q, "lcb": lcb,
        "log_support": support, "support_z": z, "score": score, "chosen": chosen,
        "violation": z[chosen] < -2, "collapse_dist": away,
    }  # fmt: skip


def make(dimensions: int, n: int, batch: int) -> Callable[[int], None]:
    """One state at a time."""
    weights, states = read_weights(dimensions), states_of(dimensions)

    def decide(number: int) -> None:
        for row in [number] if batch == 1 else range(batch):
            decide_one(weights, states[row % len(states)], n, number)

    return decide
