"""Datasets from files, from a Minari store, or by task name from the cache folder."""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemrl.data.bounds import Pair, check_bounds, with_bounds
from gemrl.data.dataset import Dataset, Raw, from_arrays
from gemrl.data.limits import (
    Shaped,
    check_hdf5_sizes,
    check_layout,
    hdf5_array,
    hdf5_attribute,
    hdf5_text,
    opened_hdf5,
    read_npz,
)
from gemrl.data.readers.columns import Columns, columns_from, read_columns
from gemrl.data.readers.minari import PREFIX, read_minari
from gemrl.data.readers.tabular import read_log
from gemrl.data.storage import genuine_path, regenerated_path
from gemrl.data.tasks import TASKS, Task, task_named
from gemrl.errors import DataError
from gemrl.progress import say

if TYPE_CHECKING:
    import h5py

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations")
BOUNDS = ("action_low", "action_high")
LOGS = (".parquet", ".csv")
HDF5 = (".hdf5", ".h5")
SUFFIXES = (*HDF5, ".npz", *LOGS)


def load_dataset(
    source: str | Path,
    *,
    task: str | None = None,
    bounds: str | Pair | None = None,
    outside: str = "refuse",
    columns: Columns | Mapping[str, Any] | str | Path | None = None,
) -> Dataset:
    """A dataset from a task name, a file (.hdf5, .h5, .npz, .parquet, .csv) or `minari:ID`.

    A task name is looked up in the cache folder: the published file first, then a regenerated one,
    saying which. `task` names the task of a file that does not say it itself. `bounds` and
    `outside` say which action bounds to take and what becomes of actions outside them: see
    `with_bounds`. `columns` maps the columns of a log, as `Columns` or as the path of a TOML file.
    """
    request = requested(source, task, bounds, outside)
    path, is_minari = request.path, request.name.startswith(PREFIX)
    of_log = is_log(path)
    mapping = _mapping(columns)
    if mapping is not None and not of_log:
        raise DataError(f"{source}: a mapping of columns goes with {' and '.join(LOGS)} files only")
    if is_minari:
        raw, where = read_minari(request.name.removeprefix(PREFIX)), request.name
    else:
        raw, where = _read(request, mapping), str(path.resolve())
    named, origin = identified(raw, request)
    data = from_arrays(
        **raw.arrays,
        task=named,
        origin=origin,
        source=where,
        terminals_end=None,  # As the task has it.
        own=True,
    )
    check_dimensions(named, data.obs_dim, data.action_dim, where)
    for note in raw.notes:
        say(note)
    data = with_bounds(
        replace(data, notes=raw.notes),
        request.bounds,
        outside=request.outside,
        file=raw.bounds,
        holder="mapping" if of_log else "file",
        otherwise="data" if of_log or is_minari else "unit",
    )
    return replace(data, reading=request.reading(mapping))


@dataclass(frozen=True, eq=False)
class Request:
    """What was asked for, as far as it can be checked before anything is read."""

    name: str
    path: Path
    task: str | None
    bounds: str | Pair | None
    outside: str

    @property
    def is_task(self) -> bool:
        """Whether the dataset of a task was asked for by the task's name."""
        return self.name in TASKS

    def reading(self, columns: Columns | None = None) -> dict[str, Any]:
        """What was asked for and differs from the defaults, as JSON values."""
        said: dict[str, Any] = {}
        if isinstance(self.bounds, str):
            said["bounds"] = self.bounds
        elif self.bounds is not None:
            said["bounds"] = [np.asarray(bound).tolist() for bound in self.bounds]
        if self.outside != "refuse":
            said["outside"] = self.outside
        if columns is not None:
            values = asdict(columns).items()
            said["columns"] = {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in values
                if value not in (None, ())
            }
        return said


def requested(
    source: str | Path, task: str | None, bounds: str | Pair | None, outside: str
) -> Request:
    """What `load_dataset` was asked for, with a task's name looked up in the cache folder."""
    bounds, outside = check_bounds(bounds, outside)
    name = str(source)
    if name in TASKS and task not in (None, name):
        raise DataError(f"task {task!r} contradicts the dataset of {source}")
    if task is not None:
        task_named(task)
    path = _cached(task_named(name)) if name in TASKS else Path(source).expanduser()
    return Request(name, path, task, bounds, outside)


def check_is_file(request: Request) -> None:
    """Refuse a path that is no file of a kind that can be read."""
    path = request.path
    if not request.is_task and not path.exists():
        raise DataError(
            f"{path}: neither a file nor a known task; tasks are {', '.join(TASKS)}; a dataset of "
            f"a local Minari store is {PREFIX}ID"
        )
    if not path.is_file() or path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: not a dataset; must be a file ending in {', '.join(SUFFIXES)}")


def identified(raw: Raw, request: Request) -> tuple[str | None, str]:
    """The task and the origin of what was found; for a task's name it is said which."""
    path, task = request.path, request.task
    if task and raw.task and task != raw.task:
        raise DataError(f"{path} names its task {raw.task!r}, which contradicts {task!r}")
    named = task or raw.task or (request.name if request.is_task else None)
    if named:
        task_named(named)
    origin = _origin(raw, path, named)
    if request.is_task:
        say(f"using the {origin} dataset {path}")
    return named, origin


