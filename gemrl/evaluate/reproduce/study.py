"""What a reproduction needs: data, trained policies and rows, each made once and then found."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemrl.data.dataset import Dataset
from gemrl.data.recipes import make_dataset
from gemrl.data.storage import genuine_path, regenerated_path, write_text
from gemrl.data.tasks import Task, task_named
from gemrl.errors import ConfigError, DataError
from gemrl.evaluate.cells import Cell, Runner, run_cells
from gemrl.evaluate.reproduce.budget import BASELINES, WITHOUT_CRITICS, Budget, shown
from gemrl.evaluate.reproduce.select import (
    KnobsOf,
    knobs_of,
    paper_knobs,
    sweep,
)
from gemrl.evaluate.rows import Row
from gemrl.evaluate.workers import processes
from gemrl.learn.bundle import MANIFEST, config_to_json, data_of, load_manifest
from gemrl.learn.divergence import divergence_of
from gemrl.learn.parallel import job, run_jobs
from gemrl.learn.train import baseline, snapshot, started
from gemrl.methods import gem, method_named
from gemrl.methods.gem import GemConfig
from gemrl.methods.protocol import MethodConfig
from gemrl.progress import bar, clock, say

STUDY = "study"
"""Name of the record that holds the budget."""
SETTINGS = "settings"
"""Name of the records with the settings of trainings that are not the method's own."""
DIVERGED = "diverged"
"""Name of the records of other methods' trainings that diverged."""
# What the estimate of time rests on: docs/performance.md. A core's updates a second with the
# baselines beside GEM; microseconds of a decision, and of each of its candidates.
UPDATES_A_SECOND = 95.0
DECISION, CANDIDATE = 150e-6, 0.7e-6


