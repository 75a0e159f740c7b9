"""Where minibatches come from: rows in memory or on disk, gathered a window ahead of training."""

import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, Self

import jax
import numpy as np
from jaxtyping import Array, Float, Float32, Float64, Int, Key

from gemrl.data.dataset import Dataset
from gemrl.data.shards import ShardedDataset
from gemrl.learn.loop import minibatch_rows
from gemrl.learn.spec import Spec, packed, row_width, rows_after, scaled, with_next_actions
from gemrl.methods.context import Context, Steps, pack, step_width

# Updates between two lines of metrics.
LOG_EVERY = 500
# Contexts that are gathered together, and rows whose rewards are read together.
_CONTEXTS = 4096
_REWARDS = 65_536
# Memory of a window of minibatches; one is in use while the next is gathered.
_WINDOW_BYTES = 32 * 2**20


class Rows(Protocol):
    """Training transitions as the networks see them, packed a row each."""

    @property
    def width(self) -> int:
        """Numbers in a row."""
        ...

    def __len__(self) -> int: ...

    def gather(self, rows: Int[np.ndarray, " n"]) -> Float32[np.ndarray, "n w"]:
        """These rows, in this order."""
        ...


@dataclass(frozen=True, eq=False)
class RowsInMemory:
    """Rows of a matrix."""

    matrix: Float32[np.ndarray, "t w"]

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.matrix.shape[1]

    def __len__(self) -> int:
        return len(self.matrix)

    def gather(self, rows: Int[np.ndarray, " n"]) -> Float32[np.ndarray, "n w"]:
        return self.matrix.take(rows, axis=0)


@dataclass(frozen=True, eq=False)
class RowsAsRead:
    """The training rows of a dataset, scaled as they are read: for one on disk, or for few rows."""

    data: Dataset | ShardedDataset
    training: Int[np.ndarray, " t"]
    """Their numbers in the dataset."""
    spec: Spec
    next_actions: bool = False
    """Whether rows have the next action at their end."""

    @property
    def width(self) -> int:
        """Numbers in a row."""
        more = self.data.action_dim if self.next_actions else 0
        return row_width(self.data.obs_dim, self.data.action_dim) + more

    def __len__(self) -> int:
        return len(self.training)

    def gather(self, rows: Int[np.ndarray, " n"]) -> Float32[np.ndarray, "n w"]:
        places = self.training[rows]
        found = scaled(self._packed(places), self.spec)
        if not self.next_actions:
            return found
        after = rows_after(places, self.data.episode_starts, len(self.data))
        return with_next_actions(found, scaled(self._packed(after), self.spec), self.spec)

    def _packed(self, places: Int[np.ndarray, " n"]) -> Float32[np.ndarray, "n w"]:
        if isinstance(self.data, ShardedDataset):
            return self.data.packed(places)
        return packed(self.data.select(places))


@dataclass(frozen=True, eq=False)
class RowsWithContext:
    """Rows with the context that ends at each of them: the steps before it in its episode, and it.

    Episodes are whole among the rows, so a context is made of rows that lie together, wherever
    they lie. Places before an episode's start hold zeros.
    """

    rows: Rows
    data: Dataset | ShardedDataset
    training: Int[np.ndarray, " t"]
    """The rows' numbers in the dataset."""
    context: Context

    @cached_property
    def to_go(self) -> Float32[np.ndarray, " t"]:
        """The return from each row on, over its scale."""
        return (returns_to_go(self.data)[self.training] / self.context.return_scale).astype("f4")

    @cached_property
    def number(self) -> Int[np.ndarray, " t"]:
        """Each row's place in its episode."""
        starts = self.data.episode_starts
        own = starts[np.searchsorted(starts, self.training, "right") - 1]
        return (self.training - own).astype(np.int32)

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.rows.width + self.context.length * step_width(
            self.data.obs_dim, self.data.action_dim
        )

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, rows: Int[np.ndarray, " n"]) -> Float32[np.ndarray, "n w"]:
        found = np.empty((len(rows), self.width), np.float32)
        for start in range(0, len(rows), _CONTEXTS):
            found[start : start + _CONTEXTS] = self._gathered(rows[start : start + _CONTEXTS])
        return found

    def _gathered(self, rows: Int[np.ndarray, " n"]) -> Float32[np.ndarray, "n w"]:
        back = np.arange(self.context.length - 1, -1, -1)
        present = self.number[rows][:, None] >= back
        places = np.where(present, rows[:, None] - back, rows[:, None])
        found = self.rows.gather(places.reshape(-1)).reshape(*places.shape, -1)
        obs, rest = self.data.obs_dim, self.data.obs_dim + self.data.action_dim
        steps = Steps(
            self.to_go[places],
            found[..., :obs],
            found[..., obs:rest],
            self.number[places],
            np.ones(places.shape),
        )
        context = pack(steps).reshape(*places.shape, -1) * present[..., None]
        return np.concatenate([found[:, -1], context.reshape(len(rows), -1)], axis=1)


