"""The layers of `gemrl.methods.networks` and `generative` on rows of numbers, formula by formula.

R is the number of rows, H the width of a layer.
"""

import math

import numpy as np

from gemrl.deploy.export.builder import Builder, Value
from gemrl.errors import BundleError
from gemrl.methods.generative import Block, Body, Plain, Residual
from gemrl.methods.networks import NORM_EPSILON, Layers, Linear, Norm


def linear(g: Builder, x: Value, layer: Linear) -> Value:
    """`Linear` on rows [R, I]."""
    require(layer, Linear)
    return g.add("Gemm", x, np.asarray(layer.weight), np.asarray(layer.bias))


def layers(g: Builder, x: Value, net: Layers) -> Value:
    """`Layers` on rows [R, I]."""
    require(net, Layers)
    for number, layer in enumerate(net.layers[:-1]):
        x = activation(g, linear(g, x, layer), net.activation)
        x = x if net.norms is None else norm(g, x, net.norms[number])
    return linear(g, x, net.layers[-1])


def norm(g: Builder, x: Value, layer: Norm) -> Value:
    """`Norm` of each row [R, H].

    In single steps: a runtime's own layer normalization may take the variance as a difference of
    two large numbers.
    """
    require(layer, Norm)
    centred = g.add("Sub", x, g.add("ReduceMean", x, [1], keepdims=1))
    variance = g.add("ReduceMean", g.add("Mul", centred, centred), [1], keepdims=1)
    variance = g.add("Where", g.add("IsInf", variance), math.nan, variance)
    unit = g.add("Div", centred, g.add("Sqrt", g.add("Add", variance, NORM_EPSILON)))
    return g.add("Add", g.add("Mul", unit, np.asarray(layer.scale)), np.asarray(layer.shift))


def activation(g: Builder, x: Value, name: str) -> Value:
    """One of `networks.ACTIVATIONS`."""
    if name == "relu":
        return g.add("Relu", x)
    if name == "gelu":  # By way of tanh, as JAX has it.
        cubed = g.add("Mul", g.add("Mul", x, g.add("Mul", x, x)), 0.044715)
        inner = g.add("Mul", g.add("Add", x, cubed), math.sqrt(2 / math.pi))
        share = g.add("Mul", g.add("Add", g.add("Tanh", inner), 1.0), 0.5)
        return g.add("Mul", x, share)
    if name == "mish":
        return g.add("Mul", x, g.add("Tanh", g.add("Softplus", x)))
    raise unknown(f"the activation {name!r}")


def body(g: Builder, x: Value, net: Body) -> Value:
    """A `Body` of a `Field` on rows [R, H], as it is at run time."""
    if type(net) is Plain:
        return layers(g, activation(g, x, net.layers.activation), net.layers)
    if type(net) is Residual:
        for block in net.blocks:
            require(block, Block)
            x = g.add("Add", x, layers(g, norm(g, x, block.norm), block.layers))
        return linear(g, activation(g, x, "mish"), net.last)
    raise unknown(type(net).__name__)


def require(net: object, kind: type) -> None:
    """Refuse a network whose formula is not the one that is written down here."""
    if type(net) is not kind:
        raise unknown(type(net).__name__)


def unknown(what: str) -> BundleError:
    """The error for a part of a policy that has no formula here."""
    return BundleError(
        f"export knows the networks and proposals of gemrl.methods, and this policy has another "
        f"({what}): it cannot be exported"
    )
