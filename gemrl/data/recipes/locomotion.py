"""Locomotion data as D4RL made it: sampled actions of policies stopped at several levels.

`medium` is a policy at about a third of the expert, `expert` one at its level, and `replay` a
series of snapshots of the run that led to medium, each with an equal share in their order, which
stands for that run's replay buffer. The networks are gemrl's own (tools/train_behavior.py); their
measured levels are in gemrl/data/policies/levels.json.

Several rows walk at once so that a policy is asked for all of them together, and each row's
episodes follow each other in the file. A row's last episode is cut where its share of the steps is
reached, which `timeouts` marks as it marks the horizon.
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from gemrl.data.behavior import BehaviorPolicy, load_behavior
from gemrl.data.tasks import Level, Task
from gemrl.envs.locomotion import GymRows
from gemrl.errors import ConfigError, DataError
from gemrl.progress import Report, later_part, silent

ROWS = 8
# A row shorter than this would hold little but a cut episode.
STEPS_PER_ROW = 5_000
_STREAMS: dict[Level, int] = {"replay": 0, "medium": 1, "expert": 2}


@cache
def own_policies(env_id: str, level: Level) -> tuple[BehaviorPolicy, ...]:
    """The networks that gemrl brings for an environment and level, in the order of training."""
    folder = Path(str(files("gemrl.data") / "policies"))
    robot = env_id.partition("-")[0].lower()
    found = sorted(folder.glob(f"{robot}-{level}*.npz"))
    if not found:
        raise ConfigError(f"gemrl brings no {level} policy for {env_id}")
    return tuple(load_behavior(path) for path in found)


def make_locomotion(
    task: Task, steps: int, seed: int, report: Report = silent
) -> dict[str, np.ndarray]:
    """The arrays of a locomotion dataset in D4RL's layout."""
    parts: list[dict[str, np.ndarray]] = []
    done = 0
    for level, share in zip(task.levels, _shares(steps, len(task.levels)), strict=True):
        if share == 0:
            continue
        # The stream of a level does not depend on the task, so that medium-expert begins with the
        # medium dataset of the same seed.
        parts.append(
            collect(
                task.env_id,
                own_policies(task.env_id, level),
                share,
                [seed, _STREAMS[level]],
                horizon=task.horizon,
                report=later_part(report, done),
            )
        )
        done += share
    return _join(parts)


def collect(
    env_id: str,
    policies: Sequence[BehaviorPolicy],
    steps: int,
    seed: Sequence[int],
    *,
    horizon: int | None = None,
    deterministic: bool = False,
    report: Report = silent,
) -> dict[str, np.ndarray]:
    """Episodes of policies in a Gymnasium environment, each with an equal share of the steps."""
    parts: list[dict[str, np.ndarray]] = []
    done = 0
    for number, (policy, share) in enumerate(
        zip(policies, _shares(steps, len(policies)), strict=True)
    ):
        if share == 0:
            continue
        rows = max(1, min(ROWS, share // STEPS_PER_ROW))
        env = GymRows(env_id, rows)
        _require_fit(policy, env, env_id)
        limit = horizon or env.horizon
        if limit is None:
            raise ConfigError(f"environment {env_id} has no horizon of its own: give one")
        parts.append(
            _walk(
                env,
                policy,
                _shares(share, rows),
                [*seed, number],
                limit,
                0.0 if deterministic else 1.0,
                later_part(report, done),
            )
        )
        done += share
    return _join(parts)


def _walk(
    env: GymRows,
    policy: BehaviorPolicy,
    lengths: list[int],
    seed: list[int],
    horizon: int,
    noise_scale: float,
    report: Report,
) -> dict[str, np.ndarray]:
    """Row i walks `lengths[i]` steps, episode after episode."""
    rows, longest = len(lengths), max(lengths)
    streams = [np.random.default_rng([*seed, row]) for row in range(rows)]
    observations = np.empty((rows, longest, env.obs_dim), dtype=np.float32)
    following = np.empty_like(observations)
    actions = np.empty((rows, longest, env.action_dim), dtype=np.float32)
    rewards = np.empty((rows, longest), dtype=np.float32)
    terminals = np.zeros((rows, longest), dtype=bool)
    timeouts = np.zeros((rows, longest), dtype=bool)

    now = env.reset(np.array([rng.integers(2**31) for rng in streams]))
    age = np.zeros(rows, dtype=int)
    for step in range(longest):
        noise = np.stack([rng.standard_normal(env.action_dim) for rng in streams])
        # Rounded first, so that what is stored is what was executed.
        action = _in_bounds(policy, policy.act(now, noise_scale * noise), env).astype(np.float32)
        if not np.isfinite(action).all():
            raise DataError(f"policy {policy.source} gave an action that is not finite")
        after, reward, ended = env.step(action)
        observations[:, step], following[:, step] = now, after
        actions[:, step], rewards[:, step] = action, reward
        age += 1
        terminals[:, step] = ended
        timeouts[:, step] = ~ended & (age >= horizon)
        now = after
        for row in np.flatnonzero(ended | (age >= horizon)):
            now[row] = env.restart(int(row), int(streams[row].integers(2**31)))
            age[row] = 0
        if step % 200 == 199:
            report(min((step + 1) * rows, sum(lengths)))
    report(sum(lengths))
    for row, length in enumerate(lengths):
        timeouts[row, length - 1] = ~terminals[row, length - 1]

    kept = {
        "observations": observations,
        "actions": actions,
        "rewards": rewards,
        "next_observations": following,
        "terminals": terminals,
        "timeouts": timeouts,
    }
    return {
        name: np.concatenate([array[row, :length] for row, length in enumerate(lengths)])
        for name, array in kept.items()
    }


def _in_bounds(policy: BehaviorPolicy, actions: np.ndarray, env: GymRows) -> np.ndarray:
    """Actions as the environment takes them: a squashed policy's are stretched onto the bounds."""
    if policy.squash_tanh:
        actions = env.action_low + (actions + 1) / 2 * (env.action_high - env.action_low)
    return np.clip(actions, env.action_low, env.action_high)


def _require_fit(policy: BehaviorPolicy, env: GymRows, env_id: str) -> None:
    if (policy.obs_dim, policy.action_dim) != (env.obs_dim, env.action_dim):
        raise ConfigError(
            f"policy {policy.source} has {policy.obs_dim} observation and {policy.action_dim} "
            f"action dimensions, and {env_id} {env.obs_dim} and {env.action_dim}"
        )


def _shares(steps: int, parts: int) -> list[int]:
    """`steps` divided as evenly as whole numbers allow."""
    return [steps * (i + 1) // parts - steps * i // parts for i in range(parts)]


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
