"""Phase I from a dataset to a bundle."""

import dataclasses
import fcntl
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import gemrl
from gemrl.data.dataset import Dataset
from gemrl.data.shards import ShardedDataset
from gemrl.data.storage import write_text
from gemrl.data.tasks import RewardTransform, task_named
from gemrl.decide.policy import Policy
from gemrl.errors import ConfigError, DataError, TrainingError
from gemrl.learn.bundle import MANIFEST, Bundle, config_to_json, load_bundle, save_bundle
from gemrl.learn.calibration import ROWS, calibrate
from gemrl.learn.checkpoint import identity, newest_checkpoint
from gemrl.learn.compiled import kept_programs
from gemrl.learn.devices import Devices
from gemrl.learn.divergence import divergence_of
from gemrl.learn.interrupts import stop_on_signals
from gemrl.learn.loggers import Sink, open_sinks
from gemrl.learn.metrics import METRICS
from gemrl.learn.rows import Rows, RowsAsRead, RowsInMemory, RowsWithContext
from gemrl.learn.run import Run
from gemrl.learn.spec import (
    Spec,
    fixed_rewards,
    packed,
    row_width,
    rows_after,
    scale,
    scaled,
    spec_of,
    with_next_actions,
)
from gemrl.methods import beside, default_config, gem, method_named, method_of
from gemrl.methods.networks import rescaled
from gemrl.methods.protocol import MAIN, Companion, Method, MethodConfig, Models
from gemrl.progress import say

STARTED = "run.json"
# Rows of each part of the data on which a run's health is watched.
_WATCHED = 1024
_BLOCK = 4096


def train(
    data: Dataset | ShardedDataset,
    config: MethodConfig | None = None,
    out: str | Path = "runs/gem",
    *,
    resume: bool = False,
    quiet: bool = False,
    tensorboard: bool = False,
    wandb: str | None = None,
    snapshot_every: int | None = None,
    baselines: bool = False,
    devices: Devices | None = None,
) -> Policy:
    """Train a policy and leave it as a bundle in the folder `out`.

    With `resume` a run that was cut off goes on from its last checkpoint, to the same weights as if
    it had never stopped; a finished one is loaded. Without, a folder in use is refused. Ctrl-C and
    SIGTERM save before they stop. `tensorboard` and `wandb` (a project's name) send the metrics
    there as well. `snapshot_every` keeps the policy on its way after every so many updates of the
    main phase, as a bundle in `out/snapshots`. `baselines` trains IQL's and behaviour cloning's
    actors beside GEM, into `out/baselines`. `devices` splits each minibatch: see
    `gemrl.learn.devices`.
    """
    if not isinstance(data, Dataset | ShardedDataset):
        raise DataError(f"train needs a Dataset, not {data!r}: see load_dataset and from_arrays")
    config = default_config("gem", data.task) if config is None else config
    method = method_of(config)
    if baselines:
        if method is not gem.METHOD:
            raise ConfigError(f"baselines go with gem, and the method is {method.name}")
        method = beside.METHOD
    if snapshot_every is not None and snapshot_every < 1:
        raise ConfigError(f"snapshot_every = {snapshot_every}: must be at least 1")
    devices = devices or Devices()
    devices.share(config.batch_size)  # Refuses one that cannot be shared.
    trained = f"{method.name} with baselines" if baselines else method.name
    run_identity = identity(config_to_json(config), trained, data.fingerprint, data.task)
    _check_alike(run_identity, devices)
    data.require_trainable()
    out = Path(out)
    quiet = quiet or not devices.lead
    if not quiet:
        _say_suite(config, data.task)
    with ExitStack() as held:
        held.enter_context(kept_programs())
        devices.together(lambda: devices.lead and held.enter_context(_lock(out)))
        if devices.agree((out / MANIFEST).exists()):
            return Policy(devices.together(lambda: _finished(out, run_identity, resume, quiet)))
        devices.together(lambda: devices.lead and _note_start(out, config, data, resume))
        sinks = partial(
            open_sinks,
            out,
            tensorboard=tensorboard,
            wandb=wandb,
            config=config_to_json(config),
            name=out.name,
        )
        bundle = _train(
            data, config, method, out, run_identity, resume, quiet, devices, sinks, snapshot_every
        )
    return Policy(bundle)


