"""`gemrl demo`: the whole of gemrl on Maze2D-umaze, from data to report, in minutes."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from gemrl.data.dataset import Dataset
from gemrl.data.inspect import describe, inspect
from gemrl.data.readers import load_dataset
from gemrl.data.recipes import make_dataset
from gemrl.data.storage import regenerated_path
from gemrl.data.tasks import task_named
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy, load
from gemrl.errors import ConfigError, DataError
from gemrl.evaluate.choose import Choice, choose, weight_grid
from gemrl.evaluate.report import write_report
from gemrl.evaluate.rollouts import evaluate_policy
from gemrl.evaluate.rows import ROWS, Row
from gemrl.evaluate.table import HEADINGS, LEGEND, Line, label_of, line
from gemrl.learn.bundle import MANIFEST, config_to_json, load_manifest
from gemrl.learn.parallel import job, run_jobs
from gemrl.learn.train import baseline
from gemrl.methods.gem import GemConfig
from gemrl.progress import bar

TASK = "maze2d-umaze-v1"
WEIGHTS = (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0)
BASELINES = ("iql", "bc")
CHOICE_BUDGET = 64
BUDGETS = (1, 64, 1024)
ANCHOR = Knobs(n=0, wp=0.0)


def run_demo(
    steps: int,
    seeds: int,
    episodes: int,
    out: Path,
    data_steps: int | None = None,
    pretrain_steps: int | None = None,
    learning_rate: float = 1e-3,
    polyak: float = 0.02,
) -> None:
    """Data, training, choice of knobs, test, table and report; what is there already is reused."""
    for name, value in {"seeds": seeds, "episodes": episodes, "data_steps": data_steps}.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} = {value}: must be at least 1")
    runs = [out] if seeds == 1 else [out / f"seed-{seed}" for seed in range(seeds)]
    configs = {
        run: GemConfig(
            steps=steps,
            seed=seed,
            pretrain_steps=pretrain_steps,
            learning_rate=learning_rate,
            polyak=polyak,
        )
        for seed, run in enumerate(runs)
    }
    screen = Console(highlight=False)

    screen.print(f"[bold]1. Data[/] for {TASK}")
    file, data = _data(screen, data_steps or task_named(TASK).published_steps, out)
    screen.print(f"\n[bold]2. Training[/] {steps:,} updates of GEM, IQL and BC, {seeds} seed(s)")
    _train(screen, file, data.fingerprint, configs)
    policies = [_with_baselines(run) for run in runs]

    screen.print("\n[bold]3. Knobs[/] chosen on validation seeds")
    chosen, choices = _choose(policies, runs, max(1, episodes // 2))
    _print_choices(screen, chosen, choices)

    screen.print("\n[bold]4. Test[/] on other seeds")
    lines = _test(policies, runs, chosen.knobs, episodes)
    screen.print(_table(lines, episodes, seeds))
    for text in LEGEND:
        screen.print(Padding(text, (0, 0, 0, 2)), style="dim")
    page = write_report(runs, out / "report.html")
    screen.print(f"\nThe report with pictures: [bold]{escape(str(page))}[/]", soft_wrap=True)


def _data(screen: Console, steps: int, out: Path) -> tuple[Path, Dataset]:
    """The published size goes where other commands find it, another size beside the runs."""
    task = task_named(TASK)
    published = steps == task.published_steps
    file = regenerated_path(TASK) if published else out / f"{TASK}-{steps}.hdf5"
    if file.exists():
        screen.print(escape(f"{file} is there already"), soft_wrap=True)
    else:
        with bar(f"make {TASK}", steps, "steps") as report:
            make_dataset(task, steps, 0, file, report)
    data = load_dataset(file)
    if len(data) != steps:
        raise DataError(
            f"{file} has {len(data):,} transitions where the demo wants {steps:,}: remove it, or "
            "give its size as --data-steps"
        )
    screen.print(escape(describe(inspect(data))), soft_wrap=True)
    return file, data


def _train(screen: Console, file: Path, fingerprint: str, configs: dict[Path, GemConfig]) -> None:
    """Train GEM with its baselines beside it into each folder that has no policy yet."""
    jobs = []
    for out, config in configs.items():
        if not (out / MANIFEST).exists():
            jobs.append(job(f"seed {config.seed}", str(file), config, out, "--baselines"))
            continue
        manifest = load_manifest(out)
        same_data = manifest["dataset"]["fingerprint"] == fingerprint
        whole = all((baseline(out, name) / MANIFEST).exists() for name in BASELINES)
        if manifest["config"] != config_to_json(config) or not same_data or not whole:
            raise ConfigError(f"{out} has other settings or data: choose another --out")
        screen.print(escape(f"{out} is trained already"), soft_wrap=True)
    run_jobs(jobs)


def _with_baselines(run: Path) -> dict[str, Policy]:
    """GEM and the two baselines, whose actions GEM's density audits."""
    gem = load(run)
    others = {name: load(baseline(run, name)).audited_by(gem) for name in BASELINES}
    return {"gem": gem, **others}


def _choose(
    policies: list[dict[str, Policy]], runs: list[Path], episodes: int
) -> tuple[Choice, list[Choice]]:
    rows: list[Row] = []
    for knobs in weight_grid(Knobs(n=CHOICE_BUDGET), WEIGHTS):
        for policy, run in zip(policies, runs, strict=True):
            rows += evaluate_policy(
                policy["gem"],
                knobs,
                episodes=episodes,
                protocol="validation",
                rows_file=run / ROWS,
            )
    return choose(rows)


def _print_choices(screen: Console, chosen: Choice, choices: list[Choice]) -> None:
    table = Table()
    table.add_column("w_p")
    table.add_column(f"score on validation seeds, N = {CHOICE_BUDGET}")
    for choice in choices:
        mark = "  ← chosen" if choice is chosen else ""
        table.add_row(f"{choice.knobs.wp:g}", f"{choice.score}{mark}")
    screen.print(table)


def settings(knobs: Knobs) -> list[tuple[str, Knobs]]:
    """Method and knobs of each line of the demo's table."""
    return [
        ("bc", ANCHOR),
        ("iql", ANCHOR),
        ("gem", ANCHOR),
        *(("gem", replace(knobs, n=n)) for n in BUDGETS),
        ("gem", replace(knobs, n=BUDGETS[-1], wp=0.0)),
    ]


def _test(
    policies: list[dict[str, Policy]], runs: list[Path], knobs: Knobs, episodes: int
) -> list[Line]:
    lines = []
    for method, setting in settings(knobs):
        rows: list[Row] = []
        for policy, run in zip(policies, runs, strict=True):
            rows += evaluate_policy(
                policy[method], setting, episodes=episodes, rows_file=run / ROWS
            )
        lines.append(line(label_of(method, setting), rows))
    return lines


def _table(lines: list[Line], episodes: int, seeds: int) -> Table:
    title = f"{TASK}, regenerated data, {episodes} test episodes, {seeds} training seed(s)"
    table = Table(title=title, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "decision" else "right")
    for found in lines:
        table.add_row(*found.cells)
    return table
