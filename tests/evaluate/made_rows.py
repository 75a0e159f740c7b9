"""Rows of episodes that never were."""

from gemrl.decide.knobs import Knobs
from gemrl.evaluate.rows import Row

TASK = "maze2d-umaze-v1"
NONE = Knobs(n=0, wp=0.0)


def made_row(score=50.0, knobs=NONE, method="gem", seed=0, episode=0, protocol="test", **more):
    """A row of an episode, of which tests say what they care about."""
    values = {
        "task": TASK,
        "env_id": f"gemrl/{TASK}",
        "simulator": "mujoco 3.3.0",
        "bundle": f"{method}-{seed}",
        "data_origin": "regenerated",
        "data_fingerprint": "f" * 64,
        "updates": 100,
        "episode_return": 2 * score,
        "length": 300,
        "violation": 0.1,
        "collapse_dist": 0.2,
        "support_z": -0.5,
        "executed_violation": 0.3,
        "executed_collapse_dist": 0.4,
        "executed_support_z": -0.6,
        "lcb_spread": 0.25,
    }
    return Row(
        score=score,
        knobs=knobs.to_json(),
        method=method,
        train_seed=seed,
        episode_seed=episode,
        protocol=protocol,
        **(values | more),
    )
