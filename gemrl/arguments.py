"""The words of each command, as dataclasses: tyro makes flags and help of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from tyro.conf import OmitArgPrefixes, Positional

Config = TypeVar("Config")


@dataclass
class DemoArgs:
    """Regenerate Maze2D-umaze data, train GEM and its baselines, evaluate, and write a report."""

    steps: int = 15_000
    """Training updates of each method."""
    seeds: int = 1
    """Training seeds."""
    episodes: int = 50
    """Test episodes a setting; half as many on validation seeds choose the support weight."""
    data_steps: int | None = None
    """Transitions of the dataset; by default as many as the published one has."""
    pretrain_steps: int | None = None
    """Updates of GEM's behaviour density; by default a tenth of the steps and at least 10,000."""
    learning_rate: float = 1e-3
    """Adam's step size: larger than `gemrl train` has it, so that minutes are enough."""
    polyak: float = 0.02
    """Rate at which target critics follow, likewise faster than in `gemrl train`."""
    out: Path = Path("runs/demo")
    """Folder for policies, rows and the report."""


@dataclass
class DataListArgs:
    """List the known tasks and which datasets are at hand."""

    json: bool = False
    """Print JSON."""


@dataclass
class DataMakeArgs:
    """Regenerate a task's dataset by its published recipe."""

    task: Positional[str]
    """Name of the task."""
    steps: int | None = None
    """Transitions; by default as many as the published dataset has."""
    seed: int = 0
    """The same seed gives the same data."""
    out: Path | None = None
    """File to write; by default the cache folder, where commands find it by the task's name."""


@dataclass
class DataInspectArgs:
    """Say what one must know of a dataset before training on it."""

    file: Positional[str]
    """Path of an .hdf5 or .npz file, or a task's name."""
    task: str | None = None
    """Task of a file that does not name it."""
    json: bool = False
    """Print JSON."""


@dataclass
class TrainArgs(Generic[Config]):
    """Train a policy from a dataset (Phase I). Other methods have other settings: see
    `gemrl train --method iql --help`.
    """

    dataset: Positional[str]
    """Path of an .hdf5 or .npz file, or a task's name."""
    config: OmitArgPrefixes[Config]
    method: str = "gem"
    """gem, iql or bc."""
    out: Path | None = None
    """Folder of the run; by default runs/METHOD."""
    resume: bool = False
    """Go on with a run that was cut off; a finished run is left as it is."""
    task: str | None = None
    """Task of a file that does not name it: gives action bounds, reward scale and reference."""


@dataclass
class KnobArgs:
    """The knobs of a decision."""

    n: int | None = None
    """Candidates beside the anchor; 0 is the anchor alone."""
    lam: float | None = None
    """Pessimism: critics' standard deviations taken off their mean."""
    wp: float | None = None
    """Constant weight of behaviour support against value."""
    wp_end: float | None = None
    """Let the weight fall from 1 to this value over the task's horizon instead."""
    k_smooth: int | None = None
    """Execute the mean of this many best candidates."""
    source: Literal["actor", "behavior", "unimodal"] | None = None
    """Where candidates come from."""
    anchor: Literal["mode", "barycenter", "none"] | None = None
    """The deterministic candidate."""
    support: Literal["zscore", "raw"] | None = None
    """Support standardized within the candidate set, or as log density."""
    value: Literal["raw", "zscore"] | None = None
    """The lower bound on value as it is, or standardized as support is."""


@dataclass
class EvalArgs:
    """Run a policy in its task's environment and add a row an episode to RUN/rows.jsonl."""

    run: Positional[Path]
    """Folder of a trained run."""
    knobs: OmitArgPrefixes[KnobArgs]
    episodes: int | None = None
    """Episodes; by default as many as the task's protocol has."""
    protocol: Literal["validation", "test"] = "test"
    """Which seeds: knobs are chosen on validation, scores told on test."""
    task: str | None = None
    """Task of a policy whose data names none."""
    json: bool = False
    """Print JSON."""


@dataclass
class AuditArgs:
    """Judge a policy on its dataset, with no environment: fit, support and critics' spread."""

    run: Positional[Path]
    """Folder of a trained run."""
    knobs: OmitArgPrefixes[KnobArgs]
    dataset: str | None = None
    """The dataset it was trained on; by default where it was read from."""
    states: int = 1000
    """Held-out states to decide at."""
    json: bool = False
    """Print JSON."""


@dataclass
class ReportArgs:
    """Write one self-contained HTML page about trained runs, out of their rows and bundles; or
    print a Markdown table of files of rows.
    """

    runs: Positional[tuple[Path, ...]]
    """Folders of trained runs, or files of rows (.jsonl)."""
    out: Path | None = None
    """File to write; by default report.html in the first run's folder."""
