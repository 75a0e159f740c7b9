"""Datasets from files: D4RL-layout HDF5 and NPZ, or by task name from the cache folder."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from gemrl.data.dataset import Dataset, from_arrays
from gemrl.data.storage import genuine_path, regenerated_path
from gemrl.data.tasks import TASKS, Task, task_named
from gemrl.errors import DataError
from gemrl.progress import say

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations")


def load_dataset(source: str | Path, *, task: str | None = None) -> Dataset:
    """A dataset from a task name or from a path to an .hdf5 or .npz file.

    A task name is looked up in the cache folder: the published file first, then a regenerated one,
    saying which. `task` names the task of a file that does not say it itself.
    """
    if str(source) in TASKS:
        if task not in (None, str(source)):
            raise DataError(f"task {task!r} contradicts the dataset of {source}")
        path = _cached(task_named(str(source)))
        return _read(path, str(source))
    path = Path(source).expanduser()
    if not path.exists():
        raise DataError(f"{source}: neither a file nor a known task; tasks are {', '.join(TASKS)}")
    return _read(path, task)


def _cached(task: Task) -> Path:
    for origin, path in (
        ("genuine", genuine_path(task.name)),
        ("regenerated", regenerated_path(task.name)),
    ):
        if path.exists():
            say(f"using the {origin} dataset {path}")
            return path
    raise DataError(
        f"no dataset for {task.name} in the cache: make one with `gemrl data make {task.name}`, or "
        f"put the published file at {genuine_path(task.name)}"
    )


def _read(path: Path, task: str | None) -> Dataset:
    readers = {".hdf5": _read_hdf5, ".h5": _read_hdf5, ".npz": _read_npz}
    if path.is_dir() or path.suffix not in readers:
        raise DataError(f"{path}: not a dataset; must be a file ending in {', '.join(readers)}")
    arrays, attributes = readers[path.suffix](path)
    missing = [name for name in REQUIRED if name not in arrays]
    if missing:
        raise DataError(
            f"{path}: lacks {', '.join(missing)}; it has {', '.join(sorted(arrays)) or 'nothing'}"
        )
    own = attributes.get("gemrl_task")
    if task and own and task != own:
        raise DataError(f"{path} names its task {own!r}, which contradicts {task!r}")
    named = task or own
    known = task_named(named) if named else None
    origin = attributes.get("gemrl_origin", "unknown")
    if path == genuine_path(named or ""):
        origin = "genuine"
    return from_arrays(
        **{name: arrays[name] for name in (*REQUIRED, *OPTIONAL) if name in arrays},
        action_low=known.action_low if known else -1.0,
        action_high=known.action_high if known else 1.0,
        task=named,
        origin=origin,
        source=str(path.resolve()),
    )


def _read_hdf5(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            arrays = {}
            for name in (*REQUIRED, *OPTIONAL):
                item = file.get(name)
                if item is None:
                    continue
                if not isinstance(item, h5py.Dataset) or item.dtype.kind not in "fiub":
                    raise DataError(f"{path}: {name} is not an array of numbers")
                arrays[name] = item[()]
            attributes = {k: str(v) for k, v in file.attrs.items() if k.startswith("gemrl_")}
            return arrays, attributes
    except DataError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise DataError(f"{path}: not a readable HDF5 file ({error})") from error


def _read_npz(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    try:
        with zipfile.ZipFile(path):
            pass  # A single array is no archive, though NumPy would read it.
        with np.load(path, allow_pickle=False) as file:
            return {n: file[n] for n in (*REQUIRED, *OPTIONAL) if n in file.files}, {}
    except (
        OSError,
        ValueError,
        TypeError,
        EOFError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(f"{path}: not a readable NPZ file ({error})") from error
