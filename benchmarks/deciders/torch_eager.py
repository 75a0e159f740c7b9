"""The decision in eager PyTorch, batched over states in blocks."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from deciders.policies import states_of
from deciders.weights import Layer, read_weights
from deciders.worker import LAMBDA, WEIGHT

# Candidates of all states that are evaluated together: a few hundred megabytes at the most.
TOGETHER = 65536


def _tensors(layers: list[Layer]) -> list[tuple[Tensor, Tensor]]:
    return [(torch.from_numpy(w), torch.from_numpy(b)) for w, b in layers]


def _layers(x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> Tensor:
    for number, (weight, bias) in enumerate(layers):
        x = (x.relu() if number else x) @ weight + bias
    return x


class Eager:
    """Networks as tensors, and one decision for each state."""

    def __init__(self, dimensions: int) -> None:
        w = read_weights(dimensions)
        names = ("obs_mean", "obs_std", "low", "high", "middle", "half")
        for name in names:
            setattr(self, name, torch.from_numpy(getattr(w, name)))
        self.nets = [
            (_tensors(net.layers), torch.from_numpy(net.stds)) for net in (w.actor, w.behavior)
        ]
        self.critics = [
            (
                torch.from_numpy(c.state),
                torch.from_numpy(c.state_bias),
                torch.from_numpy(c.action),
                _tensors(c.layers),
            )
            for c in w.critics
        ]

    def mixture(self, net: tuple[list, Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights [B, K], means [B, K, A] and deviations [K, A]."""
        layers, stds = net
        out = _layers(x, layers)
        components, dims = stds.shape
        means = torch.tanh(out[:, components:]).view(-1, components, dims)
        return out[:, :components].log_softmax(-1), means * self.half + self.middle, stds

    @torch.inference_mode()
    def decide(self, obs: Tensor, n: int) -> dict[str, Tensor]:
        """The fields of a record."""
        x = (obs - self.obs_mean) / self.obs_std
        weights, means, stds = self.mixture(self.nets[0], x)
        behavior, behavior_means, behavior_stds = self.mixture(self.nets[1], x)
        rows = torch.arange(len(x))
        candidates = means[rows, weights.argmax(-1)][:, None]
        if n:
            picked = torch.multinomial(weights.exp(), n, replacement=True)
            samples = means[rows[:, None], picked]
            samples = samples + stds[picked] * torch.randn(samples.shape)
            candidates = torch.cat([candidates, samples], 1)
        candidates = torch.clamp(candidates, self.low, self.high)
        unit = (candidates - self.middle) / self.half
        q = torch.stack(
            [
                _layers((unit @ action + (x @ state + bias)[:, None]).relu(), layers)[..., 0]
                for state, bias, action, layers in self.critics
            ],
            1,
        )
        lcb = q.mean(1) - LAMBDA * q.std(1, correction=0)
        standard = (candidates[:, :, None] - behavior_means[:, None]) / behavior_stds
        joint = -0.5 * (standard.square() + math.log(2 * math.pi)).sum(-1)
        support = (joint - behavior_stds.log().sum(-1) + behavior[:, None]).logsumexp(-1)
        spread = support.std(-1, correction=0, keepdim=True).clamp(min=1e-6)
        z = (support - support.mean(-1, keepdim=True)) / spread
        score = lcb + WEIGHT * z
        chosen = score.argmax(-1)
        action = candidates[rows, chosen]
        away = (behavior_means - action[:, None]).norm(dim=-1).amin(-1)
        return {
            "action": action, "candidates": candidates, "q": q, "lcb": lcb, "log_support": support,
            "support_z": z, "score": score, "chosen": chosen, "violation": z[rows, chosen] < -2,
            "collapse_dist": away,
        }  # fmt: skip


def make(dimensions: int, n: int, batch: int) -> Callable[[int], None]:
    """One state, or a batch."""
    eager, states = Eager(dimensions), states_of(dimensions)
    block = max(1, TOGETHER // (n + 1))

    def decide(number: int) -> None:
        rows = [number % len(states)] if batch == 1 else np.arange(batch) % len(states)
        given = torch.from_numpy(states[rows])
        parts = [eager.decide(part, n) for part in given.split(block)]
        {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}

    return decide
