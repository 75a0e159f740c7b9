"""`gemrl sweep` and `gemrl reproduce`: many cells, here or on a cluster."""

import itertools
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from gemrl.errors import ConfigError, KnobError


@dataclass
class WhereArgs:
    """Where cells run."""

    processes: int | None = None
    """Processes of this machine; by default one a core. 1 is this process alone."""
    cluster: str | None = None
    """Run on Ray instead: the address of a cluster, or `local` for one of this machine."""
    insecure: bool = False
    """Connect to a cluster that asks for no token as well: anybody who reaches it can run code."""


@dataclass
class SweepArgs(WhereArgs):
    """Run policies with every combination of knobs and add a row an episode to RUN/rows.jsonl."""

    runs: Positional[tuple[Path, ...]] = ()
    """Folders of trained runs, or of several seeds (RUN/seed-S)."""
    n: tuple[int, ...] = (64,)
    """Numbers of candidates."""
    lam: tuple[float, ...] = ()
    """Pessimisms; by default the suite's."""
    wp: tuple[float, ...] = ()
    """Constant support weights."""
    wp_end: tuple[float, ...] = ()
    """Support weights that a schedule falls to, from 1."""
    support: tuple[Literal["zscore", "raw"], ...] = ("zscore",)
    """How support enters the score."""
    value: tuple[Literal["raw", "zscore"], ...] = ("raw",)
    """How value enters the score."""
    episodes: int | None = None
    """Episodes a cell; by default as many as the task has."""
    protocol: Literal["validation", "test"] = "validation"
    """Which seeds: knobs are chosen on validation, scores told on test."""
    json: bool = False
    """Print JSON."""


@dataclass
class ReproduceArgs(WhereArgs):
    """Reproduce a table or figure of the paper: train what is missing, evaluate, and write rows,
    Markdown, plots and a page.
    """

    name: Positional[str] = ""
    """scores, interface, scaling, knobs, ablations, normalization, frontier, nll-gap, mass-scale,
    tuning, mechanisms, or all."""
    tasks: tuple[str, ...] = ()
    """Tasks, by name or by suite (maze2d, locomotion, antmaze); by default the paper's."""
    steps: int = 100_000
    """Updates of each training; the paper has 1,000,000."""
    seeds: int = 3
    """How many training seeds."""
    first_seed: int = 0
    """The first of them. Policies of later seeds join rows of earlier ones."""
    episodes: int | None = None
    """Test episodes a cell; by default 100 in mazes and 10 in locomotion. Half as many choose
    knobs on validation seeds."""
    n: int = 1024
    """Candidates of the tables that hold N fixed."""
    sweep_n: int = 64
    """Candidates of the sweeps on validation seeds, and of `interface`."""
    knobs: Literal["chosen", "paper"] = "chosen"
    """Knobs on test seeds: chosen by task on validation seeds, or the paper's by suite."""
    methods: tuple[str, ...] = ()
    """Methods to train and compare beside GEM, IQL and BC (scores and interface), or `all`."""
    method_steps: int | None = None
    """Updates of each training of these; by default as many as GEM's."""
    method_settings: tuple[str, ...] = ()
    """Settings of these that are not their own, such as dt.batch_size=16 or cql.lagrange=true; the
    tables tell them."""
    gem: bool = True
    """Train and evaluate GEM, IQL and BC. Without (scores and interface), of GEM its behaviour
    density alone is trained, and the methods' rows join those that are there already."""
    data_steps: int | None = None
    """Transitions of a regenerated dataset; by default as many as the published one has."""
    out: Path = Path("runs/reproduce")
    """Folder for policies, rows and documents. What it holds already is not made again."""
    rows: Path | None = None
    """Only write the documents, out of this folder's rows and records: no training, no
    simulator."""


