"""Proposals that make an action of noise. All work on scaled observations, actions in [-1, 1]."""

from collections.abc import Sequence

import equinox as eqx
import jax
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


class TanhGaussian(Sampler):
    """tanh of a Gaussian whose mean and log-std come from the state; the anchor is tanh(mean)."""

    net: Layers
    log_std_min: float = eqx.field(static=True)
    log_std_max: float = eqx.field(static=True)

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        key: Key[Array, ""],
        *,
        log_std_min: float,
        log_std_max: float,
    ) -> None:
        self.net = Layers((obs_dim, *hidden, 2 * action_dim), key)
        self.log_std_min = log_std_min
        self.log_std_max = log_std_max

    @property
    def noise_size(self) -> int:
        """One for each action dimension."""
        return self.net.layers[-1].bias.shape[-1] // 2

    def _unsquashed(
        self, obs: Float[Array, "*#b s"], noise: Float[Array, "*#b n"]
    ) -> tuple[Float[Array, "*b a"], Float[Array, "*b a"]]:
        """What tanh is taken of, and the log-std."""
        mean, log_std = jnp.split(self.net(obs), 2, axis=-1)
        log_std = jnp.clip(log_std, self.log_std_min, self.log_std_max)
        return mean + jnp.exp(log_std) * noise, log_std

    def __call__(
        self, obs: Float[Array, "*#b s"], noise: Float[Array, "*#b n"]
    ) -> Float[Array, "*b a"]:
        return jnp.tanh(self._unsquashed(obs, noise)[0])

    def with_log_prob(
        self, obs: Float[Array, "*#b s"], noise: Float[Array, "*#b n"]
    ) -> tuple[Float[Array, "*b a"], Float[Array, "*b"]]:
        """The action that the noise makes, and its log density within the bounds.

        The density is taken before tanh is: an action at a bound has lost what it was made of.
        """
        raw, log_std = self._unsquashed(obs, noise)
        gaussian = -0.5 * (noise**2 + jnp.log(2 * jnp.pi)) - log_std
        # log(1 - tanh(raw)^2) in a form that does not round to log(0).
        log_slope = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
        return jnp.tanh(raw), jnp.sum(gaussian - log_slope, axis=-1)
