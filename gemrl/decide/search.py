"""Candidates scored chunk by chunk until a deadline, and batches with knobs for each row."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gemrl.decide.backend import Backend, Scored, Shape, seed_pairs
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
    lam: np.ndarray
    wp: np.ndarray
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
    lam: np.ndarray,
    wp: np.ndarray,
    ways: Sequence[tuple[Shape, int, int]],
) -> list[Asked]:
    """The rows grouped by the way they are decided: shape, block and limit of each row."""
    pairs = seed_pairs(seeds, len(obs))
    groups: dict[tuple[Shape, int, int], list[int]] = {}
    for row, way in enumerate(ways):
        groups.setdefault(way, []).append(row)
    found = {way: np.array(rows) for way, rows in groups.items()}
    return [
        Asked(rows, obs[rows], pairs[rows], lam[rows], wp[rows], *way)
        for way, rows in found.items()
    ]


def search(
    backend: Backend, asked: Sequence[Asked], deadline: float | None = None
) -> list[dict[str, np.ndarray]]:
    """The fields of each group's records.

    Groups take turns, a chunk at a time. The first chunk of each is always scored; no other begins
    once `time.perf_counter()` has reached the deadline.
    """
    searches = [_Search(backend, group) for group in asked]
    waiting = [one for one in searches if not one.finished]
    while waiting:
        for one in waiting:
            if deadline is not None and time.perf_counter() >= deadline:
                return [one.result() for one in searches]
            one.score_chunk()
        waiting = [one for one in waiting if not one.finished]
    return [one.result() for one in searches]


class _Search:
    """A candidate set that grows by chunks; one that needs no chunks is decided in one shot."""

    def __init__(self, backend: Backend, asked: Asked) -> None:
        self.backend = backend
        self.asked = asked
        self.scored = 0
        self.chunks: list[Scored] = []
        self.whole: dict[str, np.ndarray] | None = None
        if asked.block == asked.shape.candidates:
            self.whole = backend.decide(asked.obs, asked.seeds, asked.lam, asked.wp, asked.shape)
            self.scored = asked.limit
        else:
            self.begun = backend.begin(asked.obs, asked.seeds)
            self.score_chunk()

    @property
    def finished(self) -> bool:
        return self.scored >= self.asked.limit

    def score_chunk(self) -> None:
        """Score the next candidates."""
        count = min(self.asked.block, self.asked.limit - self.scored)
        self.chunks.append(self.backend.score(self.begun, self.asked.shape, self.scored, count))
        self.scored += count

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
        return self.backend.rank(self.begun, scored, asked.lam, asked.wp, asked.shape)


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
