"""`gemrl.methods.dt` and `transformer` as a part of the graph, formula by formula.

B contexts of K steps, three tokens to a step, T = 3 K tokens, H the width of a token.
"""

import math

import numpy as np

from gemrl.deploy.export.builder import TYPES, Builder, Value
from gemrl.deploy.export.layers import layers, linear, norm, require
from gemrl.methods.context import step_width
from gemrl.methods.dt import DecisionTransformer
from gemrl.methods.transformer import UNSEEN, Block, Transformer

TOKENS = 3
"""Of a step: the return to go, the state and the action."""


def last_action(g: Builder, model: DecisionTransformer, scaled: Value, width: int) -> Value:
    """The action in [-1, 1] at the last step of packed contexts [B, width]: [B, 1, A]."""
    require(model, DecisionTransformer)
    obs, action = (layer.weight.shape[0] for layer in (model.from_state, model.from_action))
    tokens = TOKENS * width // step_width(obs, action)
    steps = g.add("Reshape", scaled, [-1, step_width(obs, action)])
    edges = [1, obs, action, 1, 1]
    to_go, seen, done, number, present = g.add_several("Split", len(edges), steps, edges, axis=1)
    last = model.from_number.shape[0] - 1
    place = g.add("Min", g.add("Cast", number, to=TYPES["int64"]), np.array(last))
    of_each = (
        linear(g, to_go, model.from_return),
        linear(g, seen, model.from_state),
        linear(g, done, model.from_action),
    )
    embedded = g.add("Concat", *(g.add("Unsqueeze", x, [1]) for x in of_each), axis=1)
    embedded = g.add("Add", embedded, g.add("Gather", np.asarray(model.from_number), place))
    there = g.add("Greater", g.add("Concat", *[present] * TOKENS, axis=1), 0.0)
    there = g.add("Reshape", there, [-1, 1, 1, tokens])
    out = _transformed(g, model.body, embedded, there, tokens)
    return g.add("Unsqueeze", g.add("Tanh", linear(g, out, model.head)), [1])


def _transformed(g: Builder, net: Transformer, x: Value, there: Value, tokens: int) -> Value:
    """The last state's token of each context [B, H], after a `Transformer`."""
    require(net, Transformer)
    width = net.last_norm.scale.shape[0]
    seen = g.add("And", there, np.tri(tokens, dtype=bool))
    x = norm(g, g.add("Reshape", x, [-1, width]), net.first_norm)
    for block in net.blocks:
        x = _block(g, block, x, seen, tokens)
    # The token before the last: after it comes the action, which is not known yet.
    whole = g.add("Reshape", x, [-1, tokens, width])
    state = g.add("Squeeze", g.add("Slice", whole, [tokens - 2], [tokens - 1], [1]), [1])
    return norm(g, state, net.last_norm)


def _block(g: Builder, block: Block, x: Value, seen: Value, tokens: int) -> Value:
    """`Block` on rows [B x T, H], where tokens see what `seen` [B, 1, T, T] says."""
    require(block, Block)
    width = block.merge.weight.shape[0]
    size = width // block.heads
    projected = linear(g, norm(g, x, block.attention_norm), block.project)
    projected = g.add("Reshape", projected, [-1, tokens, 3, block.heads, size])
    parts = g.add_several("Split", 3, projected, [1, 1, 1], axis=2)
    queries, keys, values = (g.add("Squeeze", part, [2]) for part in parts)
    queries = g.add("Transpose", queries, perm=[0, 2, 1, 3])
    keys = g.add("Transpose", keys, perm=[0, 2, 3, 1])
    values = g.add("Transpose", values, perm=[0, 2, 1, 3])
    scores = g.add("Div", g.add("MatMul", queries, keys), math.sqrt(size))
    weights = g.add("Softmax", g.add("Where", seen, scores, UNSEEN), axis=3)
    mixed = g.add("Transpose", g.add("MatMul", weights, values), perm=[0, 2, 1, 3])
    x = g.add("Add", x, linear(g, g.add("Reshape", mixed, [-1, width]), block.merge))
    return g.add("Add", x, layers(g, norm(g, x, block.layers_norm), block.layers))
