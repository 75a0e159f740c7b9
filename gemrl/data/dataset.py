"""One in-memory dataset of transitions, checked once at the door.

row        t-1      t       t+1     t+2
obs        s0       s1      s0'     s1'       a new episode starts at t+1
next_obs   s1       s2      s1'     s2'
mask       1        0 or 1  1       1         0 only at a true terminal: no bootstrapping
episode    0        0       1       1         its change is the end of an episode
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int32

from gemrl.data.limits import check_layout
from gemrl.data.successors import with_successors
from gemrl.data.tasks import task_named
from gemrl.errors import DataError


@dataclass(frozen=True, eq=False)
class Raw:
    """What a reader found in a file: arrays in D4RL's layout, and what it says of itself."""

    arrays: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()
    bounds: tuple[np.ndarray, np.ndarray] | None = None
    task: str | None = None
    origin: str = "unknown"


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
    bounds_origin: str = "given"
    """Where the action bounds come from: `task`, `file`, `unit`, `data`, `quantiles` or `given`."""
    notes: tuple[str, ...] = ()
    """What reading decided and a person should know, a sentence each."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """Arguments with which `load_dataset` reads the same from `source` again, as JSON values."""

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
            row, dimension = (int(i[0]) for i in np.nonzero(outside))
            low, high = bounds[:, dimension]
            raise DataError(
                f"{self.source}: {int(outside.any(axis=1).sum())} actions lie outside the bounds, "
                f"the first in row {row}: {self.actions[row, dimension]:g} in dimension "
                f"{dimension}, whose bounds are [{low:g}, {high:g}]; clip or rescale them "
                "(--outside clip|rescale), or take the bounds from the data (--bounds data)"
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
    terminals_end: bool | None = None,
    own: bool = False,
) -> Dataset:
    """A dataset from arrays in D4RL's layout.

    `terminals` end an episode and its bootstrapping, `timeouts` end the episode only. With
    `terminals_end` false, as some tasks have it, terminals end the bootstrapping only. Without
    `next_observations` the following row's observation is taken, and the last row of each episode,
    whose successor is unknown, is left out. With `own` the given arrays may be
    written to, which spares copies.
    """
    given = {"observations": observations, "actions": actions, "rewards": rewards}
    given |= {"terminals": terminals, "timeouts": timeouts, "next_observations": next_observations}
    arrays = {name: np.asarray(value) for name, value in given.items() if value is not None}
    check_layout(arrays, source)
    rows, action_dim = arrays["actions"].shape
    terminal = _flags("terminals", arrays, source)
    ends = terminal
    if "timeouts" in arrays:
        timeout = _flags("timeouts", arrays, source)
        if terminals_end is None:
            terminals_end = task is None or task_named(task).terminals_end
        ends = terminal | timeout if terminals_end else timeout
    starts = np.concatenate([[0], np.flatnonzero(ends[:-1]) + 1])
    lengths = np.diff(starts, append=rows)
    episodes = np.repeat(np.arange(len(starts), dtype=np.int32), lengths)
    obs = _float32(arrays["observations"])
    columns = {
        "actions": _float32(arrays["actions"]),
        "rewards": _float32(arrays["rewards"]).reshape(rows),
        "masks": (~terminal).astype(np.float32),
        "episodes": episodes,
    }
    if "next_observations" in arrays:
        columns |= {
            "observations": obs,
            "next_observations": _float32(arrays["next_observations"]),
        }
    else:
        columns |= with_successors(obs, columns, terminal, ends, own, source)
    return Dataset(
        **columns,
        action_low=_bound("action_low", action_low, action_dim, source),
        action_high=_bound("action_high", action_high, action_dim, source),
        task=task,
        origin=origin,
        source=source,
    )


def _flags(name: str, arrays: Mapping[str, np.ndarray], source: str) -> Bool[np.ndarray, " t"]:
    values = arrays[name].reshape(-1)
    # A damaged file can hold a truth value that is neither 0 nor 1.
    numbers = values.view(np.uint8) if values.dtype == bool else values
    good = (numbers == 0) | (numbers == 1)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"{source}: {name} holds something else than 0 and 1, the first in row {row}: "
            f"{numbers[row]}"
        )
    return values.astype(bool)


def _bound(name: str, value: np.ndarray | float, size: int, source: str) -> np.ndarray:
    bound = np.asarray(value, dtype=np.float32)
    if bound.shape not in ((), (size,)):
        raise DataError(f"{source}: {name} has shape {bound.shape}, and actions {size} dimensions")
    return np.broadcast_to(bound, (size,)).copy()


def _float32(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # Too large for float32 is infinite, which training refuses.
        return np.ascontiguousarray(array, dtype=np.float32)
