"""The record of a decision: what was proposed, how it was scored, and what was executed."""

from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True, eq=False)
class Decision:
    """One decision, or a batch with a leading axis B. C candidates, anchor first; M critics.

    A policy without critics has no values and one without a behaviour density no support: those
    fields hold NaN.
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
    """[] Index of the top candidate."""
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

    def row(self, index: int) -> "Decision":
        """One decision of a batch."""
        return Decision(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    @property
    def chosen_support_z(self) -> np.ndarray:
        """support_z of the chosen candidate."""
        index = np.asarray(self.chosen)[..., None]
        return np.take_along_axis(self.support_z, index, axis=-1)[..., 0]
