"""The comparison of settings as lines of text for a terminal."""

from typing import Any

from gemrl.decide.knobs import Knobs

LEGEND = (
    "value: what held-out episodes vouch for, by fitted Q evaluation; gain: against the default",
    "critics, lcb, spread: the policy's own critics on what is chosen: mean, lower bound, "
    "standard deviation",
    "z, log μ, viol.: support of what is chosen, and how often z lies below -2",
    "beyond: share of states at which what is chosen is rarer than the log's own rare actions",
)


def describe(report: dict[str, Any]) -> str:
    """The recommendation first, then the table."""
    run, rows = report["run"], report["rows"]
    lines = [
        f"{run['method']} on {run['task'] or run['dataset']}: {rows['used']:,} held-out "
        f"transitions of {rows['episodes']:,} episodes",
        "",
        *recommendation_lines(report["recommendation"]),
    ]
    lines += ["", *table(report)]
    if report["estimate"] is not None:
        lines += ["", *_estimate_lines(report["estimate"])]
    return "\n".join(lines)


def describe_online(report: dict[str, Any]) -> str:
    """The recommendation first, then the scores of the episodes that were spent."""
    found = report["online"]
    lines = [
        f"{report['run']['method']} on {report['run']['task']}: {found['episodes']} "
        f"{found['protocol']} episodes, spent by an upper-confidence rule",
        "",
        *recommendation_lines(report["recommendation"]),
        "",
    ]
    for setting in found["settings"]:
        error = "" if setting["stderr"] is None else f" ± {setting['stderr']:.1f}"
        name = Knobs.from_json(setting["knobs"]).describe()
        lines.append(f"  {name:24} {setting['score']:6.1f}{error}  ({setting['episodes']})")
    return "\n".join(lines)


def recommendation_lines(found: dict[str, Any]) -> list[str]:
    """What to do, why, and how to say it to a command and in code."""
    verb = "keep the suite's default," if found["kept_default"] else "take"
    return [
        f"  {verb} {Knobs.from_json(found['knobs']).describe()}: {found['reason']}",
        f"  {found['flags']}",
        f"  {found['code']}",
    ]


def table(report: dict[str, Any]) -> list[str]:
    """A line a setting; the default and the recommended one are marked."""
    chosen = report["recommendation"]["knobs"]
    heads = ("value", "gain", "[low", "high]")
    audits = ("critics", "lcb", "spread", "z", "log μ", "viol.", "beyond")
    estimated = report["estimate"] is not None
    lines = [_line("  λ    w_p", (heads if estimated else ()) + audits)]
    for setting in report["settings"]:
        knobs, f = setting["knobs"], setting["frontier"]
        cells = []
        if estimated:
            gain = setting["difference"]
            cells += [f"{setting['value']['mean']:.2f}", f"{gain['mean']:+.2f}"]
            cells += [f"{gain['low']:.2f}", f"{gain['high']:.2f}"]
        cells += [f"{f['value']:.2f}", f"{f['lcb']:.2f}", f"{f['critic_std']:.3f}"]
        cells += [f"{f['support_z']:+.2f}", f"{f['log_support']:.2f}", f"{f['violation']:.3f}"]
        cells += [f"{f['uncovered']:.1%}"]
        marks = [" default"] * setting["default"] + [" *"] * (knobs == chosen)
        lines.append(_line(f"{knobs['lam']:>4g} {knobs['wp']:>6g}", cells) + "".join(marks))
    return [*lines, *(f"  {line}" for line in LEGEND[0 if estimated else 1 :])]


def _estimate_lines(found: dict[str, Any]) -> list[str]:
    agreed = found["rank_correlation"]
    lines = [
        f"value: mean over {found['over']}, {found['fits']} cross-fitted fits of "
        f"{found['updates']:,} updates, discount {found['discount']:g}, in units of the scaled "
        f"reward; bounds hold with {found['confidence']:.0%} confidence each"
    ]
    if found["coverage"]:
        lines.append(
            f"actions less likely than {found['coverage']:.0%} of the logged ones, where a setting "
            f"takes more than {found['coverage']:.0%} of them, count as worth "
            f"{found['least_value']:.3g}, the least there is"
        )
    else:
        lines.append("the fit was trusted everywhere: beyond the log it only extrapolates")
    if agreed is not None:
        lines.append(f"rank correlation between fits: {agreed:+.2f}")
    return lines


def _line(head: str, cells: Any) -> str:
    return head.ljust(12) + "".join(f"{cell:>8}" for cell in cells)