def check_dimensions(task: str | None, obs_dim: int, action_dim: int, source: str) -> None:
    """Refuse data that cannot be its task's."""
    if task is None:
        return
    about = task_named(task)
    if (obs_dim, action_dim) != (about.obs_dim, about.action_dim):
        raise DataError(
            f"{source}: {task} has {about.obs_dim} observation and {about.action_dim} action "
            f"dimensions, which this data contradicts: it has {obs_dim} and {action_dim}"
        )


def is_log(source: str | Path) -> bool:
    """Whether a source is a table whose columns must be explained."""
    return not str(source).startswith(PREFIX) and Path(source).suffix.lower() in LOGS


def task_hint(source: str | Path) -> str | None:
    """The task of a dataset as far as it can be told at a glance; it need not exist."""
    if str(source) in TASKS:
        return str(source)
    path = Path(source).expanduser()
    with contextlib.suppress(Exception):  # Loading it will say what is wrong with it.
        if path.suffix.lower() in HDF5:
            with opened_hdf5(path) as file:
                named = hdf5_text(file, "gemrl_task")
            return named if named in TASKS else None
    return None


def _mapping(columns: Columns | Mapping[str, Any] | str | Path | None) -> Columns | None:
    if columns is None or columns == Columns():  # The command line has flags and none was used.
        return None
    if isinstance(columns, Columns):
        return columns
    return columns_from(columns) if isinstance(columns, Mapping) else read_columns(columns)


def _origin(raw: Raw, path: Path, task: str | None) -> str:
    """What a file says of itself, else what its folder does: files are copied about."""
    if raw.origin != "unknown" or task is None:
        return raw.origin
    folders = {genuine_path(task): "genuine", regenerated_path(task): "regenerated"}
    return folders.get(path, raw.origin)


def _cached(task: Task) -> Path:
    for path in (genuine_path(task.name), regenerated_path(task.name)):
        if path.exists():
            return path
    raise DataError(
        f"no dataset for {task.name} in the cache: get the published one with `gemrl data fetch "
        f"{task.name}`, which puts it at {genuine_path(task.name)}, or make one like it with "
        f"`gemrl data make {task.name}`"
    )


def _read(request: Request, columns: Columns | None) -> Raw:
    check_is_file(request)
    path = request.path
    suffix = path.suffix.lower()
    if suffix in LOGS:
        return read_log(path, columns)
    if suffix == ".npz":
        return _read_npz(path)
    with opened_hdf5(path) as file:
        raw = described_hdf5(file, path)
        return replace(raw, arrays={name: item[()] for name, item in raw.arrays.items()})


def described_hdf5(file: "h5py.File", path: Path) -> Raw:
    """What an open file holds, checked as far as its headers tell; its arrays are not yet read."""
    source = str(path)
    found = {name: hdf5_array(file, name, source) for name in (*REQUIRED, *OPTIONAL)}
    items = {name: item for name, item in found.items() if item is not None}
    _check_names(items, list(file), source)
    check_layout(items, source)
    check_hdf5_sizes(items.values(), path)
    limits = []
    for name in BOUNDS:
        item = hdf5_array(file, name, source)
        if item is not None:
            check_hdf5_sizes([item], path)
        if item is not None and item.size > items["actions"].shape[1]:
            raise DataError(f"{source}: {name} has shape {item.shape}; must be one an action")
        limits.append(hdf5_attribute(file, name) if item is None else item[()])
    return Raw(
        items,
        bounds=_both(limits, source),
        task=hdf5_text(file, "gemrl_task"),
        origin=hdf5_text(file, "gemrl_origin") or "unknown",
    )


def _read_npz(path: Path) -> Raw:
    source = str(path)

    def check(headers: Mapping[str, Shaped]) -> None:
        found = {name: header for name, header in headers.items() if name not in BOUNDS}
        _check_names(found, list(headers), source)
        check_layout(found, source)

    arrays = read_npz(path, (*REQUIRED, *OPTIONAL, *BOUNDS), check)
    limits = [arrays.pop(name, None) for name in BOUNDS]
    return Raw(arrays, bounds=_both(limits, source))


def _check_names(found: Mapping[str, Any], have: list[str], source: str) -> None:
    missing = [name for name in REQUIRED if name not in found]
    if missing:
        raise DataError(
            f"{source}: lacks {', '.join(missing)}; it has {', '.join(sorted(have)) or 'nothing'}"
        )


def _both(limits: list[np.ndarray | None], source: str) -> tuple[np.ndarray, np.ndarray] | None:
    low, high = limits
    if low is None and high is None:
        return None
    if low is None or high is None:
        raise DataError(f"{source}: action_low and action_high go together; it has one of them")
    for name, limit in zip(BOUNDS, (low, high), strict=True):
        if limit.dtype.kind not in "fiub" or limit.ndim > 1:
            raise DataError(f"{source}: {name} must be a number, or one for each action dimension")
    return low, high
