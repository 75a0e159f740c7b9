"""Cells of an evaluation: what there is to run, what is in the rows already, and who runs the rest.

A cell is one policy with one setting of knobs on the seeds of a protocol. One process, the driver,
writes all rows, as each cell ends: a worker that dies costs its cell, and a driver that dies loses
no cell that was finished.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemrl.data.tasks import task_named
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy, digest_with_density, load
from gemrl.errors import EvaluationError, TaskError
from gemrl.evaluate.rollouts import episode_seeds, rollout, task_of
from gemrl.evaluate.rows import Row, append_rows, cell_of, read_rows
from gemrl.learn.bundle import load_manifest
from gemrl.progress import bar

# How often a cell is tried whose worker dies.
TRIES = 3
POLICIES_KEPT = 4
_kept: OrderedDict[str, Policy] = OrderedDict()


@dataclass(frozen=True)
class Cell:
    """One policy, one setting of knobs, and how many episodes of which protocol."""

    run: Path
    """Folder of the policy."""
    knobs: Knobs
    episodes: int | None = None
    """Episodes; None for as many as the task has."""
    protocol: str = "test"
    task: str | None = None
    """Task of a policy whose data names none."""
    mass_scale: float = 1.0
    audited_by: Path | None = None
    """Folder of a policy whose behaviour density audits one that has none."""
    density: Path | None = None
    """Folder of a policy whose behaviour density takes part in the decisions of one that has
    none."""


Work = dict[str, Any]
"""A cell with the seeds that are missing, as JSON values: what goes to a worker."""
Done = tuple[Work, list[Row]]
Runner = Callable[[Sequence[Work]], Iterator[Done]]
"""Runs work, anywhere and in any order, and yields each as it ends."""


def run_cells(
    cells: Iterable[Cell],
    rows_file: Callable[[Cell], Path],
    runner: Runner | None = None,
    quiet: bool = False,
) -> list[Row]:
    """The rows of all cells. What their files hold is not run again; what is run is added."""
    kept: dict[Path, dict[tuple[str, int], Row]] = {}
    asked: list[tuple[Path, str, list[int]]] = []
    work: dict[tuple[Path, str], Work] = {}
    for cell in cells:
        file = rows_file(cell)
        if file not in kept:
            kept[file] = {(row.cell, row.episode_seed): row for row in read_rows(file)}
        name, job = _work(cell)
        asked.append((file, name, job["seeds"]))
        missing = [seed for seed in job["seeds"] if (name, seed) not in kept[file]]
        # The same cell may be asked for twice, with other numbers of episodes.
        planned = work.get((file, name))
        if missing and (planned is None or len(missing) > len(planned["seeds"])):
            work[file, name] = job | {"seeds": missing}
    jobs: list[Work] = [job | {"id": i} for i, job in enumerate(work.values())]
    files = [file for file, _ in work]
    if jobs:
        total = sum(map(_steps, jobs))
        with bar("evaluate", total, "steps", quiet) as report:
            steps = ended = 0
            report(0, f"0 of {len(jobs)} cells")
            for number, (job, rows) in enumerate((runner or here)(jobs), start=1):
                append_rows(files[job["id"]], rows)
                kept[files[job["id"]]] |= {(row.cell, row.episode_seed): row for row in rows}
                steps, ended = steps + _steps(job), ended + len(rows)
                report(steps, f"{number} of {len(jobs)} cells, {ended} episodes; {describe(job)}")
    return [kept[file][name, seed] for file, name, seeds in asked for seed in seeds]


def _work(cell: Cell) -> tuple[str, Work]:
    """The cell's name in rows, and the work with all of its seeds."""
    manifest = load_manifest(cell.run)
    name = cell.task or manifest["task"]
    if name is None:
        raise TaskError(f"{cell.run}: the policy's data names no task: say which")
    seeds = episode_seeds(task_named(name), cell.protocol, cell.episodes)
    knobs = cell.knobs.to_json()
    others: dict[str, tuple[str, str]] = {
        use: (str(folder), load_manifest(folder)["digest"])
        for use, folder in (("audited_by", cell.audited_by), ("density", cell.density))
        if folder is not None
    }
    digest = manifest["digest"]
    if "density" in others:
        digest = digest_with_density(manifest, others["density"][1])
    return cell_of(digest, name, cell.protocol, knobs, cell.mass_scale), {
        "run": str(cell.run),
        "digest": manifest["digest"],
        "task": name,
        "knobs": knobs,
        "protocol": cell.protocol,
        "seeds": seeds,
        "mass_scale": cell.mass_scale,
        "others": others,
    }


def _steps(job: Work) -> int:
    """Steps of a cell's episodes, if none ends early."""
    return len(job["seeds"]) * task_named(job["task"]).horizon


def describe(job: Work) -> str:
    """A cell in a few words."""
    knobs = Knobs.from_json(job["knobs"])
    heavy = "" if job["mass_scale"] == 1 else f", masses × {job['mass_scale']:g}"
    return f"{job['task']}, {job['run']}, {knobs.describe()}{heavy}"


def here(jobs: Sequence[Work]) -> Iterator[Done]:
    """Run the work in this process, one cell after the other."""
    for job in jobs:
        yield job, evaluate_work(job)


def evaluate_work(job: Work) -> list[Row]:
    """Rows of a cell's missing episodes."""
    return rows_of(policy_of(job, load_policy), job)


def rows_of(policy: Policy, job: Work) -> list[Row]:
    """Rows of a cell's missing episodes, by its policy."""
    rows, _ = rollout(
        policy,
        Knobs.from_json(job["knobs"]),
        task_of(policy, job["task"]),
        job["seeds"],
        job["protocol"],
        mass_scale=job["mass_scale"],
    )
    return rows


def policy_of(job: Work, load: Callable[[str, str], Policy]) -> Policy:
    """The policy of a cell; `load` gives that of a folder and a digest.

    A worker has many cells of a policy, one after the other, so the last ones are kept. A folder
    may be trained anew between two calls, so digests are part of the key.
    """
    key = json.dumps([job["run"], job["digest"], job["others"]])
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key]
    policy, others = load(job["run"], job["digest"]), job["others"]
    if "density" in others:
        policy = policy.with_density(load(*others["density"]))
    if "audited_by" in others:
        policy = policy.audited_by(load(*others["audited_by"]))
    _kept[key] = policy
    if len(_kept) > POLICIES_KEPT:
        _kept.popitem(last=False)
    return policy


def load_policy(folder: str | Path, digest: str) -> Policy:
    """The policy of a folder, if it is still the one that the cell was made for."""
    policy = load(folder)
    if policy.digest != digest:
        raise EvaluationError(
            f"{folder} holds another policy than when the evaluation began: start it again"
        )
    return policy
