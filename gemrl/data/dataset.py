"""One in-memory dataset of transitions, checked once at the door.

row        t-1      t       t+1     t+2
obs        s0       s1      s0'     s1'       a new episode starts at t+1
next_obs   s1       s2      s1'     s2'
mask       1        0 or 1  1       1         0 only at a true terminal: no bootstrapping
episode    0        0       1       1         its change is the end of an episode
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int32

from gemrl.data.limits import check_layout
from gemrl.data.statistics import mean_and_std
from gemrl.data.successors import with_successors
from gemrl.data.tasks import task_named
from gemrl.data.trainable import MUST_BE_FINITE, Faults, outside_bounds
from gemrl.errors import DataError

COLUMNS = ("observations", "actions", "rewards", "next_observations", "masks", "episodes")


@dataclass(frozen=True, eq=False)
class Raw:
    """What a reader found in a file: arrays in D4RL's layout, and what it says of itself."""

    arrays: dict[str, Any]
    """In memory, or still in the file."""
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
        check_shapes({name: getattr(self, name).shape for name in COLUMNS}, self.source)
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

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        columns = (self.observations, self.actions, self.rewards, self.next_observations)
        return sum(column.nbytes for column in (*columns, self.masks, self.episodes))

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
    def reward_range(self) -> tuple[float, float]:
        """The least and the greatest reward."""
        return float(self.rewards.min()), float(self.rewards.max())

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the contents: the same rows and bounds give the same fingerprint."""
        arrays = (getattr(self, name) for name in (*COLUMNS, "action_low", "action_high"))
        return fingerprint_of((array.dtype, array.shape, [array]) for array in arrays)

    def require_trainable(self) -> None:
        """Refuse values that cannot be trained on, naming the array and the first bad row."""
        faults = Faults(self.action_low, self.action_high)
        faults.look({name: getattr(self, name) for name in MUST_BE_FINITE})
        faults.refuse(self.source)

    def outside_bounds(self) -> Bool[np.ndarray, "t a"]:
        """Where an action lies outside its bounds by more than rounding."""
        return outside_bounds(self.actions, self.action_low, self.action_high)

    def observation_statistics(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the observations of some rows, in double precision."""
        return mean_and_std(rows, self.observations.__getitem__)

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
        return split_rows(self.episode_starts, len(self), share, seed)


def check_shapes(shapes: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Refuse columns of a dataset whose shapes do not go together."""
    rows = shapes["observations"][0]
    if rows == 0:
        raise DataError(f"{source}: the dataset is empty; it needs at least one transition")
    for name in COLUMNS:
        ndim = 2 if name in ("observations", "actions", "next_observations") else 1
        if len(shapes[name]) != ndim:
            raise DataError(f"{source}: {name} has shape {shapes[name]}, not {ndim} axes")
        if shapes[name][0] != rows:
            raise DataError(
                f"{source}: {name} has {shapes[name][0]} rows where observations has {rows}"
            )
    if shapes["next_observations"] != shapes["observations"]:
        raise DataError(
            f"{source}: next_observations has shape {shapes['next_observations']} where "
            f"observations has {shapes['observations']}"
        )
    for name in ("observations", "actions"):
        if shapes[name][1] == 0:
            raise DataError(f"{source}: {name} has no dimensions")


def fingerprint_of(
    arrays: Iterable[tuple[np.dtype, tuple[int, ...], Iterable[np.ndarray]]],
) -> str:
    """SHA-256 of arrays, each given by its type, its shape and its rows in one or more blocks."""
    digest = hashlib.sha256()
    for dtype, shape, blocks in arrays:
        digest.update(f"{dtype.str}{shape}".encode())
        for block in blocks:
            digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()


def split_rows(
    starts: np.ndarray, rows: int, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers for training and held out, of episodes that start at the given rows."""
    count = len(starts)
    held = min(round(share * count), count - 1)
    order = np.random.default_rng(seed).permutation(count)
    is_held = np.zeros(count, dtype=bool)
    is_held[order[:held]] = True
    row_is_held = np.repeat(is_held, np.diff(starts, append=rows))
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
    terminal = flags("terminals", arrays["terminals"], source)
    ends = terminal
    if "timeouts" in arrays:
        timeout = flags("timeouts", arrays["timeouts"], source)
        if terminals_end is None:
            terminals_end = do_terminals_end(task)
        ends = terminal | timeout if terminals_end else timeout
    starts = np.concatenate([[0], np.flatnonzero(ends[:-1]) + 1])
    lengths = np.diff(starts, append=rows)
    episodes = np.repeat(np.arange(len(starts), dtype=np.int32), lengths)
    obs = float32(arrays["observations"])
    columns = {
        "actions": float32(arrays["actions"]),
        "rewards": float32(arrays["rewards"]).reshape(rows),
        "masks": (~terminal).astype(np.float32),
        "episodes": episodes,
    }
    if "next_observations" in arrays:
        columns |= {
            "observations": obs,
            "next_observations": float32(arrays["next_observations"]),
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


def do_terminals_end(task: str | None) -> bool:
    """Whether a terminal ends its episode in data that has timeouts too."""
    return task is None or task_named(task).terminals_end


def flags(name: str, array: np.ndarray, source: str, start: int = 0) -> Bool[np.ndarray, " t"]:
    """Truth values of rows from `start` on; anything else than 0 and 1 is refused."""
    values = array.reshape(-1)
    # A damaged file can hold a truth value that is neither 0 nor 1.
    numbers = values.view(np.uint8) if values.dtype == bool else values
    good = (numbers == 0) | (numbers == 1)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"{source}: {name} holds something else than 0 and 1, the first in row "
            f"{start + row}: {numbers[row]}"
        )
    return values.astype(bool)


def _bound(name: str, value: np.ndarray | float, size: int, source: str) -> np.ndarray:
    bound = np.asarray(value, dtype=np.float32)
    if bound.shape not in ((), (size,)):
        raise DataError(f"{source}: {name} has shape {bound.shape}, and actions {size} dimensions")
    return np.broadcast_to(bound, (size,)).copy()


def float32(array: np.ndarray) -> np.ndarray:
    """The array as float32, without a copy where it is that already."""
    with np.errstate(over="ignore"):  # Too large for float32 is infinite, which training refuses.
        return np.ascontiguousarray(array, dtype=np.float32)
