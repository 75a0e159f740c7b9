"""The `gemrl` command. Each command is thin: it reads its words and calls the library.

Exit code 0 on success, 2 on a user's mistake with one line on standard error, 1 on anything else.
"""

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from gemrl.arguments import (
    AuditArgs,
    DataCollectArgs,
    DataFetchArgs,
    DataInspectArgs,
    DataListArgs,
    DataMakeArgs,
    DemoArgs,
    EvalArgs,
    KnobArgs,
    ReportArgs,
)
from gemrl.bench_command import BenchArgs, bench
from gemrl.data_commands import (
    data_collect,
    data_fetch,
    data_inspect,
    data_list,
    data_make,
)
from gemrl.errors import ConfigError, GemrlError, KnobError
from gemrl.evaluation_commands import ReproduceArgs, SweepArgs, reproduce, sweep
from gemrl.export_command import ExportArgs, export
from gemrl.serve_command import ReplayArgs, replay, serve, serve_parser
from gemrl.train_command import train, train_parser
from gemrl.tune_command import TuneArgs, tune


def demo(args: DemoArgs) -> None:
    """Run the whole slice."""
    from gemrl.demo import run_demo
    from gemrl.progress import said_on_success

    with said_on_success():
        run_demo(**vars(args))


def evaluate(args: EvalArgs) -> None:
    """Evaluate a policy."""
    from gemrl.decide.policy import load
    from gemrl.evaluate.rollouts import evaluate_policy
    from gemrl.evaluate.rows import ROWS
    from gemrl.evaluate.table import line

    policy = load(args.run, behavior=args.behavior)
    task = args.task or policy.bundle.manifest["task"]
    rows = evaluate_policy(
        policy,
        knobs_from(args.knobs, policy, task, args.decide),
        episodes=args.episodes,
        protocol=args.protocol,
        task=args.task,
        rows_file=args.run / ROWS,
    )
    summary = line(args.protocol, rows)
    first = rows[0]
    if args.json:
        answer = {
            "protocol": args.protocol,
            "task": first.task,
            "environment": first.env_id,
            "simulator": first.simulator,
            "data": first.data_origin,
            "method": first.method,
            "updates": first.updates,
            "episodes": len(rows),
            "knobs": first.knobs,
            "score": summary.score.mean,
            "stderr": summary.score.stderr if len(rows) > 1 else None,
            "return": sum(row.episode_return for row in rows) / len(rows),
            "violation": summary.violation,
            "collapse_dist": summary.collapse_dist,
            "support_z": summary.support_z,
        }
        print(json.dumps(answer))
        return
    print(
        f"{first.task} ({first.data_origin} data, {first.simulator}), {first.method} after "
        f"{first.updates:,} updates, {len(rows)} {args.protocol} episodes"
    )
    print(
        f"  score {summary.score}, violation {summary.cells[2]}, collapse {summary.cells[3]}, "
        f"support z {summary.cells[4]}"
    )
    print(f"  rows in {args.run / ROWS}")


def audit(args: AuditArgs) -> None:
    """Audit a policy."""
    from gemrl.decide.policy import load
    from gemrl.evaluate.audit import audit as audit_policy
    from gemrl.evaluate.audit import describe, write_page
    from gemrl.learn.compiled import kept_programs
    from gemrl.progress import said_on_success, say

    policy = load(args.run)
    if args.html is not None and (args.html.is_dir() or not args.html.parent.is_dir()):
        raise ConfigError(f"--html {args.html}: must be a file in a folder that is there")
    with said_on_success(), kept_programs():
        data = policy.bundle.read_data(args.dataset)
        knobs = knobs_from(args.knobs, policy, policy.bundle.manifest["task"])
        found = audit_policy(policy, data, knobs, args.states, args.seed, quiet=False)
        if args.gates:
            from gemrl.decide.gates import Gates

            gates = Gates.calibrate(policy, data, knobs, seed=args.seed)
            say(f"gates, from {gates.episodes:,} held-out episodes, in {gates.save(args.run)}")
    if args.html is not None:
        say(f"pictures in {write_page(found, args.html)}")
    print(json.dumps(found, indent=2) if args.json else describe(found))


def report(args: ReportArgs) -> None:
    """Write a page."""
    from gemrl.evaluate.report import write_report
    from gemrl.evaluate.results import markdown
    from gemrl.evaluate.rows import read_rows

    if not args.runs:
        raise ConfigError("report needs at least one run folder or file of rows")
    files = [path for path in args.runs if path.suffix == ".jsonl"]
    missing = [str(path) for path in files if not path.exists()]
    if missing:
        raise ConfigError(f"no such file: {', '.join(missing)}")
    if len(files) == len(args.runs) and args.out is None:
        print(markdown([row for path in files for row in read_rows(path)]))
        return
    folders = [path for path in args.runs if path not in files]
    print(write_report(args.runs, args.out or folders[0] / "report.html"))


