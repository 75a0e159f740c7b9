"""What an exported graph takes and gives: the names, types and shapes that callers rely on.

Sizes in shapes are numbers or symbols: B states in a batch, N candidates beside the anchor, S
observation and A action dimensions.
"""

from typing import Any, NamedTuple

from gemrl.decide.knobs import Knobs
from gemrl.learn.spec import Spec
from gemrl.methods.protocol import Models
from gemrl.methods.samplers import Sampler

Size = int | str


class Fixed(NamedTuple):
    """The constant shapes of a file for runtimes that need them."""

    n: int
    """Candidates beside the anchor."""
    batch: int = 1
    """States in a call."""


class Port(NamedTuple):
    """An input or output of the graph."""

    name: str
    dtype: str
    shape: tuple[Size, ...]
    meaning: str
    default: float | int | None = None
    """What an input holds where the caller leaves it out; None where it must be given."""

    def to_json(self) -> dict[str, Any]:
        """Plain values; an input that must be given has no default."""
        fields = self._asdict() | {"shape": list(self.shape)}
        return {name: value for name, value in fields.items() if value is not None}


class Contract(NamedTuple):
    """All inputs and outputs of one file, and what its policy has no models for."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    left_out: tuple[str, ...]


VALUED = {
    "chosen": ("int64", "index of the chosen candidate; 0 is the anchor where there is one"),
    "score": ("float32", "what the chosen candidate was ranked by"),
    "lcb": ("float32", "lower confidence bound on the chosen candidate's value"),
}
"""Outputs that need critics."""

AUDITED = {
    "log_support": ("float32", "log density of the chosen candidate under the behaviour mixture"),
    "support_z": ("float32", "its support in standard deviations of the candidate set"),
    "violation": ("bool", "is its support_z below -2?"),
    "collapse_dist": (
        "float32",
        "distance from it to the nearest behaviour mean",
    ),
    "executed_log_support": ("float32", "log_support of the executed action"),
    "executed_support_z": ("float32", "support_z of the executed action"),
    "executed_violation": ("bool", "violation of the executed action"),
    "executed_collapse_dist": ("float32", "collapse_dist of the executed action"),
}
"""Outputs that need a behaviour density."""


def contract_of(models: Models, spec: Spec, knobs: Knobs, fixed: Fixed | None) -> Contract:
    """The inputs and outputs of these models' graph."""
    batch: Size = "B" if fixed is None else fixed.batch
    n: Size = "N" if fixed is None else fixed.n
    density, critics = models.behavior is not None, bool(models.critics)

    inputs = [Port("observation", "float32", (batch, spec.obs_dim), "states, in environment units")]
    if critics and n != 0:
        if knobs.source != "unimodal" and _sampler(models, knobs) is None:
            # One component needs no gate, and a sampler has none.
            inputs.append(Port("gate_noise", "float32", (batch, n), "uniform in [0, 1)"))
        shape = (batch, n, normals_of(models, spec, knobs))
        inputs.append(Port("normal_noise", "float32", shape, "standard normal"))
    if critics:
        inputs.append(_weight("lam", knobs.lam, fixed, "critics' deviations taken off their mean"))
    if critics and density:
        inputs.append(_weight("wp", float(knobs.wp), fixed, "weight of support against value"))  # pyright: ignore[reportArgumentType]
    if critics and knobs.temperature > 0:
        meaning = "0 for the best candidate; above, one is drawn by exp(score / temperature)"
        inputs.append(_weight("temperature", knobs.temperature, fixed, meaning))
        size: Size = "N + 1" if fixed is None else fixed.n + 1
        meaning = "-log(-log u) of u uniform in (0, 1); the first is the anchor's, if there is one"
        inputs.append(Port("draw_noise", "float32", (batch, size), meaning))
    if critics and fixed is None:
        meaning = "the mean of this many best, or drawn, candidates is executed; at least 1"
        inputs.append(Port("k_smooth", "int64", (1,), meaning, knobs.k_smooth))

    action = "what to execute, in environment units, within bounds; NaN where no score is finite"
    has, lacks = [Port("action", "float32", (batch, spec.action_dim), action)], []
    for present, outputs in ((critics, VALUED), (density, AUDITED)):
        for name, (dtype, meaning) in outputs.items():
            if present:
                has.append(Port(name, dtype, (batch,), meaning))
            else:
                lacks.append(name)
    return Contract(tuple(inputs), tuple(has), tuple(lacks))


def normals_of(models: Models, spec: Spec, knobs: Knobs) -> int:
    """How many standard normals a candidate takes."""
    sampler = _sampler(models, knobs)
    return spec.action_dim if sampler is None else sampler.noise_size


def _sampler(models: Models, knobs: Knobs) -> Sampler | None:
    """What makes candidates of noise, where they are not drawn from a mixture."""
    actor = models.actor
    return actor if isinstance(actor, Sampler) and knobs.source == "actor" else None


def _weight(name: str, default: float, fixed: Fixed | None, meaning: str) -> Port:
    """One number for all states or one for each. Runtimes with constant shapes know no default."""
    if fixed is None:
        return Port(name, "float32", (f"1 or B ({name})",), meaning, default)
    return Port(name, "float32", (fixed.batch,), meaning)
