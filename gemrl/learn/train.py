"""Phase I from a dataset to a bundle."""

import fcntl
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gemrl.data.dataset import Dataset
from gemrl.data.storage import write_text
from gemrl.data.tasks import RewardTransform, task_named
from gemrl.decide.policy import Policy
from gemrl.errors import DataError, TrainingError
from gemrl.learn.bundle import MANIFEST, Bundle, config_to_json, load_bundle, save_bundle
from gemrl.learn.calibration import calibrate
from gemrl.learn.checkpoint import folder_of, identity, load_checkpoint, save_checkpoint
from gemrl.learn.loop import pack, phase_key, run_updates
from gemrl.learn.spec import Spec, fixed_rewards, scale, spec_of
from gemrl.methods import default_config, method_of
from gemrl.methods.protocol import Method, MethodConfig, Phase
from gemrl.progress import Report, bar, say

METRICS = "metrics.jsonl"
# Updates between two lines of metrics, which is also how long a compiled call runs.
CHUNK = 500


def train(
    data: Dataset,
    config: MethodConfig | None = None,
    out: str | Path = "runs/gem",
    *,
    resume: bool = False,
    quiet: bool = False,
) -> Policy:
    """Train a policy and leave it as a bundle in the folder `out`.

    With `resume` a run that was cut off goes on from its last checkpoint, to the same weights as if
    it had never stopped; a finished one is loaded. Without, a folder in use is refused.
    """
    if not isinstance(data, Dataset):
        raise DataError(f"train needs a Dataset, not {data!r}: see load_dataset and from_arrays")
    config = default_config("gem", data.task) if config is None else config
    method = method_of(config)
    data.require_trainable()
    out = Path(out)
    run_identity = identity(config_to_json(config), method.name, data.fingerprint, data.task)
    if not quiet:
        _say_suite(config, data.task)
    with _lock(out):
        if (out / MANIFEST).exists():
            return Policy(_finished(out, run_identity, resume, quiet))
        if not resume and ((out / METRICS).exists() or folder_of(out).exists()):
            raise TrainingError(
                f"{out} holds an unfinished run; go on with resume=True or --resume, or choose "
                "another output folder"
            )
        return Policy(_train(data, config, method, out, run_identity, resume, quiet))


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


@dataclass(frozen=True, eq=False)
class _Run:
    """What stays the same through a run."""

    config: MethodConfig
    spec: Spec
    packed: jax.Array
    out: Path
    identity: str

    @property
    def compiled_config(self) -> MethodConfig:
        """What the compiled program depends on: other seeds and lengths share it."""
        return replace(self.config, seed=0, steps=0)


def _train(
    data: Dataset,
    config: MethodConfig,
    method: Method,
    out: Path,
    run_identity: str,
    resume: bool,
    quiet: bool,
) -> Bundle:
    train_rows, held_rows = data.split_episodes(config.holdout, config.seed)
    rewards = task_named(data.task).rewards if data.task else RewardTransform()
    training = data.select(train_rows)
    spec = spec_of(training, fixed_rewards(data, rewards))
    run = _Run(config, spec, pack(scale(training, spec)), out, run_identity)

    init_key = jax.random.fold_in(jax.random.key(config.seed), 0)
    # Copies, since the loop reuses the state's memory and fresh targets share the critics'.
    state = jax.tree.map(jnp.copy, method.init(config, spec.obs_dim, spec.action_dim, init_key))
    done = 0
    found = load_checkpoint(out, state, run_identity, say) if resume else None
    if found is not None:
        state, done = found
        if not quiet:
            say(f"resuming {out} after {done:,} updates")
    _cut_metrics(out / METRICS, done)

    start = 0
    for phase in method.phases(config):
        if done < start + phase.steps:
            title = f"train {method.name}: {phase.name}"
            with bar(title, phase.steps, "updates", quiet) as report:
                state = _run_phase(run, state, phase, start, done, report)
            done = start + phase.steps
        start += phase.steps

    models = method.models(state)
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(models)):
        raise TrainingError(f"training diverged at its last update: {out} has weights not finite")
    held = data.select(held_rows) if len(held_rows) else None
    return save_bundle(
        out,
        method.name,
        config,
        models,
        spec,
        identity=run_identity,
        task=data.task,
        dataset={
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
        reference=_reference(data.task),
        calibration=calibrate(models, spec, training, held),
        updates={phase.name: phase.steps for phase in method.phases(config)},
    )


def _run_phase(run: "_Run", state: Any, phase: Phase, start: int, done: int, report: Report) -> Any:
    """The rest of a phase that began after `start` updates, of which `done` in all are done."""
    key = phase_key(run.config.seed, phase)
    every = run.config.checkpoint_every
    while done < start + phase.steps:
        stop = min(start + phase.steps, _after(done, CHUNK), _after(done, every))
        state, metrics = run_updates(
            state,
            run.packed,
            key,
            done - start,
            stop - start,
            update=phase.update,
            config=run.compiled_config,
            obs_dim=run.spec.obs_dim,
            action_dim=run.spec.action_dim,
        )
        done = stop
        _log_metrics(run.out, phase.name, done, {k: float(v) for k, v in metrics.items()})
        if done % every == 0:
            save_checkpoint(run.out, state, done, run.identity)
        report(done - start)
    return state


def _after(done: int, every: int) -> int:
    """The next multiple of `every`."""
    return (done // every + 1) * every


def _log_metrics(out: Path, phase: str, done: int, metrics: dict[str, float]) -> None:
    """Append a line of metrics, and stop where one of them is no longer a number."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise TrainingError(
                f"training diverged: {name} became {value} within {CHUNK} updates before update "
                f"{done} ({phase}); the last good state is in {out / 'checkpoints'}. Lower the "
                "learning rate or beta, or look at the data with `gemrl data inspect`"
            )
    line = json.dumps({"update": done, "phase": phase, **metrics})
    with open(out / METRICS, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def _cut_metrics(path: Path, done: int) -> None:
    """Drop lines of metrics past the checkpoint, or half a line, before going on from it."""
    kept = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["update"] <= done:
                    kept.append(line + "\n")
            except (json.JSONDecodeError, KeyError):
                break
    write_text(path, "".join(kept))


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The metrics of a run, one dictionary a line."""
    path = Path(run) / METRICS
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def last_update(path: Path) -> int:
    """Updates that a run's metrics speak of so far; 0 before the first line."""
    try:
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
        return int(json.loads(whole.rpartition("\n")[2])["update"])
    except (OSError, json.JSONDecodeError):
        return 0


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
