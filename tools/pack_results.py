"""Bring a study's rows and records into the repository, a cell a line, and write its documents.

    python tools/pack_results.py runs/study [TASK ...]

Without tasks, all that the study has rows of. Pages stay with the study: Markdown and plots are
what docs/results shows.
"""

import argparse
import shutil
from pathlib import Path

from gemrl.evaluate.reproduce import REPRODUCTIONS, render
from gemrl.evaluate.rows import pack_rows, read_rows

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


def main() -> None:
    """Copy, pack and render."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("tasks", nargs="*")
    args = parser.parse_args()
    for file in sorted((args.study / "rows").glob("*.jsonl")):
        if not args.tasks or file.stem in args.tasks:
            pack_rows(RESULTS / "rows" / file.name, read_rows(file))
    (RESULTS / "records").mkdir(parents=True, exist_ok=True)
    for file in sorted((args.study / "records").glob("*.jsonl")):
        shutil.copyfile(file, RESULTS / "records" / file.name)
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
