"""`ablations` and `normalization`: one thing changed at a time, at one number of candidates."""

from collections.abc import Mapping
from dataclasses import replace

from gemrl.decide.knobs import Knobs
from gemrl.evaluate.cells import Cell
from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.lines import (
    COLUMNS,
    Change,
    change,
    label,
    mean_change,
    of_task,
)
from gemrl.evaluate.reproduce.paper import columns, quoted
from gemrl.evaluate.reproduce.select import KnobsOf, last_step, pick, suites_of
from gemrl.evaluate.reproduce.study import Study

VARIANTS: dict[str, dict[str, object]] = {
    "no_pw": {"wp": 0.0},
    "no_lcb": {"lam": 0.0},
    "no_anchor": {"anchor": "none"},
    "anchor_bary": {"anchor": "barycenter"},
    "behavior_only_cands": {"source": "behavior"},
    "unimodal_actor_cands": {"source": "unimodal"},
}
"""The paper's six ablations as knob values."""
RAW: dict[str, dict[str, object]] = {"raw": {"support": "raw"}}
CHANGES = tuple(f"Δ {name}" for name in COLUMNS)


def cells(study: Study, knobs_of: KnobsOf, variants: Mapping[str, dict[str, object]]) -> list[Cell]:
    """GEM itself and every variant."""
    n = study.budget.n
    return [
        study.cell(task, "gem", seed, knobs)
        for task in study.budget.tasks
        for knobs in (
            knobs_of(task, n),
            *(varied(knobs_of(task, n), change) for change in variants.values()),
        )
        for seed in study.seeds
    ]


def varied(knobs: Knobs, change: Mapping[str, object]) -> Knobs:
    """The knobs with one thing changed."""
    return replace(knobs, **change)  # pyright: ignore[reportArgumentType]


def collect(study: Study) -> None:
    """The six ablations."""
    study.evaluate(cells(study, study.knobs(), VARIANTS))


def collect_normalization(study: Study) -> None:
    """Support as standardized and as it is."""
    study.evaluate(cells(study, study.knobs(), RAW))


def changes(
    facts: Facts, variants: Mapping[str, dict[str, object]]
) -> dict[str, dict[str, Change]]:
    """Each variant's change against GEM by task, where both have rows."""
    rows = last_step(facts.rows)
    found: dict[str, dict[str, Change]] = {}
    for task in facts.tasks:
        knobs = facts.knobs_of(task, facts.n)
        reference = pick(rows, task=task, knobs=knobs)
        for name, difference in variants.items():
            other = pick(rows, task=task, knobs=varied(knobs, difference))
            if reference and other and varied(knobs, difference) != knobs:
                found.setdefault(task, {})[name] = change(other, reference)
    return found


def render(facts: Facts) -> Document:
    """Changes of score and audits by task and by suite, the paper's beside."""
    document = Document(f"Ablations at N = {facts.n}")
    found = changes(facts, VARIANTS)
    if not found:
        return document.add("No task has rows of GEM and its variants yet.")
    document.add(
        "Each variant changes one thing of the decision and nothing of the training. Differences "
        "are against GEM with the same policy and the same starts; for suites and all tasks the "
        "error is that between tasks.",
        _label(facts, found),
        Table("GEM itself", ("task", *COLUMNS), _itself(facts, found)),
    )
    everything = list(found)
    lines = []
    groups = {"all tasks": everything, **suites_of(everything)}
    for suite, tasks in groups.items():
        for name in VARIANTS:
            each = [found[task][name] for task in tasks if name in found[task]]
            if each:
                paper = quoted("ablations", name, "delta", form="+.1f")
                quote = paper if suite == "all tasks" else ""
                lines.append((suite, name, *mean_change(each).cells, quote))
    document.add(
        Table(
            "The paper, all its tasks together (quoted; published data, 10⁶ updates)",
            ("variant", *COLUMNS),
            [columns("ablations", name) for name in ("GEM", *VARIANTS)],
        ),
        Table("By suite", ("suite", "variant", *CHANGES, "Δ score, paper (quoted)"), lines),
        Table(
            "By task",
            ("task", "variant", *CHANGES, "Δ score, paper (quoted)"),
            [
                (task, name, *found[task][name].cells, _quoted(task, name))
                for task in everything
                for name in found[task]
            ],
        ),
    )
    from gemrl.evaluate.reproduce.plots import bars

    groups_of = {
        name: [
            (found[t][name].score.mean, found[t][name].score.stderr)
            if name in found[t]
            else (float("nan"), float("nan"))
            for t in everything
        ]
        for name in VARIANTS
    }
    figure = bars(everything, groups_of, "change of score", zero=True)
    return document.add(Plot("Change of the normalized score against GEM, by task", figure))


def render_normalization(facts: Facts) -> Document:
    """Standardized minus raw support, the same columns."""
    document = Document(f"Support standardized within the candidate set, N = {facts.n}")
    found = changes(facts, RAW)
    if not found:
        return document.add("No task has rows of both yet.")
    flipped = {task: _flipped(each["raw"]) for task, each in found.items()}
    document.add(
        "Score with support as a z-score within the candidate set minus score with the log density "
        "as it is, with the same policies, starts and other knobs.",
        _label(facts, found),
    )
    groups = {"all tasks": list(flipped), **suites_of(list(flipped))}
    document.add(
        Table(
            "By suite",
            ("suite", *CHANGES),
            [(name, *mean_change([flipped[t] for t in ts]).cells) for name, ts in groups.items()],
        ),
        Table(
            "By task",
            ("task", *CHANGES, "Δ score, paper (quoted)"),
            [
                (task, *each.cells, quoted("normalization", task, "delta", form="+.1f"))
                for task, each in flipped.items()
            ],
        ),
    )
    from gemrl.evaluate.reproduce.plots import bars

    values = {"zscore − raw": [(c.score.mean, c.score.stderr) for c in flipped.values()]}
    figure = bars(list(flipped), values, "change of score", zero=True)
    return document.add(Plot("Standardized minus raw support, by task", figure))


def _flipped(found: Change) -> Change:
    score = found.score
    return Change(
        type(score)(-score.mean, score.stderr, score.samples),
        tuple(None if value is None else -value for value in found.audits),
    )


def _label(facts: Facts, found: Mapping[str, object]) -> str:
    used = [row for row in pick(last_step(facts.rows)) if row.task in found]
    return label([r for r in used if r.knobs["n"] == facts.n], facts.knob_words)


def _itself(facts: Facts, found: Mapping[str, object]) -> list[tuple[str, ...]]:
    rows = last_step(facts.rows)
    return [
        (task, *of_task(pick(rows, task=task, knobs=facts.knobs_of(task, facts.n))).cells)
        for task in found
    ]


def _quoted(task: str, name: str) -> str:
    return quoted("ablations_by_task", task, name, form="+.1f")
