"""What a page is made of: the bundles and rows in the folders that it was given, by task."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemrl.data.tasks import TASKS
from gemrl.errors import BundleError
from gemrl.evaluate.rows import ROWS, Row, read_rows
from gemrl.learn.bundle import MANIFEST, load_manifest
from gemrl.learn.metrics import METRICS

# Where bundles are in a folder: seeds, and what `gemrl reproduce` trains, by task and method.
PLACES = ("seed-*", "*/seed-*", "runs/*/*", "runs/*/*/seed-*")
OURS = "gem"
"""The method that others are compared with."""
BASELINES = "baselines/*"
REPRODUCED_ROWS = "rows/*.jsonl"


@dataclass(frozen=True)
class Source:
    """A bundle's folder and manifest. Its weights are not read."""

    folder: Path
    manifest: dict[str, Any]
    task: str | None
    method: str
    seed: int
    updates: int
    digest: str
    dataset: dict[str, Any]

    @staticmethod
    def of(folder: Path) -> "Source":
        """The bundle in a folder."""
        manifest = load_manifest(folder)
        try:
            dataset = manifest["dataset"]
            texts = [dataset[name] for name in ("fingerprint", "origin", "source")]
            if not all(isinstance(text, str) for text in texts):
                raise TypeError("dataset has a name that is no text")
            return Source(
                folder=folder,
                manifest=manifest,
                task=manifest["task"],
                method=manifest["method"],
                seed=int(manifest["config"]["seed"]),
                updates=int(manifest["updates"]["main"]),
                digest=manifest["digest"],
                dataset=dataset,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BundleError(
                f"{folder / MANIFEST}: lacks a field of a manifest: {error}"
            ) from None


@dataclass
class Subject:
    """What one section of the page is about: a task, and the data that policies learned it from."""

    task: str | None
    fingerprint: str
    """Of the data. Rows of different data are never averaged."""
    sources: list[Source] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    row_folders: list[Path] = field(default_factory=list)
    """Where the rows were found: the paths of their episodes are kept beside them."""
    shared_name: bool = False
    """Whether another subject has the same task, so that its name must tell them apart."""

    @property
    def name(self) -> str:
        """What a person calls it."""
        name = self.task or "no benchmark task"
        return f"{name}, data {self.fingerprint[:8]}" if self.shared_name else name


@dataclass(frozen=True)
class Gathered:
    """Everything that was found."""

    subjects: list[Subject]
    unfinished: list[Path]
    """Folders in which training has begun and left no policy yet."""


Found = dict[tuple[str, int], tuple[Row, Path]]
"""Rows and their files' folders, by cell and episode."""


def gather(paths: Sequence[Path]) -> Gathered:
    """The bundles and rows of run folders and of files of rows, by task and data."""
    sources: dict[str, Source] = {}
    rows: Found = {}
    unfinished: list[Path] = []
    for path in paths:
        if path.is_file():
            _add_rows(rows, [path])
            continue
        folders = list(_folders(path))
        bundles = [folder for folder in folders if (folder / MANIFEST).exists()]
        files = [f for folder in folders if (f := folder / ROWS).exists()]
        files += sorted(path.glob(REPRODUCED_ROWS))
        if not bundles and not files:
            load_manifest(path)  # Says what is wrong with the folder.
        for source in map(Source.of, bundles):
            sources.setdefault(source.digest, source)
        _add_rows(rows, files)
        unfinished += [f for f in folders if (f / METRICS).exists() and f not in bundles]
    return Gathered(_subjects(sources, rows), unfinished)


def _folders(path: Path) -> Iterable[Path]:
    """Folders that may hold a bundle, each once."""
    found = [path, *(place for pattern in PLACES for place in sorted(path.glob(pattern)))]
    beside = [baseline for place in found for baseline in sorted(place.glob(BASELINES))]
    return dict.fromkeys(folder for folder in (*found, *beside) if folder.is_dir())


def _add_rows(rows: Found, files: Iterable[Path]) -> None:
    """Rows that are not there yet: an episode can be in a run's own file and in a collection."""
    for file in files:
        for row in read_rows(file):
            rows.setdefault((row.cell, row.episode_seed), (row, file.parent))


def _subjects(sources: dict[str, Source], rows: Found) -> list[Subject]:
    subjects: dict[tuple[str | None, str], Subject] = {}

    def subject(task: str | None, fingerprint: str) -> Subject:
        return subjects.setdefault((task, fingerprint), Subject(task, fingerprint))

    for source in sources.values():
        subject(source.task, source.dataset["fingerprint"]).sources.append(source)
    for row, folder in rows.values():
        found = subject(row.task, row.data_fingerprint)
        found.rows.append(row)
        if folder not in found.row_folders:
            found.row_folders.append(folder)
        # A policy can be evaluated in another task than its own.
        source = sources.get(row.bundle)
        if source is not None and source not in found.sources:
            found.sources.append(source)
    order = list(TASKS)
    found = sorted(
        subjects.values(),
        key=lambda s: (order.index(s.task) if s.task in TASKS else len(order), s.name),
    )
    names = [subject.task for subject in found]
    for each in found:
        each.shared_name = names.count(each.task) > 1
        each.sources.sort(key=lambda source: (source.method, source.seed))
    return found
