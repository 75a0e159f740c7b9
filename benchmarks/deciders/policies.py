"""The policies that are measured: trained, with 2, 6 and 28 action dimensions, and some states.

`tools/benchmark_policy.py` made the files: 2 is Maze2D-umaze and 6 HalfCheetah-medium, both on
regenerated data, 28 is the hand of door-human. Its values, in the thousands, were scaled by 0.02,
as smaller rewards would have done.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parents[1] / "policies"
DIMENSIONS = (2, 6, 28)


def file_of(dimensions: int) -> Path:
    """Where a policy lies."""
    return FOLDER / f"a{dimensions}.npz"


def states_of(dimensions: int) -> np.ndarray:
    """512 states."""
    with np.load(file_of(dimensions), allow_pickle=False) as kept:
        return kept["states"]


def load_policy(dimensions: int, backend: str = "auto") -> Any:
    """A policy of gemrl. Its weights are those of training, rounded to half precision."""
    import gemrl
    from gemrl.learn.bundle import Bundle, config_from_json
    from gemrl.learn.spec import Spec
    from gemrl.learn.tensors import as_tree, tree_names
    from gemrl.methods import method_named

    path = file_of(dimensions)
    with np.load(path, allow_pickle=False) as kept:
        about = json.loads(str(kept["about"]))
        arrays = {k: kept[k].astype(np.float32) for k in kept.files if "/" in k}
    spec = Spec.from_json(about["spec"])
    method = method_named(about["method"])
    config = config_from_json(about["method"], about["config"])
    import jax

    fresh = method.models(method.init(config, spec.obs_dim, spec.action_dim, jax.random.key(0)))
    models = as_tree(arrays, dataclasses.replace(fresh, value=None), path)
    assert set(arrays) == set(tree_names(models))
    # The file has no more of the dataset than this.
    manifest = {
        **about,
        "digest": path.stem,
        "dataset": {"origin": "regenerated", "fingerprint": "not kept"},
    }
    return gemrl.Policy(Bundle(models, spec, manifest), backend)
