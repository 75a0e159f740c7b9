"""The record of a decision: what was proposed, how it was scored, and what was executed."""

from dataclasses import dataclass, fields
from types import NoneType
from typing import Any

import numpy as np

from gemrl.decide.verdict import RUNGS, SEARCH, Verdict
from gemrl.errors import DataError

KNOWN_RUNGS = (SEARCH, *RUNGS)
PER_CANDIDATE = ("candidates", "q", "lcb", "log_support", "support_z", "score")
WHOLE = ("chosen", "n_scored", "block")
TRUTH = ("violation", "executed_violation")
# What belongs to the record as a whole, not to a row of it.
OF_ALL_ROWS = ("backend", "digest")


@dataclass(frozen=True, eq=False)
class Decision:
    """One decision, or a batch with a leading axis B. C candidates, anchor first; M critics.

    A policy without critics has no values and one without a behaviour density no support: those
    fields hold NaN. Where the rows of a batch have different numbers of candidates, C is the
    largest, and the fields of the others hold NaN from `n_scored` on.
    """

    action: np.ndarray
    """[A] The executed action, in environment units and within bounds."""
    candidates: np.ndarray
    """[C, A] The actions that were scored, clipped to the bounds."""
    q: np.ndarray
    """[M, C] Each critic's value of each candidate."""
    lcb: np.ndarray
    """[C] Lower confidence bound on value, never standardized."""
    log_support: np.ndarray
    """[C] Log density of each candidate under the behaviour mixture."""
    support_z: np.ndarray
    """[C] Support in standard deviations of the candidate set."""
    score: np.ndarray
    """[C] What the candidates were ranked by."""
    chosen: np.ndarray
    """[] Index of the top candidate, or of the one that was drawn by a temperature."""
    n_scored: np.ndarray
    """[] How many candidates were scored."""
    wp: np.ndarray
    """[] The support weight that was used."""
    violation: np.ndarray
    """[] Is the chosen candidate's support_z below -2?"""
    collapse_dist: np.ndarray
    """[] Distance from the chosen candidate to the nearest behaviour mean."""
    executed_log_support: np.ndarray
    """[] The same four of the executed action, which smoothing can make another."""
    executed_support_z: np.ndarray
    executed_violation: np.ndarray
    executed_collapse_dist: np.ndarray
    block: np.ndarray
    """[] How many candidates were scored together: a chunk's size, else all of them."""
    backend: str
    """Which backend evaluated the networks: jax or fast."""
    digest: str
    """SHA-256 that names the policy."""
    verdict: Verdict | dict[str, Any] | None = None
    """What gates said of it, where there were any; as plain values in a record read from JSON."""

    def row(self, index: int) -> "Decision":
        """One decision of a batch, without the places that other rows' candidates needed."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in values.items():
            if name not in OF_ALL_ROWS and value is not None:
                values[name] = _plain_row(value, index) if name == "verdict" else value[index]
        count = int(values["n_scored"])
        if count < len(values["score"]):
            values["candidates"] = values["candidates"][:count]
            for name in PER_CANDIDATE[1:]:
                values[name] = values[name][..., :count]
        return Decision(**values)

    def as_batch(self) -> "Decision":
        """One decision as a batch of one, without a verdict."""
        values: dict[str, Any] = {
            f.name: np.asarray(getattr(self, f.name))[None]
            for f in fields(self)
            if f.name not in (*OF_ALL_ROWS, "verdict")
        }
        return Decision(**values, backend=self.backend, digest=self.digest)

    @property
    def chosen_support_z(self) -> np.ndarray:
        """support_z of the chosen candidate."""
        index = np.asarray(self.chosen)[..., None]
        return np.take_along_axis(self.support_z, index, axis=-1)[..., 0]

    @property
    def rung(self) -> np.ndarray:
        """[] What was executed: the search's action, or the rung of a guard's ladder."""
        if self.verdict is None:
            return np.full(self.chosen.shape, SEARCH)
        if isinstance(self.verdict, dict):
            return np.asarray(self.verdict["rung"])
        return np.asarray(self.verdict.rung)

    def to_json(self) -> dict[str, Any]:
        """Plain values; float32 survives exactly, and what is not finite becomes null."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in values.items():
            if name == "verdict":
                values[name] = (
                    value if value is None or isinstance(value, dict) else value.to_json()
                )
            elif name not in OF_ALL_ROWS:
                values[name] = _plain(np.asarray(value))
        return values

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Decision":
        """The reverse of `to_json`; a verdict stays as plain values."""
        wanted = {f.name for f in fields(Decision)}
        if not isinstance(values, dict) or set(values) != wanted:
            odd = sorted(wanted ^ set(values)) if isinstance(values, dict) else type(values)
            raise DataError(f"not the record of a decision: missing or unknown fields {odd}")
        read: dict[str, Any] = {name: values[name] for name in (*OF_ALL_ROWS, "verdict")}
        try:
            for name in wanted - set(read):
                kind = np.int32 if name in WHOLE else bool if name in TRUTH else np.float32
                read[name] = np.array(values[name], dtype=kind)
            # A policy without critics has an empty list for q, which has lost its shape.
            *rows, count = read["lcb"].shape
            read["q"] = (
                read["q"].reshape(*rows, -1, count)
                if read["q"].size
                else np.empty((*rows, 0, count), np.float32)
            )
            verdict = read["verdict"]
            if verdict is not None:
                rungs = np.array(verdict["rung"])
                if rungs.shape != read["chosen"].shape or not np.isin(rungs, KNOWN_RUNGS).all():
                    raise ValueError(f"its verdict has rung {verdict['rung']!r}")
        except (TypeError, ValueError) as error:
            raise DataError(f"the record of a decision cannot be read: {error}") from error
        except KeyError as error:
            raise DataError(
                f"the record of a decision cannot be read: its verdict lacks {error}"
            ) from error
        return Decision(**read)


def _plain_row(value: Any, index: int) -> Any:
    """One row's part of a verdict, also of one that was read from JSON."""
    if isinstance(value, dict):
        return {name: _plain_row(part, index) for name, part in value.items()}
    return value if isinstance(value, float | NoneType) else value[index]


def _plain(array: np.ndarray) -> Any:
    """Lists and numbers, with null for what JSON has no number for."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        plain = array.astype(object)
        plain[~np.isfinite(array)] = None
        return plain.tolist()
    return array.tolist()
