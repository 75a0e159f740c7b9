"""The networks that the methods share. All work on scaled observations and actions in [-1, 1]."""

import math
from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from gemrl.maths.mixture import Mixture


def product(x: Float[Array, "*b i"], weight: Float[Array, "i o"]) -> Float[Array, "*b o"]:
    """The product x @ weight, as one of two matrices however many leading axes x has.

    XLA would copy and transpose more axes for the weights' gradient, which on CPUs costs more than
    the product does.
    """
    if x.ndim <= 2:
        return x @ weight
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return (rows @ weight).reshape(*x.shape[:-1], weight.shape[-1])


SMALLEST_DRAW = 4096


def uniform(key: Key[Array, ""], shape: tuple[int, ...], limit: float) -> Float[Array, "..."]:
    """Fresh weights within `limit`: the bits of `jax.random.uniform` for this shape, with JAX's
    own generator.

    They are the first of a larger number that many shapes share. Each shape would otherwise compile
    a program of its own, for which a first training would wait.
    """
    count = SMALLEST_DRAW
    while count < math.prod(shape):
        count *= 4
    return _first(jax.random.uniform(key, (count,), minval=-limit, maxval=limit), shape)


@partial(jax.jit, static_argnums=1)
def _first(drawn: Float[Array, " n"], shape: tuple[int, ...]) -> Float[Array, "..."]:
    return drawn[: math.prod(shape)].reshape(shape)


class Linear(eqx.Module):
    """x @ weight + bias, with weights uniform within 1 / sqrt(fan-in)."""

    weight: Float[Array, "i o"]
    bias: Float[Array, " o"]

    def __init__(
        self, inputs: int, outputs: int, key: Key[Array, ""], fan_in: int | None = None
    ) -> None:
        limit = 1 / math.sqrt(fan_in or inputs)
        weight_key, bias_key = jax.random.split(key)
        self.weight = uniform(weight_key, (inputs, outputs), limit)
        self.bias = uniform(bias_key, (outputs,), limit)

    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        return product(x, self.weight) + self.bias


NORM_EPSILON = 1e-6
"""Added to a variance, so that units that all agree can be divided by it."""


class Norm(eqx.Module):
    """Layer normalization with a scale and a shift for each unit."""

    scale: Float[Array, " h"]
    shift: Float[Array, " h"]

    def __init__(self, units: int) -> None:
        self.scale = jnp.ones(units)
        self.shift = jnp.zeros(units)

    def __call__(self, x: Float[Array, "*b h"]) -> Float[Array, "*b h"]:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        # Divided by an infinite variance, units that overflow would pass for units that agree.
        rate = jnp.where(jnp.isinf(variance), jnp.nan, jax.lax.rsqrt(variance + NORM_EPSILON))
        return centred * rate * self.scale + self.shift


def dropout(x: Float[Array, "..."], rate: float, key: Key[Array, ""] | None) -> Float[Array, "..."]:
    """Some of the places at 0, and the others grown for it; all as they are without a key."""
    if key is None or rate == 0:
        return x
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0)


