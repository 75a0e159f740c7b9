"""How fast recipes make data, beside their simulator alone.

    python benchmarks/recipes.py [--quick]

For one task of each kind: steps a second of the recipe, and of the same environment stepped with
random actions and nothing else. Repeats are interleaved; the ratio is the recipe's rate over the
simulator's, the median of neighbouring repeats. It can pass 1 where random actions lead to other
contacts than the recipe's.
"""

import argparse
import json
import statistics
import time

import numpy as np

from gemrl.data.recipes import RECIPES
from gemrl.data.tasks import Task, task_named
from gemrl.envs.make import make_env
from gemrl.progress import silent

TASKS = (
    "maze2d-large-v1",
    "antmaze-medium-diverse-v2",
    "halfcheetah-medium-v2",
    "hopper-medium-v2",
    "walker2d-medium-v2",
)


def simulator_rate(task: Task, steps: int) -> float:
    """Steps a second of one environment under random actions, begun anew where it ends."""
    env = make_env(task, 1)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (steps, 1, task.action_dim))
    env.reset(np.array([0]))
    start = time.perf_counter()
    for step in range(steps):
        if env.step(actions[step])[2][0] or step % task.horizon == task.horizon - 1:
            env.reset(np.array([step]))
    return steps / (time.perf_counter() - start)


def recipe_rate(task: Task, steps: int) -> float:
    """Steps a second of the whole recipe."""
    start = time.perf_counter()
    RECIPES[task.suite].make(task, steps, 0, silent)
    return steps / (time.perf_counter() - start)


def main() -> None:
    """Measure, print a table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps, a minute or two")
    args = parser.parse_args()
    steps, repeats = (5_000, 3) if args.quick else (40_000, 5)
    found = {}
    print(f"{'steps a second':28} {'recipe':>10} {'simulator':>10}  ratio")
    for name in TASKS:
        task = task_named(name)
        pairs = [(recipe_rate(task, steps), simulator_rate(task, steps)) for _ in range(repeats)]
        recipe, simulator = (statistics.median(rates) for rates in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        found[f"{name}_over_simulator"] = round(ratio, 3)
        found[f"{name}_steps_a_second"] = round(recipe)
        print(f"{name:28} {recipe:10,.0f} {simulator:10,.0f} {ratio:6.2f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
