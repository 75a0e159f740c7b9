"""Tables of the page: what each cell says, and what it is sorted by."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gemrl.evaluate.report.gather import Source
from gemrl.evaluate.report.settings import Setting
from gemrl.maths.statistics import Estimate, Interval

MISSING = "–"


class Cell(NamedTuple):
    """A cell of a table."""

    text: str
    value: float | str | None
    """What it is sorted by; nothing comes last either way."""


class Table(NamedTuple):
    """A table that one can sort."""

    name: str
    """What it shows, on which seeds."""
    headings: Sequence[str]
    lines: list[list[Cell]]
    marked: int | None = None
    """The line that stands out."""


def words(text: str) -> Cell:
    """A cell of words."""
    return Cell(text, text)


def number(value: float | Estimate | Interval | None, form: str = ".1f") -> Cell:
    """A cell of a number, with what is known of its error."""
    if value is None:
        return Cell(MISSING, None)
    plain = value[0] if isinstance(value, tuple) else value
    return Cell(format(value, form), float(plain))


def score_table(settings: Sequence[Setting], name: str) -> Table:
    """Scores by setting."""
    headings = ("decision", "score", "training seeds", "episodes a seed", "mean return", "updates")
    lines = [
        [
            words(s.label),
            number(s.score),
            number(len(s.seeds), "d"),
            number(s.episodes, "d"),
            number(s.estimate("episode_return")),
            number(s.updates, ",d"),
        ]
        for s in settings
    ]
    return Table(name, headings, lines)


AUDITS = (
    ("violation", "violation", ".3f"),
    ("executed_violation", "violation, executed", ".3f"),
    ("collapse_dist", "collapse", ".3f"),
    ("executed_collapse_dist", "collapse, executed", ".3f"),
    ("support_z", "support z", "+.2f"),
    ("executed_support_z", "support z, executed", "+.2f"),
    ("lcb_spread", "LCB spread", ".3f"),
)
AUDIT_LEGEND = (
    "violation: share of steps whose chosen candidate has support z below -2 within its "
    "candidates; – where fewer than six candidates make it impossible",
    "collapse: distance from the chosen candidate to the nearest component mean of the behaviour "
    "density",
    "support z: log support of the chosen candidate in standard deviations of its candidate set",
    "executed: the same of the action that was executed, which differs from the chosen candidate "
    "where k_smooth is above 1",
    "LCB spread: standard deviation of the lower bound over a candidate set; read w_p beside it",
)


def audit_table(settings: Sequence[Setting], name: str) -> Table:
    """Audits by setting, for the chosen and the executed action."""
    headings = ("decision", *(title for _, title, _ in AUDITS))
    lines = [
        [words(s.label), *(number(s.estimate(field), form) for field, _, form in AUDITS)]
        for s in settings
    ]
    return Table(name, headings, lines)


def speed_table(settings: Sequence[Setting], name: str) -> Table | None:
    """Where the time went; None where no row tells."""
    timed = [s for s in settings if s.steps_a_second is not None]
    if not timed:
        return None
    headings = ("decision", "steps a second", "in decisions", "in the simulator")
    lines = [
        [
            words(s.label),
            number(s.steps_a_second, ",.0f"),
            number(s.share_of_time("decide_seconds"), ".0%"),
            number(s.share_of_time("simulate_seconds"), ".0%"),
        ]
        for s in timed
    ]
    return Table(name, headings, lines)


def choice_table(settings: Sequence[Setting], chosen: Any, name: str) -> Table:
    """Validation scores by knobs, with the setting that they prefer marked."""
    found = [s.knobs for s in settings]
    marked = found.index(chosen) if chosen in found else None
    lines = [
        [
            words(s.label + (" (chosen)" if i == marked else "")),
            number(s.score),
            number(s.estimate("violation"), ".3f"),
            number(len(s.seeds), "d"),
            number(s.episodes, "d"),
        ]
        for i, s in enumerate(settings)
    ]
    headings = ("setting", "score", "violation", "training seeds", "episodes a seed")
    return Table(name, headings, lines, marked)


def policy_table(sources: Sequence[Source]) -> Table:
    """The policies of a section."""
    headings = ("method", "training seed", "updates", "policy", "gemrl", "folder")
    lines = [
        [
            words(s.method),
            number(s.seed, "d"),
            number(s.updates, ",d"),
            words(s.digest[:16]),
            words(str(s.manifest.get("software", {}).get("gemrl", MISSING))),
            words(str(s.folder)),
        ]
        for s in sources
    ]
    return Table("Policies", headings, lines)


def likelihood_table(sources: Sequence[Source]) -> Table | None:
    """Likelihoods that training measured; None where bundles hold none."""
    lines = [
        [
            words(f"{s.method} seed {s.seed}, {model}"),
            words(part.replace("_", " ")),
            number(found.get("nll"), ".3f"),
            number(found.get("gap"), ".2f"),
            number(found.get("gap_median"), ".2f"),
            number(found.get("lowest_log_std"), ".2f"),
        ]
        for s in sources
        for model, parts in (s.manifest.get("calibration") or {}).items()
        for part, found in parts.items()
    ]
    headings = ("model", "rows", "NLL", "gap, mean", "gap, median", "lowest ln σ")
    return Table("Likelihood of the logged actions", headings, lines) if lines else None
