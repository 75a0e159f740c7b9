"""One in-memory dataset of transitions, checked once at the door.

row        t-1      t       t+1     t+2
obs        s0       s1      s0'     s1'       a new episode starts at t+1
next_obs   s1       s2      s1'     s2'
mask       1        0 or 1  1       1         0 only at a true terminal: no bootstrapping
episode    0        0       1       1         its change is the end of an episode
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Int32

from gemrl.errors import DataError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Transitions with everything that training must know of where they come from."""

    observations: Float32[np.ndarray, "t s"]
    actions: Float32[np.ndarray, "t a"]
    rewards: Float32[np.ndarray, " t"]
    next_observations: Float32[np.ndarray, "t s"]
    masks: Float32[np.ndarray, " t"]
    episodes: Int32[np.ndarray, " t"]
    action_low: Float32[np.ndarray, " a"]
    action_high: Float32[np.ndarray, " a"]
    task: str | None = None
    """Name in the task table, where the data belongs to one."""
    origin: str = "unknown"
    """`genuine`, `regenerated` or `unknown`; shown beside every score."""
    source: str = "memory"
    """Where it was read from, for messages."""

    def __post_init__(self) -> None:
        rows = len(self.observations)
        if rows == 0:
            raise DataError(
                f"{self.source}: the dataset is empty; it needs at least one transition"
            )
        shapes = {
            "observations": (self.observations, 2),
            "actions": (self.actions, 2),
            "rewards": (self.rewards, 1),
            "next_observations": (self.next_observations, 2),
            "masks": (self.masks, 1),
            "episodes": (self.episodes, 1),
        }
        for name, (array, ndim) in shapes.items():
            if array.ndim != ndim:
                raise DataError(f"{self.source}: {name} has shape {array.shape}, not {ndim} axes")
            if len(array) != rows:
                raise DataError(
                    f"{self.source}: {name} has {len(array)} rows where observations has {rows}"
                )
        if self.next_observations.shape != self.observations.shape:
            raise DataError(
                f"{self.source}: next_observations has shape {self.next_observations.shape} where "
                f"observations has {self.observations.shape}"
            )
        for name in ("observations", "actions"):
            if getattr(self, name).shape[1] == 0:
                raise DataError(f"{self.source}: {name} has no dimensions")
        for name in ("action_low", "action_high"):
            if getattr(self, name).shape != (self.action_dim,):
                raise DataError(
                    f"{self.source}: {name} has shape {getattr(self, name).shape} where actions "
                    f"have {self.action_dim} dimensions"
                )

    def __len__(self) -> int:
        return len(self.observations)

    @property
    def obs_dim(self) -> int:
        """Observation dimensions."""
        return self.observations.shape[1]

    @property
    def action_dim(self) -> int:
        """Action dimensions."""
        return self.actions.shape[1]

    @cached_property
    def episode_starts(self) -> Int32[np.ndarray, " e"]:
        """Row at which each episode starts."""
        changes = np.flatnonzero(np.diff(self.episodes)) + 1
        return np.concatenate([[0], changes]).astype(np.int32)

    @cached_property
    def episode_returns(self) -> np.ndarray:
        """Sum of rewards of each episode."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.episode_starts)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the contents: the same rows and bounds give the same fingerprint."""
        digest = hashlib.sha256()
        for array in (
            self.observations,
            self.actions,
            self.rewards,
            self.next_observations,
            self.masks,
            self.episodes,
            self.action_low,
            self.action_high,
        ):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def require_trainable(self) -> None:
        """Refuse values that cannot be trained on, naming the array and the first bad row."""
        for name in ("observations", "actions", "rewards", "next_observations", "masks"):
            bad = ~np.isfinite(getattr(self, name))
            if bad.any():
                row = int(np.argmax(bad.reshape(len(self), -1).any(axis=1)))
                raise DataError(
                    f"{self.source}: {name} holds {int(bad.sum())} values that are not finite, the "
                    f"first in row {row}; mend or drop those rows"
                )
        bounds = np.stack([self.action_low, self.action_high])
        if not np.isfinite(bounds).all() or not (bounds[0] < bounds[1]).all():
            raise DataError(f"{self.source}: action_low must be finite and below action_high")
        outside = self.outside_bounds()
        if outside.any():
            row = int(np.argmax(outside.any(axis=1)))
            raise DataError(
                f"{self.source}: {int(outside.any(axis=1).sum())} actions lie outside the bounds "
                f"[{self.action_low.min():g}, {self.action_high.max():g}], the first in row {row}: "
                f"{self.actions[row].tolist()}; clip or rescale them, or give their bounds"
            )

    def outside_bounds(self) -> Bool[np.ndarray, "t a"]:
        """Where an action lies outside its bounds by more than rounding."""
        slack = 1e-5 * (self.action_high - self.action_low)
        return (self.actions < self.action_low - slack) | (self.actions > self.action_high + slack)

    def select(self, rows: np.ndarray) -> "Dataset":
        """The given rows as a dataset of its own."""
        return replace(
            self,
            observations=self.observations[rows],
            actions=self.actions[rows],
            rewards=self.rewards[rows],
            next_observations=self.next_observations[rows],
            masks=self.masks[rows],
            episodes=self.episodes[rows],
        )

    def split_episodes(self, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers for training and held out, by whole episodes.

        A dataset of one episode has nothing to hold out; otherwise at least one episode is kept
        for training.
        """
        count = len(self.episode_starts)
        held = min(round(share * count), count - 1)
        order = np.random.default_rng(seed).permutation(count)
        is_held = np.zeros(count, dtype=bool)
        is_held[order[:held]] = True
        lengths = np.diff(np.append(self.episode_starts, len(self)))
        row_is_held = np.repeat(is_held, lengths)
        return np.flatnonzero(~row_is_held), np.flatnonzero(row_is_held)


def from_arrays(
    observations: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    terminals: np.ndarray,
    timeouts: np.ndarray | None = None,
    next_observations: np.ndarray | None = None,
    *,
    action_low: np.ndarray | float = -1.0,
    action_high: np.ndarray | float = 1.0,
    task: str | None = None,
    origin: str = "unknown",
    source: str = "memory",
) -> Dataset:
    """A dataset from arrays in D4RL's layout.

    `terminals` end an episode and its bootstrapping, `timeouts` end the episode only. Without
    `next_observations` the following row's observation is taken, and the last row of each episode,
    whose successor is unknown, is left out.
    """
    columns = {"observations": observations, "actions": actions, "rewards": rewards}
    columns["terminals"] = terminals
    if timeouts is not None:
        columns["timeouts"] = timeouts
    if next_observations is not None:
        columns["next_observations"] = next_observations
    for name, value in columns.items():
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise DataError(f"{source}: {name} has type {array.dtype}, not numbers")
        columns[name] = array
    rows = len(np.atleast_1d(columns["observations"]))
    for name, array in columns.items():
        if array.ndim == 0 or len(array) != rows:
            length = "no rows" if array.ndim == 0 else f"{len(array)} rows"
            raise DataError(f"{source}: {name} has {length} where observations has {rows}")
    if rows == 0:
        raise DataError(f"{source}: the dataset is empty; it needs at least one transition")

    for name in columns.keys() & {"rewards", "terminals", "timeouts"}:
        if columns[name].size != rows:
            shape = columns[name].shape
            raise DataError(f"{source}: {name} has shape {shape}: must be one number a row")
    for name in columns.keys() & {"terminals", "timeouts"}:
        if not np.isin(columns[name], (0, 1)).all():
            raise DataError(f"{source}: {name} holds something else than 0 and 1")
    if columns["actions"].ndim != 2:
        raise DataError(f"{source}: actions has shape {columns['actions'].shape}, not 2 axes")
    terminal = columns["terminals"].reshape(rows).astype(bool)
    ends = terminal.copy()
    if "timeouts" in columns:
        ends |= columns["timeouts"].reshape(rows).astype(bool)
    episodes = np.concatenate([[0], np.cumsum(ends[:-1])]).astype(np.int32)
    obs = _float32(columns["observations"])
    action_dim = columns["actions"].shape[-1]
    if "next_observations" in columns:
        following, keep = _float32(columns["next_observations"]), slice(None)
    else:
        following = np.concatenate([obs[1:], obs[-1:]])
        # A terminal's successor is never looked at; that of a cut is not known.
        keep = terminal | ~np.append(ends[:-1], True)
        if not keep.any():
            raise DataError(f"{source}: no row has a known successor; give next_observations")
    return Dataset(
        observations=obs[keep],
        actions=_float32(columns["actions"])[keep],
        rewards=_float32(columns["rewards"]).reshape(rows)[keep],
        next_observations=following[keep],
        masks=(1 - terminal).astype(np.float32)[keep],
        episodes=episodes[keep],
        action_low=_bound("action_low", action_low, action_dim, source),
        action_high=_bound("action_high", action_high, action_dim, source),
        task=task,
        origin=origin,
        source=source,
    )


def _bound(name: str, value: np.ndarray | float, size: int, source: str) -> np.ndarray:
    bound = np.asarray(value, dtype=np.float32)
    if bound.shape not in ((), (size,)):
        raise DataError(f"{source}: {name} has shape {bound.shape}, and actions {size} dimensions")
    return np.broadcast_to(bound, (size,)).copy()


def _float32(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=np.float32)