def mish(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The product x tanh(log(1 + e^x)), by one exponential: three functions take twice as long."""
    # Above 10 the factor rounds to 1, and powers of e^x would soon overflow in its slopes.
    power = jnp.exp(jnp.minimum(x, 10.0))
    twice = power * (power + 2)
    return x * (twice / (twice + 2))


ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "mish": mish}


class Layers(eqx.Module):
    """Linear layers with an activation between them; the last is linear.

    With `normed` a layer normalization follows each activation.
    """

    layers: tuple[Linear, ...]
    norms: tuple[Norm, ...] | None
    activation: str = eqx.field(static=True)

    def __init__(
        self,
        sizes: Sequence[int],
        key: Key[Array, ""],
        *,
        activation: str = "relu",
        normed: bool = False,
    ) -> None:
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(map(Linear, sizes[:-1], sizes[1:], keys))
        self.norms = tuple(map(Norm, sizes[1:-1])) if normed else None
        self.activation = activation

    @property
    def is_plain(self) -> bool:
        """Whether it is ReLU and nothing else."""
        return self.activation == "relu" and self.norms is None

    def __call__(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        for number, layer in enumerate(self.layers[:-1]):
            x = ACTIVATIONS[self.activation](layer(x))
            x = x if self.norms is None else self.norms[number](x)
        return self.layers[-1](x)


def times(layers: Layers, factor: float) -> Layers:
    """Layers that give `factor` times what these give."""
    last = jax.tree.map(lambda weights: factor * weights, layers.layers[-1])
    return eqx.tree_at(lambda layers: layers.layers[-1], layers, last)


def with_small_end(layers: Layers, limit: float) -> Layers:
    """New layers with the last one's weights uniform within `limit`: they begin with little."""
    return times(layers, limit * math.sqrt(layers.layers[-1].weight.shape[0]))


class Value(eqx.Module):
    """V(s)."""

    net: Layers

    def __init__(
        self,
        obs_dim: int,
        hidden: Sequence[int],
        key: Key[Array, ""],
        *,
        activation: str = "relu",
        normed: bool = False,
    ) -> None:
        self.net = Layers((obs_dim, *hidden, 1), key, activation=activation, normed=normed)

    def __call__(self, obs: Float[Array, "*b s"]) -> Float[Array, "*b"]:
        return self.net(obs)[..., 0]


class Critic(eqx.Module):
    """Q(s, a). The first layer is kept in two parts, so that candidates share the state's part."""

    from_state: Linear
    from_action: Float[Array, "a h"]
    norm: Norm | None
    net: Layers

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        key: Key[Array, ""],
        *,
        activation: str = "relu",
        normed: bool = False,
    ) -> None:
        state_key, action_key, net_key = jax.random.split(key, 3)
        fan_in = obs_dim + action_dim
        self.from_state = Linear(obs_dim, hidden[0], state_key, fan_in=fan_in)
        self.from_action = Linear(action_dim, hidden[0], action_key, fan_in=fan_in).weight
        self.norm = Norm(hidden[0]) if normed else None
        self.net = Layers((*hidden, 1), net_key, activation=activation, normed=normed)

    def __call__(
        self, obs: Float[Array, "*#b s"], action: Float[Array, "*#b a"]
    ) -> Float[Array, "*b"]:
        """Leading axes broadcast: one state `[S]` against candidates `[C, A]` gives `[C]`."""
        activation = ACTIVATIONS[self.net.activation]
        first = activation(self.from_state(obs) + product(action, self.from_action))
        return self.net(first if self.norm is None else self.norm(first))[..., 0]


def rescaled(critics: Sequence[Critic], factor: float) -> tuple[Critic, ...]:
    """Critics that give `factor` times what these give."""
    return tuple(
        eqx.tree_at(lambda c: c.net, critic, times(critic.net, factor)) for critic in critics
    )


class MixtureNet(eqx.Module):
    """A conditional mixture: gates and means from the state, one log-std a component and dimension.

    Means pass through tanh, so they lie within the action bounds. With one component it is the
    unimodal Gaussian of plain IQL and of behaviour cloning.
    """

    net: Layers
    log_std: Float[Array, "k a"]

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        components: int,
        hidden: Sequence[int],
        key: Key[Array, ""],
    ) -> None:
        net_key, spread_key = jax.random.split(key)
        net = Layers((obs_dim, *hidden, components * (1 + action_dim)), net_key)
        # Components that start on one another stay there: EM cannot tell them apart. Spread them.
        means = uniform(spread_key, (components * action_dim,), 1.0)
        bias = jnp.concatenate([jnp.zeros(components), means * (components > 1)])
        self.net = eqx.tree_at(lambda n: n.layers[-1].bias, net, bias)
        self.log_std = jnp.full((components, action_dim), -1.0, dtype=jnp.float32)

    def __call__(self, obs: Float[Array, "*b s"]) -> Mixture:
        components, action_dim = self.log_std.shape
        out = self.net(obs)
        means = jnp.tanh(out[..., components:])
        return Mixture(
            jax.nn.log_softmax(out[..., :components], axis=-1),
            means.reshape(*means.shape[:-1], components, action_dim),
            jnp.broadcast_to(jnp.exp(self.log_std), (*means.shape[:-1], components, action_dim)),
        )

    def clamped(self, log_std_min: float, log_std_max: float) -> "MixtureNet":
        """This network with its log-stds brought back into their range (Eq. 49).

        The parameter itself is clamped after each update. Were it clamped on use only, one that
        crossed the bound would have no gradient and never come back.
        """
        log_std = jnp.clip(self.log_std, log_std_min, log_std_max)
        return eqx.tree_at(lambda net: net.log_std, self, log_std)
