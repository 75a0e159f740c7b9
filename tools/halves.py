"""How much better one half of a mixed dataset is than the other, as critics see it.

    python tools/halves.py hopper-medium-expert-v2

For data that one policy made in their first half and another in their second. A JSON line a half:
episodes, the mean reward of a step, and for two discounts the mean discounted return of episodes
that last so long, from steps 0, 50, 100 and 200 on. The task's own rewards, nothing bootstrapped.
"""

import argparse
import json

import numpy as np
from scipy.signal import lfilter

from gemrl.data.readers import load_dataset

FROM = (0, 50, 100, 200)
DISCOUNTS = (0.99, 0.995)


def main() -> None:
    """Print a line for each half."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    task = parser.parse_args().task
    data = load_dataset(task)
    episodes = np.split(data.rewards.astype(np.float64), data.episode_starts[1:])
    for number, half in enumerate(("first", "second")):
        own = [
            rewards
            for start, rewards in zip(data.episode_starts, episodes, strict=True)
            if (start >= len(data) // 2) == bool(number)
        ]
        line = {"task": task, "half": half, "episodes": len(own)}
        line["reward"] = round(float(np.concatenate(own).mean()), 3)
        for discount in DISCOUNTS:
            # y[n] = x[n] + discount * y[n - 1] over the episode backwards: the discounted return.
            returns = [lfilter([1], [1, -discount], r[::-1])[::-1] for r in own]
            line[f"from {', '.join(map(str, FROM))} at {discount}"] = [
                round(float(np.mean([r[step] for r in returns if len(r) > step])), 1)
                for step in FROM
            ]
        print(json.dumps(line))


if __name__ == "__main__":
    main()
