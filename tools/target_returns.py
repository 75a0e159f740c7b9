"""What a Decision Transformer does when it is asked for other returns, without training it again.

    python tools/target_returns.py RUN TARGET [TARGET ...] [--episodes 20]

Targets are in the task's own rewards. Episodes are of the validation seeds. A JSON line a target:
the mean score of the episodes, its standard error, and their mean return.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import gemrl
from gemrl.evaluate.rollouts import episode_seeds, rollout, task_of
from gemrl.maths.statistics import estimate


def main() -> None:
    """Print a line for each target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("targets", nargs="+", type=float)
    parser.add_argument("--episodes", type=int, default=20)
    args = parser.parse_args()
    policy = gemrl.load(args.run)
    task = task_of(policy)
    knobs = policy.knobs_for(task.name)
    seeds = episode_seeds(task, "validation", args.episodes)
    for target in args.targets:
        rows, _ = rollout(policy, knobs, task, seeds, "validation", target_return=target)
        score = estimate([row.score for row in rows])
        line = {"task": task.name, "updates": rows[0].updates, "target_return": target}
        stderr = round(score.stderr, 1) if len(rows) > 1 else None
        line |= {"score": round(score.mean, 1), "stderr": stderr}
        line |= {"return": round(float(np.mean([row.episode_return for row in rows])), 1)}
        print(json.dumps(line | {"episodes": len(rows)}), flush=True)


if __name__ == "__main__":
    main()
