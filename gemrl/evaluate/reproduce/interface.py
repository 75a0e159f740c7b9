"""`interface`: what GEM's decision rule does with other methods' weights.

Each method with critics is executed on the same starts and with the same weights: as its own paper
deploys it, and by GEM's rule, with candidates of its own proposal, the lower confidence bound of
its own critics, and support from GEM's behaviour density of the same training seed. GEM's rule has
the paper's knobs of the suite, and those that validation seeds choose for each policy.
"""

from collections.abc import Iterable, Sequence
from itertools import product

from gemrl.data.tasks import task_named
from gemrl.decide.knobs import Knobs
from gemrl.evaluate.cells import Cell
from gemrl.evaluate.choose import choose, score_of
from gemrl.evaluate.reproduce.budget import BASELINES, WITHOUT_CRITICS
from gemrl.evaluate.reproduce.comparison import (
    TITLES,
    diverged,
    diverged_words,
    other_settings,
    own_cell,
    own_rows,
)
from gemrl.evaluate.reproduce.document import Document, Table
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.lines import change, label
from gemrl.evaluate.reproduce.select import in_order, last_step, paper_knobs, pick, tasks_of
from gemrl.evaluate.reproduce.study import Study
from gemrl.evaluate.rows import Row
from gemrl.methods import METHODS

WEIGHTS = (0.0, 0.1, 0.4, 1.0, 2.0)
"""Constant w_p among which validation seeds choose, beside the paper's schedule."""


def collect(study: Study) -> None:
    """Every method with critics by GEM's rule on validation seeds, then both ways on test seeds."""
    ours = BASELINES if study.budget.gem else ()
    policies = [
        (task, method, seed)
        for task in study.budget.tasks
        for method, seed in (*product(ours, study.seeds), *study.others_of(task))
        if method not in WITHOUT_CRITICS
    ]
    n = study.budget.sweep_n
    rows = study.evaluate(
        _guided(study, *policy, knobs, "validation")
        for policy in policies
        for knobs in settings(policy[0], n)
    )
    study.evaluate(
        cell
        for policy in policies
        for cell in (
            own_cell(study, *policy),
            _guided(study, *policy, paper_knobs(policy[0], n)),
            # A plan has no rows, and every weight costs the same.
            _guided(study, *policy, chosen(rows, *policy, n) or Knobs(n=n, wp=3.0)),
        )
    )


def _guided(
    study: Study, task: str, method: str, seed: int, knobs: Knobs, protocol: str = "test"
) -> Cell:
    return study.cell(task, method, seed, knobs, protocol, density=study.density(task, seed))


def settings(task: str, n: int) -> list[Knobs]:
    """The knobs of GEM's rule among which validation seeds choose, at the suite's λ."""
    lam = task_named(task).lam
    return [paper_knobs(task, n), *(Knobs(n=n, lam=lam, wp=weight) for weight in WEIGHTS)]


def chosen(rows: Sequence[Row], task: str, method: str, seed: int, n: int) -> Knobs | None:
    """The knobs that validation seeds choose for a policy; None unless they saw every setting.

    Each policy has its own, as whoever deploys it has, so that policies can join others' rows.
    """
    wanted = settings(task, n)
    seen_by_it = pick(rows, task=task, method=method, protocol="validation")
    found = in_order([row for row in seen_by_it if row.train_seed == seed], wanted)
    seen = {Knobs.from_json(row.knobs) for row in found}
    return choose(found)[0].knobs if seen == set(wanted) else None


def render(facts: Facts) -> Document:
    """Own deployment, GEM's and the difference, by method and task."""
    rows, n = last_step(facts.rows), facts.budget["sweep_n"]
    document = Document("GEM's interface with other methods' weights")
    lines, used = [], []
    for task in tasks_of(rows):
        for method in METHODS:
            of_method = pick(rows, task=task, method=method)
            seeds = sorted({row.train_seed for row in of_method})
            every = {seed: chosen(rows, task, method, seed, n) for seed in seeds}
            knobs = {seed: each for seed, each in every.items() if each is not None}
            if method == "gem" or not knobs:
                continue
            own, papers, best = _of_common_seeds(
                (
                    own_rows(of_method, method),
                    pick(of_method, method=method, knobs=paper_knobs(task, n)),
                    [
                        row
                        for seed, each in knobs.items()
                        for row in pick(of_method, method=method, knobs=each)
                        if row.train_seed == seed
                    ],
                )
            )
            if not own:
                continue
            told = [_weight(knobs[seed]) for seed in sorted({row.train_seed for row in best})]
            used += [*own, *papers, *best]
            changed = change(best, own)
            violation = changed.audits[0]
            own_way = Knobs.from_json(own[0].knobs).describe()
            line = [task, TITLES[method], own_way, str(score_of(own))]
            line += [str(score_of(papers)), ", ".join(told), str(score_of(best)), changed.cells[0]]
            line += ["–" if violation is None else f"{violation:+.4f}"]
            lines.append((*line, str(len({row.train_seed for row in best}))))
    if not lines:
        document.add("No method beside GEM has rows of both deployments yet.")
        return document.add(*diverged_words(diverged(facts)))
    headings = (
        "task", "method", "its own way", "own score", "GEM's rule, paper's knobs", "chosen w_p",
        "GEM's rule, chosen", "chosen − own", "violation, chosen − own", "training seeds",
    )  # fmt: skip
    return document.add(
        label(used, f"GEM's rule at the suite's λ, N = {n}"),
        "The networks of a line are the same; differences are paired by start. The chosen w_p is "
        "the best of a few on validation seeds, for each trained policy. With one training seed "
        "the error is between its episodes.",
        Table("Own deployment and GEM's rule, normalized scores on test seeds", headings, lines),
        *other_settings(facts, ((row.task, row.method) for row in used)),
        *diverged_words(diverged(facts)),
    )


def _of_common_seeds(groups: Iterable[list[Row]]) -> list[list[Row]]:
    """The rows of the training seeds that every group has."""
    every = list(groups)
    common = set.intersection(*({row.train_seed for row in group} for group in every))
    return [[row for row in group if row.train_seed in common] for group in every]


def _weight(knobs: Knobs) -> str:
    return f"{knobs.wp:g}" if isinstance(knobs.wp, float) else "paper's"
