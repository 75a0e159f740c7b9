"""Bring a study's rows and records into the repository, a cell a line, and write its documents.

    python tools/pack_results.py runs/study [TASK ...] [--into docs/results] [--only NAME ...]

Without tasks, all that the study has. A cell's rows are replaced by the study's, and so are the
records of a task; what the study does not have stays. Of a policy that was trained anew no older
row stays.
Pages stay with the study: Markdown and plots are what docs/results shows. Tables that
docs/results.md quotes from there are brought up to date.
"""

import argparse
import json
import re
from collections.abc import Collection, Container, Sequence
from pathlib import Path
from typing import Any

from gemrl.data.storage import write_text
from gemrl.evaluate.reproduce import REPRODUCTIONS, render
from gemrl.evaluate.reproduce.study import DIVERGED, SETTINGS, STUDY, read_records
from gemrl.evaluate.rows import Row, pack_rows, read_rows

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
# What rows must have in common to stand in one table.
SHARED = ("steps", "n", "sweep_n", "knobs", "data_steps", "settings")


Trained = tuple[str, str, int]
"""Task, method and seed of a training."""


def trained_of(row: Row) -> Trained:
    """The training of a row's policy."""
    return row.task, row.method, row.train_seed


def diverged_in(folder: Path) -> dict[Trained, dict[str, Any]]:
    """The records of trainings that diverged."""
    found = read_records(folder / "records" / f"{DIVERGED}.jsonl")
    return {(r["task"], r["method"], r["seed"]): r for r in found}


def merged_rows(old: Sequence[Row], new: Sequence[Row], lost: Container[Trained] = ()) -> list[Row]:
    """The new rows, and the old ones of other cells and of policies that are still the same; none
    of those that diverged when they were trained anew.
    """
    old, new = ([row for row in rows if trained_of(row) not in lost] for rows in (old, new))

    def policy(row: Row) -> tuple[Any, ...]:
        return row.method, row.train_seed, row.updates

    def place(row: Row) -> tuple[Any, ...]:
        knobs = json.dumps(row.knobs, sort_keys=True)
        return *policy(row), row.protocol, knobs, row.mass_scale

    replaced = set(map(place, new))
    trained = {policy(row): row.bundle for row in new}
    others = [row for row in old if place(row) not in replaced]
    return [r for r in others if trained.get(policy(r), r.bundle) == r.bundle] + new


def merged_records(
    old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]], tasks: Sequence[str]
) -> list[dict[str, Any]]:
    """The new records of these tasks (none: of all) and of no task, and the old ones of others."""

    def place(record: dict[str, Any]) -> tuple[Any, ...]:
        return record.get("experiment"), record.get("task"), record.get("method")

    wanted = [r for r in new if not tasks or r.get("task") in (None, *tasks)]
    replaced = set(map(place, wanted))
    return [record for record in old if place(record) not in replaced] + wanted


def require_same_budget(study: Path, results: Path) -> None:
    """Refuse rows that the results' budget would not show, or would show as what they are not.

    A folder that has no budget yet gets the study's.
    """
    place = results / "records" / f"{STUDY}.jsonl"
    found = read_records(study / "records" / f"{STUDY}.jsonl")
    if not found:
        raise SystemExit(f"{study} is no study of `gemrl reproduce`: it has no budget")
    (theirs,) = found
    if not place.exists():
        write_text(place, json.dumps(theirs) + "\n")
    (ours,) = read_records(place)
    other = [name for name in SHARED if theirs[name] != ours[name]]
    if _seeds_after(theirs) > _seeds_after(ours):
        other.append("seeds")
    if (theirs["episodes"] or 0) > (ours["episodes"] or 0):
        other.append("episodes")
    if other:
        raise SystemExit(f"{study} has another budget than {results}: {', '.join(other)}")


def require_same_settings(study: Path, results: Path, brought: Collection[Trained]) -> None:
    """Refuse seeds of a method that would stand beside ones that were trained with other settings:
    a table tells one set of them for a task and method.
    """
    ours, theirs = (
        {
            (record["task"], record["method"]): record["settings"]
            for record in read_records(folder / "records" / f"{SETTINGS}.jsonl")
        }
        for folder in (results, study)
    )
    for task, method in sorted({trained[:2] for trained in brought}):
        pair = task, method
        if ours.get(pair, {}) == theirs.get(pair, {}):
            continue
        kept = {trained_of(row) for row in read_rows(results / "rows" / f"{task}.jsonl")}
        stays = (kept | diverged_in(results).keys()) - set(brought)
        seeds = sorted(seed for *of, seed in stays if tuple(of) == pair)
        if seeds:
            raise SystemExit(
                f"{study} has {method} on {task} with other settings than seeds "
                f"{', '.join(map(str, seeds))} in {results}: train these anew too"
            )


