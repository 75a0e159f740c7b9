"""Which rows a table is made of."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial

from gemrl.data.tasks import TASKS, task_named
from gemrl.decide.knobs import Cosine, Knobs
from gemrl.errors import DataError
from gemrl.evaluate.choose import choose
from gemrl.evaluate.rows import Row

BASELINE = Knobs(n=0, wp=0.0)
"""What a policy with a proposal alone decides with."""
LAMS = (0.0, 1.0, 3.5)
WP_ENDS = (0.1, 0.4, 1.0, 2.0)
CONSTANTS = (0.1, 0.2, 0.4, 2.0)


def paper_knobs(task: str, n: int) -> Knobs:
    """The paper's knobs for a task's suite: its λ, and w_p from 1 to its w_p_end."""
    found = task_named(task)
    return Knobs(n=n, lam=found.lam, wp=Cosine(found.wp_end, found.horizon))


def sweep(task: str, n: int) -> list[Knobs]:
    """The settings among which knobs are chosen: λ × w_p_end, and constant w_p at the suite's λ.

    A schedule from 1 to 1 is the constant 1.
    """
    found = task_named(task)
    weights = {end: 1.0 if end == 1.0 else Cosine(end, found.horizon) for end in WP_ENDS}
    return [
        *(Knobs(n=n, lam=lam, wp=weight) for lam in LAMS for weight in weights.values()),
        *(Knobs(n=n, lam=found.lam, wp=weight) for weight in CONSTANTS),
    ]


def last_step(rows: Iterable[Row]) -> list[Row]:
    """Rows of policies at the end of their training, not of snapshots on the way."""
    rows = list(rows)
    last: dict[tuple[str, str, int], int] = {}
    for row in rows:
        key = (row.task, row.method, row.train_seed)
        last[key] = max(last.get(key, 0), row.updates)
    return [row for row in rows if row.updates == last[row.task, row.method, row.train_seed]]


def pick(
    rows: Iterable[Row],
    *,
    task: str | None = None,
    method: str = "gem",
    protocol: str = "test",
    knobs: Knobs | None = None,
    mass_scale: float = 1.0,
) -> list[Row]:
    """The rows of one setting; None leaves a field open."""
    wanted = None if knobs is None else knobs.to_json()
    return [
        row
        for row in rows
        if row.method == method
        and row.protocol == protocol
        and row.mass_scale == mass_scale
        and (task is None or row.task == task)
        and (wanted is None or row.knobs == wanted)
    ]


def tasks_of(rows: Iterable[Row]) -> list[str]:
    """The tasks of the rows, in the order of the task table."""
    found = {row.task for row in rows}
    return [name for name in TASKS if name in found]


def suites_of(tasks: Sequence[str]) -> dict[str, list[str]]:
    """Tasks by suite."""
    suites: dict[str, list[str]] = {}
    for task in tasks:
        suites.setdefault(task_named(task).suite, []).append(task)
    return suites


def sweep_rows(rows: Iterable[Row], task: str) -> list[Row]:
    """GEM's validation rows of the sweep in which a task's knobs are chosen."""
    found = pick(last_step(row for row in rows if row.task == task), protocol="validation")
    sizes = sorted({row.knobs["n"] for row in found})
    return in_order(found, [knobs for n in sizes for knobs in sweep(task, n)])


def in_order(rows: Sequence[Row], settings: Sequence[Knobs]) -> list[Row]:
    """The rows of these settings, in the settings' order: of equal ones the first is chosen, in
    whatever order they were evaluated.
    """
    order = [knobs.to_json() for knobs in settings]
    return sorted((row for row in rows if row.knobs in order), key=lambda r: order.index(r.knobs))


def chosen_knobs(rows: Iterable[Row], task: str, n: int) -> Knobs:
    """The setting that the sweep on validation seeds chose for a task, with N candidates."""
    found = sweep_rows(rows, task)
    if not found:
        raise DataError(f"there are no validation rows of {task} to choose knobs by")
    knobs = choose(found)[0].knobs
    return Knobs(n=n, lam=knobs.lam, wp=knobs.wp)


KNOB_WORDS = {
    "chosen": "knobs chosen by task on validation seeds",
    "paper": "the paper's knobs for each suite",
}

KnobsOf = Callable[[str, int], Knobs]
"""A task's knobs with N candidates."""


def knobs_of(rows: Sequence[Row], protocol: str) -> KnobsOf:
    """How a task's knobs are had: `chosen` by validation rows, or the `paper`'s."""
    if protocol == "paper":
        return paper_knobs
    return cache(partial(chosen_knobs, rows))
