"""The knobs of a decision. None of them needs retraining."""

import dataclasses
import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemrl.errors import KnobError

MAX_CANDIDATES = 2**20
MAX_WEIGHT = 1e9

WORDS = {
    "source": ("actor", "behavior", "unimodal"),
    "anchor": ("mode", "barycenter", "none"),
    "support": ("zscore", "raw"),
    "value": ("raw", "zscore"),
}


@dataclass(frozen=True)
class Cosine:
    """A support weight that falls from `start` to `end` over `horizon` steps, then stays there."""

    end: float
    horizon: int
    start: float = 1.0

    def __post_init__(self) -> None:
        for name in ("end", "start"):
            object.__setattr__(self, name, _weight(f"wp.{name}", getattr(self, name)))
        object.__setattr__(self, "horizon", whole_number("wp.horizon", self.horizon, 1, 2**31 - 1))

    def at(self, t: np.ndarray) -> np.ndarray:
        """The weight at step(s) `t` of an episode."""
        share = np.minimum(t, self.horizon) / self.horizon
        return self.end + (self.start - self.end) * 0.5 * (1 + np.cos(math.pi * share))


@dataclass(frozen=True)
class Knobs:
    """How to decide: how many candidates, from where, and how they are ranked."""

    n: int = 1024
    """Candidates beside the anchor; 0 is the anchor alone."""
    lam: float = 1.0
    """Pessimism: critics' standard deviations taken off their mean."""
    wp: float | Cosine = 0.4
    """Weight of behaviour support against value, a number or a `Cosine` schedule."""
    k_smooth: int = 1
    """Execute the mean of this many best, or drawn, candidates."""
    source: str = "actor"
    """Where candidates come from: actor, behavior, or unimodal (the actor's heaviest component)."""
    anchor: str = "mode"
    """The deterministic candidate: mode, barycenter, or none."""
    support: str = "zscore"
    """Support as standardized within the candidate set (zscore) or as log density (raw)."""
    value: str = "raw"
    """The lower confidence bound as it is (raw) or standardized as support is (zscore)."""
    temperature: float = 0.0
    """0 executes the best candidate; above, one is drawn in proportion to exp(score / temperature),
    by the call's seed: give each step of an episode its own."""

    def __post_init__(self) -> None:
        for name, least in (("n", 0), ("k_smooth", 1)):
            count = whole_number(name, getattr(self, name), least, MAX_CANDIDATES)
            object.__setattr__(self, name, count)
        for name in ("lam", "temperature"):
            object.__setattr__(self, name, _weight(name, getattr(self, name)))
        if not isinstance(self.wp, Cosine):
            object.__setattr__(self, "wp", _weight("wp", self.wp))
        for name, allowed in WORDS.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise KnobError(f"{name} = {value!r}: must be one of {', '.join(allowed)}")
        if self.n == 0 and self.anchor == "none":
            raise KnobError("n = 0 with anchor = 'none' leaves no candidate: raise n or set anchor")

    def weight_at(self, t: np.ndarray | None, rows: int) -> np.ndarray:
        """The support weight of each row, from its step where there is a schedule."""
        if not isinstance(self.wp, Cosine):
            return np.full(rows, self.wp, np.float32)
        if t is None:
            raise KnobError(
                "wp is a Cosine schedule: give the episode's step as decide(..., t=...)"
            )
        return np.broadcast_to(self.wp.at(t), (rows,)).astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        """Plain values; a schedule becomes a dictionary."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Knobs":
        """The reverse of `to_json`."""
        fields = dict(values)
        if isinstance(fields.get("wp"), dict):
            fields["wp"] = Cosine(**fields["wp"])
        return Knobs(**fields)

    def describe(self) -> str:
        """The setting in a few words, leaving out what has its default."""
        wp = self.wp
        weight = f"w_p {wp.start:g}→{wp.end:g}" if isinstance(wp, Cosine) else f"w_p {wp:g}"
        words = [f"N {self.n}", f"λ {self.lam:g}", weight]
        default = {field.name: field.default for field in dataclasses.fields(self)}
        for name in ("k_smooth", *WORDS):
            if getattr(self, name) != default[name]:
                words.append(f"{name} {getattr(self, name)}")
        if self.temperature != default["temperature"]:
            words.append(f"temperature {self.temperature:g}")
        return ", ".join(words)


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """`value`, checked to be a whole number in its range."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or not low <= int(value) <= high:
        raise KnobError(f"{name} = {value!r}: must be a whole number from {low} to {high:,}")
    return int(value)


def _weight(name: str, value: Any) -> float:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    # A large whole number has no float, and a small float type cannot hold the limit.
    bounded: Any = value if isinstance(value, numbers.Rational) else float(value if number else 0)
    if not number or not 0 <= bounded <= MAX_WEIGHT:
        raise KnobError(
            f"{name} = {value!r}: must be a finite number of at least 0, at most {MAX_WEIGHT:g}"
        )
    return float(value)
