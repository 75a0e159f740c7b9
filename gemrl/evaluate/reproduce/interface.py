"""`interface`: what GEM's decision rule does with other methods' weights.

Each method with critics is executed twice, on the same starts and with the same weights: as its own
paper deploys it, and by GEM's rule, with candidates of its own proposal, the lower confidence bound
of its own critics, and support from GEM's behaviour density of the same training seed.
"""

from gemrl.decide.knobs import Knobs
from gemrl.evaluate.choose import score_of
from gemrl.evaluate.reproduce.comparison import TITLES, WITHOUT_CRITICS, own_cell, own_knobs
from gemrl.evaluate.reproduce.document import Document, Table
from gemrl.evaluate.reproduce.lines import change, label
from gemrl.evaluate.reproduce.select import last_step, paper_knobs, pick, tasks_of
from gemrl.evaluate.reproduce.study import BASELINES, Facts, Study
from gemrl.methods import METHODS


def collect(study: Study) -> None:
    """Every method with critics both ways, on test seeds."""
    ours = dict.fromkeys(BASELINES, study.seeds) | study.others
    study.evaluate(
        cell
        for task in study.budget.tasks
        for method, seeds in ours.items()
        if method not in WITHOUT_CRITICS
        for seed in seeds
        for cell in (
            own_cell(study, task, method, seed),
            study.cell(
                task,
                method,
                seed,
                guided(task, study.budget.n),
                density=study.policy(task, "gem", seed),
            ),
        )
    )


def guided(task: str, n: int) -> Knobs:
    """The paper's knobs of the task's suite: chosen for no method."""
    return paper_knobs(task, n)


def render(facts: Facts) -> Document:
    """Own deployment, GEM's and the difference, by method and task."""
    rows = last_step(facts.rows)
    document = Document("GEM's interface with other methods' weights")
    lines, used = [], []
    for task in tasks_of(rows):
        for method in METHODS:
            own = pick(rows, task=task, method=method, knobs=own_knobs(method))
            gems = pick(rows, task=task, method=method, knobs=guided(task, facts.n))
            if method == "gem" or not own or not gems:
                continue
            used += [*own, *gems]
            changed = change(gems, own)
            violation = changed.audits[0]
            line = [task, TITLES[method], own_knobs(method).describe()]
            line += [str(score_of(own)), str(score_of(gems)), changed.cells[0]]
            line += ["–" if violation is None else f"{violation:+.4f}"]
            lines.append((*line, str(len({row.train_seed for row in gems}))))
    if not lines:
        return document.add("No method beside GEM has rows of both deployments yet.")
    headings = (
        "task", "method", "its own way", "own score", "GEM's interface", "difference",
        "violation, difference", "training seeds",
    )  # fmt: skip
    return document.add(
        label(used, f"GEM's interface with the paper's knobs of the suite, N = {facts.n}"),
        "The weights of a line are the same; differences are paired by start. Knobs were not "
        "chosen for any method: the weight that suits one's critics need not suit another's.",
        Table("Own deployment and GEM's, normalized scores on test seeds", headings, lines),
    )