def knobs_from(args: KnobArgs, policy: Any, task: str | None, decide: str = "own") -> Any:
    """The knobs of a rule, the method's own or GEM's, with what the command line says."""
    from dataclasses import replace

    from gemrl.data.tasks import task_named
    from gemrl.decide.knobs import Cosine

    given = {k: v for k, v in vars(args).items() if v is not None and k != "wp_end"}
    if args.wp_end is not None:
        if args.wp is not None:
            raise KnobError("--wp and --wp-end exclude each other: a constant or a schedule")
        if task is None:
            raise KnobError("--wp-end needs the task's horizon: say which task with --task")
        given["wp"] = Cosine(args.wp_end, task_named(task).horizon)
    return replace(policy.knobs_for(task, decide), **given)


Command = tuple[Callable[[Sequence[str]], Any], Callable[..., None], str]

COMMANDS: dict[str, Command] = {
    "demo": (lambda _: DemoArgs, demo, "data, training, evaluation and a report in one go"),
    "data list": (lambda _: DataListArgs, data_list, "tasks and the datasets at hand"),
    "data make": (lambda _: DataMakeArgs, data_make, "regenerate a task's dataset"),
    "data fetch": (lambda _: DataFetchArgs, data_fetch, "download a task's published dataset"),
    "data collect": (lambda _: DataCollectArgs, data_collect, "data of your own policy files"),
    "data inspect": (lambda _: DataInspectArgs, data_inspect, "what to know before training"),
    "train": (train_parser, train, "train a policy from a dataset"),
    "eval": (lambda _: EvalArgs, evaluate, "run a policy in its environment"),
    "sweep": (lambda _: SweepArgs, sweep, "run policies with every combination of knobs"),
    "tune": (lambda _: TuneArgs, tune, "choose knobs with no environment, or with a few episodes"),
    "audit": (lambda _: AuditArgs, audit, "judge a policy on its dataset, with no environment"),
    "reproduce": (lambda _: ReproduceArgs, reproduce, "a table or figure of the paper"),
    "bench": (lambda _: BenchArgs, bench, "what decisions of every method cost here"),
    "export": (lambda _: ExportArgs, export, "the whole decision as one ONNX file, or check one"),
    "serve": (serve_parser, serve, "actions over WebSocket and HTTP, with a page"),
    "replay": (lambda _: ReplayArgs, replay, "decide again what a server's log holds"),
    "report": (lambda _: ReportArgs, report, "one HTML page out of rows and bundles"),
}


def usage(group: str = "") -> str:
    """What `gemrl --help` prints, for all commands or for those of a group such as `data`."""
    lines = "\n".join(
        f"  gemrl {name:14} {text}"
        for name, (_, _, text) in COMMANDS.items()
        if name.startswith(group)
    )
    return (
        "gemrl: offline reinforcement learning that people can deploy\n\n"
        f"{lines}\n\n"
        "`gemrl COMMAND --help` explains a command; `gemrl --version` tells the version."
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words[0] == "data" and words[1:] in (["-h"], ["--help"]):
        print(usage("data "))
        return 0
    if words[0] == "--version":
        import gemrl

        print(gemrl.__version__)
        return 0
    try:
        name = next((n for n in COMMANDS if words[: len(n.split())] == n.split()), None)
        if name is None:
            said = " ".join(words[:2])
            wrong = "incomplete" if any(n.startswith(f"{said} ") for n in COMMANDS) else "unknown"
            raise ConfigError(f"{wrong} command {said!r}; commands are {', '.join(COMMANDS)}")
        parser, run, _ = COMMANDS[name]
        rest = words[len(name.split()) :]
        args = _parse(parser(rest), name, rest)
        if isinstance(args, int):
            return args
        # Several seeds are started with the words that one was asked for.
        run(args, rest) if run is train else run(args)
        sys.stdout.flush()
    except GemrlError as error:
        print(f"gemrl: {error}", file=sys.stderr)
        return 2
    except (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        print(f"gemrl: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read the output has enough of it; nothing is left to be flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as interrupt:
        print(f"gemrl: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return 1
    return 0


def run() -> None:
    """The entry point of the installed command."""
    sys.exit(main())


def _parse(kind: Any, name: str, words: Sequence[str]) -> Any:
    """The arguments; an exit code where help was asked for. A mistake becomes one line.

    `kind` is the class of arguments, or that and an instance which has other defaults.
    """
    complaint = io.StringIO()
    given: dict[str, Any] = {}
    if isinstance(kind, tuple):
        kind, given["default"] = kind
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(kind, args=words, prog=f"gemrl {name}", **given)
    except SystemExit as stop:
        if not stop.code:
            return 0
        plain = re.sub(r"\x1b\[[0-9;]*m", "", complaint.getvalue())
        text = plain.partition("\n")[2] or plain  # Its first line is a title, said again below.
        said = " ".join(re.sub(r"[╭╮╰╯│─|+]|-{3,}", " ", text).split())
        said = re.split(r" (?:Argument helptext|For full helptext|Got errors)", said)[0]
        raise ConfigError(f"{name}: {said} (see `gemrl {name} --help`)") from None
