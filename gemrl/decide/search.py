"""Candidates scored chunk by chunk until a deadline, and batches with knobs for each row."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from gemrl.decide.backend import Backend, Scored, Shape, Weights, seed_pairs
from gemrl.decide.checks import deadline_after
from gemrl.decide.decision import PER_CANDIDATE

# Candidates scored together where only a deadline is given: a tenth or so of the usual 1024, and
# still enough to fill a matrix product.
CHUNK = 128


class Asked(NamedTuple):
    """Rows of a batch that are decided in the same way."""

    rows: np.ndarray | None
    """Their places in the batch; None is the whole of it."""
    obs: np.ndarray
    seeds: np.ndarray
    weights: Weights
    shape: Shape
    block: int
    """Candidates that are scored together."""
    limit: int
    """Candidates that are scored at most."""


def block_of(shape: Shape, chunk: int | None) -> int:
    """How many of a shape's candidates are scored together."""
    return shape.candidates if chunk is None else min(chunk, shape.candidates)


def split(
    obs: np.ndarray,
    seeds: np.ndarray,
    weights: Weights,
    ways: Sequence[tuple[Shape, int, int]],
) -> list[Asked]:
    """The rows grouped by the way they are decided: shape, block and limit of each row."""
    pairs = seed_pairs(seeds, len(obs))
    groups: dict[tuple[Shape, int, int], list[int]] = {}
    for row, way in enumerate(ways):
        groups.setdefault(way, []).append(row)
    found = {way: np.array(rows) for way, rows in groups.items()}
    return [
        Asked(rows, obs[rows], pairs[rows], Weights(*(x[rows] for x in weights)), *way)
        for way, rows in found.items()
    ]


class Deadlines:
    """When the search of each row must begin no further chunk, by `time.perf_counter()`.

    They may be brought forward by another thread while the search runs.
    """

    def __init__(self, at: np.ndarray) -> None:
        self.at = np.array(at, np.float64)

    @staticmethod
    def after(milliseconds: float | np.ndarray, rows: int) -> "Deadlines":
        """So many milliseconds from now, one number for all rows or one for each."""
        return Deadlines(deadline_after(milliseconds, rows))

    def bring_forward(self, moment: float) -> None:
        """Let every row's search end by this moment."""
        np.minimum(self.at, moment, out=self.at)

    def passed(self, rows: np.ndarray | None) -> np.ndarray:
        """Which of these rows (None: all) begin no chunk any more."""
        at = self.at if rows is None else self.at[rows]
        return at <= time.perf_counter()


def search(
    backend: Backend, asked: Sequence[Asked], deadlines: Deadlines | None = None
) -> tuple[list[Asked], list[dict[str, np.ndarray]]]:
    """The fields of each group's records, and the groups.

    Groups take turns, a chunk at a time. The first chunk of each is always scored; no other begins
    once the deadline has passed. Rows whose deadline comes before others' leave their group.
    """
    found = [_Search.begin(backend, group) for group in asked]
    waiting = [one for one in found if not one.finished]
    while waiting:
        going = []
        for one in waiting:
            if deadlines is not None:
                late = deadlines.passed(one.asked.rows)
                if late.all():
                    continue
                if late.any():
                    found.remove(one)
                    ended, one = one.part(late), one.part(~late)
                    found += [ended, one]
            one.score_chunk()
            if not one.finished:
                going.append(one)
        waiting = going
    return [one.asked for one in found], [one.result() for one in found]


@dataclass(eq=False)
class _Search:
    """A candidate set that grows by chunks; one that needs no chunks is decided in one shot."""

    backend: Backend
    asked: Asked
    begun: Any = None
    chunks: list[Scored] = field(default_factory=list)
    scored: int = 0
    whole: dict[str, np.ndarray] | None = None

    @staticmethod
    def begin(backend: Backend, asked: Asked) -> "_Search":
        """A search whose first chunk is scored, or all where there is only one."""
        one = _Search(backend, asked)
        if asked.block == asked.shape.candidates:
            one.whole = backend.decide(asked.obs, asked.seeds, asked.weights, asked.shape)
            one.scored = asked.limit
        else:
            one.begun = backend.begin(asked.obs, asked.seeds)
            one.score_chunk()
        return one

    @property
    def finished(self) -> bool:
        return self.scored >= self.asked.limit

    def score_chunk(self) -> None:
        """Score the next candidates."""
        count = min(self.asked.block, self.asked.limit - self.scored)
        self.chunks.append(self.backend.score(self.begun, self.asked.shape, self.scored, count))
        self.scored += count

    def part(self, taken: np.ndarray) -> "_Search":
        """The same search of some of its rows."""
        asked, taken = self.asked, np.flatnonzero(taken)
        rows = taken if asked.rows is None else asked.rows[taken]
        smaller = asked._replace(
            rows=rows,
            obs=asked.obs[taken],
            seeds=seed_pairs(asked.seeds, len(asked.obs))[taken],
            weights=Weights(*(x[taken] for x in asked.weights)),
        )
        begun = jax.tree.map(lambda x: x[taken], self.begun)
        chunks = [Scored(*(x[taken] for x in chunk)) for chunk in self.chunks]
        return _Search(self.backend, smaller, begun, chunks, self.scored)

    def result(self) -> dict[str, np.ndarray]:
        """The fields of the record, from all that was scored."""
        if self.whole is not None:
            return self.whole
        candidates, q, log_support = zip(*self.chunks, strict=True)
        scored = Scored(
            np.concatenate(candidates, axis=1),
            np.concatenate(q, axis=2),
            np.concatenate(log_support, axis=1),
        )
        asked = self.asked
        return self.backend.rank(self.begun, scored, asked.weights, asked.shape)


def joined(
    asked: Sequence[Asked], results: Sequence[dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The groups' fields as those of one batch, with NaN where a row has fewer candidates."""
    if asked[0].rows is None:
        return results[0]
    batch = sum(len(group.obs) for group in asked)
    most = max(result["score"].shape[1] for result in results)
    fields = {}
    for name, like in results[0].items():
        shape = (batch, *like.shape[1:])
        if name in PER_CANDIDATE:
            axis = 1 if name == "candidates" else like.ndim - 1
            shape = (*shape[:axis], most, *shape[axis + 1 :])
        empty = np.nan if like.dtype.kind == "f" else 0
        fields[name] = np.full(shape, empty, like.dtype)
        for group, result in zip(asked, results, strict=True):
            place: list[Any] = [slice(0, size) for size in result[name].shape]
            place[0] = group.rows
            fields[name][tuple(place)] = result[name]
    return fields
