"""Published datasets from the web: D4RL's own files, and the nearest ones in Minari's store."""

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gemrl.data.fetch.download import (
    Check,
    Download,
    Record,
    Report,
    digest,
    locked,
    read_record,
    record_path,
    silent,
    unchecked,
    write_record,
    writing,
)
from gemrl.data.fetch.web import Failure
from gemrl.data.limits import (
    check_hdf5_sizes,
    check_layout,
    hdf5_array,
    hdf5_member,
    hdf5_text,
    opened_hdf5,
)
from gemrl.data.readers import OPTIONAL, REQUIRED
from gemrl.data.storage import genuine_path, minari_store
from gemrl.data.tasks import Task
from gemrl.errors import DataError
from gemrl.progress import say

if TYPE_CHECKING:
    import h5py

BACKOFF = 1.0
"""Seconds before the first further attempt; each one after that waits twice as long."""
HDF5 = b"\x89HDF"
"""How an HDF5 file begins."""
LONGEST = 86_400
"""Seconds of silence that may be waited for: a day, far below what a socket can count."""
ROUNDED = 0.02
"""Part by which a published file's rows may differ from `published_steps`, which are rounded."""

# Minari's own remotes: `minari/storage/remotes/huggingface.py` of Minari 0.5.4 (a repository for
# the first part of the id, the rest is the path in it), and the bucket that was the default before.
_MINARI = "https://huggingface.co/datasets/farama-minari/"
_MINARI_BUCKET = "https://storage.googleapis.com/minari-remote/"
_EPISODE = ("observations", "actions", "rewards", "terminations", "truncations")


def fetch(
    task: Task,
    *,
    source: Literal["d4rl", "minari"] = "d4rl",
    mirrors: Sequence[str] = (),
    sha256: str | None = None,
    timeout: float = 30.0,
    retries: int = 3,
    report: Report = silent,
) -> Path:
    """Fetch a task's published file, or the nearest dataset in Minari; returns where it is.

    That is the file in the cache folder, or the dataset's folder in Minari's local store. `mirrors`
    are tried first, then those in `GEMRL_MIRROR`; one that ends in `/` is a folder, to which the
    file's published path is added. `sha256` is of the file with the data.
    """
    if sha256 is not None and not re.fullmatch("[0-9a-f]{64}", sha256 := sha256.lower()):
        raise DataError(f"sha256 must be 64 hexadecimal digits, not {sha256!r}")
    if not 0 < timeout <= LONGEST:
        raise DataError(f"timeout = {timeout:g}: must be above 0 and at most {LONGEST:,} seconds")
    if retries < 0:
        raise DataError(f"retries = {retries}: must be at least 0")
    own = [*mirrors, *os.environ.get("GEMRL_MIRROR", "").split()]
    for mirror in own:
        if not re.match("https?://.", mirror):
            raise DataError(f"a mirror must begin with http:// or https://, unlike {mirror!r}")
    if source == "minari":
        return _fetch_minari(task, own, sha256, timeout, retries, report)
    out = genuine_path(task.name)
    published = task.urls[0].partition("/offline_rl/")[2]
    fetch_file(
        [*_places(own, published), *task.urls],
        out,
        sha256=sha256,
        signature=HDF5,
        check=lambda path: _d4rl_complaint(path, task),
        timeout=timeout,
        retries=retries,
        report=report,
        advice=f"Instead, `gemrl data make {task.name}` regenerates it; or put the published file "
        f"at {out}; or name another place with --mirror URL",
    )
    return out


def fetch_file(
    urls: Sequence[str],
    out: Path,
    *,
    sha256: str | None = None,
    size: int | None = None,
    signature: bytes = b"",
    check: Check = unchecked,
    timeout: float = 30.0,
    retries: int = 3,
    report: Report = silent,
    advice: str = "",
) -> Record:
    """A file from the first of its places that has it; nothing is fetched where it is there.

    `signature` is how its content begins, and `check` looks at the whole content. A place is given
    up after `retries` further attempts that brought no new bytes. `advice` ends the error's text.
    """
    with locked(out):
        record = read_record(out)
        earlier = f"the SHA-256 of an earlier fetch in {record_path(out)} (delete that to allow it)"
        trust = "the SHA-256 given" if sha256 else earlier
        sha256 = sha256 or (record.sha256 if record else None)
        file = Download(out, sha256, trust, size, signature, check, timeout, report)
        if out.exists() and (present := _accept_present(file, record)):
            return present
        failures: list[tuple[str, Failure]] = []
        for url in urls:
            try:
                return _persist(file, url, retries)
            except Failure as failure:
                failures.append((url, failure))
                if url != urls[-1] and not failure.offline:
                    say(f"{url}: {failure}; trying the next place")
        raise DataError(_summary(file, failures, advice))