def require_same_updates(rows: Sequence[Row], methods: Collection[str]) -> None:
    """Refuse seeds of a method on a task that were trained for longer than others beside them."""
    for method in sorted(methods):
        last: dict[int, int] = {}
        for row in rows:
            if row.method == method:
                last[row.train_seed] = max(row.updates, last.get(row.train_seed, 0))
        if len(set(last.values())) > 1:
            told = ", ".join(f"{count:,} of seed {seed}" for seed, count in sorted(last.items()))
            raise SystemExit(
                f"{method} on {rows[0].task} would stand in one table with seeds of different "
                f"lengths (updates: {told}): train them alike"
            )


def _seeds_after(budget: dict[str, Any]) -> int:
    """The first training seed that a budget does not have; older ones begin at 0."""
    return budget.get("first_seed", 0) + budget["seeds"]


def pack(study: Path, results: Path, tasks: Sequence[str]) -> None:
    """Merge rows and records."""
    require_same_budget(study, results)
    files = {file.stem: file for file in sorted((study / "rows").glob("*.jsonl"))}
    new = {task: read_rows(file) for task, file in files.items() if not tasks or task in tasks}
    lost = {t: r for t, r in diverged_in(study).items() if not tasks or t[0] in tasks}
    lasted = {trained_of(row) for rows in new.values() for row in rows} - lost.keys()
    require_same_settings(study, results, lost.keys() | lasted)
    merged = {
        task: merged_rows(read_rows(results / "rows" / f"{task}.jsonl"), new.get(task, []), lost)
        for task in sorted(new.keys() | {task for task, *_ in lost})
    }
    for task, rows in merged.items():
        require_same_updates(rows, {method for of, method, _ in lasted if of == task})
    for task, rows in merged.items():
        place = results / "rows" / f"{task}.jsonl"
        if rows:
            pack_rows(place, rows)
        else:
            place.unlink(missing_ok=True)
    for file in sorted((study / "records").glob("*.jsonl")):
        if file.stem not in (STUDY, DIVERGED):
            place = results / "records" / file.name
            records = merged_records(read_records(place), read_records(file), tasks)
            _write(place, records)
    kept = {t: r for t, r in diverged_in(results).items() if t not in lasted} | lost
    if kept or diverged_in(results):
        _write(results / "records" / f"{DIVERGED}.jsonl", list(kept.values()))


# A quoted table begins with the page, the section and the label that it has there.
QUOTED = re.compile(r"(<!-- ([\w-]+\.md), (.+?): (.+?) -->\n\n)((?:\|.*\n)+)")


def with_tables(text: str, results: Path) -> str:
    """A page with the tables that it quotes from the pages of the results as they are now."""

    def quote(found: re.Match[str]) -> str:
        mark, page, section, label, _ = found.groups()
        return mark + _table(results / page, section, label)

    marks, whole = re.findall(r"^<!-- [\w-]+\.md, .*", text, re.MULTILINE), QUOTED.findall(text)
    if len(marks) != len(whole):
        raise SystemExit(
            f"{len(marks)} marks of quoted tables, and {len(whole)} have a table below"
        )
    return QUOTED.sub(quote, text)


def _table(page: Path, section: str, label: str) -> str:
    for part in re.split(r"^#+ ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        found = re.search(rf"^\*\*{re.escape(label)}\*\*\n\n((?:\|.*\n)+)", part, re.MULTILINE)
        if part.startswith(section + "\n") and found:
            return found[1]
    raise SystemExit(f"{page} has no table {label!r} in a section {section!r}")


def _write(place: Path, records: Sequence[dict[str, Any]]) -> None:
    write_text(place, "".join(json.dumps(record) + "\n" for record in records))


def main() -> None:
    """Merge and render."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--into", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--only", nargs="*", default=list(REPRODUCTIONS), choices=REPRODUCTIONS)
    args = parser.parse_args()
    pack(args.study, args.into, args.tasks)
    for name in args.only:
        for old in args.into.glob(f"{name}-*.png"):
            old.unlink()
        for written in render(name, args.into, args.into):
            if written.suffix == ".html":
                written.unlink()
            else:
                print(written)
    quoting = args.into.with_suffix(".md")
    if quoting.exists():
        write_text(quoting, with_tables(quoting.read_text(encoding="utf-8"), args.into))


if __name__ == "__main__":
    main()
