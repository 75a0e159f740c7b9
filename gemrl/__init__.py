"""gemrl: offline reinforcement learning that people can deploy.

Train once from logs with GEM (Guided Expectation-Maximization), then tune decisions at run time and
audit every one of them.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.7.0"

if TYPE_CHECKING:
    from gemrl.data.dataset import Dataset, from_arrays
    from gemrl.data.readers import load_dataset
    from gemrl.data.readers.columns import Columns
    from gemrl.decide.decision import Decision
    from gemrl.decide.drift import DriftMonitor
    from gemrl.decide.gates import Gates
    from gemrl.decide.guard import Guard
    from gemrl.decide.history import History
    from gemrl.decide.knobs import Cosine, Knobs
    from gemrl.decide.policy import Policy, load
    from gemrl.decide.verdict import Verdict
    from gemrl.errors import GemrlError, RefusedError
    from gemrl.evaluate.rollouts import evaluate_policy
    from gemrl.learn.train import train
    from gemrl.maths.mixture import Mixture
    from gemrl.methods.bc import BcConfig
    from gemrl.methods.gem import GemConfig
    from gemrl.methods.iql import IqlConfig

__all__ = [
    "BcConfig",
    "Columns",
    "Cosine",
    "Dataset",
    "Decision",
    "DriftMonitor",
    "Gates",
    "GemConfig",
    "GemrlError",
    "Guard",
    "History",
    "IqlConfig",
    "Knobs",
    "Mixture",
    "Policy",
    "RefusedError",
    "Verdict",
    "evaluate_policy",
    "from_arrays",
    "load",
    "load_dataset",
    "train",
]

_HOMES = {
    "gemrl.data.dataset": ("Dataset", "from_arrays"),
    "gemrl.data.readers": ("load_dataset",),
    "gemrl.data.readers.columns": ("Columns",),
    "gemrl.decide.decision": ("Decision",),
    "gemrl.decide.drift": ("DriftMonitor",),
    "gemrl.decide.gates": ("Gates",),
    "gemrl.decide.guard": ("Guard",),
    "gemrl.decide.history": ("History",),
    "gemrl.decide.knobs": ("Cosine", "Knobs"),
    "gemrl.decide.policy": ("Policy", "load"),
    "gemrl.decide.verdict": ("Verdict",),
    "gemrl.errors": ("GemrlError", "RefusedError"),
    "gemrl.evaluate.rollouts": ("evaluate_policy",),
    "gemrl.learn.train": ("train",),
    "gemrl.maths.mixture": ("Mixture",),
    "gemrl.methods.bc": ("BcConfig",),
    "gemrl.methods.gem": ("GemConfig",),
    "gemrl.methods.iql": ("IqlConfig",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `gemrl --help` need not wait for JAX."""
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'gemrl' has no attribute {name!r}")
