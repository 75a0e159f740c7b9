"""Episodes of a policy in its task's environment, all of them stepped together."""

import hashlib
import time
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gemrl.data.storage import atomic_path
from gemrl.data.tasks import Task, task_named
from gemrl.decide.decision import Decision
from gemrl.decide.history import History
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy
from gemrl.envs.make import make_env
from gemrl.errors import ConfigError, DataError, KnobError, TaskError
from gemrl.evaluate.rows import PROTOCOLS, Row, append_rows, cell_of, read_rows
from gemrl.maths.statistics import normalized_score
from gemrl.progress import Report, bar, silent

# Episodes whose paths are kept for pictures.
PATHS_KEPT = 32


def evaluate_policy(
    policy: Policy,
    knobs: Knobs | None = None,
    *,
    episodes: int | None = None,
    protocol: str = "test",
    task: str | None = None,
    mass_scale: float = 1.0,
    rows_file: str | Path | None = None,
    quiet: bool = False,
) -> list[Row]:
    """Rows of `episodes` episodes of a protocol, one each.

    With `rows_file` they are appended there, and episodes that it already holds are not run again.
    """
    chosen = task_of(policy, task)
    seeds = episode_seeds(chosen, protocol, episodes)
    knobs = policy.knobs_for(chosen.name) if knobs is None else knobs

    cell = cell_of(policy.digest, chosen.name, protocol, knobs.to_json(), mass_scale)
    found = {}
    if rows_file is not None:
        found = {r.episode_seed: r for r in read_rows(rows_file) if r.cell == cell}
    wanted = [seed for seed in seeds if seed not in found]
    if wanted:
        title = f"{protocol}: {policy.method}, {knobs.describe()}"
        with bar(title, len(wanted) * chosen.horizon, "steps", quiet) as report:
            rows, paths = rollout(
                policy, knobs, chosen, wanted, protocol, mass_scale=mass_scale, report=report
            )
        found |= {row.episode_seed: row for row in rows}
        if rows_file is not None:
            append_rows(Path(rows_file), rows)
            _keep_paths(Path(rows_file).parent, cell, paths)
    return [found[seed] for seed in seeds]


