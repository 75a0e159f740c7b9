"""Find the numbers of the ant's gait (gemrl/data/recipes/gait.py) by a cross-entropy search.

A few ants walk on an open floor, with the noise of the datasets' actions, each its own way and
another way after half the time. The score is the mean speed towards the wanted direction, less a
penalty for falls. About six minutes on one core: `python tools/search_gait.py`.
"""

import argparse
from dataclasses import replace

import numpy as np

from gemrl.data.recipes.antmaze import ACTION_NOISE
from gemrl.data.recipes.gait import Numbers, walk
from gemrl.data.tasks import task_named
from gemrl.envs.antmaze import FRAME_SKIP, TIME_STEP, AntMaze

LOW = Numbers(4.0, 0.2, 0.4, -1.0, -1.0, -1.0, -1.0, 0.3, 0.0)
HIGH = Numbers(12.0, 1.5, 1.4, 1.0, 1.0, 1.0, 1.0, 8.0, 1.0)
ANTS = 6
STEPS = 100
# Steps in which a dropped ant finds its feet.
LANDING = 20
FALL = 3.0


def open_floor(count: int) -> AntMaze:
    """Ants in a maze without walls."""
    task = task_named("antmaze-umaze-v2")
    return AntMaze(replace(task, maze=replace(task.grid, cells=())), count)


def score(env: AntMaze, numbers: Numbers, seed: int) -> float:
    """Mean speed in m/s towards the wanted directions, less the share of falls times a penalty."""
    rng = np.random.default_rng(seed)
    count = len(env.data)
    observations = env.reset(rng.integers(2**32, size=count))
    gained = np.zeros(count)
    angles = 2 * np.pi * (np.arange(count) + rng.uniform(size=count)) / count
    for step in range(STEPS):
        if step == STEPS // 2:
            angles = angles + rng.uniform(0, 2 * np.pi, count)
        directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        actions = walk(observations, directions, np.full(count, step), numbers)
        actions += ACTION_NOISE * rng.standard_normal(actions.shape)
        before = observations[:, :2]
        for row in range(count):
            env.advance(row, actions[row])
        observations = env.observations()
        if step >= LANDING:
            gained += ((observations[:, :2] - before) * directions).sum(axis=1)
    upright = 1 - 2 * (observations[:, 4] ** 2 + observations[:, 5] ** 2)
    speed = gained / ((STEPS - LANDING) * FRAME_SKIP * TIME_STEP)
    return float(speed.mean() - FALL * (upright < 0.3).mean())


def main() -> None:
    """Search, printing the best and the mean of every generation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--generations", type=int, default=24)
    parser.add_argument("--candidates", type=int, default=48)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    env = open_floor(ANTS)
    low, high = np.array(LOW), np.array(HIGH)
    mean, spread = (low + high) / 2, (high - low) / 3
    for generation in range(options.generations):
        drawn = mean + spread * rng.standard_normal((options.candidates, len(mean)))
        drawn = np.clip(drawn, low, high)
        # All candidates of a generation meet the same noise.
        scores = np.array([score(env, Numbers(*row), generation) for row in drawn])
        best = drawn[np.argsort(-scores)[: options.candidates // 5]]
        mean, spread = best.mean(axis=0), best.std(axis=0) + 0.02 * (high - low) * 0.9**generation
        found = " ".join(f"{name}={x:.3g}" for name, x in zip(Numbers._fields, mean, strict=True))
        print(f"{generation:3d}  best {scores.max():5.2f}  {found}", flush=True)
    final = np.mean([score(env, Numbers(*mean), 1000 + k) for k in range(20)])
    print(f"the mean scores {final:.2f} m/s on new noise")


if __name__ == "__main__":
    main()
