"""The words of each command, as dataclasses: tyro makes flags and help of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

from tyro.conf import OmitArgPrefixes, Positional, arg

from gemrl.data.readers.columns import Columns

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
class DataFetchArgs:
    """Download a task's published dataset, checked and resumable."""

    task: Positional[str]
    """Name of the task."""
    source: Literal["d4rl", "minari"] = "d4rl"
    """D4RL's own file, or the nearest dataset of Minari's (never the same data)."""
    mirror: tuple[str, ...] = ()
    """Places to try first: the file's address, or a folder's, ending in /."""
    sha256: str | None = None
    """Checksum that the file must have."""
    timeout: float = 30.0
    """Seconds without a byte before an attempt is given up."""
    retries: int = 3
    """Further attempts at each place that bring no new byte."""


@dataclass
class DataCollectArgs:
    """Collect a dataset with anybody's policy files in a Gymnasium environment."""

    env: str
    """Environment, such as Hopper-v4."""
    policy: tuple[Path, ...]
    """Policy files (.npz); each has an equal share of the steps, in this order."""
    out: Path
    """File to write (.hdf5)."""
    steps: int = 100_000
    """Transitions."""
    seed: int = 0
    """The same seed gives the same data."""
    horizon: int | None = None
    """Steps of an episode; by default the environment's own."""
    deterministic: bool = False
    """Execute the mean instead of a sample."""
    task: str | None = None
    """Task that the data stands for: gives reference scores and reward scale."""


@dataclass
class ReadingArgs:
    """How a file that needs explaining is read."""

    columns: Path | None = None
    """TOML file that says what the columns of a log (.csv, .parquet) are."""
    column: OmitArgPrefixes[Columns] = field(default_factory=Columns)
    bounds: str | None = None
    """Action bounds: task, file, unit, data, quantiles, or LOW,HIGH; by default the best known."""
    outside: Literal["refuse", "clip", "rescale"] = "refuse"
    """What to do with actions outside the bounds."""


@dataclass
class DataInspectArgs:
    """Say what one must know of a dataset before training on it."""

    file: Positional[str]
    """Path of a file (.hdf5, .npz, .parquet, .csv), a task's name, or minari:ID."""
    reading: OmitArgPrefixes[ReadingArgs]
    task: str | None = None
    """Task of a file that does not name it."""
    json: bool = False
    """Print JSON."""
    html: Path | None = None
    """Write a page with pictures to this file as well."""


@dataclass
class TrainArgs(Generic[Config]):
    """Train a policy from a dataset (Phase I). Other methods have other settings: see
    `gemrl train --method iql --help`.
    """

    dataset: Positional[str]
    """Path of a file (.hdf5, .npz, .parquet, .csv), a task's name, or minari:ID."""
    config: OmitArgPrefixes[Config]
    reading: OmitArgPrefixes[ReadingArgs] = field(default_factory=ReadingArgs)
    method: str = "gem"
    """gem, iql, bc, td3bc, awac, cql, rebrac, sacn, edac, dt, idql, diffusionql, fql, ifql or
    ssar. The settings below are those of the method named."""
    out: Path | None = None
    """Folder of the run; by default runs/METHOD, or RUN-again with --from RUN."""
    resume: bool = False
    """Go on with a run that was cut off; a finished run is left as it is."""
    task: str | None = None
    """Task of a file that does not name it: gives action bounds, reward scale and reference."""
    seeds: int = 1
    """Train this many seeds, from --seed on, into OUT/seed-S: side by side, each on cores of its
    own."""
    replay: Annotated[Path | None, arg(name="from")] = None
    """Train once more what this run's folder says: same dataset, method and settings, but for the
    flags given."""
    memory: str | None = None
    """Limit on resident memory, such as 2GB: a dataset that would exceed it is trained on from
    disk."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard as well, to OUT/tensorboard."""
    wandb: str | None = None
    """Send the metrics to this project of Weights & Biases as well."""
    snapshot_every: int | None = None
    """Keep the policy on its way after every so many updates, as a bundle in OUT/snapshots."""
    baselines: bool = False
    """Train the actors of IQL and behaviour cloning beside GEM as well, into OUT/baselines."""
    data_parallel: bool = False
    """Split each minibatch among all devices of this machine."""
    coordinator: str | None = None
    """Train together with other processes: HOST:PORT of process 0, or auto where the scheduler
    tells. Implies --data-parallel."""
    processes: int | None = None
    """How many processes train together."""
    process: int | None = None
    """Which of them this is, from 0."""


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
    """Execute the mean of this many best, or drawn, candidates."""
    source: Literal["actor", "behavior", "unimodal"] | None = None
    """Where candidates come from."""
    anchor: Literal["mode", "barycenter", "none"] | None = None
    """The deterministic candidate."""
    support: Literal["zscore", "raw"] | None = None
    """Support standardized within the candidate set, or as log density."""
    value: Literal["raw", "zscore"] | None = None
    """The lower bound on value as it is, or standardized as support is."""
    temperature: float | None = None
    """0 executes the best candidate; above, one is drawn in proportion to exp(score /
    temperature)."""


@dataclass(kw_only=True)
class RuleArgs:
    """Whose rule decides."""

    decide: Literal["own", "gem"] = "own"
    """Whose rule decides where knobs do not say: the method's own, or GEM's."""
    behavior: Path | None = None
    """Folder of a policy whose behaviour density a policy without one takes: GEM's rule needs
    it."""


@dataclass
class EvalArgs(RuleArgs):
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
    """Judge a policy on data it was not trained on, with no environment: fit, support calibration,
    a grid of knobs, critics' spread and the winner's curse.
    """

    run: Positional[Path]
    """Folder of a trained run."""
    knobs: OmitArgPrefixes[KnobArgs]
    dataset: str | None = None
    """The dataset it was trained on; by default where it was read from."""
    states: int = 1000
    """Held-out states to decide at."""
    seed: int = 0
    """The same seed gives the same candidates, samples and random actions."""
    json: bool = False
    """Print JSON."""
    html: Path | None = None
    """Write a page with pictures to this file as well."""
    gates: bool = False
    """Calibrate gates for these knobs on the held-out episodes as well, and save them in RUN."""


@dataclass
class ReportArgs:
    """Write one self-contained HTML page about trained runs, out of their rows and bundles; or
    print a Markdown table of files of rows.
    """

    runs: Positional[tuple[Path, ...]]
    """Folders of trained runs, of several seeds or of a study, or files of rows (.jsonl)."""
    out: Path | None = None
    """File to write; by default report.html in the first run's folder. Files of rows alone are
    printed as Markdown unless a file is given here."""
