"""A self-contained HTML page about an audit: the findings on top, then pictures."""

from pathlib import Path
from typing import Any

import gemrl
from gemrl import pages
from gemrl.decide.knobs import Knobs

TITLES = {"actor": "actor", "behavior": "behaviour density"}
RULES = {"value": "by value alone (w_p = 0)", "knobs": "by the knobs given (w_p = {wp:g})"}


def write_page(report: dict[str, Any], out: Path) -> Path:
    """Write the page and return its path."""
    return pages.write_page(
        "gemrl.evaluate.audit", "page.html.jinja", out, lambda: contents(report)
    )


def contents(report: dict[str, Any]) -> dict[str, Any]:
    """Everything the page shows."""
    return {
        "version": gemrl.__version__,
        "name": report["run"]["task"] or report["run"]["dataset"],
        "r": report,
        "knobs": Knobs.from_json(report["knobs"]).describe(),
        "part": report["rows"]["part"].replace(" ", "-"),
        "titles": TITLES,
        "cell": _cell,
        "pictures": _pictures(report),
    }


def _pictures(report: dict[str, Any]) -> dict[str, Any]:
    """Pictures by section; None where the policy has nothing to show there."""
    from gemrl.evaluate.audit import pictures

    grid, curse = report["grid"], report["winners_curse"]
    calibration, disagreement = report["calibration"], report["disagreement"]
    supported = grid is not None and grid["violation"] is not None
    return {
        "reliability": pictures.reliability(calibration) if calibration else None,
        "grid": pictures.heat_maps(report) if supported else None,
        "usage": [
            pictures.usage(TITLES[name], found) for name, found in report["components"].items()
        ],
        "critics": [pictures.disagreement(disagreement), pictures.values(disagreement)]
        if disagreement
        else None,
        "curse": [
            pictures.curse(curse, rule, RULES[rule].format(wp=found["wp"]))
            for rule, found in curse["rules"].items()
        ]
        if curse
        else None,
    }


def _cell(value: float | None, form: str) -> str:
    """A number that may be missing."""
    return "–" if value is None else format(value, form)