def _train(
    data: Dataset | ShardedDataset,
    config: MethodConfig,
    method: Method,
    out: Path,
    run_identity: str,
    resume: bool,
    quiet: bool,
    devices: Devices,
    sinks: Callable[..., list[Sink]],
    snapshot_every: int | None,
) -> Bundle:
    train_rows, held_rows = data.split_episodes(config.holdout, config.seed)
    parts = {"training": train_rows} | ({"held_out": held_rows} if len(held_rows) else {})
    spec = _spec(data, train_rows, method)
    watched = {part: data.select(_spread(rows, _WATCHED)) for part, rows in parts.items()}
    judged = {part: data.select(_spread(rows, ROWS)) for part, rows in parts.items()}

    def keep(folder: Path, state: Any, done: int) -> Bundle:
        """Save the policy after `done` updates of the main phase, its companions first."""
        own = Companion(method.name, config, _models(method, config, state))
        others = method.companions(config, state)
        bundles = []
        for place, (name, settings, found) in (
            *((baseline(folder, other.method), other) for other in others),
            (folder, own),
        ):
            models = jax.tree.map(np.asarray, found)
            about = _about(data, settings, method_named(name), held_rows)
            about["updates"][MAIN] = done
            about |= {"identity": run_identity, "calibration": calibrate(models, spec, judged)}
            bundles.append(save_bundle(place, name, settings, models, spec, **about))
        return bundles[-1]

    with stop_on_signals() as wish:
        run = Run(
            method=method,
            config=config,
            spec=spec,
            rows=rows_of(data, train_rows, spec, method, config),
            samples={part: scale(rows, spec) for part, rows in watched.items()},
            largest_reward=_largest_reward(data, spec),
            out=out,
            identity=run_identity,
            devices=devices,
            wish=wish,
            open_sinks=lambda done: sinks(done=done),
            snapshot_every=snapshot_every,
            keep=lambda state, done: keep(snapshot(out, done), state, done),
            quiet=quiet,
        )
        state = run.to_the_end(resume)
        with tempfile.TemporaryDirectory() as nowhere:
            folder = out if devices.lead else Path(nowhere)
            return devices.together(lambda: keep(folder, state, config.steps))


def _models(method: Method, config: MethodConfig, state: Any) -> Models:
    """A policy's models. Its critics' values are in units of the rewards that its spec tells, so
    that w_p weighs support against the same whatever rewards a method learns from.
    """
    models = method.models(state)
    if config.value_scale == 1:
        return models
    return dataclasses.replace(models, critics=rescaled(models.critics, 1 / config.value_scale))


def snapshot(out: Path, done: int) -> Path:
    """Where a run keeps its policy as it was after so many updates of the main phase."""
    return out / "snapshots" / f"{done:010d}"


def baseline(run: Path, method: str) -> Path:
    """Where a run keeps a baseline that was trained beside it."""
    return run / "baselines" / method


def is_unfinished(out: Path) -> bool:
    """Whether a run was begun in a folder: it has metrics or a checkpoint."""
    metrics = out / METRICS
    begun = metrics.exists() and metrics.stat().st_size > 0
    return begun or newest_checkpoint(out) is not None


def _say_suite(config: MethodConfig, task: str | None) -> None:
    """Tell where settings differ from those that the task's suite is known to need."""
    for name, value in (task_named(task).training if task else {}).items():
        chosen = getattr(config, name, value)
        if chosen != value:
            say(f"{task} is usually trained with {name} {value:g}, and this run has {chosen:g}")


def _finished(out: Path, run_identity: str, resume: bool, quiet: bool) -> Bundle:
    bundle = load_bundle(out)
    if not resume:
        raise TrainingError(
            f"{out} holds a finished run; take it as it is with resume=True or --resume, or choose "
            "another output folder"
        )
    if bundle.manifest["identity"] != run_identity:
        raise TrainingError(
            f"{out} holds a finished run of another method, configuration or dataset; choose "
            "another output folder"
        )
    if not quiet:
        say(f"{out} is trained already: nothing to do")
    return bundle


def _check_alike(run_identity: str, devices: Devices) -> None:
    """Refuse processes of one run that were not started with the same."""
    number = int(run_identity[:7], 16)
    lead = devices.agree(number)
    if devices.any(number != lead):
        raise TrainingError(
            "the processes of this run differ in method, configuration or dataset; start all of "
            "them with the same words on the same data"
        )


