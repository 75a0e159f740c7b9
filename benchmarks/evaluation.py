"""Where the time of an evaluation goes, and what stepping episodes together is worth.

    python benchmarks/evaluation.py [--quick] [--markdown]

Trained policies with 4 critics of 256x256 run episodes of Maze2D (2 action dimensions) and
HalfCheetah (6), all episodes of a cell stepped together and decided in one batch, with N = 1024.
`one_by_one` runs the same episodes one after the other, each state decided alone, as evaluation
loops commonly do; `jax` decides the batch with the JAX backend. Sides take turns, and a ratio is
the median over rounds.

The critics' share is had by leaving critics out: wall time against the number of critics is a
straight line, and its slope times four, over the time with four, is what the critics' arithmetic
takes. The rest of a decision is candidates, densities, ranking and the record.

The last line is a JSON object: `critics_a2` is the critics' share of wall time with 2 action
dimensions, `decide_a2`, `simulate_a2` and `python_a2` the shares of decisions, of the simulator and
of what is left; `one_by_one_a2` and `jax_a2` these sides' time over that of the batch.
"""

import argparse
import dataclasses
import json
import statistics
import time

import numpy as np
from deciders.policies import load_policy

import gemrl
from gemrl.data.tasks import Task, task_named
from gemrl.decide.policy import Policy
from gemrl.evaluate.rollouts import rollout
from gemrl.evaluate.rows import Row

DIMENSIONS = (2, 6)
N = 1024
CRITICS = (1, 2, 4)


def with_critics(policy: Policy, count: int) -> Policy:
    """The policy with its first critics only."""
    models = dataclasses.replace(policy.models, critics=policy.models.critics[:count])
    return Policy(dataclasses.replace(policy.bundle, models=models), "fast")


def together(policy: Policy, task: Task, episodes: int) -> list[Row]:
    """All episodes in one batch."""
    return rollout(policy, gemrl.Knobs(n=N), task, range(episodes), "test")[0]


def one_by_one(policy: Policy, task: Task, episodes: int) -> list[Row]:
    """An episode after the other."""
    return [
        row
        for seed in range(episodes)
        for row in rollout(policy, gemrl.Knobs(n=N), task, [seed], "test")[0]
    ]


def seconds(rows: list[Row]) -> dict[str, float]:
    """Of a side: all, and the parts in decisions and in the simulator."""
    names = ("wall_seconds", "decide_seconds", "simulate_seconds")
    return {name: sum(getattr(row, name) for row in rows) for name in names}


def measure(dimensions: int, episodes: int, steps: int, rounds: int) -> dict[str, float]:
    """The ratios and shares of one policy."""
    policy = load_policy(dimensions, "fast")
    task = task_named(policy.bundle.manifest["task"])
    task = dataclasses.replace(task, horizon=steps)
    sides = {
        **{f"critics_{m}": (together, with_critics(policy, m)) for m in CRITICS},
        "one_by_one": (one_by_one, policy),
        "jax": (together, load_policy(dimensions, "jax")),
    }
    for side, (run, chosen) in sides.items():  # Not counted: it compiles.
        run(chosen, dataclasses.replace(task, horizon=2), 1 if side == "one_by_one" else episodes)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(rounds):
        order = list(sides)[number % len(sides) :] + list(sides)[: number % len(sides)]
        for name in order:
            run, chosen = sides[name]
            found[name].append(seconds(run(chosen, task, episodes)))

    def ratio(name: str, part: str, base: str = "critics_4") -> float:
        pairs = zip(found[name], found[base], strict=True)
        return statistics.median(a[part] / b["wall_seconds"] for a, b in pairs)

    slopes = []
    for each in zip(*(found[f"critics_{m}"] for m in CRITICS), strict=True):
        walls = [side["wall_seconds"] for side in each]
        slope = float(np.polyfit(CRITICS, walls, 1)[0])
        slopes.append(slope * CRITICS[-1] / walls[-1])
    decide, simulate = ratio("critics_4", "decide_seconds"), ratio("critics_4", "simulate_seconds")
    values = {
        "critics": statistics.median(slopes),
        "decide": decide,
        "simulate": simulate,
        "python": 1 - decide - simulate,
        "one_by_one": ratio("one_by_one", "wall_seconds"),
        "jax": ratio("jax", "wall_seconds"),
    }
    return {f"{name}_a{dimensions}": round(value, 3) for name, value in values.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter episodes")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table as well")
    args = parser.parse_args()
    episodes, steps, rounds = (16, 20, 3) if args.quick else (50, 100, 7)
    started = time.monotonic()
    ratios: dict[str, float] = {}
    for dimensions in DIMENSIONS:
        found = measure(dimensions, episodes, steps, rounds)
        ratios |= found
        print(f"{dimensions} action dimensions: {found}", flush=True)
    if args.markdown:
        names = ("critics", "decide", "simulate", "python", "one_by_one", "jax")
        print("| action dims | " + " | ".join(names) + " |")
        print("|---:|" + "---:|" * len(names))
        for dimensions in DIMENSIONS:
            cells = " | ".join(f"{ratios[f'{name}_a{dimensions}']:.3f}" for name in names)
            print(f"| {dimensions} | {cells} |")
    print(
        f"{episodes} episodes of {steps} steps, {rounds} rounds, {time.monotonic() - started:.0f} s"
    )
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