def _persist(file: Download, url: str, retries: int) -> Record:
    """Attempts at one place, for as long as they bring new bytes or are few."""
    fruitless, most = 0, file.have()
    while True:
        try:
            part = file.attempt(url)
            break
        except Failure as failure:
            fruitless = 0 if file.have() > most else fruitless + 1
            most = max(most, file.have())
            if not failure.again or fruitless > retries:
                raise
            say(f"{url}: {failure}; trying again")
            time.sleep(min(BACKOFF * 2 ** max(fruitless - 1, 0), 30.0))
    if file.sha256:
        how = file.trust
    else:
        whole = f"{' and '.join(part.digests)} in the server's header" if part.digests else "size"
        how = f"{whole} and structure; no published checksum: trust on first use"
    # The record first: should a kill come between, the whole partial file is checked against it.
    record = write_record(file.out, part.url, digest(file.part), file.have(), how)
    aside = file.out.with_name(f"{file.out.name}.differs")
    with writing(file.out):
        if file.out.exists():
            os.replace(file.out, aside)
            say(f"{file.out}: what was there before is now {aside}")
        os.replace(file.part, file.out)
        file.drop()
    if not file.sha256:
        say(
            f"{file.out.name}: no checksum is published, so this is trust on first use; its "
            f"SHA-256 {record.sha256} is recorded, and a later fetch must match it"
        )
    return record


def _accept_present(file: Download, record: Record | None) -> Record | None:
    """The record of the file that has the final name already; none where it is to be replaced."""
    out = file.out
    if out.is_dir():
        raise DataError(f"cannot fetch to {out}: it is a folder")
    got = digest(out)
    if file.sha256 and got != file.sha256:
        differs = f"{out}: its SHA-256 is {got}, but {file.trust} is {file.sha256}"
        if record is None or record.sha256 != file.sha256:  # Mistyped, for all that is known.
            raise DataError(
                f"{differs}: it stays; check the number given, or move it away to fetch another"
            )
        say(f"{differs}: fetching it anew; until that is there, it stays")
        return None
    file.drop()
    if record and record.sha256 == got:
        say(f"{out} is already there and matches its record: nothing to fetch")
        return record
    if complaint := file.check(out):
        raise DataError(f"{out} is already there, but {complaint}: move it away to fetch it anew")
    say(f"{out} is already there: nothing to fetch; its SHA-256 {got} is now recorded")
    how = file.trust if file.sha256 else "structure only: it was there before any fetch"
    return write_record(out, None, got, out.stat().st_size, how)


def _summary(file: Download, failures: list[tuple[str, Failure]], advice: str) -> str:
    if failures and all(failure.offline for _, failure in failures):
        reasons = ", ".join(dict.fromkeys(str(failure) for _, failure in failures))
        text = f"no server can be reached from here ({reasons})"
    else:
        text = "; ".join(f"{url}: {failure}" for url, failure in failures)
    if have := file.have():
        text += f". {have:,} bytes are kept in {file.part}, and the next fetch goes on from there"
    return f"cannot fetch {file.out.name}: {text}. {advice}".rstrip(". ")


def _places(mirrors: Sequence[str], published: str) -> list[str]:
    return [mirror + published if mirror.endswith("/") else mirror for mirror in mirrors]


def _d4rl_complaint(path: Path, task: Task) -> str | None:
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


def _fetch_minari(
    task: Task,
    mirrors: Sequence[str],
    sha256: str | None,
    timeout: float,
    retries: int,
    report: Report,
) -> Path:
    """A dataset in Minari's local store, which sees it only once all of it is there."""
    for mirror in mirrors:
        if not mirror.endswith("/"):
            raise DataError(
                f"a mirror of Minari is a folder and must end in /, unlike {mirror!r}: a dataset "
                "there is two files"
            )
    root = minari_store()
    final, staged = root / task.minari, root / ".gemrl" / task.minari
    repository, _, rest = task.minari.partition("/")
    with locked(staged):
        # Minari takes any folder of that name for a whole dataset, but looks into no hidden one.
        folder = (final if final.exists() else staged) / "data"
        for name, signature, check in (
            ("metadata.json", b"{", _minari_metadata_complaint),
            ("main_data.hdf5", HDF5, _minari_complaint),
        ):
            fetch_file(
                [
                    *(f"{mirror}{task.minari}/data/{name}" for mirror in mirrors),
                    f"{_MINARI}{repository}/resolve/main/{rest}/data/{name}",
                    f"{_MINARI_BUCKET}{task.minari}/data/{name}",
                ],
                folder / name,
                sha256=sha256 if signature == HDF5 else None,
                signature=signature,
                check=check,
                timeout=timeout,
                retries=retries,
                report=report,
                advice=f"Instead, `gemrl data make {task.name}` regenerates a dataset for the "
                f"task; or `minari download {task.minari}` where there is a network; or name "
                "another place with --mirror URL/",
            )
        if folder.parent == staged:
            with writing(final):
                final.parent.mkdir(parents=True, exist_ok=True)
                os.replace(staged, final)
    return final


def _minari_metadata_complaint(path: Path) -> str | None:
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return f"it is not readable JSON ({error})"
    if not isinstance(metadata.get("total_episodes"), int):
        return "it does not say how many episodes there are"
    kind = metadata.get("data_format", "hdf5")
    return None if kind == "hdf5" else f"its data are in the format {kind}, not in HDF5"


def _minari_complaint(path: Path) -> str | None:
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
                found = {name: _minari_arrays(group, name, place) for name in _EPISODE}
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
