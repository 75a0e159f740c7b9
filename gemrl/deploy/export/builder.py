"""A graph of ONNX nodes that grows one operation at a time."""

from typing import Any

import numpy as np

from gemrl.errors import MissingExtraError

try:
    import onnx
    import onnxruntime  # noqa: F401  # A file that cannot be checked is not written.
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    raise MissingExtraError(
        f"export needs onnx and onnxruntime ({error}); install them with "
        "pip install 'gemrl[export]'"
    ) from error

from gemrl.deploy.export.contract import Contract, Port

OPSET = 18
IR_VERSION = 8
"""The first that knows this opset, so that old runtimes read the file."""

TYPES = {
    "float32": TensorProto.FLOAT,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}

Value = str
"""The name of a tensor in the graph."""
Input = Value | np.ndarray | list[int] | float


class Builder:
    """Nodes and constants, in the order in which they were added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def add(self, kind: str, *inputs: Input, **about: Any) -> Value:
        """The output of a new node. Lists are whole numbers, and arrays and floats constants."""
        return self.add_several(kind, 1, *inputs, **about)[0]

    def add_several(self, kind: str, outputs: int, *inputs: Input, **about: Any) -> list[Value]:
        """The outputs of a new node."""
        names = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        name = f"{kind}_{len(self.nodes)}"
        made = [name, *(f"{name}_{number}" for number in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, names, made, name=name, **about))
        return made

    def _constant(self, value: np.ndarray | list[int] | float) -> Value:
        kind = np.int64 if isinstance(value, list) else np.float32
        array = value if isinstance(value, np.ndarray) else np.asarray(value, kind)
        # Each once: a network that denoises in many steps has the same weights in all of them.
        contents = (array.dtype.str, array.shape, array.tobytes())
        if contents not in self._names:
            self._names[contents] = f"constant_{len(self.constants)}"
            self.constants.append(numpy_helper.from_array(array, self._names[contents]))
        return self._names[contents]

    def model(
        self, contract: Contract, made: dict[str, Value], about: dict[str, str]
    ) -> onnx.ModelProto:
        """The finished model, checked, with text about it. `made` has the outputs by name."""
        named = [
            helper.make_node("Identity", [made[port.name]], [port.name], name=f"give_{port.name}")
            for port in contract.outputs
        ]
        # An input that is also a constant may be left out by the caller.
        defaults = [_default(port) for port in contract.inputs if port.default is not None]
        graph = helper.make_graph(
            [*self.nodes, *named],
            "decision",
            [_info(port) for port in contract.inputs],
            [_info(port) for port in contract.outputs],
            [*defaults, *self.constants],
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="gemrl",
            producer_version=about["gemrl"],
        )
        helper.set_model_props(model, about)
        onnx.checker.check_model(model, full_check=True)
        return model


def _info(port: Port) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(port.name, TYPES[port.dtype], list(port.shape))


def _default(port: Port) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array([port.default], port.dtype), port.name)