class Study:
    """A folder with `runs/TASK/gem/seed-S`, `rows/TASK.jsonl` and `records/NAME.jsonl`."""

    def __init__(self, budget: Budget, out: Path, runner: Runner | None = None) -> None:
        self.budget = budget
        self.out = out
        self._runner = runner or processes()

    @property
    def seeds(self) -> range:
        """Training seeds."""
        return self.budget.training_seeds

    @property
    def gem_seeds(self) -> range:
        """Seeds of GEM, or of the densities that other methods need."""
        if self.budget.gem:
            return self.seeds
        needed = (seeds for name, seeds in self.others.items() if name not in WITHOUT_CRITICS)
        return max(needed, key=len, default=range(0))

    @property
    def others(self) -> dict[str, range]:
        """The methods that are trained by themselves, and the seeds of each."""
        names = [name for name in self.budget.methods if name not in (gem.METHOD.name, *BASELINES)]
        return {n: self.seeds[:1] if method_named(n).heavy else self.seeds for n in names}

    @property
    def method_steps(self) -> int:
        """Updates of each training of these."""
        return self.budget.method_steps or self.budget.steps

    def policy(self, task: str, method: str, seed: int, updates: int | None = None) -> Path:
        """Folder of a policy: the last one of its training, or that after so many updates."""
        if method in self.others:
            return self.out / "runs" / task / method / f"seed-{seed}"
        run = self.out / "runs" / task / gem.METHOD.name / f"seed-{seed}"
        place = run if updates is None else snapshot(run, updates)
        return place if method == gem.METHOD.name else baseline(place, method)

    def density(self, task: str, seed: int) -> Path:
        """Folder of the policy whose behaviour density other methods are judged by."""
        whole = self.policy(task, gem.METHOD.name, seed)
        if self.budget.gem or (whole / MANIFEST).exists():
            return whole
        return self.out / "runs" / task / "density" / f"seed-{seed}"

    def config(self, task: str, seed: int, method: str = gem.METHOD.name) -> MethodConfig:
        """What GEM, or another method, is trained with."""
        if method != gem.METHOD.name:
            given = self.budget.method_settings.get(method, {})
            kind = method_named(method).config
            return kind.for_task(task, steps=self.method_steps, seed=seed, **given)
        whole = GemConfig.for_task(task, steps=self.budget.steps, seed=seed, **self.budget.settings)
        if self.budget.gem:
            return whole
        # The density is trained first and by itself: without further updates it is the same one.
        return replace(whole, steps=0, pretrain_steps=whole.behavior_steps)

    @property
    def snapshot_every(self) -> int:
        """Updates between two policies that are kept on the way."""
        return max(1, self.budget.steps // 4)

    def train(self) -> None:
        """Make the data and train the policies that are missing."""
        self._require_same_settings()
        jobs = []
        for task in self.budget.tasks:
            missing = [
                (config, run, words)
                for config, run, words in self._wanted(task)
                if not self._trained(task, run, config)
            ]
            data = self._data(task_named(task)) if missing else ""
            for config, run, words in missing:
                title = f"{task}, {run.parent.name}, seed {config.seed}"
                words, may = ("--task", task, *words), self._may_diverge(run)
                jobs.append(job(title, data, config, run, *words, may_diverge=may))
        if jobs:
            run_jobs(jobs)
        if self.others:
            self._record_settings()
            self._record_divergences()

    def _require_same_settings(self) -> None:
        """Refuse another seed of a method with other settings: tables tell one set of a task."""
        for record in self.records(SETTINGS):
            task, method = record["task"], record["method"]
            if task not in self.budget.tasks or method not in self.others:
                continue
            given = json.loads(json.dumps(self.budget.method_settings.get(method, {})))
            if record["settings"] != given:
                raise ConfigError(
                    f"{self.out} has {method} on {task}, trained with other settings "
                    f"({record['settings'] or 'its own'}): choose another --out"
                )
            if record.get("steps", self.method_steps) != self.method_steps:
                raise ConfigError(
                    f"{self.out} has {method} on {task}, trained for {record['steps']:,} updates: "
                    "choose another --out"
                )

    def _record_settings(self) -> None:
        """Note which settings are not the methods' own, if only that there are none."""
        kept = {(record["task"], record["method"]): record for record in self.records(SETTINGS)}
        for task in self.budget.tasks:
            for method in self.others:
                given = self.budget.method_settings.get(method, {})
                about = {"task": task, "method": method, "settings": given}
                kept[task, method] = about | {"steps": self.method_steps}
        self.record(SETTINGS, list(kept.values()))

    def _record_divergences(self) -> None:
        """Note which trainings diverged, and forget those that no longer do."""
        before = self.records(DIVERGED)
        kept = {(r["task"], r["method"], r["seed"]): r for r in before}
        for task in self.budget.tasks:
            for method, seeds in self.others.items():
                for seed in seeds:
                    why = divergence_of(self.policy(task, method, seed))
                    kept.pop((task, method, seed), None)
                    if why is not None:
                        about = {"task": task, "method": method, "seed": seed, "why": why}
                        kept[task, method, seed] = about
        if before or kept:
            self.record(DIVERGED, list(kept.values()))

    def others_of(self, task: str) -> list[tuple[str, int]]:
        """The methods and seeds that a task has policies of, beside GEM and what goes with it."""
        return [
            (method, seed)
            for method, seeds in self.others.items()
            for seed in seeds
            if divergence_of(self.policy(task, method, seed)) is None
        ]

    def _wanted(self, task: str) -> Iterator[tuple[MethodConfig, Path, tuple[str, ...]]]:
        """The trainings of a task: settings, folder and further words of the command."""
        beside = ("--baselines", "--snapshot-every", str(self.snapshot_every))
        for seed in self.gem_seeds:
            run, whole = self.density(task, seed), self.policy(task, gem.METHOD.name, seed)
            if self.budget.gem or run != whole:
                yield self.config(task, seed), run, beside if self.budget.gem else ()
        for method, seeds in self.others.items():
            for seed in seeds:
                yield self.config(task, seed, method), self.policy(task, method, seed), ()

    def _may_diverge(self, run: Path) -> bool:
        """Of another method that is a result, which tables tell; without GEM there is none."""
        return run.parent.name in self.others

    def _manifest(self, run: Path) -> dict[str, Any] | None:
        """What a training that has come to its end was of; None where there is no such one."""
        if self._may_diverge(run) and divergence_of(run) is not None:
            return started(run)
        return load_manifest(run) if (run / MANIFEST).exists() else None

    def _trained(self, task: str, run: Path, config: MethodConfig) -> bool:
        """Whether a training has come to its end, which may be that it diverged."""
        manifest = self._manifest(run)
        if manifest is None:
            return False
        data = Path(manifest["dataset"]["source"]).stem
        wanted = self._file(task_named(task))
        same_data = data == (task if wanted is None else wanted.stem)
        if manifest["config"] != config_to_json(config) or not same_data:
            raise ConfigError(
                f"{run} was trained with other settings or data: choose another --out"
            )
        return True

    def _file(self, task: Task) -> Path | None:
        """The study's own data file; None where the data have the published size."""
        steps = self.budget.data_steps
        if steps is None or steps == task.published_steps:
            return None
        return self.out / "data" / f"{task.name}-{steps}.hdf5"

    def _data(self, task: Task) -> str:
        """The task's data: by name where it has the published size, else a file of this study."""
        own = self._file(task)
        file = own or regenerated_path(task.name)
        if not file.exists() and (own or not genuine_path(task.name).exists()):
            steps = self.budget.data_steps or task.published_steps
            with bar(f"make {task.name}", steps, "steps") as report:
                make_dataset(task, steps, 0, file, report)
        return task.name if own is None else str(own)

    def begin(self) -> None:
        """Note the budget, so that the tables can tell it."""
        self.record(STUDY, [shown(self.budget)])

    def sweep_cells(self) -> list[Cell]:
        """Every setting of every task's sweep, on validation seeds."""
        return [
            self.cell(task, gem.METHOD.name, seed, knobs, "validation")
            for task in self.budget.tasks
            for seed in self.seeds
            for knobs in sweep(task, self.budget.sweep_n)
        ]

    def chosen(self) -> KnobsOf:
        """A task's knobs as validation seeds choose them; the sweep is run."""
        return knobs_of(self.evaluate(self.sweep_cells()), "chosen")

    def knobs(self) -> KnobsOf:
        """A task's knobs of the tables on test seeds."""
        return self.chosen() if self.budget.knobs == "chosen" else paper_knobs

    def dataset(self, task: str) -> Dataset:
        """The data that a task's policies were trained on."""
        for _, run, _ in self._wanted(task):
            if (manifest := self._manifest(run)) is not None:
                return data_of(manifest)
        raise ConfigError(f"{self.out} has no training of {task}, and so none of its data")

    def evaluate(self, cells: Iterable[Cell]) -> list[Row]:
        """The rows of the cells, of which those that are missing are run."""
        return run_cells(cells, self._rows_file, self._runner)

    def cell(
        self, task: str, method: str, seed: int, knobs: Any, protocol: str = "test", **more: Any
    ) -> Cell:
        """A cell of this study, with the protocol's number of episodes."""
        count = self.budget.test_episodes if protocol == "test" else self.budget.validation_episodes
        updates = more.pop("updates", None)
        gem_run = self.policy(task, gem.METHOD.name, seed, updates)
        return Cell(
            self.policy(task, method, seed, updates),
            knobs,
            more.pop("episodes", count(task)),
            protocol,
            task=task,
            audited_by=gem_run if method in BASELINES and "density" not in more else None,
            **more,
        )

    def _rows_file(self, cell: Cell) -> Path:
        return self.out / "rows" / f"{cell.task}.jsonl"

    def records(self, name: str) -> list[dict[str, Any]]:
        """The measurements of this name that are there already."""
        return read_records(self.out / "records" / f"{name}.jsonl")

    def record_data(self, name: str, measure: Callable[["Study", str], dict[str, Any]]) -> None:
        """Keep a measurement of each task's data; those that are there already are kept."""
        kept = {record["task"]: record for record in self.records(name)}
        missing = [task for task in self.budget.tasks if task not in kept]
        if missing:
            kept |= {task: measure(self, task) for task in missing}
            self.record(name, list(kept.values()))

    def record(self, name: str, records: Sequence[dict[str, Any]]) -> None:
        """Keep measurements that are no episodes, in place of earlier ones of this name."""
        text = "".join(json.dumps(record) + "\n" for record in records)
        write_text(self.out / "records" / f"{name}.jsonl", text)


class Plan(Study):
    """A study that runs nothing and notes what it would."""

    def __init__(self, budget: Budget, out: Path) -> None:
        super().__init__(budget, out)
        self.cells: dict[Cell, None] = {}

    def chosen(self) -> KnobsOf:
        """Any knobs: they cost the same."""
        self.evaluate(self.sweep_cells())
        return paper_knobs

    def record_data(self, name: str, measure: Callable[[Study, str], dict[str, Any]]) -> None:
        """Nothing: there may be no data yet."""

    def evaluate(self, cells: Iterable[Cell]) -> list[Row]:
        """Note the cells."""
        self.cells |= dict.fromkeys(cells)
        return []

    def say(self, uncounted: Sequence[str]) -> None:
        """Tell how long all of it takes, before it is begun, but for reproductions that measure
        other things than cells.
        """
        trainings = len(self.budget.tasks) * len(self.gem_seeds)
        others = len(self.budget.tasks) * sum(map(len, self.others.values()))
        config = self.config(self.budget.tasks[0], self.budget.first_seed)
        updates = sum(phase.steps for phase in gem.METHOD.phases(config))
        training = trainings * updates / UPDATES_A_SECOND
        what = f"trainings of {config.steps:,}" if self.budget.gem else f"densities of {updates:,}"
        deciding = sum(map(_seconds, self.cells))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        say(
            f"{trainings} {what} updates and {len(self.cells)} cells: "
            f"about {hours(training / cores)} of training and {hours(deciding / cores)} of "
            f"evaluation on {cores} cores, less what {self.out} already holds"
            + (f"; more for {', '.join(uncounted)}, which is not counted" if uncounted else "")
            + (f"; more for {others} trainings of other methods" if others else "")
        )


def _seconds(cell: Cell) -> float:
    task = task_named(cell.task or "")
    steps = (cell.episodes or task.episodes) * task.horizon
    return steps * (1 / task.steps_per_second + DECISION + CANDIDATE * cell.knobs.n)


def hours(seconds: float) -> str:
    """A long time in words."""
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{clock(seconds)} min"


def read_records(file: Path) -> list[dict[str, Any]]:
    """The records of a file; none where there is no file."""
    if not file.exists():
        return []
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise DataError(f"{file}: not a file of records ({error})") from error
