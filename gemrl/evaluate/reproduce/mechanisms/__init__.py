"""`mechanisms`: the paper's statements T1 to T4 as experiments with numbers.

Each experiment measures on problems whose truth is known, on trained policies, or both. Records say
which `experiment` they belong to, and of a trained policy its task, training seed and digest.
"""

from collections.abc import Callable

from gemrl.data.tasks import task_named
from gemrl.decide.knobs import Knobs
from gemrl.evaluate.choose import choose
from gemrl.evaluate.reproduce.document import Document
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.mechanisms import (
    exchange_rate,
    guidance,
    modes,
    projection,
    support_scale,
    winner,
)
from gemrl.evaluate.reproduce.mechanisms.reading import Record, pick, tasks_in
from gemrl.evaluate.reproduce.mechanisms.seen import Effort, Seen
from gemrl.evaluate.reproduce.study import Study
from gemrl.evaluate.rows import Row
from gemrl.learn.bundle import load_manifest

NAME = "mechanisms"

CONTROLLED: dict[str, Callable[[Effort], list[Record]]] = {
    projection.CONTROLLED: projection.controlled,
    guidance.CONTROLLED: guidance.controlled,
    winner.CONTROLLED: winner.controlled,
}
"""Experiments whose truth is known, by the name in their records."""
TRAINED: dict[str, Callable[[Seen], list[Record]]] = {
    projection.TRAINED: projection.trained,
    guidance.SLOPE: guidance.trained,
    support_scale.TRAINED: support_scale.trained,
    winner.TRAINED: winner.trained,
}
"""Experiments on a trained policy and its data."""


def collect(study: Study, effort: Effort | None = None) -> None:
    """Measure what the study's records lack; they are kept as each experiment ends."""
    effort = effort or Effort()
    rows = study.evaluate(exchange_rate.cells(study))
    records = study.records(NAME)
    for name, controlled in CONTROLLED.items():
        if not pick(records, experiment=name):
            records += controlled(effort)
            study.record(NAME, records)
    for task in study.budget.tasks:
        data = None
        for seed in study.seeds:
            bundle = load_manifest(study.policy(task, "gem", seed))["digest"]
            rolled = min(effort.episodes, study.budget.validation_episodes(task))
            about = {
                **{"task": task, "seed": seed, "bundle": bundle},
                **{"budget_n": study.budget.n, "rolled": rolled},
            }
            missing = [
                e for e in (*TRAINED, modes.ROLLOUTS) if not pick(records, **about, experiment=e)
            ]
            if not missing:
                continue
            data = data or study.dataset(task)
            seen = Seen(study, task_named(task), seed, data, effort)
            # Those of another policy in the same place, or of another budget, go.
            records = [
                r
                for r in records
                if (r.get("task"), r.get("seed")) != (task, seed) or about.items() <= r.items()
            ]
            for name in missing:
                found = (
                    modes.trained(seen, _knobs(rows, task))
                    if name == modes.ROLLOUTS
                    else TRAINED[name](seen)
                )
                records += [about | record for record in found]
                study.record(NAME, records)


def _knobs(rows: list[Row], task: str) -> Knobs:
    """The constant w_p with the best validation score, the value term as it is."""
    return choose([row for row in rows if row.task == task and row.knobs["value"] == "raw"])[
        0
    ].knobs


def render(facts: Facts) -> Document:
    """A chapter for each statement, out of records and validation rows."""
    records = facts.records.get(NAME, [])
    document = Document("Mechanisms: T1 to T4 and the extreme-value bound, measured")
    seeds = {(r["task"], r["seed"]) for r in records if "seed" in r}
    document.add(
        "Each statement of the paper's section 3.4 in our words, what was measured, and whether it "
        "holds here. A statement holds, or not, where a 95 % interval says so, and is undecided "
        f"otherwise. Policies: {len(seeds)} trained on {len(tasks_in(records))} task"
        f"{'s' * (len(tasks_in(records)) != 1)}; errors are between training seeds, or within the "
        "one there is. Two or three seeds decide only what is plain."
    )
    projection.chapter(document, records)
    guidance.chapter(document, records)
    support_scale.chapter(document, records)
    exchange_rate.chapter(document, facts.rows)
    winner.chapter(document, records)
    modes.chapter(document, records)
    return document
