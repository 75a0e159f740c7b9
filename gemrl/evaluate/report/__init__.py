"""One self-contained HTML page about trained runs, out of their rows, metrics and bundles.

It needs no environment, and no dataset: what is gone is said to be gone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gemrl
from gemrl.evaluate.report.gather import gather
from gemrl.pages import write_page
from gemrl.progress import bar

__all__ = ["write_report"]


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write the page and return its path.

    Each of `runs` is a bundle, a folder of `seed-S` bundles, an output folder of `gemrl reproduce`,
    or a file of rows. They may be of different tasks and methods.
    """
    return write_page("gemrl.evaluate.report", "page.html.jinja", out, lambda: contents(list(runs)))


def contents(runs: list[Path]) -> dict[str, Any]:
    """Everything the page shows."""
    # Pictures need an extra, which `write_page` has asked for by now.
    from gemrl.evaluate.report.overview import overview
    from gemrl.evaluate.report.section import section

    found = gather(runs)
    names = list(dict.fromkeys(subject.name for subject in found.subjects))
    sections = []
    count = len(found.subjects)
    with bar("report", count, "tasks", quiet=count == 1) as report:
        for subject in found.subjects:
            sections.append(section(subject))
            report(len(sections), subject.name)
    return {
        "version": gemrl.__version__,
        "title": ", ".join(names) if len(names) < 3 else f"{len(names)} tasks",
        "sections": sections,
        "overview": overview(found.subjects),
        "unfinished": [str(folder) for folder in found.unfinished],
    }
