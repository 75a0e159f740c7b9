"""A few real episodes spent on the settings of a grid by an upper-confidence rule."""

from pathlib import Path
from typing import Any

import numpy as np

from gemrl.decide.policy import Policy
from gemrl.errors import ConfigError
from gemrl.evaluate.bandit import best_arm, next_arm
from gemrl.evaluate.rollouts import evaluate_policy
from gemrl.evaluate.tune.choices import Grid
from gemrl.evaluate.tune.recommend import Recommendation
from gemrl.maths.statistics import estimate
from gemrl.progress import bar


def spend(
    policy: Policy, grid: Grid, episodes: int, rows_file: Path, quiet: bool = True
) -> dict[str, Any]:
    """Run `episodes` validation episodes in the policy's task, and tell which setting did best.

    Every episode becomes a row of the file at once. The rule has no chance in it, and episodes that
    the file holds are not run again: a call that was cut off goes on where it stopped.
    """
    settings = grid.settings
    if episodes < len(settings):
        raise ConfigError(
            f"episodes = {episodes}: must be at least {len(settings)}, one for each setting; "
            "give more, or fewer --lams and --wps"
        )
    pulls: list[list[float]] = [[] for _ in settings]
    with bar("online", episodes, "episodes", quiet) as report:
        for spent in range(episodes):
            arm = next_arm(pulls)
            rows = evaluate_policy(
                policy,
                settings[arm],
                episodes=len(pulls[arm]) + 1,
                protocol="validation",
                rows_file=rows_file,
                quiet=True,
            )
            pulls[arm] = [row.score for row in rows]
            report(spent + 1, f"{settings[arm].describe()}: {np.mean(pulls[arm]):.1f}")
    best = best_arm(pulls)
    scores = [estimate(scores) for scores in pulls]
    reason = (
        f"it has the highest mean score, {scores[best]}, of "
        f"{len(settings)} settings after {episodes} validation episodes, {len(pulls[best])} of "
        "them its own"
    )
    kept = best == grid.default_at
    return {
        "run": {
            "method": policy.method,
            "bundle": policy.digest,
            "task": policy.bundle.manifest["task"],
        },
        "default": grid.default.to_json(),
        "online": {
            "episodes": episodes,
            "protocol": "validation",
            "settings": [
                {
                    "knobs": knobs.to_json(),
                    "episodes": found.samples,
                    "score": found.mean,
                    "stderr": None if np.isnan(found.stderr) else found.stderr,
                }
                for knobs, found in zip(settings, scores, strict=True)
            ],
        },
        "recommendation": Recommendation(settings[best], kept, reason).to_json(
            policy.knobs_for(policy.bundle.manifest["task"])
        ),
    }
