"""The optional backend `gemrl[fast]`: decisions compiled by numba, exact and without dense cost."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from gemrl.decide.backend import seed_pairs
from gemrl.decide.fast import kernel, proposal
from gemrl.decide.fast.cache import announce
from gemrl.decide.fast.kernel import Held, Record
from gemrl.decide.fast.lanes import BLOCK, ROWS
from gemrl.decide.fast.layers import Critics, Room, Set
from gemrl.decide.fast.proposal import MixtureNet, Options, Scales, State, Work
from gemrl.decide.fast.vectors import LANES
from gemrl.decide.select import Scored, Shape, Weights
from gemrl.learn.loop import usable_cores
from gemrl.learn.spec import Spec
from gemrl.methods import networks
from gemrl.methods.protocol import Models

SOURCES = {"actor": proposal.ACTOR, "behavior": proposal.BEHAVIOR, "unimodal": proposal.UNIMODAL}
ANCHORS = {"mode": proposal.MODE, "barycenter": proposal.BARYCENTER, "none": proposal.NO_ANCHOR}


def serves(models: Models) -> bool:
    """Whether these networks have the shape that the backend knows: two hidden layers of ReLU."""
    return len(models.critics) > 0 and all(
        isinstance(net, kind) and len(net.net.layers) == count and net.net.is_plain
        for net, kind, count in (
            (models.actor, networks.MixtureNet, 3),
            (models.behavior, networks.MixtureNet, 3),
            *((critic, networks.Critic, 2) for critic in models.critics),
        )
    )


def _whole(size: int) -> int:
    """Up to whole vectors."""
    return -(-size // LANES) * LANES


def _padded(array: Any, *shape: int) -> np.ndarray:
    """Filled up with zeros: units that are never on and outputs that nobody reads."""
    array = np.asarray(array, np.float32)
    out = np.zeros(shape, np.float32)
    out[tuple(slice(size) for size in array.shape)] = array
    return out


def _flat(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.reshape(-1))


def _mixture_net(net: networks.MixtureNet, half: np.ndarray) -> MixtureNet:
    one, two, three = net.net.layers
    inputs = one.weight.shape[0]
    hidden, second, outputs = (_whole(layer.weight.shape[1]) for layer in (one, two, three))
    return MixtureNet(
        _flat(_padded(one.weight, inputs, hidden)),
        _padded(one.bias, hidden),
        _flat(_padded(two.weight, hidden, second)),
        _padded(two.bias, second),
        _flat(_padded(three.weight, second, outputs)),
        _padded(three.bias, outputs),
        np.exp(np.asarray(net.log_std, np.float32)) * half,
    )


def _critics(critics: tuple[networks.Critic, ...]) -> Critics:
    inputs, hidden = critics[0].from_state.weight.shape
    actions = critics[0].from_action.shape[0]
    hidden, second = _whole(hidden), _whole(critics[0].net.layers[0].weight.shape[1])
    groups = -(-second // ROWS)

    def stacked(make: Callable[[networks.Critic], np.ndarray]) -> np.ndarray:
        return np.stack([make(critic) for critic in critics])

    seconds = stacked(lambda c: _padded(c.net.layers[0].weight, hidden, second))
    packed = np.zeros((len(critics), hidden, groups * ROWS), np.float32)
    packed[:, :, :second] = seconds
    packed = packed.reshape(len(critics), hidden, groups, ROWS).transpose(0, 2, 1, 3)
    return Critics(
        state=stacked(lambda c: _flat(_padded(c.from_state.weight, inputs, hidden))),
        state_bias=stacked(lambda c: _padded(c.from_state.bias, hidden)),
        action=stacked(lambda c: _flat(_padded(c.from_action, actions, hidden))),
        second=seconds.reshape(len(critics), -1),
        second_bias=stacked(lambda c: _padded(c.net.layers[0].bias, second)),
        last=stacked(lambda c: _padded(c.net.layers[1].weight[:, 0], second)),
        last_bias=stacked(lambda c: np.asarray(c.net.layers[1].bias, np.float32)[0]),
        packed=np.ascontiguousarray(packed.reshape(len(critics), -1)),
    )


class Begun(NamedTuple):
    """Observations and seeds; the networks are evaluated with the candidates, which costs little.

    Numba compiles for arrays of one type and layout that may be written.
    """

    obs: np.ndarray
    seeds: np.ndarray
    """[B, 2]"""


class FastBackend:
    """Decides with numba. Memory to work in is kept for each thread, so it is safe to share."""

    name = "fast"

    def __init__(self, models: Models, spec: Spec, threads: int | None = None) -> None:
        """`threads` share the rows of a batch; as many as there are cores unless told."""
        assert models.behavior is not None
        assert isinstance(models.actor, networks.MixtureNet)
        self.actor = _mixture_net(models.actor, spec.action_half)
        self.behavior = _mixture_net(models.behavior, spec.action_half)
        self.critics = _critics(models.critics)
        # Copies: numba compiles anew for arrays that must not be written.
        self.scales = Scales(
            *(
                np.array(getattr(spec, name), np.float32)
                for name in (
                    "obs_mean", "obs_std", "action_low", "action_high", "action_middle",
                    "action_half",
                )
            )
        )  # fmt: skip
        announce()
        self.threads = usable_cores() if threads is None else threads
        self._held = Held((self.actor, self.behavior, self.critics, self.scales))
        self._local = threading.local()
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    @cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        """Action dimensions, units of the two hidden layers, and critics."""
        critics, hidden = self.critics.state_bias.shape
        return len(self.scales.low), hidden, self.critics.second_bias.shape[1], critics

    def decide(
        self, obs: np.ndarray, seeds: np.ndarray, weights: Weights, shape: Shape
    ) -> dict[str, np.ndarray]:
        """All fields of the record, in one go."""
        rows, count = len(obs), shape.candidates
        begun, options = self.begin(obs, seeds), options_of(shape)
        weights = Weights(*map(_own, weights))
        record = self._record(rows, count)

        def run(begin: int, end: int) -> None:
            kernel.decide_rows(
                begin, end, *begun, *weights, options, self._held, self._memory(count), record
            )

        self._in_threads(rows, run)
        return _fields(record, weights.wp)

    def begin(self, obs: np.ndarray, seeds: np.ndarray) -> Begun:
        """Each row's observation and seed."""
        return Begun(_own(obs), _own(seed_pairs(seeds, len(obs))))

    def score(self, begun: Begun, shape: Shape, first: int, count: int) -> Scored:
        """Some of the candidates of each state."""
        record, options = self._record(len(begun.obs), count), options_of(shape)
        self._in_threads(
            len(begun.obs),
            lambda begin, end: kernel.score_rows(
                begin, end, *begun, first, options, self._held, self._memory(count), record
            ),
        )
        found = record.of_candidates
        return Scored(record.candidates, found[:, kernel.Q :], found[:, kernel.SUPPORT])

    def rank(
        self, begun: Begun, scored: Scored, weights: Weights, shape: Shape
    ) -> dict[str, np.ndarray]:
        """The record of the candidates scored so far."""
        rows, count = scored.log_support.shape
        record, options = self._record(rows, count), options_of(shape)
        weights = Weights(*map(_own, weights))
        record.candidates[:] = scored.candidates
        record.of_candidates[:, kernel.Q :] = scored.q
        record.of_candidates[:, kernel.SUPPORT] = scored.log_support
        self._in_threads(
            rows,
            lambda begin, end: kernel.rank_rows(
                begin, end, *begun, *weights, options, self._held, self._memory(count), record
            ),
        )
        return _fields(record, weights.wp)

    def dense_share(self, obs: np.ndarray, shape: Shape) -> np.ndarray:
        """The share of the dense arithmetic that these states' candidates took."""
        begun = self.begin(obs, np.zeros((), np.uint32))
        record, options = self._record(len(obs), shape.candidates), options_of(shape)
        memory = self._memory(shape.candidates)
        kernel.score_rows(0, len(obs), *begun, 0, options, self._held, memory, record)
        return record.of_states[:, kernel.SHARE]

    def _in_threads(self, rows: int, run: Callable[[int, int], None]) -> None:
        parts = min(self.threads, rows)
        if parts == 1:
            return run(0, rows)
        edges = np.linspace(0, rows, parts + 1).astype(int).tolist()
        list(self._pool().map(run, edges[:-1], edges[1:]))

    def _pool(self) -> ThreadPoolExecutor:
        """This process's threads: a forked child has none of its parent's."""
        process = os.getpid()
        if self._threads is None or self._threads[0] != process:
            self._threads = (process, ThreadPoolExecutor(self.threads, "decisions"))
        return self._threads[1]

    def _record(self, rows: int, count: int) -> Record:
        """Room for the records of a batch."""
        dims, _, _, critics = self.sizes
        return Record(
            np.empty((rows, dims), np.float32),
            np.empty((rows, count, dims), np.float32),
            np.empty((rows, kernel.Q + critics, count), np.float32),
            np.empty((rows, kernel.SHARE + 1), np.float32),
        )

    def _memory(self, count: int) -> Held:
        """This thread's memory, made larger where `count` candidates need it."""
        held = getattr(self._local, "held", None)
        if held is None or held[0] < count:
            held = (count, Held(self._new_memory(_whole(count))))
            self._local.held = held
        return held[1]

    def _new_memory(self, length: int) -> tuple[State, Set, Room, Work]:
        dims, hidden, second, critics = self.sizes
        units = max(hidden, second, len(self.actor.last_bias), len(self.behavior.last_bias))
        units = max(units, len(self.actor.first_bias), len(self.actor.second_bias), dims) + LANES
        units = max(units, len(self.behavior.first_bias) + LANES)
        units = max(units, len(self.behavior.second_bias) + LANES, len(self.scales.obs_mean))
        groups = -(-second // ROWS) * ROWS
        rows = -(-(dims + 1) // ROWS) * ROWS
        components = [net.stds.shape[0] for net in (self.actor, self.behavior)]
        state = State(
            np.empty(len(self.scales.obs_mean), np.float32),
            np.empty(components[0], np.float32),
            np.empty((components[0], dims), np.float32),
            np.empty(components[1], np.float32),
            np.empty((components[1], dims), np.float32),
            np.empty((critics, hidden), np.float32),
        )
        where = Set(*(np.empty(size, np.float32) for size in (dims, dims, dims, 1)))
        room = Room(
            features=_aligned((dims + hidden + 1) * -(-length // BLOCK) * BLOCK),
            weights=_aligned((dims + hidden) * max(groups, ROWS) + units * ROWS),
            starts=_aligned(groups + ROWS),
            factors=_aligned(groups + ROWS),
            fold=_aligned(rows * max(hidden, second)),
            upper=_aligned(rows * max(hidden, second)),
            lower=_aligned(rows * max(hidden, second)),
            units=np.zeros((8, units), np.float32),
            extremes=_aligned(2 * ROWS * LANES),
            lists=np.zeros((6, units + dims), np.int64),
            sixteen=_aligned(LANES),
            zeros=np.zeros(ROWS, np.float32),
        )
        work = Work(
            gates=_aligned(length),
            normals=_aligned(dims * length),
            actions=_aligned(dims * length),
            unit=_aligned(dims * length),
            support=_aligned(length),
            value=_aligned(length),
            joint=_aligned(max(components) * LANES),
            inverse=np.empty((components[1], dims), np.float32),
            constants=np.empty(components[1], np.float32),
            cumulative=np.empty(max(components), np.float32),
        )
        return state, where, room, work


def _aligned(size: int) -> np.ndarray:
    """Zeros that begin where a cache line does."""
    room = np.zeros(size + LANES, np.float32)
    start = -room.ctypes.data % (4 * LANES) // 4
    return room[start : start + size]


def _own(array: np.ndarray) -> np.ndarray:
    """The array itself where it lies row by row and may be written, else a copy that does."""
    flags = array.flags
    return array if flags.c_contiguous and flags.writeable else np.array(array, order="C")


def _fields(record: Record, wp: np.ndarray) -> dict[str, np.ndarray]:
    """The record as `Decision` names it."""
    found, audit = record.of_candidates, record.of_states
    return {
        "action": record.action,
        "candidates": record.candidates,
        "q": found[:, kernel.Q :],
        "lcb": found[:, kernel.LCB],
        "log_support": found[:, kernel.SUPPORT],
        "support_z": found[:, kernel.SUPPORT_Z],
        "score": found[:, kernel.SCORE],
        "chosen": audit[:, kernel.CHOSEN].astype(np.int32),
        "n_scored": np.full(len(audit), found.shape[2], np.int32),
        "wp": wp,
        "violation": audit[:, kernel.VIOLATION] > 0,
        "collapse_dist": audit[:, kernel.COLLAPSE],
        "executed_log_support": audit[:, kernel.EXECUTED_SUPPORT],
        "executed_support_z": audit[:, kernel.EXECUTED_Z],
        "executed_violation": audit[:, kernel.EXECUTED_VIOLATION] > 0,
        "executed_collapse_dist": audit[:, kernel.EXECUTED_COLLAPSE],
    }


@cache
def options_of(shape: Shape) -> Options:
    """The words as numbers."""
    return Options(
        shape.k_smooth,
        SOURCES[shape.source],
        ANCHORS[shape.anchor],
        int(shape.support == "raw"),
        int(shape.value == "zscore"),
    )
