"""Datasets of a local Minari store, read without the library that wrote them.

A dictionary observation becomes one vector: its keys sorted, those of dictionaries inside it joined
with a dot, goals included, each entry's numbers one after the other.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemrl.data.dataset import Raw
from gemrl.data.limits import check_hdf5_sizes, hdf5_array, hdf5_member, opened_hdf5
from gemrl.data.storage import minari_store
from gemrl.errors import DataError

if TYPE_CHECKING:
    import h5py

PREFIX = "minari:"
_FLAT = ("rewards", "terminations", "truncations")


@dataclass(frozen=True, eq=False)
class _Episode:
    """Arrays of an episode, not yet read."""

    name: str
    observations: dict[str, "h5py.Dataset"]
    actions: "h5py.Dataset"
    flat: dict[str, "h5py.Dataset"]

    def __len__(self) -> int:
        return self.actions.shape[0]

    @property
    def widths(self) -> dict[str, int]:
        """Numbers of each entry of the observation."""
        return {
            key: 1 if len(array.shape) == 1 else array.shape[1]
            for key, array in self.observations.items()
        }


def read_minari(name: str) -> Raw:
    """The dataset of that ID."""
    folder = _folder(name)
    source = f"{PREFIX}{name}"
    about = _metadata(folder, source)
    spaces = {key: _space(about, key, source) for key in ("observation_space", "action_space")}
    _refuse(spaces["observation_space"], "observation", source)
    _refuse(spaces["action_space"], "action", source)
    path = folder / "main_data.hdf5"
    if not path.is_file():
        raise DataError(
            f"{source}: {folder} has no main_data.hdf5 but the format "
            f"{about.get('data_format', 'unknown')!r}; write it anew with data_format='hdf5'"
        )
    with opened_hdf5(path) as file:
        names = [key for key in map(str, file) if re.fullmatch(r"episode_\d+", key)]
        names.sort(key=lambda key: int(key.removeprefix("episode_")))
        episodes = [_episode(file, key, f"{source}: {key}") for key in names]
        episodes = [episode for episode in episodes if len(episode)]
        if not episodes:
            raise DataError(f"{source}: the dataset is empty; it needs at least one transition")
        for episode in episodes:
            if episode.widths != episodes[0].widths:
                raise DataError(
                    f"{source}: {episode.name} has observations {episode.widths} where "
                    f"{episodes[0].name} has {episodes[0].widths}"
                )
            if episode.actions.shape[1] != episodes[0].actions.shape[1]:
                raise DataError(f"{source}: {episode.name} has actions of another width")
        check_hdf5_sizes(
            (
                array
                for episode in episodes
                for array in (
                    *episode.observations.values(),
                    episode.actions,
                    *episode.flat.values(),
                )
            ),
            path,
        )
        arrays = _joined(episodes)
    notes = [_layout(episodes[0].widths)] if "" not in episodes[0].widths else []
    return Raw(arrays, notes=tuple(notes), bounds=_bounds(spaces["action_space"], arrays, source))


def _folder(name: str) -> Path:
    root = minari_store()
    if not name or ".." in Path(name).parts or Path(name).is_absolute():
        raise DataError(f"{PREFIX}{name}: not a dataset's ID, such as minari:D4RL/door/human-v2")
    folder = root / name / "data"
    if not folder.is_dir():
        raise DataError(
            f"{PREFIX}{name}: not in the local store {root}; get it with `minari download {name}`, "
            "or say where the store is in MINARI_DATASETS_PATH"
        )
    return folder


def _metadata(folder: Path, source: str) -> dict[str, Any]:
    path = folder / "metadata.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{source}: {path} is not readable JSON ({error})") from error
    return about if isinstance(about, dict) else {}


def _space(about: dict[str, Any], key: str, source: str) -> dict[str, Any] | None:
    """A space as the metadata has it: JSON as text inside JSON."""
    try:
        space = json.loads(about[key]) if key in about else None
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{source}: {key} in metadata.json is not JSON ({error})") from error
    return space if isinstance(space, dict) else None


def _refuse(space: dict[str, Any] | None, what: str, source: str) -> None:
    """Refuse spaces that are no vectors of numbers."""
    if space is None:
        return
    kind = space.get("type")
    parts = space.get("subspaces")
    if kind == "Dict" and what.startswith("observation") and isinstance(parts, dict):
        for key, part in parts.items():
            _refuse(part if isinstance(part, dict) else {}, f"{what}.{key}", source)
        return
    shape = space.get("shape")
    if kind != "Box":
        raise DataError(
            f"{source}: the space of the {what} is {kind}; only vectors of numbers (Box) and, for "
            "observations, dictionaries of them are supported"
        )
    if isinstance(shape, list) and len(shape) > 1:
        raise DataError(
            f"{source}: the {what} has shape {shape}; images and other arrays are not supported, "
            "only vectors"
        )


def _episode(file: "h5py.File", name: str, source: str) -> _Episode:
    import h5py

    group = hdf5_member(file, name, source)
    if not isinstance(group, h5py.Group):
        raise DataError(f"{source} is not a group")
    observations = _entries(group, "observations", "", source)
    actions = hdf5_array(group, "actions", source)
    flat = {key: hdf5_array(group, key, source) for key in _FLAT}
    found = {"observations": observations or None, "actions": actions, **flat}
    if missing := [key for key, value in found.items() if value is None]:
        raise DataError(f"{source} lacks {', '.join(missing)}; it has {', '.join(group)}")
    assert actions is not None
    if len(actions.shape) != 2:
        raise DataError(f"{source}: actions has shape {actions.shape}; must be [steps, dimensions]")
    steps = actions.shape[0]
    for key, array in flat.items():
        if array is not None and array.shape not in ((steps,), (steps, 1)):
            raise DataError(f"{source}: {key} has shape {array.shape} where actions has {steps}")
    for key, array in observations.items():
        if len(array.shape) not in (1, 2) or array.shape[0] != steps + 1:
            raise DataError(
                f"{source}: observations {key} has shape {array.shape}; must be "
                f"[{steps + 1}, dimensions], a row more than there are actions"
            )
    return _Episode(name, observations, actions, {k: a for k, a in flat.items() if a is not None})


def _entries(group: "h5py.Group", name: str, key: str, source: str) -> dict[str, "h5py.Dataset"]:
    """Arrays of a possibly nested dictionary by their dotted keys, sorted at each level."""
    import h5py

    item = hdf5_member(group, name, source)
    if isinstance(item, h5py.Group):
        if key.count(".") > 8:
            raise DataError(f"{source}: observations are nested too deeply")
        entries = {}
        for part in sorted(item):
            found = _entries(item, part, f"{key}.{part}" if key else part, source)
            if both := sorted(entries.keys() & found.keys()):
                raise DataError(
                    f"{source}: observations have {both[0]!r} twice, as a key and as that of a "
                    "dictionary inside another; rename one"
                )
            entries |= found
        return entries
    array = hdf5_array(group, name, source)
    return {} if array is None else {key: array}


def _joined(episodes: list[_Episode]) -> dict[str, np.ndarray]:
    """All episodes one after the other, each row beside its true successor."""
    rows, width = sum(map(len, episodes)), sum(episodes[0].widths.values())
    arrays = {
        "observations": np.empty((rows, width), np.float32),
        "next_observations": np.empty((rows, width), np.float32),
        "actions": np.empty((rows, episodes[0].actions.shape[1]), np.float32),
        "rewards": np.empty(rows, np.float32),
        "terminals": np.empty(rows, np.float32),
        "timeouts": np.zeros(rows, bool),
    }
    start = 0
    with np.errstate(over="ignore"):  # Too large is infinite, which training refuses.
        for episode in episodes:
            here = slice(start, start + len(episode))
            at = 0
            for key, wide in episode.widths.items():
                values = episode.observations[key][()].reshape(len(episode) + 1, wide)
                arrays["observations"][here, at : at + wide] = values[:-1]
                arrays["next_observations"][here, at : at + wide] = values[1:]
                at += wide
            arrays["actions"][here] = episode.actions[()]
            arrays["rewards"][here] = episode.flat["rewards"][()].reshape(-1)
            arrays["terminals"][here] = episode.flat["terminations"][()].reshape(-1)
            arrays["timeouts"][here] = episode.flat["truncations"][()].reshape(-1)
            arrays["timeouts"][here.stop - 1] = True
            start = here.stop
    return arrays


def _layout(widths: dict[str, int]) -> str:
    parts, at = [], 0
    for key, wide in widths.items():
        parts.append(f"{key} [{at}:{at + wide}]")
        at += wide
    return f"observations are joined in the order of their keys: {', '.join(parts)}"


def _bounds(
    space: dict[str, Any] | None, arrays: dict[str, np.ndarray], source: str
) -> tuple[np.ndarray, np.ndarray] | None:
    if space is None or "low" not in space or "high" not in space:
        return None
    try:
        low, high = (
            np.asarray(space[side], dtype=np.float32).reshape(-1) for side in ("low", "high")
        )
    except (TypeError, ValueError) as error:
        raise DataError(f"{source}: action_space has bounds that are no numbers") from error
    size = arrays["actions"].shape[1]
    if low.size not in (1, size) or high.size not in (1, size):
        raise DataError(
            f"{source}: action_space bounds {low.size} dimensions, and actions have {size}"
        )
    return low, high
