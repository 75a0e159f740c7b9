"""What tables and plots are made of: a folder's rows and records, read again."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gemrl.errors import DataError, GemrlError
from gemrl.evaluate.reproduce.budget import Budget, shown
from gemrl.evaluate.reproduce.select import (
    KNOB_WORDS,
    KnobsOf,
    knobs_of,
    last_step,
    pick,
    sweep_rows,
    tasks_of,
)
from gemrl.evaluate.reproduce.study import DIVERGED, STUDY, read_records
from gemrl.evaluate.rows import PROTOCOLS, Row, read_rows


@dataclass(frozen=True)
class Facts:
    """All that tables and plots are made of."""

    rows: list[Row]
    records: dict[str, list[dict[str, Any]]]
    """Other measurements, by the name of their reproduction, and the `study`'s budget."""

    @property
    def budget(self) -> dict[str, Any]:
        """What the study was allowed to spend."""
        found = self.records.get(STUDY)
        return found[0] if found else shown(Budget(("maze2d-umaze-v1",)))

    @property
    def tasks(self) -> list[str]:
        """Tasks with rows of GEM on test seeds whose knobs are known."""
        rows = last_step(self.rows)
        known = self.budget["knobs"] == "paper"
        return [t for t in tasks_of(pick(rows)) if known or sweep_rows(rows, t)]

    @property
    def n(self) -> int:
        """Candidates of the tables that hold N fixed."""
        return self.budget["n"]

    @cached_property
    def knobs_of(self) -> KnobsOf:
        """A task's knobs on test seeds."""
        return knobs_of(self.rows, self.budget["knobs"])

    @property
    def knob_words(self) -> str:
        """How these knobs came about."""
        return KNOB_WORDS[self.budget["knobs"]]


def facts_of(folder: Path) -> Facts:
    """The rows and records that a folder holds."""
    files = sorted((folder / "rows").glob("*.jsonl"))
    records = {f.stem: read_records(f) for f in sorted((folder / "records").glob("*.jsonl"))}
    if not files and not records:
        raise DataError(f"{folder} holds no rows (rows/*.jsonl) and no records")
    budget = _budget_of(folder, records.get(STUDY, []))
    rows = [row for file in files for row in read_rows(file) if _within(budget, row)]
    lost = [r for r in records.pop(DIVERGED, []) if r["seed"] in budget.training_seeds]
    # A policy that was trained anew and diverged may have left rows of the one before.
    gone = {(record["task"], record["method"], record["seed"]) for record in lost}
    rows = [row for row in rows if (row.task, row.method, row.train_seed) not in gone]
    return Facts(rows, records | ({DIVERGED: lost} if lost else {}))


def _budget_of(folder: Path, records: list[dict[str, Any]]) -> Budget:
    """The budget that a folder was made with."""
    where = folder / "records" / f"{STUDY}.jsonl"
    if len(records) != 1 or not isinstance(records[0], dict):
        raise DataError(f"{where}: must hold one record, the study's budget")
    try:
        values: dict[str, Any] = dict(records[0])
        values |= {name: tuple(values.get(name, ())) for name in ("tasks", "methods")}
        return Budget(**values)
    except (KeyError, TypeError, GemrlError) as error:
        raise DataError(f"{where}: not a study's budget ({error})") from error


def _within(budget: Budget, row: Row) -> bool:
    """Whether a row belongs to this budget. A folder may hold more, of larger budgets before: what
    is shown, and what knobs are chosen by, is what this budget evaluates.
    """
    if row.protocol == "validation":
        count, allowed = budget.validation_episodes(row.task), (0, budget.sweep_n)
        if row.knobs["n"] not in allowed:
            return False
    else:
        count = budget.test_episodes(row.task)
    number = row.episode_seed - PROTOCOLS[row.protocol].start
    return row.train_seed in budget.training_seeds and number < count
