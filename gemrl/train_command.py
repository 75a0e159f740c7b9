"""`gemrl train`: one run, the same run again, or several seeds of it side by side."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro

from gemrl.arguments import ReadingArgs, TrainArgs
from gemrl.data.tasks import TASKS
from gemrl.data_commands import reading_of
from gemrl.errors import ConfigError, DivergedError


def train(args: TrainArgs[Any], words: Sequence[str]) -> None:
    """Train a policy, or one for each seed."""
    from gemrl.learn.devices import Devices, all_devices, join
    from gemrl.learn.train import started
    from gemrl.learn.train import train as train_policy
    from gemrl.progress import said_on_success, say

    again = started(args.replay) if args.replay else None
    if (
        again
        and str(args.dataset) != again["dataset"]["source"]
        and not _word_after("--task", words)
    ):
        args = replace(args, task=None)  # That of another dataset.
    out = args.out or (_beside(args.replay) if args.replay else Path("runs") / args.method)
    if args.seeds < 1:
        raise ConfigError(f"seeds = {args.seeds}: must be at least 1")
    if args.seeds > 1:
        _train_seeds(args, words, out)
        return
    with said_on_success():
        devices = Devices()
        if not args.coordinator and (args.processes, args.process) != (None, None):
            raise ConfigError("--processes and --process go with --coordinator")
        if args.coordinator:
            devices = join(args.coordinator, args.processes, args.process)
        elif args.data_parallel:
            devices = all_devices()
        data = devices.together(lambda: _data(args, again))
        say(_settings(args))
        train_policy(
            data,
            args.config,
            out,
            resume=args.resume,
            tensorboard=args.tensorboard,
            wandb=args.wandb,
            snapshot_every=args.snapshot_every,
            baselines=args.baselines,
            devices=devices,
        )
    print(out)


def _data(args: TrainArgs[Any], again: dict[str, Any] | None) -> Any:
    """The dataset that is to be trained on, which must be that of a run that is repeated."""
    reading = _reading(args, again)
    data = _loaded(args, reading) if args.memory is None else _limited(args, reading)
    if again:
        asked = (str(args.dataset), args.task, reading)
        if asked == (again["dataset"]["source"], again["task"], again["dataset"]["reading"]):
            _check_same(data, again)
    return data


def _loaded(args: TrainArgs[Any], reading: dict[str, Any]) -> Any:
    from gemrl.data.readers import load_dataset

    return load_dataset(args.dataset, task=args.task, **reading)


def _limited(args: TrainArgs[Any], reading: dict[str, Any]) -> Any:
    """The dataset in memory, or on disk where it would not fit the limit."""
    from gemrl.data.shards import open_sharded, parse_size
    from gemrl.learn.memory import BASE, Extent, extent_of, needed_in_memory, needed_on_disk

    limit = parse_size(args.memory or "")
    if limit < BASE:
        raise ConfigError(
            f"memory = {args.memory}: must be at least {BASE / 1e6:,.0f}MB, which training takes "
            "without any data"
        )
    extent = extent_of(args.dataset)
    if extent is not None and needed_in_memory(args.config, extent) > limit:
        least = needed_on_disk(args.config, extent)
        if least > limit:
            raise ConfigError(
                f"memory = {args.memory}: must be at least {-(-least // 10**6):,}MB, which "
                f"training on {args.dataset} takes from disk with these settings"
            )
        if reading.get("columns") is None:  # Which go with a log, as reading it will say.
            reading = {name: value for name, value in reading.items() if name != "columns"}
            return open_sharded(args.dataset, task=args.task, memory=limit, **reading)
    data = _loaded(args, reading)
    needed = needed_in_memory(args.config, Extent(len(data), data.obs_dim, data.action_dim))
    if extent is None and needed > limit:  # A kind of file that tells little before it is read.
        raise ConfigError(
            f"memory = {args.memory}: training on {args.dataset} takes about {needed / 1e9:.1f}GB, "
            "and only HDF5 files are trained on from disk; convert it, or allow more"
        )
    return data


def _reading(args: TrainArgs[Any], again: dict[str, Any] | None) -> dict[str, Any]:
    """How the dataset is read: as the run that is repeated read it, but for the flags given."""
    from gemrl.data.readers import is_log

    reading = reading_of(args.reading)
    if not again:
        return reading
    default = reading_of(ReadingArgs())
    given = {name: value for name, value in reading.items() if value != default[name]}
    before = dict(again["dataset"]["reading"])
    if not is_log(args.dataset):
        before.pop("columns", None)  # Another kind of file was named instead.
    return before | given


def _train_seeds(args: TrainArgs[Any], words: Sequence[str], out: Path) -> None:
    from gemrl.learn.bundle import MANIFEST
    from gemrl.learn.divergence import divergence_of
    from gemrl.learn.parallel import Job, run_jobs
    from gemrl.learn.train import is_unfinished
    from gemrl.methods import method_of
    from gemrl.progress import say

    if args.coordinator or args.data_parallel:
        raise ConfigError("--seeds goes with one machine: start each seed's processes by itself")
    if args.config.seed + args.seeds > 2**32:
        raise ConfigError(f"seeds = {args.seeds}: the last must be at most 2**32 - 1")
    if (out / MANIFEST).exists() or is_unfinished(out) or divergence_of(out) is not None:
        raise ConfigError(f"{out} is a run of its own; choose another output folder")
    phases = method_of(args.config).phases(args.config)
    kept = _without(words, ("--seeds", "--seed", "--out"), ("--resume",))
    seeds = range(args.config.seed, args.config.seed + args.seeds)
    folders = {seed: out / f"seed-{seed}" for seed in seeds}
    before = {seed for seed, folder in folders.items() if divergence_of(folder) is not None}
    used = [
        str(folder)
        for seed, folder in folders.items()
        if seed in before or (folder / MANIFEST).exists() or is_unfinished(folder)
    ]
    if used and not args.resume:
        raise ConfigError(
            f"{', '.join(used)} is in use; go on with --resume, or choose another output folder"
        )
    say(f"seeds {seeds[0]} to {seeds[-1]}, {_settings(args)}")
    run_jobs(
        [
            Job(
                f"seed {seed}",
                (*kept, "--seed", str(seed)),
                folder,
                sum(phase.steps for phase in phases),
                may_diverge=True,
            )
            # What diverged before does so again: it keeps no other waiting.
            for seed, folder in sorted(folders.items(), key=lambda of: of[0] in before)
        ]
    )
    lost = {folder: divergence_of(folder) for folder in folders.values()}
    for folder, why in lost.items():
        if why is None:
            print(folder)
    told = [f"{folder} ({why})" for folder, why in lost.items() if why is not None]
    if told:
        rest = "; the other seeds are finished" if len(told) < len(lost) else ""
        raise DivergedError(
            f"training diverged in {', '.join(told)}{rest}. Try {args.config.steadier} in another "
            "output folder",
            "; ".join(told),
        )


def _settings(args: TrainArgs[Any]) -> str:
    """The method and all its settings in a line."""
    values = ", ".join(f"{name} {value}" for name, value in vars(args.config).items())
    return f"{args.method} with {values}"


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
    from gemrl.learn.train import started

    found = started(run)
    method = found["method"]
    said = _word_after("--method", words)
    if said not in (None, method):
        raise ConfigError(f"{run} was trained with {method}, and --method says {said}")
    config = config_from_json(method, found["config"])
    default = TrainArgs(
        dataset=found["dataset"]["source"],
        config=config,
        method=method,
        task=found["task"],
    )
    return TrainArgs[type(config)], default


def _check_same(data: Any, started: dict[str, Any]) -> None:
    then = started["dataset"]["fingerprint"]
    if data.fingerprint != then:
        raise ConfigError(
            f"{data.source} has changed since that run: its fingerprint is "
            f"{data.fingerprint[:12]} and was {then[:12]}; train on it without --from"
        )


def _beside(run: Path) -> Path:
    """Where a repeated run goes unless told."""
    run = run if run.name not in ("", "..") else run.resolve()
    return run.with_name(f"{run.name}-again")


def _word_after(flag: str, words: Sequence[str]) -> str | None:
    """The value that the words give a flag."""
    for i, word in enumerate(words):
        if word == flag and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(f"{flag}="):
            return word.split("=", 1)[1]
    return None
