"""Published datasets from the web: D4RL's own files, and the nearest ones in Minari's store."""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from gemrl.data.fetch.checks import d4rl_complaint, minari_complaint, minari_metadata_complaint
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
from gemrl.data.storage import genuine_path, minari_store
from gemrl.data.tasks import Task
from gemrl.errors import DataError
from gemrl.progress import say

BACKOFF = 1.0
"""Seconds before the first further attempt; each one after that waits twice as long."""
HDF5 = b"\x89HDF"
"""How an HDF5 file begins."""
LONGEST = 86_400
"""Seconds of silence that may be waited for: a day, far below what a socket can count."""

# Minari's own remotes: `minari/storage/remotes/huggingface.py` of Minari 0.5.4 (a repository for
# the first part of the id, the rest is the path in it), and the bucket that was the default before.
_MINARI = "https://huggingface.co/datasets/farama-minari/"
_MINARI_BUCKET = "https://storage.googleapis.com/minari-remote/"


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
        check=lambda path: d4rl_complaint(path, task),
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
            ("metadata.json", b"{", minari_metadata_complaint),
            ("main_data.hdf5", HDF5, minari_complaint),
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
