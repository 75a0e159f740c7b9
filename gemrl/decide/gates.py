"""Gates: is this decision like those at held-out states of the data? By split conformal prediction.

Each gate has a score, larger where stranger, and its sorted values at held-out states. The p-value
of a new score is the share of them that are at least as strange, the new one counted in.
"""

import dataclasses
import json
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.decide.decision import Decision
from gemrl.decide.knobs import Cosine, Knobs
from gemrl.decide.novelty import COMPONENTS, StateDensity, fit_density
from gemrl.decide.policy import Policy
from gemrl.decide.verdict import SEARCH, Verdict
from gemrl.errors import BundleError, ConfigError, DataError, KnobError, ObservationError
from gemrl.learn.tensors import load_arrays, save_tree

GATES = ("support", "novelty", "spread")
FILE = "gates.safetensors"
FORMAT = 1
STATES = 5_000
# States that are decided together while calibrating, so that memory stays bounded.
ROWS_TOGETHER = 250


@dataclass(frozen=True, eq=False)
class Gates:
    """Calibrated gates of one policy."""

    calibration: dict[str, np.ndarray]
    """Each gate's scores at n held-out states, sorted."""
    joint: np.ndarray
    """[n] For each of these states, sorted: the least number, over the gates, of other states that
    are at least as strange."""
    density: StateDensity
    """What novelty is measured by."""
    knobs: Knobs
    """The knobs of the decisions that were scored."""
    bundle: str
    """Digest of the policy that decided."""
    episodes: int
    """How many held-out episodes the states come from."""

    @staticmethod
    def calibrate(
        policy: Policy,
        data: Dataset,
        knobs: Knobs | None = None,
        *,
        seed: int = 0,
        states: int = STATES,
        components: int = COMPONENTS,
    ) -> "Gates":
        """Gates from the episodes that the policy's training held out of `data`.

        Decisions with `knobs` are scored at `states` random rows of theirs, and the density of
        states, a mixture of `components`, is fitted to training rows.
        """
        policy.require_no_context("calibrating gates")
        knobs = policy.default_knobs if knobs is None else knobs
        if not isinstance(knobs, Knobs):
            raise KnobError(f"knobs = {knobs!r}: must be gemrl.Knobs")
        training, held = split_of(policy, data)
        for name, value in (("states", states), ("components", components)):
            if not isinstance(value, numbers.Integral) or value < 1:
                raise ConfigError(f"{name} = {value!r}: must be a whole number of at least 1")
        scaler = (policy.spec.obs_mean, policy.spec.obs_std)
        density = fit_density(data.observations[training], *scaler, seed, components)
        rng = np.random.default_rng(seed)
        rows = np.sort(rng.choice(held, min(states, len(held)), replace=False))
        scores = scores_at(policy, density, data, rows, knobs, seed)
        episodes = len(np.unique(data.episodes[rows]))
        return Gates.from_scores(scores, density, knobs, policy.digest, episodes)

    @staticmethod
    def from_scores(
        scores: Mapping[str, np.ndarray],
        density: StateDensity,
        knobs: Knobs,
        bundle: str,
        episodes: int,
    ) -> "Gates":
        """Gates from scores of the same states, an array for each gate."""
        calibration = {name: np.sort(values) for name, values in scores.items()}
        others = [_at_least(calibration[name], values) - 1 for name, values in scores.items()]
        joint = np.sort(np.min(others, axis=0)).astype(np.int64)
        return Gates(calibration, joint, density, knobs, bundle, episodes)

    @property
    def names(self) -> tuple[str, ...]:
        """The gates that this policy has."""
        return tuple(self.calibration)

    @property
    def smallest_alpha(self) -> float:
        """The least false-alarm rate that so many states can keep, for all gates together."""
        return float(_p_value(self.joint, 0))

    def require_alpha(self, alpha: float) -> float:
        """Refuse a false-alarm rate that cannot be kept."""
        if not (isinstance(alpha, numbers.Real) and 0 < alpha < 1):
            raise KnobError(f"alpha = {alpha!r}: must be a number between 0 and 1")
        if alpha < self.smallest_alpha:
            raise KnobError(
                f"alpha = {alpha:g}: {len(self.joint):,} calibration states cannot keep a rate "
                f"below {self.smallest_alpha:.2g}; ask for that, or calibrate on more states"
            )
        return float(alpha)

    def require_policy(self, policy: Policy) -> None:
        """Refuse a policy that the gates were not calibrated for."""
        if policy.digest != self.bundle:
            raise BundleError(
                f"these gates belong to policy {self.bundle[:16]} and not to "
                f"{policy.digest[:16]}: calibrate anew with Gates.calibrate"
            )

    def judge(self, obs: Any, decision: Decision, alpha: float = 0.01) -> Verdict:
        """P-values and flags of a decision at an observation [S], or of a batch at [B, S]."""
        if decision.digest != self.bundle:
            raise BundleError(
                f"the decision is of policy {decision.digest[:16]}, and these gates belong to "
                f"{self.bundle[:16]}: judge decisions of the policy that they were calibrated for"
            )
        try:
            observations = np.asarray(obs, np.float64)
        except (TypeError, ValueError) as error:
            raise ObservationError(f"the observation is no array of numbers: {error}") from error
        expected = (*decision.action.shape[:-1], len(self.density.obs_mean))
        if observations.shape != expected:
            raise ObservationError(
                f"the observation has shape {observations.shape}: must be {list(expected)}, as the "
                "decision's was"
            )
        scores = decision_scores(decision, self.density.novelty(np.atleast_2d(observations)))
        single = observations.ndim == 1
        return self.verdict_of(
            {name: scores[name].reshape(() if single else -1) for name in self.names}, alpha
        )

    def verdict_of(self, scores: Mapping[str, np.ndarray], alpha: float = 0.01) -> Verdict:
        """P-values and flags of given scores."""
        alpha = self.require_alpha(alpha)
        counts = {name: _at_least(self.calibration[name], scores[name]) for name in self.names}
        size = len(self.joint)
        adjusted = {name: _p_value(self.joint, count) for name, count in counts.items()}
        return Verdict(
            scores={name: np.asarray(scores[name]) for name in self.names},
            p={name: (1 + count) / (size + 1) for name, count in counts.items()},
            adjusted=adjusted,
            joint_p=np.min(list(adjusted.values()), axis=0),
            alpha=alpha,
            rung=np.full(np.shape(scores[self.names[0]]), SEARCH, dtype=object),
        )

    def save(self, path: str | Path) -> Path:
        """Write the gates to a file, or to their usual place in a run folder."""
        place = _place(path)
        metadata = {
            "format": str(FORMAT),
            "bundle": self.bundle,
            "knobs": json.dumps(self.knobs.to_json(), sort_keys=True),
            "episodes": str(self.episodes),
        }
        scores = {name: self.calibration.get(name) for name in GATES}
        density = {f.name: getattr(self.density, f.name) for f in dataclasses.fields(StateDensity)}
        save_tree(place, _Stored(**scores, joint=self.joint, **density), metadata)
        return place

    @staticmethod
    def load(path: str | Path, policy: Policy | None = None) -> "Gates":
        """Read gates from a file or a run folder, and check that they are the policy's."""
        place = _place(path)
        if not place.is_file():
            raise BundleError(f"{place}: no gates there; make them with Gates.calibrate and save")
        arrays, metadata = load_arrays(place)
        try:
            gates = _from_stored(arrays, metadata)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise BundleError(f"{place}: not readable as gates ({error})") from error
        if policy is not None:
            gates.require_policy(policy)
        return gates


