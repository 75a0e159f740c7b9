"""Bring a study's rows and records into the repository, a cell a line, and write its documents.

    python tools/pack_results.py runs/study [TASK ...]

Without tasks, all that the study has rows of. A task's rows of a method and its records are
replaced by the study's; what the study does not have stays, and the budget of docs/results is its
own. Pages stay with the study: Markdown and plots are what docs/results shows.
"""

import argparse
import json
from pathlib import Path

from gemrl.data.storage import write_text
from gemrl.evaluate.reproduce import REPRODUCTIONS, render
from gemrl.evaluate.reproduce.study import STUDY, read_records
from gemrl.evaluate.rows import pack_rows, read_rows

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


def add_records(file: Path, place: Path) -> None:
    """Put a study's records in place of older ones of the same tasks, or of no task."""
    new = read_records(file)
    replaced = {record.get("task") for record in new}
    kept = [record for record in read_records(place) if record.get("task") not in replaced]
    write_text(place, "".join(json.dumps(record) + "\n" for record in kept + new))


def main() -> None:
    """Copy, pack and render."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("tasks", nargs="*")
    args = parser.parse_args()
    for file in sorted((args.study / "rows").glob("*.jsonl")):
        if not args.tasks or file.stem in args.tasks:
            place, new = RESULTS / "rows" / file.name, list(read_rows(file))
            methods = {row.method for row in new}
            pack_rows(place, [row for row in read_rows(place) if row.method not in methods] + new)
    (RESULTS / "records").mkdir(parents=True, exist_ok=True)
    for file in sorted((args.study / "records").glob("*.jsonl")):
        if file.stem != STUDY:
            add_records(file, RESULTS / "records" / file.name)
    for old in RESULTS.glob("*.png"):
        old.unlink()
    for name in REPRODUCTIONS:
        for written in render(name, RESULTS, RESULTS):
            if written.suffix == ".html":
                written.unlink()
            else:
                print(written.relative_to(RESULTS.parents[1]))


if __name__ == "__main__":
    main()
