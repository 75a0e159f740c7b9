"""An audit as lines of text for a terminal."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gemrl.decide.knobs import Knobs

# Of the reliability curve these levels are told.
TOLD = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75)
KINDS = {"logged": "logged", "candidates": "candidates", "random": "random in the bounds"}
RULES = {"value": "by value alone", "knobs": "by the knobs given"}


def describe(report: dict[str, Any]) -> str:
    """The report as text: what is worth knowing first, then the numbers."""
    rows, run = report["rows"], report["run"]
    lines = [
        f"{run['method']} on {run['task'] or run['dataset']}: {rows['count']:,} "
        f"{rows['part'].replace(' ', '-')} rows, decisions at {rows['states']:,} of their states, "
        f"{Knobs.from_json(report['knobs']).describe()}",
        "",
        *(f"  {finding['level']}: {finding['text']}" for finding in report["findings"]),
    ]
    for section in (_likelihood, _calibration, _decisions, _grid, _critics, _curse, _scale):
        told = list(section(report))
        lines += ["", *told] if told else []
    return "\n".join(lines)


def _likelihood(report: dict[str, Any]) -> Iterator[str]:
    if not report["likelihood"]:
        return
    floor = report["log_std_min"]
    about = "" if floor is None else f" (log-std floor {floor:g})"
    yield f"likelihood of logged actions{about}"
    yield _line("", ["NLL", "in training", "NLL gap", "its median", "gate entropy", "dead"], 12)
    for name, found in report["likelihood"].items():
        used = report["components"][name]
        cells = [
            f"{found['nll']:.3f}",
            f"{report['training_likelihood'][name]['nll']:.3f}",
            f"{found['gap']:.3f}",
            f"{found['gap_median']:.3f}",
            f"{used['gate_entropy']:.2f}",
            f"{len(used['dead'])} of {len(used['usage'])}",
        ]
        yield _line(name, cells, 12)


def _calibration(report: dict[str, Any]) -> Iterator[str]:
    found = report["calibration"]
    if found is None:
        return
    yield (
        f"support calibration: furthest off by {found['largest_deviation']:+.3f}, at "
        f"{found['largest_at']:.0%} (chance alone: {found['chance_band']:.3f})"
    )
    yield _line("density's quantile", [f"{level:.0%}" for level in TOLD])
    below = np.interp(TOLD, found["levels"], found["below"])
    yield _line("logged actions below", [f"{share:.1%}" for share in below])


def _decisions(report: dict[str, Any]) -> Iterator[str]:
    yield _line("decisions", ["violation", "collapse", "support z", "LCB spread", "critics"], 11, 0)
    for found in report["decisions"]:
        n = found["knobs"]["n"]
        cells = [
            _cell(found["violation"], ".3f"),
            _cell(found["collapse_dist"], ".3f"),
            _cell(found["support_z"], "+.2f"),
            _cell(found["lcb_spread"], ".3f"),
            _cell(found["critic_spread"], ".3f"),
        ]
        yield _line("anchor" if n == 0 else f"N {n}", cells, 11)


def _grid(report: dict[str, Any]) -> Iterator[str]:
    grid = report["grid"]
    if grid is None or grid["violation"] is None:
        return
    lam = report["knobs"]["lam"]
    at = grid["lam"].index(lam)
    for name, title in (("violation", "violation"), ("collapse_dist", "collapse")):
        yield _line(f"{title} at λ {lam:g}, w_p", [f"{wp:g}" for wp in grid["wp"]], indent=0)
        for n, values in zip(grid["n"], grid[name], strict=True):
            yield _line(f"N {n}", [f"{value:.3f}" for value in values[at]])


def _critics(report: dict[str, Any]) -> Iterator[str]:
    found = report["disagreement"]
    if found is None:
        return
    yield _line("critics at actions", ["spread", "its median", "mean value"], 11, 0)
    for kind, title in KINDS.items():
        of = found["kinds"][kind]
        numbers = (of["spread_mean"], of["spread_median"], of["value_mean"])
        yield _line(title, [f"{number:.3f}" for number in numbers], 11)


def _curse(report: dict[str, Any]) -> Iterator[str]:
    found = report["winners_curse"]
    if found is None:
        return
    yield _line("winner's curse, N", [str(n) for n in found["n"]], 8, 0)
    for rule, curve in found["rules"].items():
        yield f"  {RULES[rule]} (w_p {curve['wp']:g})"
        for name, title in (("selecting_q", "critics that choose"), ("other_q", "the others")):
            yield _line("  " + title, [f"{value:.3f}" for value in curve[name]], 8)


def _scale(report: dict[str, Any]) -> Iterator[str]:
    found = report["value_scale"]
    if found["lcb_std"] is None:
        return
    low, middle, high = found["lcb_std_quantiles"].values()
    yield (
        f"spread of the lower bound over a candidate set: {found['lcb_std']:.3g} on average "
        f"(a tenth below {low:.3g}, half below {middle:.3g}, nine tenths below {high:.3g});"
    )
    yield (
        f"w_p {found['wp']:g} trades against it. Value is in units of reward times "
        f"{found['reward_scale']:g}."
    )


def _line(title: str, cells: Sequence[str], width: int = 7, indent: int = 2) -> str:
    return f"{' ' * indent + title:24}" + " ".join(cell.rjust(width) for cell in cells)


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
