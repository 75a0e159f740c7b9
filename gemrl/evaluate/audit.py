"""A policy judged on its dataset, with no environment: its fit and what it would decide."""

from dataclasses import replace
from typing import Any

import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.decide.knobs import Cosine, Knobs
from gemrl.decide.policy import Policy
from gemrl.errors import ConfigError, DataError
from gemrl.evaluate.rollouts import audit_fields
from gemrl.learn.calibration import likelihood_summary

BUDGETS = (0, 1, 64, 1024)
# A component that gets less than this share of the gate's weight over all states is idle.
IDLE = 0.01


def audit(policy: Policy, data: Dataset, knobs: Knobs, states: int = 1000) -> dict[str, Any]:
    """Likelihoods, use of components and audits of decisions at held-out states."""
    if states < 1:
        raise ConfigError(f"states = {states}: must be at least 1")
    manifest = policy.bundle.manifest
    if data.fingerprint != manifest["dataset"]["fingerprint"]:
        raise DataError(
            f"{data.source} is not the dataset that this policy was trained on: fingerprint "
            f"{data.fingerprint[:16]} where the bundle has "
            f"{manifest['dataset']['fingerprint'][:16]}"
        )
    config = manifest["config"]
    _, held = data.split_episodes(config["holdout"], config["seed"])
    part = "held out" if len(held) else "training"
    rows = data.select(held) if len(held) else data
    nets = {"actor": policy.models.actor, "behavior": policy.models.behavior}
    at = np.linspace(0, len(rows) - 1, min(states, len(rows))).astype(int)
    observations = rows.observations[at]
    return {
        "run": {"method": policy.method, "bundle": policy.digest, "task": manifest["task"]},
        "rows": {"part": part, "count": len(rows), "states": len(at)},
        "log_std_min": config["log_std_min"],
        "reward_scale": policy.spec.reward_scale,
        "likelihood": {
            name: likelihood_summary(net, policy.spec, rows)
            for name, net in nets.items()
            if net is not None
        },
        "components": {
            name: _components(np.asarray(getattr(policy, name)(observations).log_weights))
            for name, net in nets.items()
            if net is not None
        },
        "decisions": [
            _decisions(policy, observations, replace(knobs, n=n))
            for n in (sorted({*BUDGETS, knobs.n}) if policy.models.critics else (0,))
            if n or knobs.anchor != "none"
        ],
    }


def _components(log_weights: np.ndarray) -> dict[str, Any]:
    weights = np.exp(log_weights)
    usage = weights.mean(axis=0)
    entropy = -(weights * np.log(np.maximum(weights, 1e-12))).sum(axis=1)
    return {
        "usage": usage.tolist(),
        "idle": int((usage < IDLE).sum()),
        "gate_entropy": float(entropy.mean()),
    }


def _decisions(policy: Policy, observations: np.ndarray, knobs: Knobs) -> dict[str, Any]:
    # A schedule is looked at along its whole course, a step of it at each state.
    steps = np.arange(len(observations))
    t = steps % knobs.wp.horizon if isinstance(knobs.wp, Cosine) else None
    decision = policy.decide(observations, knobs, seed=0, t=t)
    fields = {name: float(np.mean(values)) for name, values in audit_fields(decision).items()}
    fields = {name: None if np.isnan(value) else value for name, value in fields.items()}
    spread = None
    if policy.models.critics:
        chosen = np.take_along_axis(decision.q.std(axis=1), decision.chosen[:, None], axis=-1)
        spread = float(chosen.mean())
    return {
        "knobs": knobs.to_json(),
        **fields,
        "critic_spread": spread,
    }


def describe(report: dict[str, Any]) -> str:
    """The report as lines of text."""
    rows = report["rows"]
    lines = [
        f"{report['run']['method']} on {report['run']['task'] or 'its data'}: "
        f"{rows['count']:,} {rows['part']} rows, decisions at {rows['states']:,} of their states",
        "",
        f"likelihood of logged actions (log-std floor {report['log_std_min']:g})",
    ]
    for name, found in report["likelihood"].items():
        used = report["components"][name]
        lines.append(
            f"  {name:9} NLL {found['nll']:8.3f}   NLL gap mean {found['gap']:8.3f}, median "
            f"{found['gap_median']:8.3f}   gate entropy {used['gate_entropy']:.2f}, "
            f"{used['idle']} of {len(used['usage'])} components idle"
        )
    lines += ["", "decisions                  violation  collapse  support z  LCB spread  critics"]
    for found in report["decisions"]:
        cells = [
            _cell(found["violation"], 9, ".3f"),
            _cell(found["collapse_dist"], 8, ".3f"),
            _cell(found["support_z"], 9, "+.2f"),
            _cell(found["lcb_spread"], 10, ".3f"),
            _cell(found["critic_spread"], 7, ".3f"),
        ]
        lines.append(f"  {Knobs.from_json(found['knobs']).describe():24} " + "  ".join(cells))
    lines += [
        "",
        "LCB spread is the standard deviation of the lower bound over a candidate set, in reward "
        f"units (scale {report['reward_scale']:g}): w_p trades against it. critics is their "
        "standard deviation at the chosen action.",
    ]
    return "\n".join(lines)


def _cell(value: float | None, width: int, form: str) -> str:
    return ("–" if value is None else format(value, form)).rjust(width)
