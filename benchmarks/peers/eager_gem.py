"""GEM's networks and losses in PyTorch, and the eager step as a user of CORL would write it."""

import copy
import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peers import setting as s

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class ReplayBuffer:
    """Every column of the dataset as one tensor; a minibatch is drawn with replacement."""

    def __init__(self) -> None:
        self.columns = tuple(torch.from_numpy(column.copy()) for column in s.transitions())

    def sample(self) -> Batch:
        rows = torch.randint(0, s.ROWS, (s.BATCH,))
        return tuple(column[rows] for column in self.columns)  # pyright: ignore


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    sizes = (inputs, *s.HIDDEN, outputs)
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Critics(nn.Module):
    """Q(s, a) of each critic, as rows of one tensor."""

    def __init__(self, critics: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(mlp(s.OBSERVATION + s.ACTION, 1) for _ in range(critics))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        pairs = torch.cat((obs, action), dim=-1)
        return torch.stack([member(pairs).squeeze(-1) for member in self.members])


class Value(nn.Module):
    """V(s)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(s.OBSERVATION, 1)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).squeeze(-1)


class MixtureActor(nn.Module):
    """Gates and means from the state, one log-std a component and dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(s.OBSERVATION, s.COMPONENTS * (1 + s.ACTION))
        self.log_std = nn.Parameter(torch.full((s.COMPONENTS, s.ACTION), -1.0))

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log gate weights, and log w_k + log N(a; mu_k, sigma_k) of each component."""
        out = self.net(obs)
        log_weights = F.log_softmax(out[:, : s.COMPONENTS], dim=-1)
        means = torch.tanh(out[:, s.COMPONENTS :]).view(-1, s.COMPONENTS, s.ACTION)
        standardized = (action.unsqueeze(1) - means) * torch.exp(-self.log_std)
        norm = self.log_std.sum(-1) + 0.5 * s.ACTION * math.log(2 * math.pi)
        return log_weights, log_weights - 0.5 * standardized.square().sum(-1) - norm


def value_loss(delta: Tensor) -> Tensor:
    """Expectile regression of V on the least of the target critics."""
    return (torch.where(delta < 0, 1 - s.EXPECTILE, s.EXPECTILE) * delta.square()).mean()


def critic_loss(q: Tensor, reward: Tensor, mask: Tensor, next_value: Tensor) -> Tensor:
    """Mean squared error of each critic."""
    return (q - (reward + s.DISCOUNT * mask * next_value)).square().mean()


def actor_loss(log_weights: Tensor, joint: Tensor, advantage: Tensor) -> Tensor:
    """EM's weighted surrogate with constant responsibilities, less the bonus on gate entropy."""
    weight = torch.exp(s.BETA * advantage).clamp(max=s.WEIGHT_CAP)
    surrogate = (torch.softmax(joint, dim=-1).detach() * joint).sum(-1)
    weights = log_weights.exp()
    entropy = -(weights * torch.log(weights + 1e-6)).sum(-1).mean()
    return -(weight * surrogate).mean() - s.GATE_ENTROPY * entropy


class GemNets(nn.Module):
    """Critics, their targets, value and actor."""

    def __init__(self, critics: int) -> None:
        super().__init__()
        self.critics = Critics(critics)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.value = Value()
        self.actor = MixtureActor()

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Losses of critics, value and actor, all from the parameters before the update."""
        obs, action, reward, next_obs, mask = batch
        with torch.no_grad():
            target = self.targets(obs, action).amin(0)
            next_value = self.value(next_obs)
        delta = target - self.value(obs)
        return (
            critic_loss(self.critics(obs, action), reward, mask, next_value),
            value_loss(delta),
            actor_loss(*self.actor(obs, action), delta.detach()),
        )


class EagerGem:
    """The networks, and one Adam for each of critics, value and actor."""

    def __init__(self, critics: int) -> None:
        torch.manual_seed(0)
        self.nets = GemNets(critics)
        self.optimizers = [
            torch.optim.Adam(net.parameters(), lr=s.LEARNING_RATE)
            for net in (self.nets.critics, self.nets.value, self.nets.actor)
        ]

    def update(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """One step: three losses, three optimizers, then the targets one by one."""
        losses = self.nets(batch)
        for loss, optimizer in zip(losses, self.optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            self.nets.actor.log_std.clamp_(s.LOG_STD_MIN, s.LOG_STD_MAX)
            targets, critics = self.nets.targets, self.nets.critics
            pairs = zip(targets.parameters(), critics.parameters(), strict=True)
            for target, parameter in pairs:
                target.lerp_(parameter, s.POLYAK)
        return losses


def make(critics: int) -> Callable[[int], None]:
    """`run(n)` makes n updates."""
    gem, buffer = EagerGem(critics), ReplayBuffer()

    def run(updates: int) -> None:
        for _ in range(updates):
            gem.update(buffer.sample())

    return run
