"""GEM's decision at one state as an ONNX graph, dense, as an exporter would build it."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from deciders.weights import Weights

OPSET = 18


class Graph:
    """Nodes and constants by name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: Any) -> str:
        """A constant's name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        """The name of a node's output. Inputs that are not names become constants."""
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [out], **attributes))
        return out

    def layers(self, x: str, layers: list[tuple[np.ndarray, np.ndarray]]) -> str:
        """Linear layers with ReLU between them."""
        for number, (weight, bias) in enumerate(layers):
            x = self.add("Gemm", self.add("Relu", x) if number else x, weight, bias)
        return x


ONE, ZERO, LAST = np.int64([1]), np.int64([0]), np.int64([-1])


def _mixture(g: Graph, x: str, net: Any, weights: Weights) -> tuple[str, str]:
    """Log weights [K] and means [K, A] in environment units."""
    components, dims = net.stds.shape
    out = g.add("Squeeze", g.layers(x, net.layers), ZERO)
    gates = g.add("Slice", out, ZERO, np.int64([components]))
    means = g.add("Tanh", g.add("Slice", out, np.int64([components]), np.int64([2**31])))
    means = g.add("Reshape", means, np.int64([components, dims]))
    means = g.add("Add", g.add("Mul", means, weights.half), weights.middle)
    return g.add("LogSoftmax", gates, axis=0), means


def _moments(g: Graph, x: str, axis: int) -> tuple[str, str]:
    mean = g.add("ReduceMean", x, np.int64([axis]), keepdims=1)
    off = g.add("Sub", x, mean)
    return mean, g.add("Sqrt", g.add("ReduceMean", g.add("Mul", off, off), np.int64([axis])))


def decision(weights: Weights, n: int) -> onnx.ModelProto:
    """Inputs obs, gate, normal, lam, wp; outputs what a decision's record holds."""
    g = Graph()
    scaled = g.add("Div", g.add("Sub", "obs", weights.obs_mean), weights.obs_std)
    log_weights, means = _mixture(g, scaled, weights.actor, weights)
    behavior_weights, behavior_means = _mixture(g, scaled, weights.behavior, weights)

    top = g.add("ArgMax", log_weights, axis=0, keepdims=1)
    candidates = g.add("Gather", means, top)
    if n:
        cumulative = g.add("CumSum", g.add("Exp", log_weights), np.int64(0))
        below = g.add("GreaterOrEqual", g.add("Unsqueeze", "gate", ONE), cumulative)
        picked = g.add("ReduceSum", g.add("Cast", below, to=TensorProto.INT64), ONE, keepdims=0)
        picked = g.add("Min", picked, np.int64(weights.actor.stds.shape[0] - 1))
        noise = g.add("Mul", g.add("Gather", weights.actor.stds, picked), "normal")
        samples = g.add("Add", g.add("Gather", means, picked), noise)
        candidates = g.add("Concat", candidates, samples, axis=0)
    candidates = g.add("Max", g.add("Min", candidates, weights.high), weights.low)
    unit = g.add("Div", g.add("Sub", candidates, weights.middle), weights.half)

    values = []
    for critic in weights.critics:
        state = g.add("Gemm", scaled, critic.state, critic.state_bias)
        first = g.add("Relu", g.add("Add", g.add("MatMul", unit, critic.action), state))
        values.append(g.layers(first, critic.layers))
    q = g.add("Concat", *values, axis=1)
    mean, std = _moments(g, q, 1)
    lcb = g.add("Squeeze", g.add("Sub", mean, g.add("Mul", "lam", std)), ONE)

    off = g.add("Sub", g.add("Unsqueeze", candidates, ONE), behavior_means)
    standard = g.add("Mul", off, 1 / weights.behavior.stds)
    squares = g.add("ReduceSum", g.add("Mul", standard, standard), np.int64([2]), keepdims=0)
    dims = weights.behavior.stds.shape[1]
    constant = -np.log(weights.behavior.stds).sum(1) - 0.5 * dims * np.log(2 * np.pi)
    joint = g.add("Add", behavior_weights, constant.astype(np.float32))
    joint = g.add("Sub", joint, g.add("Mul", squares, np.float32(0.5)))
    support = g.add("ReduceLogSumExp", joint, ONE, keepdims=0)
    mean, std = _moments(g, support, 0)
    z = g.add("Div", g.add("Sub", support, mean), g.add("Max", std, np.float32(1e-6)))
    score = g.add("Add", lcb, g.add("Mul", "wp", z))
    chosen = g.add("ArgMax", score, axis=0, keepdims=1)
    action = g.add("Gather", candidates, chosen)
    violation = g.add("Less", g.add("Gather", z, chosen), np.float32(-2))
    away = g.add("Sub", behavior_means, action)
    distances = g.add("ReduceSum", g.add("Mul", away, away), ONE, keepdims=0)
    collapse = g.add("Sqrt", g.add("ReduceMin", distances, keepdims=0))

    count, critics = n + 1, len(weights.critics)
    outputs: dict[str, tuple[str, list[int]]] = {
        "action": (action, [1, dims]),
        "candidates": (candidates, [count, dims]),
        "q": (q, [count, critics]),
        "lcb": (lcb, [count]),
        "log_support": (support, [count]),
        "support_z": (z, [count]),
        "score": (score, [count]),
        "chosen": (chosen, [1]),
        "violation": (violation, [1]),
        "collapse_dist": (collapse, []),
    }
    for name, (made, _) in outputs.items():
        g.nodes.append(helper.make_node("Identity", [made], [name]))
    kinds = {"chosen": TensorProto.INT64, "violation": TensorProto.BOOL}
    inputs = {"obs": [1, len(weights.obs_mean)], "gate": [n], "normal": [n, dims]}
    given = {name: shape for name, shape in inputs.items() if n or name == "obs"}
    given |= {"lam": [], "wp": []}
    graph = helper.make_graph(
        g.nodes,
        "decision",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in given.items()],
        [
            helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape)
            for name, (_, shape) in outputs.items()
        ],
        g.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    return model
