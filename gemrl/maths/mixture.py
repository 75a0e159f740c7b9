"""Diagonal Gaussian mixtures over actions: density, responsibilities, modes and samples.

Every function takes arrays with any leading batch axes. `K` is the number of components, `A` the
number of action dimensions. The mixture is joint over the action: one gate weight a component, not
one a component and dimension.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key


class Mixture(eqx.Module):
    """A Gaussian mixture with diagonal covariances (Eq. 24, Eq. 48)."""

    log_weights: Float[Array, "*b k"]
    means: Float[Array, "*b k a"]
    stds: Float[Array, "*b k a"]

    def log_prob(self, action: Float[Array, "*bc a"]) -> Float[Array, "*bc"]:
        """Log density of actions; axes between the mixture's batch and `A` are candidates."""
        action = jnp.asarray(action)
        return log_prob(self._beside(action), action)

    def responsibilities(self, action: Float[Array, "*bc a"]) -> Float[Array, "*bc k"]:
        """Posterior probability of each component for an action."""
        action = jnp.asarray(action)
        return responsibilities(log_joint(self._beside(action), action))

    def sample(self, seed: int, n: int = 1) -> Float[Array, "*b n a"]:
        """`n` samples from a seed. Row i of a batch draws with the key `fold_in(key(seed), i)`."""
        batch = self.log_weights.shape[:-1]
        rows = math.prod(batch)
        keys = row_keys(seed, rows)
        noise = jax.vmap(lambda key: sampling_noise(key, n, self.means.shape[-1]))(keys)
        noise = jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), noise)
        return sample_from_noise(self, *noise)

    def mode(self) -> Float[Array, "*b a"]:
        """Mean of the heaviest component."""
        return mode(self)

    def affine(self, scale: Float[Array, " a"], shift: Float[Array, " a"]) -> "Mixture":
        """The distribution of `scale * x + shift` where x is distributed as this mixture."""
        return Mixture(self.log_weights, self.means * scale + shift, self.stds * scale)

    def _beside(self, action: Float[Array, "..."]) -> "Mixture":
        """This mixture with an axis of size one for each candidate axis of `action`."""
        extra = action.ndim - (self.means.ndim - 1)
        if extra < 0 or action.shape[-1] != self.means.shape[-1]:
            raise ValueError(
                f"actions of shape {action.shape} do not fit a mixture whose means have shape "
                f"{self.means.shape}"
            )
        axes = tuple(range(self.log_weights.ndim - 1, self.log_weights.ndim - 1 + extra))
        return Mixture(
            jnp.expand_dims(self.log_weights, axes),
            jnp.expand_dims(self.means, axes),
            jnp.expand_dims(self.stds, axes),
        )


def log_joint(mixture: Mixture, action: Float[Array, "*b a"]) -> Float[Array, "*b k"]:
    """u_k(s, a) = log w_k + log N(a; mu_k, diag(sigma_k^2))  (Eq. 26 and 38, Eq. 51 and 53)."""
    standardized = (action[..., None, :] - mixture.means) / mixture.stds
    log_normal = -0.5 * jnp.sum(
        standardized**2 + math.log(2 * math.pi) + 2 * jnp.log(mixture.stds), axis=-1
    )
    return mixture.log_weights + log_normal


def log_prob(mixture: Mixture, action: Float[Array, "*b a"]) -> Float[Array, "*b"]:
    """log-sum-exp of the component log-joints (Eq. 27, Eq. 52)."""
    return jax.nn.logsumexp(log_joint(mixture, action), axis=-1)


def responsibilities(joint: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    """gamma_k = softmax_k(u_k), the posterior over components (Eq. 28, Eq. 55)."""
    return jax.nn.softmax(joint, axis=-1)


def em_surrogate(joint: Float[Array, "*b k"], *, detach: bool) -> Float[Array, "*b"]:
    """sum_k gamma_k u_k, the "loose ELBO" of the actor (Eq. 36).

    With `detach` the gradient treats gamma as a constant, which makes it the M-step's direction
    (Eq. 37) and equal to the gradient of the log-likelihood (Eq. 56).
    """
    gamma = responsibilities(joint)
    if detach:
        gamma = jax.lax.stop_gradient(gamma)
    return jnp.sum(gamma * joint, axis=-1)


def gate_entropy(log_weights: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """H(w) = -sum_k w_k log(w_k + 1e-6)  (Eq. 43)."""
    weights = jnp.exp(log_weights)
    return -jnp.sum(weights * jnp.log(weights + 1e-6), axis=-1)


def top_component(mixture: Mixture) -> Mixture:
    """The heaviest component alone, as a mixture of one (k* of Eq. 6 and Eq. 73)."""
    heaviest = jnp.argmax(mixture.log_weights, axis=-1, keepdims=True)
    return Mixture(
        jnp.zeros_like(mixture.log_weights[..., :1]),
        jnp.take_along_axis(mixture.means, heaviest[..., None], axis=-2),
        jnp.take_along_axis(mixture.stds, heaviest[..., None], axis=-2),
    )


def mode(mixture: Mixture) -> Float[Array, "*b a"]:
    """mu_{k*}, the mean of the heaviest component (Eq. 6, Eq. 77)."""
    return top_component(mixture).means[..., 0, :]


def barycenter(mixture: Mixture) -> Float[Array, "*b a"]:
    """sum_k w_k mu_k, the mean of the whole mixture."""
    return jnp.sum(jnp.exp(mixture.log_weights)[..., None] * mixture.means, axis=-2)


def row_keys(seed: int | Int[Array, ""], rows: int) -> Key[Array, " rows"]:
    """The key of each row of a batch: `fold_in(key(seed), row)`."""
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.arange(rows))


def sampling_noise(
    key: Key[Array, ""], n: int, action_dim: int, first: int | Int[Array, ""] = 0
) -> tuple[Float[Array, " n"], Float[Array, "n a"]]:
    """Gate uniforms and standard normals of samples `first` to `first + n - 1`.

    The noise of sample j depends on the key and j alone, so a small set of candidates is a prefix
    of a larger one and chunks of a set can be drawn apart.
    """

    def one(j: Int[Array, ""]) -> tuple[Float[Array, ""], Float[Array, " a"]]:
        gate_key, normal_key = jax.random.split(jax.random.fold_in(key, j))
        return jax.random.uniform(gate_key), jax.random.normal(normal_key, (action_dim,))

    return jax.vmap(one)(first + jnp.arange(n))


def sample_from_noise(
    mixture: Mixture, gate: Float[Array, "*b n"], normal: Float[Array, "*b n a"]
) -> Float[Array, "*b n a"]:
    """Z ~ Categorical(w), a ~ N(mu_z, Sigma_z), by inverting the gate's CDF (Eq. 76)."""
    cumulative = jnp.cumsum(jnp.exp(mixture.log_weights), axis=-1)
    below = gate[..., :, None] >= cumulative[..., None, :]
    # Rounding may leave the last cumulative weight a little below one.
    component = jnp.minimum(jnp.sum(below, axis=-1), mixture.log_weights.shape[-1] - 1)
    means = jnp.take_along_axis(mixture.means, component[..., None], axis=-2)
    stds = jnp.take_along_axis(mixture.stds, component[..., None], axis=-2)
    return means + stds * normal
