"""Measure the gates of trained policies, and show what was measured.

    python tools/measure_gates.py rates RUN DATASET       false alarms on held-out episodes
    python tools/measure_gates.py detect RUN DATASET      alarms on shifted states
    python tools/measure_gates.py novelty RUN DATASET     the same for several scores of novelty
    python tools/measure_gates.py drift RUN DATASET       alarms of the drift monitor
    python tools/measure_gates.py loop RUN DATASET        episodes with a guard and without
    python tools/measure_gates.py tables                  Markdown of all rows, for docs/gates.md

Each part writes rows to `docs/gates/PART-TASK.jsonl`. `--other FILE` is a dataset of another maze,
whose states `detect` and `novelty` take as a shift. `--n` sets the candidates of `rates`, `detect`
and `drift`.
"""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gates_tables import tables
from novelty_scores import SCORES

import gemrl
from gemrl.data.storage import write_text
from gemrl.data.tasks import task_named
from gemrl.decide.drift import DriftMonitor
from gemrl.decide.gates import Gates, decision_scores, scores_at, split_of
from gemrl.decide.guard import Guard
from gemrl.decide.knobs import Knobs
from gemrl.decide.novelty import fit_density
from gemrl.decide.verdict import Verdict
from gemrl.envs.make import make_env
from gemrl.evaluate.rows import PROTOCOLS
from gemrl.maths.statistics import normalized_score

OUT = Path(__file__).parent.parent / "docs" / "gates"
ALPHAS = (0.01, 0.05)
NOISE = (0.1, 0.3, 1.0)
MASSES = (1.0, 0.5, 1.5, 2.0)
LADDER = ("smaller_n", "anchor", "behavior")
SMALLER_N = 16
Row = dict[str, Any]