def runner_of(args: WhereArgs) -> Any:
    """Who runs the cells."""
    from gemrl.evaluate.cells import here
    from gemrl.evaluate.workers import processes

    if args.cluster is not None:
        if args.processes is not None:
            raise ConfigError("--processes and --cluster exclude each other")
        from gemrl.evaluate.cluster import cluster

        return cluster(args.cluster, insecure=args.insecure)
    if args.insecure:
        raise ConfigError("--insecure goes with --cluster")
    if args.processes is not None and args.processes < 1:
        raise ConfigError(f"processes = {args.processes}: must be at least 1")
    return here if args.processes == 1 else processes(args.processes)


def sweep(args: SweepArgs) -> None:
    """Evaluate every combination."""
    from gemrl.evaluate.cells import Cell, run_cells
    from gemrl.evaluate.results import table
    from gemrl.evaluate.rows import ROWS
    from gemrl.evaluate.table import HEADINGS, lines_of
    from gemrl.progress import said_on_success

    runs = list(dict.fromkeys(bundle for run in args.runs for bundle in _bundles(run)))
    if not runs:
        raise ConfigError("sweep needs at least one run folder")
    _require_one_of_each_seed(runs)
    cells = [
        Cell(run, knobs, args.episodes, args.protocol) for run in runs for knobs in _grid(args, run)
    ]
    with said_on_success():
        rows = run_cells(cells, lambda cell: cell.run / ROWS, runner_of(args))
    if args.json:
        print(json.dumps([_summary(group) for group in _settings(rows)]))
        return
    for task in dict.fromkeys(row.task for row in rows):
        found = [row for row in rows if row.task == task]
        seeds = len({row.train_seed for row in found})
        print(f"{task} ({found[0].data_origin} data), {args.protocol} seeds, {seeds} policies")
        print(table(HEADINGS, [line.cells for line in lines_of(found)]))


def _bundles(run: Path) -> list[Path]:
    """The policy of a run, or those of its seeds."""
    from gemrl.learn.bundle import MANIFEST

    seeds = sorted(path.parent for path in run.glob(f"seed-*/{MANIFEST}"))
    return seeds or [run]


def _require_one_of_each_seed(runs: list[Path]) -> None:
    """Refuse policies that a table would take for one: they differ in more than the seed."""
    from gemrl.learn.bundle import load_manifest

    seen: dict[tuple[str, str, int], Path] = {}
    for run in runs:
        manifest = load_manifest(run)
        key = (manifest["task"], manifest["method"], manifest["config"]["seed"])
        other = seen.setdefault(key, run)
        if other != run:
            raise ConfigError(f"{other} and {run} are of one training seed: sweep them apart")


def _grid(args: SweepArgs, run: Path) -> list[Any]:
    from gemrl.data.tasks import task_named
    from gemrl.decide.knobs import Cosine, Knobs
    from gemrl.learn.bundle import load_manifest

    name = load_manifest(run)["task"]
    if name is None:
        raise KnobError(f"{run}: the policy's data names no task to sweep in")
    task = task_named(name)
    weights = [*args.wp, *(Cosine(end, task.horizon) for end in args.wp_end)]
    grid = itertools.product(
        args.n, args.lam or (task.lam,), weights or [task.wp_end], args.support, args.value
    )
    settings = [
        Knobs(n=n, lam=lam, wp=wp, support=support, value=value)
        for n, lam, wp, support, value in grid
    ]
    return list(dict.fromkeys(settings))


def _settings(rows: Any) -> Any:
    from gemrl.evaluate.table import settings_of

    tasks = dict.fromkeys(row.task for row in rows)
    return [
        group for task in tasks for _, _, group in settings_of([r for r in rows if r.task == task])
    ]


def _summary(group: Any) -> dict[str, Any]:
    from gemrl.evaluate.table import FEWEST_FOR_VIOLATION, line

    found = line("", group)
    return {
        "task": group[0].task,
        "method": group[0].method,
        "protocol": group[0].protocol,
        "knobs": group[0].knobs,
        "episodes": len(group),
        "score": found.score.mean,
        "stderr": found.score.stderr if len(group) > 1 else None,
        "violation": found.violation if found.candidates >= FEWEST_FOR_VIOLATION else None,
        "collapse_dist": found.collapse_dist,
        "support_z": found.support_z,
    }


