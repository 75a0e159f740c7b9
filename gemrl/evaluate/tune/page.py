"""A self-contained HTML page about a comparison of settings."""

from pathlib import Path
from typing import Any

import gemrl
from gemrl import pages
from gemrl.decide.knobs import Knobs
from gemrl.evaluate.tune.regret import describe_regret


def write_page(report: dict[str, Any], out: Path) -> Path:
    """Write the page and return its path."""
    return pages.write_page("gemrl.evaluate.tune", "page.html.jinja", out, lambda: contents(report))


def contents(report: dict[str, Any]) -> dict[str, Any]:
    """Everything the page shows."""
    from gemrl.evaluate.tune import pictures

    return {
        "version": gemrl.__version__,
        "name": report["run"]["task"] or report["run"]["dataset"],
        "r": report,
        "setting": Knobs.from_json(report["recommendation"]["knobs"]).describe(),
        "chosen": report["recommendation"]["knobs"],
        "regrets": [describe_regret(found) for found in report.get("regret", [])],
        "pictures": {
            "gains": pictures.gains(report) if report["estimate"] else None,
            "frontier": pictures.frontier(report),
            "audits": pictures.audits(report),
        },
    }