def episode_seeds(task: Task, protocol: str, episodes: int | None) -> list[int]:
    """The first seeds of a protocol, as many as asked for or as the task has."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"protocol = {protocol!r}: must be one of {', '.join(PROTOCOLS)}")
    count = task.episodes if episodes is None else episodes
    seeds = PROTOCOLS[protocol]
    if not 1 <= count <= len(seeds):
        raise ConfigError(f"episodes = {count}: must be from 1 to {len(seeds):,}")
    return list(seeds[:count])


def task_of(policy: Policy, name: str | None = None) -> Task:
    """The task that a policy is evaluated in. Refuses one whose observations or actions are not
    the policy's.
    """
    name = name or policy.bundle.manifest["task"]
    if name is None:
        raise TaskError("this policy's data names no task: say which with task=... or --task")
    task = task_named(name)
    spec = policy.spec
    bounds = (task.action_low, task.action_high)
    if (spec.obs_dim, spec.action_dim) != (task.obs_dim, task.action_dim):
        raise TaskError(
            f"{task.name} has {task.obs_dim} observation and {task.action_dim} action dimensions, "
            f"and the policy {spec.obs_dim} and {spec.action_dim}"
        )
    if not ((spec.action_low == bounds[0]).all() and (spec.action_high == bounds[1]).all()):
        raise TaskError(f"{task.name} has actions from {bounds[0]} to {bounds[1]}; the policy not")
    return task


def rollout(
    policy: Policy,
    knobs: Knobs,
    task: Task,
    seeds: Sequence[int],
    protocol: str,
    *,
    mass_scale: float = 1.0,
    target_return: float | None = None,
    report: Report = silent,
) -> tuple[list[Row], np.ndarray]:
    """One episode a seed. Returns rows and the observations [T + 1, E, S] along the way, which
    stand still once an episode has ended. A policy that looks back may be asked for another return
    than its settings name; rows do not tell it.
    """
    count = len(seeds)
    env = make_env(task, count, mass_scale=mass_scale)
    observations = [env.reset(np.array(seeds))]
    clock = time.perf_counter
    began, deciding, simulating = clock(), 0.0, 0.0
    # Each step of each episode has a decision seed of its own, whoever shares the batch.
    decision_seeds = np.stack(
        [np.random.default_rng([s, 1]).integers(2**32, size=task.horizon) for s in seeds]
    )
    returns, lengths = np.zeros(count), np.zeros(count, dtype=int)
    sums: dict[str, np.ndarray] = {}
    alive = np.arange(count)
    if target_return is not None and policy.context is None:
        raise KnobError(
            f"target_return: {policy.method!r} looks at the present state alone, and cannot be "
            "asked for a return"
        )
    history = None if policy.context is None else History(policy, count, target_return)
    for t in range(task.horizon):
        asked = _padded(alive, count)
        before = clock()
        decision = policy.decide(
            observations[-1][asked],
            knobs,
            seed=decision_seeds[asked, t],
            t=t,
            history=None if history is None else history.rows(asked),
        )
        deciding += clock() - before
        for name, values in audit_fields(decision).items():
            sums.setdefault(name, np.zeros(count))[alive] += values[: len(alive)]
        actions = np.zeros((count, task.action_dim))
        actions[alive] = decision.action[: len(alive)]
        before = clock()
        observation, rewards, ended = env.step(actions)
        simulating += clock() - before
        if history is not None:
            history.add(observations[-1], actions, rewards)
        observations.append(observation)
        returns += rewards
        lengths[alive] += 1
        alive = np.flatnonzero(~ended)
        # An episode that is over has none of its steps left.
        ahead = len(alive) * (task.horizon - t - 1)
        over = count - len(alive) if t + 1 < task.horizon else count
        report(count * task.horizon - ahead, f"{over} of {count} episodes over")
        if len(alive) == 0:
            observations += [observation] * (task.horizon - t - 1)
            break
    seconds = {
        "wall_seconds": clock() - began,
        "decide_seconds": deciding,
        "simulate_seconds": simulating,
    }

    means = {name: total / lengths for name, total in sums.items()}
    manifest = policy.bundle.manifest
    rows = [
        Row(
            task=task.name,
            env_id=task.env_id,
            simulator=env.version,
            method=policy.method,
            bundle=policy.digest,
            data_origin=manifest["dataset"]["origin"],
            data_fingerprint=manifest["dataset"]["fingerprint"],
            train_seed=manifest["config"]["seed"],
            updates=manifest["updates"]["main"],
            protocol=protocol,
            episode_seed=int(seed),
            knobs=knobs.to_json(),
            episode_return=float(returns[i]),
            score=normalized_score(float(returns[i]), *task.reference),
            length=int(lengths[i]),
            mass_scale=mass_scale,
            **{name: total * float(lengths[i] / lengths.sum()) for name, total in seconds.items()},
            **{k: None if np.isnan(v[i]) else float(v[i]) for k, v in means.items()},
        )
        for i, seed in enumerate(seeds)
    ]
    return rows, np.stack(observations)


def _padded(alive: np.ndarray, count: int) -> np.ndarray:
    """The rows still alive, filled up with the first to one of few sizes.

    Each size of batch is compiled once, so batches only ever halve.
    """
    size = count
    while size >= 2 * len(alive) and size > 1:
        size = -(-size // 2)
    return np.concatenate([alive, np.repeat(alive[:1], size - len(alive))])


def audit_fields(decision: Decision) -> dict[str, np.ndarray]:
    """The audited quantities of each decision of a batch, straight from the record."""
    without_support = np.isnan(decision.executed_support_z)
    nothing = np.where(without_support, np.nan, 0.0)
    return {
        "violation": decision.violation + nothing,
        "collapse_dist": decision.collapse_dist,
        "support_z": decision.chosen_support_z,
        "executed_violation": decision.executed_violation + nothing,
        "executed_collapse_dist": decision.executed_collapse_dist,
        "executed_support_z": decision.executed_support_z,
        "lcb_spread": decision.lcb.std(axis=-1),
    }


def paths_file(folder: Path, cell: str) -> Path:
    """Where the paths of a cell's first episodes are kept."""
    return folder / "paths" / f"{hashlib.sha256(cell.encode()).hexdigest()[:16]}.npz"


def read_paths(path: Path) -> np.ndarray:
    """Observations [T + 1, E, S] of a cell's first episodes."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            return kept["observations"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: not readable ({error}); remove it") from error


def _keep_paths(folder: Path, cell: str, observations: np.ndarray) -> None:
    path = paths_file(folder, cell)
    kept = observations.astype(np.float32)
    if path.exists():
        kept = np.concatenate([read_paths(path), kept], axis=1)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, observations=kept[:, :PATHS_KEPT])
