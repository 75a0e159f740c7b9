"""What training takes of memory, so that a limit is kept or refused, never exceeded in silence."""

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax

from gemrl.data.limits import opened_hdf5
from gemrl.data.readers import HDF5, described_hdf5, requested
from gemrl.learn.rows import window_size
from gemrl.methods import method_of
from gemrl.methods.context import step_width
from gemrl.methods.protocol import MethodConfig

# Python, JAX and what compiling takes, of GEM on networks of the default size.
BASE = 700 * 10**6
# Windows of minibatches: in use, gathered ahead, and in the order in which the disk has them.
_WINDOWS = 4
# Pages of a dataset on disk that are touched before they are given back.
_PAGES = 64 * 2**20
# Bytes of a row of a dataset on disk: its number, and whether it is held out.
_NUMBER = 10
# Bytes of a row that contexts end at: its place in its episode and the return from it on, with what
# is needed to work them out.
_OF_CONTEXT = 40
# The state itself, its copies while a checkpoint is written.
_STATES = 4


@dataclass(frozen=True)
class Extent:
    """How large a dataset is."""

    rows: int
    obs_dim: int
    action_dim: int
    stored: int = 0
    """Bytes of its arrays as a file holds them unpacked, which reading needs."""

    @property
    def in_memory(self) -> int:
        """Bytes of the dataset in memory: the packed row and its episode's number."""
        return 4 * self.rows * (self.width + 1)

    @property
    def width(self) -> int:
        """Numbers in a packed row."""
        return 2 * self.obs_dim + self.action_dim + 2


def extent_of(source: str | Path) -> Extent | None:
    """How large a dataset is, as the headers of an HDF5 file tell; else None."""
    with contextlib.suppress(Exception):  # Loading it will say what is wrong with it.
        path = requested(source, None, None, "refuse").path
        if path.suffix.lower() in HDF5:
            with opened_hdf5(path) as file:
                arrays = described_hdf5(file, path).arrays
                stored = sum(math.prod(a.shape) * a.dtype.itemsize for a in arrays.values())
                rows, obs_dim = arrays["observations"].shape
                return Extent(rows, obs_dim, arrays["actions"].shape[1], stored)
    return None


def needed_in_memory(config: MethodConfig, data: Extent) -> int:
    """Resident memory of training on a dataset in memory: itself, and its rows packed."""
    reading = BASE // 2 + data.stored + data.in_memory
    return max(reading, _needed(config, data) + 2 * data.in_memory)


def needed_on_disk(config: MethodConfig, data: Extent) -> int:
    """Resident memory of training on a dataset on disk."""
    number = _NUMBER if method_of(config).context is None else _NUMBER + _OF_CONTEXT
    return _needed(config, data) + _PAGES + number * data.rows


def _needed(config: MethodConfig, data: Extent) -> int:
    """Resident memory of training without the data."""
    method = method_of(config)
    state = eqx.filter_eval_shape(
        lambda key: method.init(config, data.obs_dim, data.action_dim, key), jax.random.key(0)
    )
    leaves = jax.tree.leaves(state)
    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    # What a layer computes for a minibatch. Adam's moments are counted as layers are: they stand
    # for the gradients on the way back.
    computed = sum(leaf.shape[0] for leaf in leaves if len(leaf.shape) > 1)
    width, seen = data.width, config.batch_size
    if method.context is not None:
        length = method.context(config).length
        width += length * step_width(data.obs_dim, data.action_dim)
        seen *= 3 * length  # Tokens.
    minibatch = 4 * config.batch_size * width
    windows = _WINDOWS * window_size(config.batch_size, width) * minibatch
    return BASE + _STATES * weights + 4 * seen * computed + windows
