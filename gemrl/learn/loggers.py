"""Where metrics go besides the run's own JSON lines: TensorBoard and Weights & Biases.

Both are optional parts of the installation. One that cannot be opened stops the run before it has
begun. One that fails later is left out with a word, since training is worth more than its plots and
the JSON lines have every number.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from gemrl.data.storage import write_text
from gemrl.errors import GemrlError, MissingExtraError, TrainingError
from gemrl.progress import say

TENSORBOARD = "tensorboard"
WANDB_ID = "wandb-id.txt"


class Sink(Protocol):
    """Somewhere that metrics go."""

    def log(self, update: int, values: Mapping[str, float]) -> None:
        """Take the metrics after `update` updates in all."""
        ...

    def close(self) -> None:
        """Hand over what is still held back."""
        ...


def open_sinks(
    out: Path,
    *,
    tensorboard: bool,
    wandb: str | None,
    config: dict[str, Any],
    done: int,
    name: str,
) -> list[Sink]:
    """The sinks of a run in the folder `out`, which goes on after `done` updates.

    `wandb` is a project's name, `name` the run's own there. Close every sink, however the run ends.
    """
    sinks: list[Sink] = []
    try:
        if tensorboard:
            opened = _opened("TensorBoard", lambda: TensorBoard(out / TENSORBOARD, done))
            sinks.append(opened)
        if wandb is not None:
            opened = _opened(
                "Weights & Biases",
                lambda: WeightsAndBiases(out, wandb, config, done, name),
                "; WANDB_MODE=offline needs neither network nor account",
            )
            sinks.append(opened)
    except BaseException:
        for sink in sinks:
            sink.close()
        raise
    return sinks


def _opened(title: str, opening: Callable[[], Sink], hint: str = "") -> Sink:
    """A sink whose later failures are told once and cost no more than the sink itself."""
    try:
        return Guarded(title, opening())
    except GemrlError:
        raise
    except Exception as error:  # Of the disk, the network or an account: libraries have their own.
        raise TrainingError(f"{title} cannot take metrics: {_words(error)}{hint}") from error


class Guarded:
    """A sink that is dropped, with a word, at its first failure."""

    def __init__(self, title: str, sink: Sink) -> None:
        self.title = title
        self.sink: Sink | None = sink

    def log(self, update: int, values: Mapping[str, float]) -> None:
        """Pass the metrics on, while there is somebody to take them."""
        self._attempt(lambda sink: sink.log(update, values), f"after update {update:,}")

    def close(self) -> None:
        """Close the sink. A second call does nothing."""
        self._attempt(lambda sink: sink.close(), "at its end")
        self.sink = None

    def _attempt(self, action: Callable[[Sink], None], when: str) -> None:
        if self.sink is None:
            return
        try:
            action(self.sink)
        except Exception as error:  # No failure of a plot may end a training run.
            self.sink = None
            say(
                f"{self.title} failed {when}: {_words(error)}. Training goes on without it; the "
                "metrics are in the run's metrics.jsonl"
            )


class TensorBoard:
    """Event files for TensorBoard.

    A resumed run opens a file of its own, which begins by telling viewers to forget every step past
    the checkpoint: they see each update once. Records are written by the caller, not by a thread
    of tensorboardX's SummaryWriter: that one holds records back, which a killed run would lose, and
    waits for ever once its thread has met a full disk.
    """

    def __init__(self, folder: Path, done: int) -> None:
        records = _load("tensorboardX", TENSORBOARD)
        self._proto = _load("tensorboardX.proto.event_pb2", TENSORBOARD)
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = records.RecordWriter(str(_next_file(folder)))
        self._write(file_version="brain.Event:2")
        start = self._proto.SessionLog(status=self._proto.SessionLog.START)
        self._write(step=done + 1, session_log=start)

    def log(self, update: int, values: Mapping[str, float]) -> None:
        """Write the metrics."""
        scalars = [{"tag": tag, "simple_value": value} for tag, value in values.items()]
        self._write(step=update, summary={"value": scalars})

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _write(self, **fields: Any) -> None:
        """Write a record, and see it onto the disk before a checkpoint can follow."""
        event = self._proto.Event(wall_time=time.time(), **fields)
        self._writer.write(event.SerializeToString())
        self._writer.flush()


class WeightsAndBiases:
    """A run at Weights & Biases, whose steps are updates; `WANDB_MODE` is honoured.

    A resumed run goes on with the id in `wandb-id.txt`. W&B takes steps in rising order only, and
    may have been told of updates past the checkpoint. Those come again with the same values, since
    a resumed run repeats what was lost, so they are left out until the run is past what W&B has.

    Offline nobody knows what W&B has: each resumption leaves a folder of its own in `out/wandb`,
    all of one id, and the later one holds the repeated updates too. `wandb sync` appends these at
    steps of their own. Plots have the metric `update` as their axis instead of W&B's step, and
    there the repeated points lie on the earlier ones.
    """

    def __init__(
        self, out: Path, project: str, config: dict[str, Any], done: int, name: str
    ) -> None:
        wandb = _load("wandb", "wandb")
        self._run = wandb.init(
            project=project,
            id=_wandb_id(out, done),
            name=name,
            config=config,
            dir=str(out),
            resume="allow",
            # A run that the caller's own program has open stays as it is.
            reinit="create_new",
            # The progress bar is no log worth uploading.
            settings=wandb.Settings(console="off"),
        )
        self._run.define_metric("*", step_metric="update")
        # The first step that W&B has not heard of; 0 for a run that is new to it, and offline.
        self._first = self._run.starting_step

    def log(self, update: int, values: Mapping[str, float]) -> None:
        """Send the metrics, unless W&B has them from before the run was cut off."""
        if update >= self._first:
            self._run.log({"update": update, **values}, step=update)

    def close(self) -> None:
        """Wait until all is sent and end the run."""
        self._run.finish()


def _next_file(folder: Path) -> Path:
    """A new event file, after those there are.

    Viewers read them in the order of their names. The names count, since clocks may be set back.
    """
    before = sorted(folder.glob(f"events.out.tfevents.{'[0-9]' * 6}.gemrl"))
    number = int(before[-1].name.split(".")[3]) + 1 if before else 0
    return folder / f"events.out.tfevents.{number:06d}.gemrl"


def _wandb_id(out: Path, done: int) -> str:
    """The run's id at W&B. A run from the start has a new one, lest it go on another's plots."""
    path = out / WANDB_ID
    if done and path.exists():
        return path.read_text(encoding="utf-8").strip()
    run_id = uuid.uuid4().hex[:16]
    write_text(path, run_id + "\n")
    return run_id


def _load(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"this needs {package}, which is not installed: pip install 'gemrl[{extra}]'"
        ) from error


def _words(error: Exception) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
