"""The paper's tables and figures, one command each: train what is missing, evaluate, write."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gemrl.errors import ConfigError
from gemrl.evaluate.reproduce import (
    ablations,
    frontier,
    interface,
    knobs,
    mass_scale,
    mechanisms,
    nll_gap,
    scaling,
    scores,
    tuning,
)
from gemrl.evaluate.reproduce.document import Document, write
from gemrl.evaluate.reproduce.facts import Facts, facts_of
from gemrl.evaluate.reproduce.study import Plan, Study


class Reproduction(NamedTuple):
    """A table or figure of the paper."""

    collect: Callable[[Study], None]
    """Evaluates what is missing."""
    render: Callable[[Facts], Document]
    """A pure function of rows and records."""
    by_cells: bool = True
    """Whether all that it collects are cells, which can be planned ahead."""


REPRODUCTIONS: dict[str, Reproduction] = {
    "scores": Reproduction(scores.collect, scores.render),
    "interface": Reproduction(interface.collect, interface.render),
    "scaling": Reproduction(scaling.collect, scaling.render),
    "knobs": Reproduction(knobs.collect, knobs.render),
    "ablations": Reproduction(ablations.collect, ablations.render),
    "normalization": Reproduction(ablations.collect_normalization, ablations.render_normalization),
    "frontier": Reproduction(frontier.collect, frontier.render),
    "nll-gap": Reproduction(nll_gap.collect, nll_gap.render, by_cells=False),
    "mass-scale": Reproduction(mass_scale.collect, mass_scale.render),
    "tuning": Reproduction(tuning.collect, tuning.render, by_cells=False),
    "mechanisms": Reproduction(mechanisms.collect, mechanisms.render, by_cells=False),
}


OTHERS = ("scores", "interface")
"""Reproductions that have a part without GEM's own policies."""


def reproduce(names: Sequence[str], study: Study) -> list[Path]:
    """Do all that is missing and write the documents; returns the files."""
    if not study.budget.gem:
        _require_without_gem(names)
    plan = Plan(study.budget, study.out)
    for name in names:
        if REPRODUCTIONS[name].by_cells:
            REPRODUCTIONS[name].collect(plan)
    plan.say([name for name in names if not REPRODUCTIONS[name].by_cells])
    study.begin()
    study.train()
    written = []
    for name in names:
        REPRODUCTIONS[name].collect(study)
        written += render(name, study.out, study.out)
    return written


def render(name: str, folder: Path, out: Path) -> list[Path]:
    """Write the document out of a folder's rows and records alone."""
    return write(REPRODUCTIONS[name].render(facts_of(folder)), out, name)


def _require_without_gem(names: Sequence[str]) -> None:
    """Refuse a reproduction that is about GEM's own decisions, before anything is trained."""
    about_gem = [name for name in names if name not in OTHERS]
    if about_gem:
        raise ConfigError(
            f"reproduce {about_gem[0]} without GEM: only {' and '.join(OTHERS)} have other methods"
        )
