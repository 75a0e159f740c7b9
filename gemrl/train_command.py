"""`gemrl train`: one run, the same run again, or several seeds of it side by side."""

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from gemrl.arguments import ReadingArgs, TrainArgs
from gemrl.data.tasks import TASKS
from gemrl.data_commands import reading_of
from gemrl.errors import ConfigError


def train(args: TrainArgs[Any], words: Sequence[str]) -> None:
    """Train a policy, or one for each seed."""
    from gemrl.learn.devices import Devices, all_devices, join
    from gemrl.learn.train import train as train_policy
    from gemrl.progress import said_on_success, say

    again = _started(args.replay) if args.replay else None
    out = args.out or (_beside(args.replay) if args.replay else Path("runs") / args.method)
    if args.seeds < 1:
        raise ConfigError(f"seeds = {args.seeds}: must be at least 1")
    if args.seeds > 1:
        _train_seeds(args, words, out)
        return
    with said_on_success():
        devices = Devices()
        if args.coordinator:
            devices = join(args.coordinator, args.processes, args.process)
        elif args.data_parallel:
            devices = all_devices()
        data = _data(args, again)
        if again and str(args.dataset) == again["dataset"]["source"]:
            _check_same(data, again)
        settings = ", ".join(f"{name} {value}" for name, value in vars(args.config).items())
        say(f"{args.method} with {settings}")
        train_policy(
            data,
            args.config,
            out,
            resume=args.resume,
            tensorboard=args.tensorboard,
            wandb=args.wandb,
            devices=devices,
        )
    print(out)


def _data(args: TrainArgs[Any], again: dict[str, Any] | None) -> Any:
    """The dataset in memory, or on disk where it would not fit the limit."""
    from gemrl.data.readers import load_dataset
    from gemrl.data.shards import bytes_in_memory, open_sharded, parse_size

    reading = reading_of(args.reading)
    if again and args.reading == ReadingArgs():
        reading = dict(again["dataset"]["reading"])
    if not args.memory:
        return load_dataset(args.dataset, task=args.task, **reading)
    limit = parse_size(args.memory)
    if limit < needed_to_train(0):
        raise ConfigError(
            f"memory = {args.memory}: must be at least {needed_to_train(0) / 1e6:,.0f}MB, which "
            "training takes without any data"
        )
    needed = bytes_in_memory(args.dataset)
    if needed is not None and needed_to_train(needed) > limit and not reading.get("columns"):
        reading.pop("columns", None)
        return open_sharded(args.dataset, task=args.task, memory=limit, **reading)
    data = load_dataset(args.dataset, task=args.task, **reading)
    needed = needed_to_train(data.nbytes)
    if needed > limit:  # A kind of file whose size tells nothing of what is in it.
        raise ConfigError(
            f"memory = {args.memory}: training on {args.dataset} takes about {needed / 1e9:.1f}GB, "
            "and only HDF5 files are trained on from disk; convert it, or allow more"
        )
    return data


# Resident memory of a run whose dataset takes none: Python, JAX and compiled programs.
_BASE = 700 * 10**6


def needed_to_train(dataset: int) -> int:
    """Resident memory of training on a dataset of that many bytes: itself, and its rows packed."""
    return _BASE + 2 * dataset


def _train_seeds(args: TrainArgs[Any], words: Sequence[str], out: Path) -> None:
    from gemrl.learn.parallel import Job, run_jobs
    from gemrl.methods import method_of

    if args.coordinator or args.data_parallel:
        raise ConfigError("--seeds goes with one machine: start each seed's processes by itself")
    phases = method_of(args.config).phases(args.config)
    kept = _without(words, ("--seeds", "--seed", "--out"), ("--resume",))
    seeds = range(args.config.seed, args.config.seed + args.seeds)
    folders = {seed: out / f"seed-{seed}" for seed in seeds}
    used = [str(folder) for folder in folders.values() if any(folder.glob("*"))]
    if used and not args.resume:
        raise ConfigError(
            f"{', '.join(used)} is in use; go on with --resume, or choose another output folder"
        )
    run_jobs(
        [
            Job(
                f"seed {seed}",
                (*kept, "--seed", str(seed)),
                folder,
                sum(phase.steps for phase in phases),
            )
            for seed, folder in folders.items()
        ]
    )
    for folder in folders.values():
        print(folder)


def _without(words: Sequence[str], valued: Sequence[str], plain: Sequence[str]) -> tuple[str, ...]:
    """The words less some flags, with their values."""
    kept: list[str] = []
    skip = False
    for word in words:
        name = word.split("=", 1)[0].replace("_", "-")
        if skip:
            skip = False
        elif name in valued:
            skip = "=" not in word
        elif name not in plain:
            kept.append(word)
    return tuple(kept)


def train_parser(words: Sequence[str]) -> Any:
    """The settings of `train` are those of the method that the words name, with the defaults of
    the task's suite, or those of the run that is to be repeated. Which task it is, a first parse
    tells.
    """
    from gemrl.data.readers import task_hint
    from gemrl.methods import default_config

    replayed = _word_after("--from", words)
    if replayed is not None:
        return _replay(Path(replayed), words)
    name = _word_after("--method", words) or "gem"
    kind = TrainArgs[type(default_config(name, None))]
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            given = tyro.cli(kind, args=[word for word in words if word not in ("-h", "--help")])
    except SystemExit:
        return kind  # The parse that counts will say what is wrong.
    task = given.task if given.task in TASKS else task_hint(given.dataset)
    return kind, TrainArgs(dataset=tyro.MISSING, config=default_config(name, task))


def _replay(run: Path, words: Sequence[str]) -> Any:
    """The arguments of a run, as defaults for what the words do not say."""
    from gemrl.learn.bundle import config_from_json

    started = _started(run)
    method = started["method"]
    said = _word_after("--method", words)
    if said not in (None, method):
        raise ConfigError(f"{run} was trained with {method}, and --method says {said}")
    config = config_from_json(method, started["config"])
    default = TrainArgs(
        dataset=started["dataset"]["source"],
        config=config,
        method=method,
        task=started["task"],
    )
    return TrainArgs[type(config)], default


def _started(run: Path) -> dict[str, Any]:
    """What a run was started with."""
    from gemrl.learn.train import STARTED

    path = run / STARTED
    try:
        started = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(started["config"], dict):
            raise TypeError("config is not an object")
        return started
    except FileNotFoundError:
        raise ConfigError(f"{run} is no run of `gemrl train`: it has no {STARTED}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _check_same(data: Any, started: dict[str, Any]) -> None:
    then = started["dataset"]["fingerprint"]
    if data.fingerprint != then:
        raise ConfigError(
            f"{data.source} has changed since that run: its fingerprint is "
            f"{data.fingerprint[:12]} and was {then[:12]}; train on it without --from"
        )


def _beside(run: Path) -> Path:
    """Where a repeated run goes unless told."""
    return run.with_name(f"{run.name}-again")


def _word_after(flag: str, words: Sequence[str]) -> str | None:
    """The value that the words give a flag."""
    for i, word in enumerate(words):
        if word == flag and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(f"{flag}="):
            return word.split("=", 1)[1]
    return None
