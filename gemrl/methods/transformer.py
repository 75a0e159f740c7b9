"""A causal transformer over tokens, as GPT-2 has it: what normalizes comes before each part."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from gemrl.methods.networks import Layers, Linear, Norm, dropout

# Finite, since a token before the episode's start has none to look at, and 0/0 is no number.
UNSEEN = -1e9


class Block(eqx.Module):
    """Attention and a two-layer ReLU network, each added to what it was given."""

    attention_norm: Norm
    project: Linear
    """Queries, keys and values of all heads."""
    merge: Linear
    layers_norm: Norm
    layers: Layers
    heads: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True)

    def __init__(self, width: int, heads: int, dropout: float, key: Key[Array, ""]) -> None:
        project_key, merge_key, layers_key = jax.random.split(key, 3)
        self.attention_norm, self.layers_norm = Norm(width), Norm(width)
        self.project = Linear(width, 3 * width, project_key)
        self.merge = Linear(width, width, merge_key)
        self.layers = Layers((width, 4 * width, width), layers_key)
        self.heads = heads
        self.dropout = dropout

    def __call__(
        self,
        tokens: Float[Array, "*b t h"],
        seen: Bool[Array, "*b t t"],
        key: Key[Array, ""] | None,
    ) -> Float[Array, "*b t h"]:
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        mixed = self._attend(self.attention_norm(tokens), seen, keys[0])
        tokens = tokens + dropout(mixed, self.dropout, keys[1])
        inside = self.layers(self.layers_norm(tokens))
        return tokens + dropout(inside, self.dropout, keys[2])

    def _attend(
        self,
        tokens: Float[Array, "*b t h"],
        seen: Bool[Array, "*b t t"],
        key: Key[Array, ""] | None,
    ) -> Float[Array, "*b t h"]:
        *batch, count, width = tokens.shape
        size = width // self.heads
        projected = self.project(tokens).reshape(*batch, count, 3, self.heads, size)
        queries, keys, values = (projected[..., part, :, :] for part in range(3))
        scores = jnp.einsum("...qnd,...knd->...nqk", queries, keys) / math.sqrt(size)
        weights = jax.nn.softmax(jnp.where(seen[..., None, :, :], scores, UNSEEN))
        weights = dropout(weights, self.dropout, key)
        mixed = jnp.einsum("...nqk,...knd->...qnd", weights, values)
        return self.merge(mixed.reshape(*batch, count, width))


class Transformer(eqx.Module):
    """Blocks between two normalizations. No token sees a later one, nor one that is not there."""

    first_norm: Norm
    blocks: tuple[Block, ...]
    last_norm: Norm
    dropout: float = eqx.field(static=True)

    def __init__(
        self, width: int, key: Key[Array, ""], *, blocks: int, heads: int, dropout: float
    ) -> None:
        self.first_norm, self.last_norm = Norm(width), Norm(width)
        self.blocks = tuple(Block(width, heads, dropout, k) for k in jax.random.split(key, blocks))
        self.dropout = dropout

    def __call__(
        self,
        tokens: Float[Array, "*b t h"],
        there: Bool[Array, "*b t"],
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "*b t h"]:
        """The key is for dropout in training; None at run time."""
        places = jnp.arange(tokens.shape[-2])
        seen = (places <= places[:, None]) & there[..., None, :]
        keys = [
            None if key is None else jax.random.fold_in(key, i) for i in range(len(self.blocks))
        ]
        first_key = None if key is None else jax.random.fold_in(key, len(self.blocks))
        tokens = dropout(self.first_norm(tokens), self.dropout, first_key)
        for block, block_key in zip(self.blocks, keys, strict=True):
            tokens = block(tokens, seen, block_key)
        return self.last_norm(tokens)
