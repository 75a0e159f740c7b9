"""The commands of `gemrl data`. Each is thin: it reads its words and calls the library."""

import json
from typing import Any

from gemrl.arguments import (
    DataCollectArgs,
    DataFetchArgs,
    DataInspectArgs,
    DataListArgs,
    DataMakeArgs,
    ReadingArgs,
)


def data_list(args: DataListArgs) -> None:
    """List tasks."""
    from gemrl.data.storage import genuine_path, regenerated_path
    from gemrl.data.tasks import TASKS

    rows = [
        {
            "task": task.name,
            "suite": task.suite,
            "environment": task.env_id,
            "horizon": task.horizon,
            "reference": list(task.reference),
            "reference_origin": task.reference_origin,
            "published_steps": task.published_steps,
            "minari": task.minari,
            "genuine": genuine_path(task.name).exists(),
            "regenerated": regenerated_path(task.name).exists(),
        }
        for task in TASKS.values()
    ]
    if args.json:
        print(json.dumps(rows))
        return
    for row in rows:
        have = [origin for origin in ("genuine", "regenerated") if row[origin]]
        print(
            f"{row['task']:28} {row['published_steps']:>9,} steps   "
            f"{row['environment']:32} {', '.join(have) or '-'}"
        )


def data_make(args: DataMakeArgs) -> None:
    """Regenerate a dataset."""
    from gemrl.data.recipes import make_dataset
    from gemrl.data.storage import regenerated_path
    from gemrl.data.tasks import task_named
    from gemrl.progress import bar

    task = task_named(args.task)
    steps = task.published_steps if args.steps is None else args.steps
    out = args.out or regenerated_path(task.name)
    with bar(f"make {task.name}", steps, "steps") as report:
        make_dataset(task, steps, args.seed, out, report)
    print(out)


def data_fetch(args: DataFetchArgs) -> None:
    """Download a dataset."""
    from gemrl.data.fetch import fetch
    from gemrl.data.fetch.download import megabytes_bar
    from gemrl.data.tasks import task_named

    with megabytes_bar(f"fetch {args.task}") as report:
        path = fetch(
            task_named(args.task),
            source=args.source,
            mirrors=args.mirror,
            sha256=args.sha256,
            timeout=args.timeout,
            retries=args.retries,
            report=report,
        )
    print(path)


def data_collect(args: DataCollectArgs) -> None:
    """Collect a dataset with policy files."""
    from gemrl.data.recipes import collect_dataset
    from gemrl.progress import bar

    with bar(f"collect {args.env}", args.steps, "steps") as report:
        collect_dataset(
            args.env,
            list(args.policy),
            args.steps,
            args.seed,
            args.out,
            horizon=args.horizon,
            deterministic=args.deterministic,
            task=args.task,
            report=report,
        )
    print(args.out)


def data_inspect(args: DataInspectArgs) -> None:
    """Inspect a dataset."""
    from gemrl.data.inspect import describe, inspect, write_page
    from gemrl.data.readers import load_dataset
    from gemrl.progress import said_on_success, say

    with said_on_success():
        data = load_dataset(args.file, task=args.task, **reading_of(args.reading))
    report = inspect(data)
    if args.html is not None:
        say(f"pictures in {write_page(data, report, args.html)}")
    print(json.dumps(report, indent=2) if args.json else describe(report))


def reading_of(args: ReadingArgs) -> dict[str, Any]:
    """What `load_dataset` is told of how to read a file."""
    from gemrl.data.readers.columns import Columns, read_columns
    from gemrl.errors import ConfigError

    given = args.column if args.column != Columns() else None
    if args.columns is not None:
        if given is not None:
            raise ConfigError("--columns and flags for single columns exclude each other")
        given = read_columns(args.columns)
    return {"bounds": args.bounds, "outside": args.outside, "columns": given}
