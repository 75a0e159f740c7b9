"""IQL in eager PyTorch with the shape of CORL's single-file version: twin critics, one Gaussian."""

import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal
from torch.optim.lr_scheduler import CosineAnnealingLR

from peers import setting as s
from peers.eager_gem import Batch, Critics, ReplayBuffer, Value, mlp, value_loss

SCHEDULE = 1_000_000


class GaussianActor(nn.Module):
    """A Gaussian whose mean passes through tanh; its log-std does not depend on the state."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(mlp(s.OBSERVATION, s.ACTION), nn.Tanh())
        self.log_std = nn.Parameter(torch.zeros(s.ACTION))

    def forward(self, obs: Tensor) -> Normal:
        return Normal(self.net(obs), self.log_std.clamp(-20.0, 2.0).exp())


class Iql:
    """Networks, targets, three Adams and the actor's schedule."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.critics, self.value, self.actor = Critics(2), Value(), GaussianActor()
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.critic_optimizer, self.value_optimizer, self.actor_optimizer = (
            torch.optim.Adam(net.parameters(), lr=s.LEARNING_RATE)
            for net in (self.critics, self.value, self.actor)
        )
        self.schedule = CosineAnnealingLR(self.actor_optimizer, SCHEDULE)

    def update(self, batch: Batch) -> dict[str, float]:
        """One step, and its losses as numbers for the log."""
        obs, action, reward, next_obs, mask = batch
        with torch.no_grad():
            next_value = self.value(next_obs)
        log: dict[str, float] = {}
        advantage = self._update_value(obs, action, log)
        self._update_critics(obs, action, reward + s.DISCOUNT * mask * next_value, log)
        self._update_actor(obs, action, advantage, log)
        return log

    def _update_value(self, obs: Tensor, action: Tensor, log: dict[str, float]) -> Tensor:
        with torch.no_grad():
            target = self.targets(obs, action).amin(0)
        advantage = target - self.value(obs)
        loss = value_loss(advantage)
        log["value_loss"] = loss.item()
        self.value_optimizer.zero_grad()
        loss.backward()
        self.value_optimizer.step()
        return advantage.detach()

    def _update_critics(
        self, obs: Tensor, action: Tensor, bootstrap: Tensor, log: dict[str, float]
    ) -> None:
        q = self.critics(obs, action)
        loss = sum(F.mse_loss(one, bootstrap) for one in q) / len(q)
        log["q_loss"] = loss.item()
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        pairs = zip(self.targets.parameters(), self.critics.parameters(), strict=True)
        for target, parameter in pairs:
            target.data.copy_((1 - s.POLYAK) * target.data + s.POLYAK * parameter.data)

    def _update_actor(
        self, obs: Tensor, action: Tensor, advantage: Tensor, log: dict[str, float]
    ) -> None:
        weight = torch.exp(s.BETA * advantage).clamp(max=s.WEIGHT_CAP)
        loss = -(weight * self.actor(obs).log_prob(action).sum(-1)).mean()
        log["actor_loss"] = loss.item()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()
        self.schedule.step()


class CorlBuffer(ReplayBuffer):
    """CORL draws the rows of a minibatch with NumPy."""

    def sample(self) -> Batch:
        rows = np.random.randint(0, s.ROWS, size=s.BATCH)  # noqa: NPY002 (as CORL does)
        return tuple(column[rows] for column in self.columns)  # pyright: ignore


def make(critics: int) -> Callable[[int], None]:
    """`run(n)` makes n updates. IQL has two critics, whatever the others have."""
    iql, buffer = Iql(), CorlBuffer()

    def run(updates: int) -> None:
        for _ in range(updates):
            iql.update(buffer.sample())

    return run
