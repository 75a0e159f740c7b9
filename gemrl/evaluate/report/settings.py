"""Rows by setting, and which setting stands for a method."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gemrl.data.tasks import TASKS
from gemrl.decide.knobs import Cosine, Knobs
from gemrl.evaluate.choose import choose, is_published
from gemrl.evaluate.rows import Row
from gemrl.evaluate.table import FEWEST_FOR_VIOLATION, label_of, sort_key, steps_per_second
from gemrl.maths.statistics import Estimate, clustered
from gemrl.methods import METHODS


@dataclass(frozen=True)
class Setting:
    """The rows of one method, its updates, its knobs and the simulator's masses."""

    method: str
    updates: int
    knobs: Knobs
    mass_scale: float
    rows: list[Row]

    @property
    def label(self) -> str:
        """The method and its knobs in a few words."""
        return label_of(self.method, self.knobs)

    @property
    def seeds(self) -> list[int]:
        """Training seeds."""
        return sorted({row.train_seed for row in self.rows})

    @property
    def episodes(self) -> int:
        """Different starts."""
        return len({row.episode_seed for row in self.rows})

    def estimate(self, name: str) -> Estimate | None:
        """Mean of a field with its error between training seeds; None where a row lacks it.

        A violation needs enough candidates to be possible.
        """
        candidates = self.knobs.n + (self.knobs.anchor != "none")
        if name.endswith("violation") and candidates < FEWEST_FOR_VIOLATION:
            return None
        groups = list(self._by_seed(name).values())
        if any(value is None for group in groups for value in group):
            return None
        return clustered(groups)

    @property
    def score(self) -> Estimate:
        """The normalized score."""
        return clustered(list(self._by_seed("score").values()))

    @property
    def runs(self) -> list[float]:
        """Mean score of each training seed."""
        groups = self._by_seed("score")
        return [sum(groups[seed]) / len(groups[seed]) for seed in sorted(groups)]

    @property
    def steps_a_second(self) -> float | None:
        """Environment steps a second of wall time; None where rows do not tell."""
        return steps_per_second(self.rows)

    def share_of_time(self, name: str) -> float | None:
        """How much of the wall time went into `decide_seconds` or `simulate_seconds`."""
        part, whole = self._total(name), self._total("wall_seconds")
        return None if part is None or not whole else part / whole

    def _by_seed(self, name: str) -> dict[int, list[float]]:
        groups: dict[int, list[float]] = {}
        for row in self.rows:
            groups.setdefault(row.train_seed, []).append(getattr(row, name))
        return groups

    def _total(self, name: str) -> float | None:
        values = [getattr(row, name) for row in self.rows]
        return None if any(value is None for value in values) else sum(values)


def settings_of(rows: Sequence[Row]) -> list[Setting]:
    """Rows by setting, in an order that reads well."""
    groups: dict[tuple[str, Knobs, int, float], list[Row]] = {}
    for row in rows:
        key = (row.method, Knobs.from_json(row.knobs), row.updates, row.mass_scale)
        groups.setdefault(key, []).append(row)
    found = [
        Setting(method, updates, knobs, mass_scale, group)
        for (method, knobs, updates, mass_scale), group in groups.items()
    ]
    return sorted(found, key=lambda s: (sort_key(s.method, s.knobs), s.updates, s.mass_scale))


def at_last_step(rows: Sequence[Row]) -> list[Row]:
    """Rows of each method's longest training, with the simulator's own masses."""
    last: dict[str, int] = {}
    for row in rows:
        last[row.method] = max(row.updates, last.get(row.method, 0))
    return [row for row in rows if row.updates == last[row.method] and row.mass_scale == 1.0]


class Headline(NamedTuple):
    """The setting that stands for a method, and by which rule. Test scores have no say in it."""

    setting: Setting
    protocol: str
    note: str = ""
    """What must be known of it beside."""


def headlines(task: str | None, rows: Sequence[Row]) -> dict[str, Headline]:
    """Each method's headline on test seeds: baselines first, then GEM."""
    last = at_last_step(rows)
    found = {}
    for setting in settings_of([row for row in last if row.protocol == "test"]):
        if setting.method not in found:
            mine = [row for row in last if row.method == setting.method]
            found[setting.method] = _headline(task, mine)
    return found


def _headline(task: str | None, rows: Sequence[Row]) -> Headline:
    """Of one method's rows."""
    tested = settings_of([row for row in rows if row.protocol == "test"])
    own = [s for s in tested if _has_own_rule(s.method) and is_published(s.method, s.knobs)]
    if own:
        note = "of several temperatures tested, the lowest" if len(own) > 1 else ""
        return Headline(own[0], "as its own paper executes it", note)
    chosen = chosen_knobs(rows)
    unmet = ""
    if chosen is not None:
        same = [s for s in tested if s.knobs == replace(chosen, n=s.knobs.n) and s.knobs.n > 1]
        if same:
            most = max(same, key=lambda setting: setting.knobs.n)
            return Headline(most, "chosen on validation seeds")
        unmet = f"those chosen on validation seeds ({chosen.describe()}) were not tested"
    searches = [s for s in tested if s.knobs.n > 1 and s.knobs.wp != 0]
    if not searches:
        return Headline(tested[0], "no search", unmet)
    suite = [s for s in searches if s.knobs in _suite_knobs(task, s.knobs.n)]
    most = max(suite or searches, key=lambda setting: setting.knobs.n)
    if suite:
        return Headline(most, "the paper's for the suite", unmet)
    only = "the only search tested" if len(searches) == 1 else "of several tested, by no rule"
    return Headline(most, only, unmet)


def _has_own_rule(method: str) -> bool:
    return method in METHODS and METHODS[method].deploy is not None


def chosen_knobs(rows: Sequence[Row]) -> Knobs | None:
    """The guarded search that validation rows prefer; None where there are none."""
    searches = [
        row
        for row in rows
        if row.protocol == "validation" and row.knobs["n"] > 0 and row.knobs["wp"] != 0
    ]
    return choose(searches)[0].knobs if searches else None


def _suite_knobs(task: str | None, n: int) -> tuple[Knobs, ...]:
    known = TASKS.get(task or "")
    if known is None:
        return ()
    weights = (Cosine(known.wp_end, known.horizon), known.wp_end)
    return tuple(Knobs(n=n, lam=known.lam, wp=wp) for wp in weights)
