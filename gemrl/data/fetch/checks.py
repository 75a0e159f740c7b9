"""Whether what was downloaded is what was asked for, looked at through the readers' guards."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from gemrl.data.limits import (
    check_hdf5_sizes,
    check_layout,
    hdf5_array,
    hdf5_member,
    hdf5_text,
    opened_hdf5,
)
from gemrl.data.readers import OPTIONAL, REQUIRED
from gemrl.data.tasks import Task
from gemrl.errors import DataError

if TYPE_CHECKING:
    import h5py

ROUNDED = 0.02
"""Part by which a published file's rows may differ from `published_steps`, which are rounded."""
EPISODE = ("observations", "actions", "rewards", "terminations", "truncations")


def d4rl_complaint(path: Path, task: Task) -> str | None:
    """What makes a file not be a task's published dataset; every value is read once."""
    source = str(path)
    try:
        with opened_hdf5(path) as file:
            if "gemrl_origin" in file.attrs:
                origin = hdf5_text(file, "gemrl_origin")
                return f"its gemrl_origin is {origin}: gemrl wrote it, it is not the published file"
            arrays = {}
            for name in (*REQUIRED, *OPTIONAL):
                _refuse_link(file, name, source)
                if (array := hdf5_array(file, name, source)) is not None:
                    arrays[name] = array
            for name in REQUIRED:
                if name not in arrays:
                    return f"it has no array {name}"
            check_layout(arrays, source)
            rows = arrays["observations"].shape[:1]
            state = (*rows, task.obs_dim)
            wanted = {
                "observations": state,
                "next_observations": state,
                "actions": (*rows, task.action_dim),
            }
            for name, array in arrays.items():
                if array.shape != wanted.get(name, rows):
                    return f"its {name} have shape {array.shape}, which is not {task.name}'s"
            if abs(rows[0] - task.published_steps) > ROUNDED * task.published_steps:
                return (
                    f"it has {rows[0]:,} rows where the published dataset of {task.name} has about "
                    f"{task.published_steps:,}"
                )
            check_hdf5_sizes(arrays.values(), path)
            for array in arrays.values():
                _read_through(array)
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    return None


def _refuse_link(group: "h5py.Group", name: str, source: str) -> None:
    """Refuse links, even those inside the file: published files have none."""
    import h5py

    if isinstance(group.get(name, getlink=True), h5py.SoftLink | h5py.ExternalLink):
        raise DataError(f"{source}: {name} is a link, and published files have none")


def _read_through(array: "h5py.Dataset") -> None:
    """Read every value and keep none: a few whole chunks at a time, each of them once."""
    step = array.chunks[0] if array.chunks else 1
    step *= max(2**22 * array.shape[0] // (array.nbytes * step), 1)
    for start in range(0, array.shape[0], step):
        array[start : start + step]


def minari_metadata_complaint(path: Path) -> str | None:
    """What makes a file not be the metadata of a dataset in HDF5."""
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return f"it is not readable JSON ({error})"
    if not isinstance(metadata.get("total_episodes"), int):
        return "it does not say how many episodes there are"
    kind = metadata.get("data_format", "hdf5")
    return None if kind == "hdf5" else f"its data are in the format {kind}, not in HDF5"


def minari_complaint(path: Path) -> str | None:
    """What makes a file not be the data that the metadata beside it describe."""
    metadata = json.loads(path.with_name("metadata.json").read_text(encoding="utf-8"))
    wanted = metadata["total_episodes"]
    source = str(path)
    try:
        with opened_hdf5(path) as file:
            episodes = [name for name in map(str, file) if "episode_" in name]
            if len(episodes) != wanted:
                return f"it has {len(episodes)} episodes where its metadata say {wanted}"
            arrays = []
            for episode in episodes:
                _refuse_link(file, episode, source)
                group, place = hdf5_member(file, episode, source), f"{source}: {episode}"
                found = {name: _minari_arrays(group, name, place) for name in EPISODE}
                if missing := [name for name, held in found.items() if not held]:
                    return f"{episode} lacks {', '.join(missing)}"
                arrays += [array for held in found.values() for array in held]
            check_hdf5_sizes(arrays, path)
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    return None


def _minari_arrays(
    group: "h5py.Group | h5py.Dataset | None", name: str, source: str
) -> list["h5py.Dataset"]:
    """An array, or those of a dictionary; none of the tasks has dictionaries inside those."""
    import h5py

    if not isinstance(group, h5py.Group):
        return []
    _refuse_link(group, name, source)
    item = hdf5_member(group, name, source)
    folder, names = (item, list(item)) if isinstance(item, h5py.Group) else (group, [name])
    for key in names:
        _refuse_link(folder, key, source)
    held = [hdf5_array(folder, key, source) for key in names]
    return [array for array in held if array is not None]