def _note_start(
    out: Path, config: MethodConfig, data: Dataset | ShardedDataset, resume: bool
) -> None:
    """What was started, so that `gemrl train --from` can start it again."""
    why = divergence_of(out)
    if not resume and why is not None:
        raise TrainingError(f"{out} holds a run that diverged: {why}; choose another output folder")
    if not resume and is_unfinished(out):
        raise TrainingError(
            f"{out} holds an unfinished run; go on with resume=True or --resume, or choose "
            "another output folder"
        )
    if newest_checkpoint(out) is not None and (out / STARTED).exists():
        return  # Whether these settings are that run's is seen when its checkpoint is read.
    about = {
        "gemrl": gemrl.__version__,
        "method": method_of(config).name,
        "config": config_to_json(config),
        "task": data.task,
        "dataset": {
            "source": data.source,
            "fingerprint": data.fingerprint,
            "reading": dict(data.reading),
        },
    }
    write_text(out / STARTED, json.dumps(about, indent=2) + "\n")


def started(run: Path) -> dict[str, Any]:
    """What a run was started with."""
    path = run / STARTED
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        about = found["dataset"]
        kinds = {"method": str, "config": dict, "task": str | None}
        kinds_about = {"source": str, "fingerprint": str, "reading": dict}
        for part, wanted in ((found, kinds), (about, kinds_about)):
            for name, kind in wanted.items():
                if not isinstance(part[name], kind):
                    raise TypeError(f"{name} is {part[name]!r}")
        return found
    except FileNotFoundError:
        raise ConfigError(f"{run} is no run of `gemrl train`: it has no {STARTED}") from None
    except KeyError as error:
        raise ConfigError(f"{path} cannot be read: it lacks {error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _spec(data: Dataset | ShardedDataset, train_rows: np.ndarray, method: Method) -> Spec:
    rewards = task_named(data.task).rewards if data.task else RewardTransform()
    if not method.scaled_rewards:
        rewards = dataclasses.replace(rewards, return_range=None)
    return spec_of(data, train_rows, fixed_rewards(data, rewards))


def rows_of(
    data: Dataset | ShardedDataset,
    train_rows: np.ndarray,
    spec: Spec,
    method: Method,
    config: MethodConfig,
) -> Rows:
    """The training rows, with all that the method asks of them."""
    rows = _plain_rows(data, train_rows, spec, method.next_actions)
    if method.context is None:
        return rows
    context = method.context(config)
    if context.target_return is None:
        raise ConfigError(
            "target_return is not set, and decisions need a return to ask for: episodes of "
            f"{data.source} return up to {data.episode_returns.max():g}; set target_return to "
            "about that, and return_scale to its size"
        )
    return RowsWithContext(rows, data, train_rows, context)


def _plain_rows(
    data: Dataset | ShardedDataset, train_rows: np.ndarray, spec: Spec, next_actions: bool
) -> Rows:
    if isinstance(data, ShardedDataset):
        return RowsAsRead(data, train_rows, spec, next_actions)
    width = row_width(spec.obs_dim, spec.action_dim) + (spec.action_dim if next_actions else 0)
    matrix = np.empty((len(train_rows), width), np.float32)
    for start in range(0, len(matrix), _BLOCK):  # In blocks that stay in the cache.
        rows = train_rows[start : start + _BLOCK]
        found = scaled(packed(data.select(rows)), spec)
        if next_actions:
            after = rows_after(rows, data.episode_starts, len(data))
            found = with_next_actions(found, scaled(packed(data.select(after)), spec), spec)
        matrix[start : start + _BLOCK] = found
    return RowsInMemory(matrix)


def _spread(rows: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of the rows, evenly spread."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), count)).astype(int)]


def _largest_reward(data: Dataset | ShardedDataset, spec: Spec) -> float:
    ends = np.array(data.reward_range) * spec.reward_scale + spec.reward_shift
    return float(np.abs(ends).max())


def _about(
    data: Dataset | ShardedDataset, config: MethodConfig, method: Method, held_rows: np.ndarray
) -> dict[str, Any]:
    """What the manifest says of the data and the training."""
    return {
        "task": data.task,
        "dataset": {
            "fingerprint": data.fingerprint,
            "origin": data.origin,
            "source": data.source,
            "reading": dict(data.reading),
            "bounds_origin": data.bounds_origin,
            "notes": list(data.notes),
            "rows": len(data),
            "episodes": len(data.episode_starts),
            "held_out_rows": len(held_rows),
        },
        "reference": _reference(data.task),
        "updates": {phase.name: phase.steps for phase in method.phases(config)},
    }


def _reference(task: str | None) -> dict[str, Any] | None:
    if task is None:
        return None
    low, high = task_named(task).reference
    return {"low": low, "high": high, "origin": task_named(task).reference_origin}


@contextmanager
def _lock(out: Path) -> Iterator[None]:
    """Keep a second run out of the folder. The lock ends with its process, however that ends."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"{out} cannot be the output folder: {error.strerror}") from error
    with open(out / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(f"another process is training into {out}") from None
        yield
