"""One decision of a trained policy, seen from inside."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gemrl.decide.knobs import Cosine, Knobs
from gemrl.decide.policy import Policy, load
from gemrl.evaluate import pictures
from gemrl.evaluate.report.gather import OURS, Source

# The picture is drawn at the most divided of this many states.
STATES_LOOKED_AT = 2000
CANDIDATES = 1024


def decision_pictures(
    sources: Sequence[Source], states: np.ndarray, knobs: Knobs | None
) -> dict[str, Any] | None:
    """Candidates at the most divided state, guarded and not; None where no policy can search."""
    for source in sorted(sources, key=lambda source: source.method != OURS):
        # JAX compiles in seconds what numba may take a minute for, and two decisions are all.
        policy = load(source.folder, backend="jax")
        searches = policy.models.critics and policy.models.behavior is not None
        fits = states.shape[1] == policy.spec.obs_dim
        if searches and fits and policy.spec.action_dim > 1:
            guarded = replace(knobs or policy.knobs_for(source.task), n=CANDIDATES)
            return _pictures(source, policy, _divided(policy, states), guarded)
    return None


def _divided(policy: Policy, states: np.ndarray) -> np.ndarray:
    """The state where the actor's two heaviest components lie furthest apart for their weight."""
    at = np.linspace(0, len(states) - 1, min(STATES_LOOKED_AT, len(states))).astype(int)
    actor = policy.actor(states[at])
    weights = np.exp(actor.log_weights)
    second, first = np.argsort(weights, axis=1)[:, -2:].T if weights.shape[1] > 1 else (0, 0)
    rows = np.arange(len(at))
    apart = np.linalg.norm(actor.means[rows, first] - actor.means[rows, second], axis=1)
    return states[at[int(np.argmax(apart * weights[rows, second]))]]


def _pictures(source: Source, policy: Policy, obs: np.ndarray, guarded: Knobs) -> dict[str, Any]:
    t = 0 if isinstance(guarded.wp, Cosine) else None
    panels = [
        (title, policy.decide(obs, knobs, seed=0, t=t))
        for title, knobs in (
            (guarded.describe(), guarded),
            ("support switched off: w_p 0", replace(guarded, wp=0.0)),
        )
    ]
    bounds = (policy.spec.action_low, policy.spec.action_high)
    return {
        "images": pictures.candidates(panels, policy.actor(obs), policy.behavior(obs), bounds),
        "policy": f"{source.method.upper()}, training seed {source.seed}",
        "state": ", ".join(f"{x:.2f}" for x in obs),
        "z": [f"{float(d.chosen_support_z):+.2f}" for _, d in panels],
        "executed_z": [f"{float(d.executed_support_z):+.2f}" for _, d in panels],
        "collapse": [f"{float(d.collapse_dist):.2f}" for _, d in panels],
    }
