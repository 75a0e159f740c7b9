"""The same GEM with torch.compile: a whole step, from minibatch to targets, is one program."""

import os
import shutil
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad

from peers import setting as s
from peers.eager_gem import Batch, GemNets, ReplayBuffer

Losses = tuple[Tensor, Tensor, Tensor]
# Adam's constants, as torch.optim and gemrl have them.
DECAY_1, DECAY_2, EPSILON = 0.9, 0.999, 1e-8


class CompiledGem:
    """GEM as fast as PyTorch was found to go on a CPU.

    Gradients by torch.func and Adam in so many words, because torch.compile can then see through
    both; losses alone compiled, with backward() and a fused torch.optim.Adam, were slower.
    """

    def __init__(self, critics: int) -> None:
        torch.manual_seed(0)
        self.nets = GemNets(critics).requires_grad_(False)
        named = dict(self.nets.named_parameters())
        self.targets = {name: named[name] for name in named if name.startswith("targets")}
        self.parameters = {name: named[name] for name in named if name not in self.targets}
        values = self.parameters.values()
        self.first, self.second = ([torch.zeros_like(p) for p in values] for _ in range(2))
        self.steps = torch.zeros(())
        self.update = torch.compile(self._update, dynamic=False, fullgraph=True)

    def _losses(self, parameters: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Losses]:
        """Their sum, whose gradients are those of each: they share no parameters."""
        losses = functional_call(self.nets, parameters, (batch,))
        return sum(losses), losses

    def _update(self, batch: Batch) -> Losses:
        grads, losses = grad(self._losses, has_aux=True)(self.parameters, batch)
        self._adam(list(self.parameters.values()), [grads[name] for name in self.parameters])
        self.nets.actor.log_std.clamp_(s.LOG_STD_MIN, s.LOG_STD_MAX)
        critics = [self.parameters[name.replace("targets", "critics")] for name in self.targets]
        torch._foreach_lerp_(list(self.targets.values()), critics, s.POLYAK)
        return losses

    def _adam(self, parameters: list[Tensor], grads: list[Tensor]) -> None:
        self.steps.add_(1)
        size = s.LEARNING_RATE / (1 - DECAY_1**self.steps)
        unbias = torch.sqrt(1 - DECAY_2**self.steps)
        torch._foreach_lerp_(self.first, grads, 1 - DECAY_1)
        torch._foreach_mul_(self.second, DECAY_2)
        torch._foreach_addcmul_(self.second, grads, grads, 1 - DECAY_2)
        for parameter, first, second in zip(parameters, self.first, self.second, strict=True):
            parameter.sub_(size * first / (second.sqrt() / unbias + EPSILON))


def make(critics: int) -> Callable[[int], None]:
    """`run(n)` makes n updates."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise RuntimeError(f"torch.compile needs a C++ compiler, and {compiler} is not there")
    gem, buffer = CompiledGem(critics), ReplayBuffer()

    def run(updates: int) -> None:
        for _ in range(updates):
            gem.update(buffer.sample())

    return run