def reproduce(args: ReproduceArgs) -> None:
    """Reproduce one table or figure, or all of them."""
    from gemrl.evaluate.reproduce import REPRODUCTIONS, render
    from gemrl.evaluate.reproduce import reproduce as run_study
    from gemrl.evaluate.reproduce.budget import Budget
    from gemrl.evaluate.reproduce.study import Study
    from gemrl.progress import said_on_success

    names = list(REPRODUCTIONS) if args.name == "all" else [args.name]
    if args.name not in (*REPRODUCTIONS, "all"):
        raise ConfigError(
            f"reproduce {args.name!r}: must be one of {', '.join(REPRODUCTIONS)}, or all"
        )
    if args.rows is not None:
        with_rows = ("name", "out", "rows")
        given = [f.name for f in fields(args) if getattr(args, f.name) != f.default]
        idle = [name for name in given if name not in with_rows]
        if idle:
            flag = "no-gem" if idle[0] == "gem" else idle[0].replace("_", "-")
            raise ConfigError(f"--{flag} does not go with --rows, which runs nothing")
        written = [file for name in names for file in render(name, args.rows, args.out)]
    else:
        methods = _methods(args)
        if names == ["interface"]:
            methods = _with_critics(methods, named=args.methods != ("all",))
        budget = Budget(
            tasks=_tasks(args.tasks),
            steps=args.steps,
            seeds=args.seeds,
            first_seed=args.first_seed,
            episodes=args.episodes,
            n=args.n,
            sweep_n=args.sweep_n,
            knobs=args.knobs,
            data_steps=args.data_steps,
            methods=methods,
            method_steps=args.method_steps,
            method_settings=_method_settings(args.method_settings),
            gem=args.gem,
        )
        study = Study(budget, args.out, runner_of(args))
        with said_on_success():
            written = run_study(names, study)
    for file in written:
        if file.suffix != ".png":
            print(file)


def _methods(args: ReproduceArgs) -> tuple[str, ...]:
    """The methods that are named; `all` is without those that are trained with GEM, where it is."""
    from gemrl.evaluate.reproduce.budget import BASELINES
    from gemrl.methods import METHODS

    if args.methods != ("all",):
        return args.methods
    return tuple(name for name in METHODS if args.gem or name not in ("gem", *BASELINES))


def _method_settings(words: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Settings by method and name, of words such as dt.batch_size=16."""
    found: dict[str, dict[str, Any]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        method, dot, setting = name.partition(".")
        setting = setting.replace("-", "_")
        try:
            if not (equals and dot) or setting in found.get(method, {}):
                raise ValueError
            found.setdefault(method, {})[setting] = json.loads(value)
        except ValueError:
            raise ConfigError(
                f"--method-settings {word}: must be METHOD.SETTING=VALUE, once for each setting, "
                "with a number, true, false, null or a list such as [256,256]"
            ) from None
    return found


def _with_critics(methods: tuple[str, ...], named: bool) -> tuple[str, ...]:
    """The methods that GEM's rule can execute; one without critics is refused where it is named."""
    from gemrl.evaluate.reproduce.budget import WITHOUT_CRITICS

    without = [name for name in methods if name in WITHOUT_CRITICS]
    if named and without:
        raise ConfigError(
            f"--methods has {without[0]!r}, which has no critics: GEM's rule cannot execute it"
        )
    return tuple(name for name in methods if name not in WITHOUT_CRITICS)


def _tasks(words: tuple[str, ...]) -> tuple[str, ...]:
    """Names of tasks and suites as names of tasks."""
    from gemrl.data.tasks import TASKS
    from gemrl.evaluate.reproduce import paper

    if not words:
        return paper.tasks()
    suites = {task.suite for task in TASKS.values()}
    found: list[str] = []
    for word in words:
        members = [task.name for task in TASKS.values() if task.suite == word]
        if word not in TASKS and word not in suites:
            raise ConfigError(f"tasks: {word!r} is neither a task nor one of {', '.join(suites)}")
        found += members or [word]
    return tuple(dict.fromkeys(found))