class Held:
    """The held-out episodes of a policy's dataset, with the scores of decisions there."""

    def __init__(self, run: Path, dataset: str, n: int, states: int) -> None:
        self.policy = gemrl.load(run)
        self.data = gemrl.load_dataset(dataset)
        self.knobs = dataclasses.replace(self.policy.default_knobs, n=n)
        self.training, held = split_of(self.policy, self.data)
        spec = self.policy.spec
        self.scaler = (spec.obs_mean, spec.obs_std)
        observations = self.data.observations[self.training]
        self.density = fit_density(observations, *self.scaler, seed=0)
        chosen = np.random.default_rng(0).choice(held, min(states, len(held)), replace=False)
        self.rows = np.sort(chosen)
        self.episodes = self.data.episodes[self.rows]
        self.about = {"task": self.data.task, "knobs": self.knobs.to_json()}

    def scores(self) -> dict[str, np.ndarray]:
        """Scores of the policy's decisions at the chosen rows."""
        return scores_at(self.policy, self.density, self.data, self.rows, self.knobs, seed=0)

    def halves(self, seed: int) -> np.ndarray:
        """Which rows belong to a random half of the episodes?"""
        episodes = np.random.default_rng(seed).permutation(np.unique(self.episodes))
        return np.isin(self.episodes, episodes[: len(episodes) // 2])

    def gates(self, scores: dict[str, np.ndarray], part: np.ndarray) -> Gates:
        """Gates calibrated on some of the rows."""
        chosen = {name: values[part] for name, values in scores.items()}
        count = len(np.unique(self.episodes[part]))
        return Gates.from_scores(chosen, self.density, self.knobs, self.policy.digest, count)

    def decisions(self, observations: np.ndarray) -> dict[str, np.ndarray]:
        """Scores of decisions at given states."""
        blocks = []
        for block in np.array_split(observations, -(-len(observations) // 250)):
            decision = self.policy.decide(block, self.knobs, seed=1)
            blocks.append(decision_scores(decision, self.density.novelty(block)))
        return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def rates(held: Held, splits: int = 20) -> Iterator[Row]:
    """Calibrated on one half of the held-out episodes: alarms on the other half."""
    scores = held.scores()
    for seed in range(splits):
        half = held.halves(seed)
        gates = held.gates(scores, half)
        for alpha in ALPHAS:
            verdict = gates.verdict_of({k: v[~half] for k, v in scores.items()}, alpha)
            found = {name: float(flags.mean()) for name, flags in verdict.flags.items()}
            yield {
                **held.about,
                "split": seed,
                "alpha": alpha,
                "episodes": gates.episodes,
                "states": len(gates.joint),
                "rates": {**found, "together": float(verdict.flagged.mean())},
            }


def shifted(held: Held, rows: np.ndarray, other: str | None) -> dict[str, np.ndarray]:
    """Observations of some rows, and of what they become under each shift."""
    rng = np.random.default_rng(2)
    plain = held.data.observations[rows]
    starts = held.data.episode_starts
    first = held.data.observations[starts[np.searchsorted(starts, rows, "right") - 1]]
    found = {"none": plain}
    for size in NOISE:
        noise = size * held.scaler[1] * rng.standard_normal(plain.shape)
        found[f"noise of {size:g} standard deviations"] = plain + noise
    # A sensor of each row's own fails, so that all of them count.
    broken = np.arange(plain.shape[1]) == rng.integers(plain.shape[1], size=(len(rows), 1))
    found["a sensor frozen at the episode's start"] = np.where(broken, first, plain)
    found["a sensor stuck at 0"] = np.where(broken, 0, plain)
    if other is not None:
        data = gemrl.load_dataset(other)
        chosen = rng.choice(len(data), len(rows), replace=False)
        found[f"states of {data.task}"] = data.observations[chosen]
    return found


def driven(held: Held, mass: float, episodes: int, keep: int) -> list[np.ndarray]:
    """Observations of the policy's own episodes with bodies of another mass, `keep` of each."""
    task = task_named(held.data.task or "")
    env = make_env(task, episodes, mass_scale=mass)
    knobs = dataclasses.replace(held.knobs, n=0)
    observation, alive = env.reset(np.arange(episodes)), np.ones(episodes, bool)
    path, lengths = [], np.zeros(episodes, int)
    for _ in range(task.horizon):
        path.append(observation)
        lengths += alive
        observation, _, ended = env.step(held.policy.decide(observation, knobs).action)
        alive = ~ended
    steps = np.stack(path, axis=1)
    rng = np.random.default_rng(3)
    return [
        steps[i, np.sort(rng.choice(length, min(keep, length), replace=False))]
        for i, length in enumerate(lengths)
    ]


def all_shifts(held: Held, rows: np.ndarray, other: str | None) -> dict[str, np.ndarray]:
    """Shifted states of logs and of the policy's own episodes."""
    found = shifted(held, rows, other)
    for mass in MASSES:
        name = f"driving, masses times {mass:g}" if mass != 1 else "driving, nothing changed"
        found[name] = np.concatenate(driven(held, mass, 20, -(-len(rows) // 20)))
    return found


def detect(held: Held, other: str | None, states: int = 600) -> Iterator[Row]:
    """Calibrated on half of the held-out episodes: alarms on shifted states of the other half."""
    half = held.halves(0)
    gates = held.gates(held.scores(), half)
    rest = np.flatnonzero(~half)
    rows = held.rows[rest[np.linspace(0, len(rest) - 1, min(states, len(rest))).astype(int)]]
    for name, observations in all_shifts(held, rows, other).items():
        verdict = gates.verdict_of(held.decisions(observations.astype(np.float32)), 0.01)
        found = {gate: float(flags.mean()) for gate, flags in verdict.flags.items()}
        together = float(verdict.flagged.mean())
        count = {"states": len(observations), "alpha": 0.01}
        yield {**held.about, "shift": name, **count, "rates": {**found, "together": together}}


def novelty(held: Held, other: str | None, states: int = 4000) -> Iterator[Row]:
    """Scores of novelty against one another: alarms at 1 % on shifted states."""
    half = held.halves(0)
    rows, rest = held.rows[half], held.rows[~half][:states]
    shifts = all_shifts(held, rest, other)
    training = held.data.observations[held.training]
    for name, fit in SCORES.items():
        score = fit(held.policy, training, np.random.default_rng(0))
        calibration = np.sort(score(held.data.observations[rows]))
        for shift, observations in shifts.items():
            values = score(observations.astype(np.float32))
            above = len(calibration) - np.searchsorted(calibration, values, side="left")
            rate = float(((1 + above) / (len(calibration) + 1) <= 0.01).mean())
            yield {"task": held.data.task, "score": name, "shift": shift, "rate": rate}


def drift(held: Held, repeats: int = 100, delta: float = 0.05) -> Iterator[Row]:
    """The monitor on held-out episodes in random order, by steps and by episodes; then driving."""
    scores = held.scores()
    episodes = np.unique(held.episodes)
    by_episode = {e: {k: v[held.episodes == e] for k, v in scores.items()} for e in episodes}
    about = {**held.about, "delta": delta}

    def watch(learned: list[Any], bet_on: list[Any], seed: int) -> Row:
        monitor = DriftMonitor(delta, tuple(scores), seed=seed)
        for episode in learned:
            monitor.learn(episode)
        for episode in bet_on:
            monitor.episode(episode)
        return {"alarm": monitor.alarm, "learned": len(learned), "episodes": len(bet_on)}

    for seed in range(repeats):
        order = np.random.default_rng([seed, 5]).permutation(episodes)
        half = len(order) // 2
        logs = [by_episode[e] for e in order]
        yield {**about, "stream": "held-out episodes", **watch(logs[:half], logs[half:], seed)}
        gates = held.gates(scores, np.isin(held.episodes, order[:half]))
        monitor = DriftMonitor(delta, gates.names)
        for episode in logs[half:]:
            p = gates.verdict_of(episode, 0.05).p
            for step in range(len(p["novelty"])):
                monitor.update({name: float(values[step]) for name, values in p.items()})
        found = {"alarm": monitor.alarm, "learned": half, "episodes": len(logs) - half}
        yield {**about, "stream": "held-out episodes, each step a p-value", **found}
    own = {}
    for mass in MASSES:
        paths = driven(held, mass, 60, 25)
        own[mass] = [held.decisions(path.astype(np.float32)) for path in paths]
    logs = [by_episode[e] for e in episodes]
    yield {**about, "stream": "driving after logs", **watch(logs, own[1.0], 0)}
    for seed in range(repeats):
        rng = np.random.default_rng([seed, 6])
        order = [own[1.0][i] for i in rng.permutation(60)]
        found = watch(order[:30], order[30:], seed)
        yield {**about, "stream": "driving, nothing changed", **found}
        for mass in MASSES[1:]:
            changed = [own[mass][i] for i in rng.permutation(60)]
            found = watch(order[:30], changed, seed)
            yield {**about, "stream": f"driving, masses times {mass:g}", **found}


def loop(held: Held, episodes: int = 50, sizes: tuple[int, ...] = (64, 1024)) -> Iterator[Row]:
    """Episodes of the unguarded search and of the default knobs, with guards and without."""
    default = held.policy.default_knobs
    gates = Gates.calibrate(held.policy, held.data, dataclasses.replace(default, n=64))
    guards: list[Row | None] = [None]
    guards += [{"alpha": alpha, "on_novelty": "anchor"} for alpha in (0.01, 0.002)]
    guards += [{"alpha": alpha, "on_novelty": "behavior"} for alpha in (0.01, 0.002)]
    settings = [(0, default.wp, None), *itertools.product(sizes, (0.0, default.wp), guards)]
    for n, wp, given in settings:
        knobs = dataclasses.replace(default, n=n, wp=wp)
        decide = held.policy.decide
        if given is not None:
            ladder = LADDER[: LADDER.index(given["on_novelty"]) + 1]
            decide = Guard(held.policy, gates, ladder=ladder, smaller_n=SMALLER_N, **given).decide
        about = {
            "task": held.data.task,
            "bundle": held.policy.digest,
            "calibrated_at": gates.knobs.to_json(),
            "knobs": knobs.to_json(),
            "guard": given,
        }
        for row in drive(held, decide, knobs, episodes):
            yield {**about, **row}


def drive(held: Held, decide: Any, knobs: Knobs, episodes: int) -> Iterator[Row]:
    """Scores of test episodes, and how many steps each rung of the ladder took."""
    task = task_named(held.data.task or "")
    seeds = np.array(PROTOCOLS["test"][:episodes])
    env = make_env(task, episodes)
    observation, returns = env.reset(seeds), np.zeros(episodes)
    noise = [np.random.default_rng([s, 1]).integers(2**32, size=task.horizon) for s in seeds]
    decision_seeds = np.stack(noise)
    rungs = []
    for t in range(task.horizon):
        decision = decide(observation, knobs, seed=decision_seeds[:, t], t=t)
        verdict = decision.verdict
        rungs.append(verdict.rung if isinstance(verdict, Verdict) else ["search"] * episodes)
        observation, rewards, _ = env.step(decision.action)
        returns += rewards
    taken = np.array(rungs, dtype=str)
    for i, seed in enumerate(seeds):
        names, counts = np.unique(taken[:, i], return_counts=True)
        yield {
            "episode_seed": int(seed),
            "score": normalized_score(float(returns[i]), *task.reference),
            "rungs": dict(zip(names.tolist(), counts.tolist(), strict=True)),
        }


def main() -> None:
    """Measure one part, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("rates", "detect", "novelty", "drift", "loop", "tables"))
    parser.add_argument("run", nargs="?")
    parser.add_argument("dataset", nargs="?")
    parser.add_argument("--other")
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument("--states", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    if given.part == "tables":
        print(tables(given.out))
        return
    held = Held(Path(given.run), given.dataset, given.n, given.states)
    measured = {
        "rates": lambda: rates(held),
        "detect": lambda: detect(held, given.other),
        "novelty": lambda: novelty(held, given.other),
        "drift": lambda: drift(held),
        "loop": lambda: loop(held),
    }[given.part]()
    lines = []
    path = given.out / f"{given.part}-{held.data.task}.jsonl"
    for row in measured:
        lines.append(json.dumps(row, sort_keys=True))
        write_text(path, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
