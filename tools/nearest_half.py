"""Which half of a mixed dataset a policy's episodes are like, and how near to the data they stay.

    python tools/nearest_half.py hopper-medium-expert-v2 RUN [RUN ...] [--episodes 4]

For data that one policy made in their first half and another in their second, as locomotion's
medium-expert. Episodes are of the validation seeds, by the policy's anchor. A JSON line an episode:
method, steps and return, and for five stretches of it the share of nearest neighbours (of the
states, standardized) that are of the second half, with their mean distance. The stretches are
steps 0 to 20, to 100, to 200, to 40 steps before the end, and to 10 steps before it.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.spatial import KDTree

import gemrl
from gemrl.data.readers import load_dataset
from gemrl.data.tasks import task_named
from gemrl.evaluate.rollouts import episode_seeds, rollout

NEIGHBOURS = 10
SAMPLE = 200_000
ANCHOR = gemrl.Knobs(n=0, wp=0.0)
BOUNDS = np.array([20, 100, 200])
BEFORE_THE_END = np.array([40, 10])


def main() -> None:
    """Print a line for each episode of each policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--episodes", type=int, default=4)
    args = parser.parse_args()
    task, data = task_named(args.task), load_dataset(args.task)
    states = data.observations
    mean, std = states.mean(0), states.std(0)
    rng = np.random.default_rng(0)
    rows = rng.choice(len(states), min(SAMPLE, len(states)), replace=False)
    tree = KDTree((states[rows] - mean) / std)
    for run in args.runs:
        policy = gemrl.load(run)
        seeds = episode_seeds(task, "validation", args.episodes)
        episodes, observations = rollout(policy, ANCHOR, task, seeds, "validation")
        for number, episode in enumerate(episodes):
            seen = observations[: episode.length, number]
            distance, found = tree.query((seen - mean) / std, k=NEIGHBOURS)
            second = rows[found] >= len(states) // 2
            cuts = np.concatenate([BOUNDS, len(seen) - BEFORE_THE_END])
            parts = list(zip([0, *cuts[:-1]], cuts, strict=True))
            shares, away = (
                [round(float(of[a:b].mean()), 3) if b > a else None for a, b in parts]
                for of in (second, distance)
            )
            line = {"method": policy.method, "seed": episode.episode_seed}
            line |= {"steps": episode.length, "return": round(episode.episode_return, 1)}
            print(json.dumps(line | {"second_half": shares, "distance": away}), flush=True)


if __name__ == "__main__":
    main()
