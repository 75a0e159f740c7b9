"""Choosing knobs on validation seeds. Test rows are never looked at here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemrl.decide.knobs import Knobs
from gemrl.errors import DataError
from gemrl.evaluate.rows import Row
from gemrl.maths.statistics import Estimate, clustered
from gemrl.methods import METHODS
from gemrl.methods.protocol import ANCHOR_ALONE

DIGITS = 3
"""Of a score: rows that were packed keep six, and sums of them differ in the last."""


@dataclass(frozen=True)
class Choice:
    """A setting with what validation says of it."""

    knobs: Knobs
    score: Estimate


def by_setting(rows: Sequence[Row]) -> list[tuple[Knobs, list[Row]]]:
    """Rows grouped by their knobs, in the order in which the settings first appear."""
    groups: dict[Knobs, list[Row]] = {}
    for row in rows:
        groups.setdefault(Knobs.from_json(row.knobs), []).append(row)
    return list(groups.items())


def score_of(rows: Sequence[Row]) -> Estimate:
    """Normalized score over training seeds, with the error between them where there are several."""
    groups: dict[int, list[float]] = {}
    for row in rows:
        groups.setdefault(row.train_seed, []).append(row.score)
    return clustered(list(groups.values()))


def choose(rows: Sequence[Row]) -> tuple[Choice, list[Choice]]:
    """The setting with the highest mean score on validation rows, and all that were compared.

    Of settings that differ by less than rows keep digits, the one that comes first is chosen.
    """
    if not rows or any(row.protocol != "validation" for row in rows):
        raise DataError("knobs are chosen on validation rows only, and there must be some")
    choices = [Choice(knobs, score_of(group)) for knobs, group in by_setting(rows)]
    return max(choices, key=lambda choice: round(choice.score.mean, DIGITS)), choices


def published_knobs(method: str) -> Knobs:
    """The knobs with which a method's own paper executes its policy, a temperature being of values
    in units of the paper's rewards; of methods without such knobs the anchor alone.
    """
    return Knobs(**(METHODS[method].deploy or ANCHOR_ALONE))


def is_published(method: str, knobs: Knobs) -> bool:
    """Whether these are a method's own, at any temperature where it draws: that depends on the
    units of the data's rewards.
    """
    own = published_knobs(method)
    draws = knobs.temperature > 0, own.temperature > 0
    return replace(knobs, temperature=own.temperature) == own and draws[0] == draws[1]


def weight_grid(knobs: Knobs, weights: Sequence[float]) -> list[Knobs]:
    """The same knobs with each of the support weights."""
    return [replace(knobs, wp=weight) for weight in weights]
