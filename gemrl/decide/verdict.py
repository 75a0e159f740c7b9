"""What the gates say of a decision, and what a guard then did."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

SEARCH = "search"
"""What is executed where no guard acts: the search's own action."""
RUNGS = ("smaller_n", "anchor", "behavior", "controller", "refuse")
"""What a guard can execute instead, in the order of a ladder."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the gates say of a decision, or of a batch with a leading axis B in each array."""

    scores: dict[str, np.ndarray]
    """Each gate's score, larger where stranger: minus log support, novelty, critics' spread."""
    p: dict[str, np.ndarray]
    """Each gate's p-value, by itself."""
    adjusted: dict[str, np.ndarray]
    """Each gate's p-value made larger for there being several gates; the least is `joint_p`."""
    joint_p: np.ndarray
    """The p-value of all gates together."""
    alpha: float
    """The false-alarm rate that was asked for."""
    rung: np.ndarray = field(default_factory=lambda: np.asarray(SEARCH))
    """What was executed: the search's action, or the rung of a guard's ladder."""
    executed_joint_p: np.ndarray | None = None
    """`joint_p` of what a guard executed, NaN where it refused; without a guard there is none."""

    @property
    def flags(self) -> dict[str, np.ndarray]:
        """Which gates flag the decision, each at the rate `alpha` by itself."""
        return {name: values <= self.alpha for name, values in self.p.items()}

    @property
    def flagged(self) -> np.ndarray:
        """Do the gates together flag the decision, at the rate `alpha` for all of them?"""
        return self.joint_p <= self.alpha

    def __getitem__(self, index: int) -> "Verdict":
        """One verdict of a batch."""
        parts = {
            name: {gate: values[index] for gate, values in getattr(self, name).items()}
            for name in ("scores", "p", "adjusted")
        }
        executed = self.executed_joint_p
        return Verdict(
            **parts,
            joint_p=self.joint_p[index],
            alpha=self.alpha,
            rung=np.asarray(self.rung[index]),
            executed_joint_p=None if executed is None else executed[index],
        )

    def as_batch(self) -> "Verdict":
        """One verdict as a batch of one."""
        parts: dict[str, Any] = {
            name: {gate: np.asarray(values)[None] for gate, values in getattr(self, name).items()}
            for name in ("scores", "p", "adjusted")
        }
        return Verdict(
            **parts,
            joint_p=np.asarray(self.joint_p)[None],
            alpha=self.alpha,
            rung=np.asarray(self.rung)[None],
        )

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, words and lists of them, with the flags."""
        by_gate = {
            name: {gate: _plain(values) for gate, values in getattr(self, name).items()}
            for name in ("scores", "p", "adjusted", "flags")
        }
        executed = self.executed_joint_p
        return {
            **by_gate,
            "joint_p": _plain(self.joint_p),
            "flagged": _plain(self.flagged),
            "alpha": self.alpha,
            "rung": _plain(self.rung),
            "executed_joint_p": None if executed is None else _plain(executed),
        }


def _plain(values: np.ndarray) -> Any:
    """A number, a word or a list of them; what is not a number becomes null."""
    plain = np.asarray(values).tolist()
    if isinstance(plain, list):
        return [_plain(np.asarray(value)) for value in plain]
    return None if plain != plain else plain