def split_of(policy: Policy, data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Rows that the policy was trained on and rows that were held out of its training."""
    training, held = policy.bundle.split(data)
    if len(held) == 0:
        share = policy.bundle.manifest["config"]["holdout"]
        raise DataError(
            f"{data.source}: training held out no episode (holdout = {share:g}), and "
            "states that were trained on say nothing of new ones; train with a larger holdout"
        )
    return training, held


def scores_at(
    policy: Policy,
    density: StateDensity,
    data: Dataset,
    rows: np.ndarray,
    knobs: Knobs,
    seed: int,
) -> dict[str, np.ndarray]:
    """Scores of the policy's decisions at rows of a dataset."""
    steps = rows - data.episode_starts[np.searchsorted(data.episode_starts, rows, "right") - 1]
    seeds = np.random.default_rng([seed, 1]).integers(2**32, size=len(rows))
    blocks = []
    for start in range(0, len(rows), ROWS_TOGETHER):
        at = slice(start, start + ROWS_TOGETHER)
        observations = data.observations[rows[at]]
        t = steps[at] if isinstance(knobs.wp, Cosine) else None
        decision = policy.decide(observations, knobs, seed=seeds[at], t=t)
        blocks.append(decision_scores(decision, density.novelty(observations)))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def decision_scores(decision: Decision, novelty: np.ndarray) -> dict[str, np.ndarray]:
    """The scores [B] of a decision or batch: those gates that the policy's models allow.

    Support needs a behaviour density, spread at least two critics.
    """
    scores = {"novelty": novelty}
    support = np.atleast_1d(decision.executed_log_support).astype(np.float64)
    if not np.isnan(support).all():
        scores["support"] = -support
    if decision.q.shape[-2] > 1:
        spread = decision.q.std(axis=-2, dtype=np.float64)
        index = np.asarray(decision.chosen)[..., None]
        scores["spread"] = np.atleast_1d(np.take_along_axis(spread, index, axis=-1)[..., 0])
    return {name: scores[name] for name in GATES if name in scores}


def _at_least(calibration: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """How many calibration scores are at least as strange as each of these."""
    return len(calibration) - np.searchsorted(calibration, scores, side="left")


def _p_value(joint: np.ndarray, count: np.ndarray | int) -> np.ndarray:
    """(1 + states at least as strange) / (n + 1), where strangeness is the least of the counts."""
    return (1 + np.searchsorted(joint, count, side="right")) / (len(joint) + 1)


class _Stored(NamedTuple):
    """The arrays of a file of gates; a gate that the policy does not have is left out."""

    support: np.ndarray | None
    novelty: np.ndarray | None
    spread: np.ndarray | None
    joint: np.ndarray
    obs_mean: np.ndarray
    obs_std: np.ndarray
    log_weights: np.ndarray
    means: np.ndarray
    factors: np.ndarray


def _place(path: str | Path) -> Path:
    path = Path(path)
    return path / FILE if path.is_dir() else path


def _from_stored(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> Gates:
    """Gates from the contents of a file; a KeyError, TypeError or ValueError where they are not."""
    if metadata["format"] != str(FORMAT):
        raise ValueError(f"format {metadata['format']}, and this version reads {FORMAT}")
    density = StateDensity(**{f.name: arrays[f.name] for f in dataclasses.fields(StateDensity)})
    calibration = {name: arrays[name] for name in GATES if name in arrays}
    size, (components, obs_dim) = len(arrays["joint"]), density.means.shape
    shapes = {
        **dict.fromkeys((*calibration, "joint", "novelty"), (size,)),
        **dict.fromkeys(("obs_mean", "obs_std"), (obs_dim,)),
        "log_weights": (components,),
        "factors": (components, obs_dim, obs_dim),
    }
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape or not np.isfinite(array).all() or size == 0:
            raise ValueError(f"{name} must hold finite numbers of shape {list(shape)}")
    for name in (*calibration, "joint"):
        if (np.diff(arrays[name]) < 0).any():
            raise ValueError(f"{name} is not sorted")
    knobs = Knobs.from_json(json.loads(metadata["knobs"]))
    episodes = int(metadata["episodes"])
    return Gates(calibration, arrays["joint"], density, knobs, metadata["bundle"], episodes)
