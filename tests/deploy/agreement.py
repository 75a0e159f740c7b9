"""How far an exported file and `policy.decide` agree, decision by decision.

    python tests/deploy/agreement.py RUN --states 10000 --n 0 1 64 1024

counts it for any run, with each backend that is installed.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gemrl
from gemrl.decide.decision import PER_CANDIDATE
from gemrl.deploy.export.contract import normals_of
from gemrl.deploy.export.golden import draw_noise_of, noise_of
from gemrl.deploy.export.verify import open_session
from gemrl.deploy.export.write import build, golden_data

# Policies of random networks are made there.
sys.path.append(str(Path(__file__).parent.parent / "decide"))

from random_networks import random_policy, random_states  # noqa: F401

NEAR_TIE = 1e-5
MOVED = 1e-3
TOGETHER = 250
"""States in a call."""


@dataclass
class Agreement:
    """Counts over states."""

    states: int = 0
    near_ties: int = 0
    """Another candidate was chosen, whose score is within 1e-5."""
    rounded: int = 0
    """The same of a score so large that 1e-5 is a few of its last bits: within 1e-5 of its size."""
    different: int = 0
    """Another candidate was chosen, and its score is further off."""
    moved: int = 0
    """The same index was chosen, and the action is another: noise within a rounding of the edge
    between two components fell on the other side."""
    furthest: float = 0.0
    """Largest difference between the two actions, in all other states."""


def feeds_for(session, policy, states, knobs, seeds):
    """What the graph takes for a decision that `policy.decide` makes from these seeds."""
    states = np.asarray(states, np.float32)
    size = normals_of(policy.models, policy.spec, knobs)
    gate, normal = noise_of(seeds, len(states), knobs.n, size)
    feeds = {
        "observation": states,
        "gate_noise": gate,
        "normal_noise": normal,
        "lam": np.full(len(states), knobs.lam, np.float32),
        "wp": np.full(len(states), knobs.wp, np.float32),
        "k_smooth": np.array([knobs.k_smooth]),
        "temperature": np.full(len(states), knobs.temperature, np.float32),
        "draw_noise": draw_noise_of(seeds, len(states), knobs.n, knobs.anchor),
    }
    ports = [*session.get_inputs(), *session.get_overridable_initializers()]
    return {port.name: feeds[port.name] for port in ports}


def run(session, feeds):
    """Outputs by name."""
    names = [port.name for port in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def expected(decision, name):
    """A field of a batch's record as the graph gives it: of the chosen candidate."""
    field = getattr(decision, name)
    if name not in PER_CANDIDATE:
        return field
    return np.take_along_axis(field, decision.chosen[:, None], axis=1)[:, 0]


def count(agreement, decision, made):
    """Add a batch to the counts."""
    rows = np.arange(len(decision.chosen))
    gap = decision.score[rows, decision.chosen] - decision.score[rows, made["chosen"]]
    other = decision.chosen != made["chosen"]
    agreement.states += len(rows)
    near = gap <= NEAR_TIE
    within = gap <= NEAR_TIE * np.abs(decision.score[rows, decision.chosen])
    agreement.near_ties += int((other & near).sum())
    agreement.rounded += int((other & ~near & within).sum())
    agreement.different += int((other & ~near & ~within).sum())
    off = np.abs(decision.action - made["action"]).max(axis=1)
    moved = ~other & (off > MOVED)
    agreement.moved += int(moved.sum())
    agreement.furthest = max(agreement.furthest, float(off[~other & ~moved].max(initial=0.0)))


def states_for(policy, rows, seed, data=None):
    """Half from the dataset, where there is one, the rest normal in the scaler's units."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal((rows, policy.spec.obs_dim))
    states = (policy.spec.obs_mean + policy.spec.obs_std * normal).astype(np.float32)
    if data is not None:
        states[::2] = data.observations[rng.integers(len(data), size=len(states[::2]))]
    return states


def agreement_of(policy, n, rows, data=None):
    """Counts over random states."""
    knobs = gemrl.Knobs(n=n)
    session = open_session("the model", build(policy, knobs))
    states, found = states_for(policy, rows, n, data), Agreement()
    seeds = np.random.default_rng([n, 1]).integers(2**32, size=rows)
    for start in range(0, rows, TOGETHER):
        at = slice(start, start + TOGETHER)
        made = run(session, feeds_for(session, policy, states[at], knobs, seeds[at]))
        count(found, policy.decide(states[at], knobs, seed=seeds[at]), made)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--states", type=int, default=10_000)
    parser.add_argument("--n", type=int, nargs="+", default=[0, 1, 64, 1024])
    parser.add_argument("--backends", nargs="+", default=["jax", "fast"])
    args = parser.parse_args()
    for backend in args.backends:
        policy = gemrl.load(args.run, backend)
        data = golden_data(policy)
        for n in args.n:
            found = agreement_of(policy, n, args.states, data)
            print(f"{args.run} {backend} N = {n}: {found}", flush=True)


if __name__ == "__main__":
    main()
