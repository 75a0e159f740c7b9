"""Proposals that make an action of noise. All work on scaled observations, actions in [-1, 1]."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from gemrl.methods.networks import Layers


class Sampler(eqx.Module):
    """A proposal: noise of `noise_size` standard normals makes an action; noise 0 the anchor."""

    @property
    def noise_size(self) -> int:
        """How many normals an action takes."""
        raise NotImplementedError

    def __call__(
        self, obs: Float[Array, "*#b s"], noise: Float[Array, "*#b n"]
    ) -> Float[Array, "*b a"]:
        """Leading axes broadcast: one state `[S]` against candidates' noise `[C, n]`."""
        raise NotImplementedError


class Deterministic(Sampler):
    """tanh of a network, which is the anchor, and Gaussian noise of a fixed size around it."""

    net: Layers
    spread: float = eqx.field(static=True)

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        key: Key[Array, ""],
        *,
        spread: float,
        normed: bool = False,
    ) -> None:
        self.net = Layers((obs_dim, *hidden, action_dim), key, normed=normed)
        self.spread = spread

    @property
    def noise_size(self) -> int:
        """One for each action dimension."""
        return self.net.layers[-1].bias.shape[-1]

    def mean(self, obs: Float[Array, "*b s"]) -> Float[Array, "*b a"]:
        """The action without noise."""
        return jnp.tanh(self.net(obs))

    def __call__(
        self, obs: Float[Array, "*#b s"], noise: Float[Array, "*#b n"]
    ) -> Float[Array, "*b a"]:
        return jnp.clip(self.mean(obs) + self.spread * noise, -1, 1)
