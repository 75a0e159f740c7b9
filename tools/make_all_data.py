"""Make every dataset once at its published size and keep what `gemrl data inspect` says of it.

    python tools/make_all_data.py --folder /somewhere/large [--tasks maze2d-umaze-v1 ...]

A dataset that is there already is only inspected. Each leaves docs/data/TASK.json with its
inspection and the versions it was made with; docs/data.md is written from all
of these files, so the page says nothing that no file holds.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import tyro

from gemrl.data.inspect import describe
from gemrl.data.tasks import TASKS

DOCS = Path(__file__).parent.parent / "docs"
RECORDS = DOCS / "data"
PAGE = DOCS / "data.md"
SHOWN = ("gemrl", "goals", "mujoco", "name", "numpy", "seed", "success_rate")
HEAD = """# The 21 datasets, regenerated

The published D4RL files come from a server that is not always there and from simulators that no
longer install. `gemrl data fetch TASK` downloads the genuine file where it can be had;
`gemrl data make TASK` regenerates a dataset by its published recipe on current MuJoCo, and the same
seed gives the same arrays; AntMaze's only on the same kind of processor: one of Intel's and one of
AMD's gave the same Maze2D-medium and Hopper-medium-expert, but two files of AntMaze-umaze
(fingerprints 4ec935f94103577d, the one below, and be8230e6e88c6123). A regenerated dataset is *not*
the published one: scores on it are labelled so, and do not belong into one table with published
scores.

- **Maze2D**: a waypoint controller on the shortest path to random targets, with action noise.
  Starts, targets and waypoints are the centres of cells; D4RL's own code has them 0.2 further along
  both axes and scatters waypoints by up to 0.2.
- **AntMaze**: a planner over the maze and a gait that gemrl owns (no learned policy; found by
  `tools/search_gait.py`), with action noise. An episode ends where its goal is reached; rewards and
  terminals are relabelled to the evaluation goal.
- **Locomotion**: sampled actions of policies that gemrl owns, trained by `tools/train_behavior.py`;
  their levels are in `gemrl/data/policies/levels.json`. The replay mixture is a series of snapshots
  of one run, each with an equal share, where D4RL has that run's replay buffer.

Each was made once at its published size with seed 0 by `tools/make_all_data.py`, which also wrote
this page; what follows is `gemrl data inspect` on each. The score is that of the data's own
episodes, normalized by the task's reference returns; for Maze2D, which is one endless walk, that of
stretches as long as an evaluation. Goals are those that the planner was sent to. The published
sizes are rounded to thousands. `python benchmarks/recipes.py` tells how fast data is made.

| task | rows | episodes | mean normalized score | goals reached |
| --- | ---: | ---: | ---: | ---: |
"""


@dataclass
class Options:
    """What to make, and where."""

    folder: Path
    """Where the large files go."""
    tasks: tuple[str, ...] = tuple(TASKS)
    """Tasks to make; by default all."""
    seed: int = 0
    """Seed of every recipe."""
    workers: int = 2
    """Processes at once."""


def gemrl(*words: str) -> str:
    """Run a gemrl command and return what it prints."""
    command = [sys.executable, "-m", "gemrl", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def make(task: str, options: Options) -> None:
    """Make one dataset, inspect it, and keep the record."""
    file, record = options.folder / f"{task}.hdf5", RECORDS / f"{task}.json"
    if not file.exists():
        gemrl("data", "make", task, "--seed", str(options.seed), "--out", str(file))
    inspection = json.loads(gemrl("data", "inspect", str(file), "--json"))
    inspection["source"] = file.name
    with h5py.File(file) as opened:
        recipe = json.loads(opened.attrs["gemrl_recipe"])
    content = {"task": task, "recipe": recipe, "inspection": inspection}
    record.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    print(f"{task}: {inspection['rows']:,} rows", flush=True)


def records() -> list[dict[str, Any]]:
    """What is kept of each dataset, in the order of the task table."""
    paths = [RECORDS / f"{task}.json" for task in TASKS]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def page(found: list[dict[str, Any]]) -> str:
    """docs/data.md out of the records alone."""
    text = [HEAD]
    for record in found:
        task, inspection = TASKS[record["task"]], record["inspection"]
        score = inspection["score"]
        rate = record["recipe"].get("success_rate")
        text.append(
            f"| [{task.name}](#{task.name}) | {inspection['rows']:,} | {inspection['episodes']:,} "
            f"| {score['mean']:.1f} | {'' if rate is None else f'{rate:.1%}'} |\n"
        )
    for record in found:
        recipe = ", ".join(
            f"{key} {value}" for key, value in sorted(record["recipe"].items()) if key in SHOWN
        )
        text.append(
            f"\n## {record['task']}\n\n`gemrl data make {record['task']}` ({recipe})\n\n"
            f"```\n{describe(record['inspection'])}\n```\n"
        )
    return "".join(text)


def main(options: Options) -> None:
    """Make all, some at once, then the page."""
    options.folder.mkdir(parents=True, exist_ok=True)
    RECORDS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.workers) as pool:
        for done in [pool.submit(make, task, options) for task in options.tasks]:
            done.result()
    PAGE.write_text(page(records()))
    print(PAGE)


if __name__ == "__main__":
    main(tyro.cli(Options))
