"""ONNX Runtime on a hand-built graph of the whole decision; the noise is NumPy's."""

import os
from collections.abc import Callable

import numpy as np
import onnxruntime

from deciders.graph import decision
from deciders.policies import states_of
from deciders.weights import read_weights
from deciders.worker import LAMBDA, WEIGHT


def make(dimensions: int, n: int, batch: int) -> Callable[[int], None]:
    """One state at a time: the graph has no batch."""
    if batch > 1:
        raise ValueError(f"batch = {batch}: the graph decides one state at a time")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    model = decision(read_weights(dimensions), n).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    states = states_of(dimensions)
    weights = {"lam": np.array(LAMBDA, np.float32), "wp": np.array(WEIGHT, np.float32)}

    def decide(number: int) -> None:
        feed = weights | {"obs": states[number % len(states)][None]}
        if n:
            rng = np.random.default_rng(number)
            feed["gate"] = rng.random(n, np.float32)
            feed["normal"] = rng.standard_normal((n, dimensions), np.float32)
        session.run(None, feed)

    return decide