def returns_to_go(data: Dataset | ShardedDataset) -> Float64[np.ndarray, " t"]:
    """The sum of a row's reward and of those after it in its episode, in the task's own rewards.

    A terminal ends the sum, also where the episode goes on: AntMaze's data walk about the goal and
    are paid for each step there, and to arrive is worth one.
    """
    if isinstance(data, Dataset):
        rewards, masks = data.rewards, data.masks
    else:
        blocks = list(data.blocks(np.arange(len(data)), _REWARDS))
        rewards = np.concatenate([block.rewards for block in blocks])
        masks = np.concatenate([block.masks for block in blocks])
    to_go = np.empty(len(rewards), np.float64)
    ends = np.union1d(data.episode_starts[1:], np.flatnonzero(masks == 0) + 1)
    # Each stretch by itself: a difference of sums over the dataset would lose a small reward beside
    # a large one of another episode.
    for start, stop in itertools.pairwise(np.union1d([0, len(data)], ends).tolist()):
        to_go[start:stop] = np.cumsum(rewards[start:stop][::-1], dtype=np.float64)[::-1]
    return to_go


class Window(NamedTuple):
    """The minibatches of updates `start` to `stop - 1` of a phase."""

    start: int
    stop: int
    minibatches: Float[Array, "n b w"]


class Windows:
    """A phase's minibatches, a window at a time. A thread gathers the next one meanwhile."""

    def __init__(
        self,
        rows: Rows,
        key: Key[Array, ""],
        batch_size: int,
        steps: int,
        share: slice = slice(None),
        put: Callable[[np.ndarray], Array] = jax.device_put,
    ) -> None:
        """`share` is this process's part of each minibatch, and `put` brings it to the devices."""
        self._rows, self._key, self._batch_size, self._steps = rows, key, batch_size, steps
        self._share, self._put = share, put
        self._count = window_size(batch_size, rows.width)
        self._thread = ThreadPoolExecutor(1, "minibatches")
        self._coming: tuple[int, Future[np.ndarray]] | None = None
        self._window: Window | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def at(self, step: int) -> Window:
        """The window that holds the minibatch of an update."""
        start = step - step % self._count
        if self._window is None or self._window.start != start:
            gathered = self._ordered(start).result()
            self._window = None  # Two windows are held at a time, not three.
            self._window = Window(start, start + self._count, self._put(gathered))
            if start + self._count < self._steps:
                self._coming = (start + self._count, self._ordered(start + self._count))
        return self._window

    def _ordered(self, start: int) -> "Future[np.ndarray]":
        """The window from `start`, which may be under way already."""
        if self._coming is not None and self._coming[0] == start:
            return self._coming[1]
        # Drawn here and not in the thread, where it would wait for the updates that are running.
        rows = minibatch_rows(
            self._key, start, len(self._rows), count=self._count, batch_size=self._batch_size
        )
        return self._thread.submit(self._gather, np.asarray(rows)[:, self._share])

    def _gather(self, rows: Int[np.ndarray, "n b"]) -> Float32[np.ndarray, "n b w"]:
        return self._rows.gather(rows.reshape(-1)).reshape(*rows.shape, self._rows.width)


def window_size(batch_size: int, width: int) -> int:
    """Updates whose minibatches are gathered at once."""
    return max(1, min(LOG_EVERY, _WINDOW_BYTES // (4 * batch_size * width)))
