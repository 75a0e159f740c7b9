"""A policy judged on data that training did not see, with no environment."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy
from gemrl.errors import ConfigError
from gemrl.evaluate.audit import measures
from gemrl.evaluate.audit.findings import findings
from gemrl.evaluate.audit.looks import SAMPLES, Kept, Plan, look_at_all
from gemrl.evaluate.audit.page import write_page
from gemrl.evaluate.audit.words import describe
from gemrl.learn.bundle import config_from_json
from gemrl.learn.calibration import ROWS, likelihood_summary
from gemrl.learn.health import held_out_metrics, warnings
from gemrl.learn.spec import scale
from gemrl.maths.mixture import Mixture
from gemrl.methods.networks import MixtureNet
from gemrl.progress import bar

__all__ = ["audit", "describe", "write_page"]


def audit(
    policy: Policy,
    data: Dataset,
    knobs: Knobs,
    states: int = 1000,
    seed: int = 0,
    quiet: bool = True,
) -> dict[str, Any]:
    """Everything the audit finds, as JSON values with the same keys for every policy.

    What a policy cannot have, for want of critics or of a density, is None.
    """
    policy.require_no_context("an audit")
    if states < 1:
        raise ConfigError(f"states = {states}: must be at least 1")
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed = {seed}: must be from 0 to 2**32 - 1")
    parts = _parts(policy, data)
    rows = parts.get("held_out", parts["training"])
    at = np.linspace(0, len(rows) - 1, min(states, len(rows))).astype(int)
    audited = rows.select(at)
    manifest = policy.bundle.manifest
    # A proposal that makes actions of noise has no density to tell of.
    names = [n for n in ("actor", "behavior") if isinstance(getattr(policy.models, n), MixtureNet)]
    plan = Plan(policy, knobs, seed)
    with bar("audit", len(at), "states", quiet) as report:
        kept = look_at_all(plan, audited, report)
    found = {
        "run": {
            "method": policy.method,
            "bundle": policy.digest,
            "task": manifest["task"],
            "dataset": Path(manifest["dataset"]["source"]).name,
        },
        "models": {"behavior": plan.has_density, "critics": plan.critics},
        "rows": {
            "part": "held out" if "held_out" in parts else "training",
            "count": len(rows),
            "training": len(parts["training"]),
            "states": len(at),
            "seed": seed,
        },
        "knobs": knobs.to_json(),
        "log_std_min": manifest["config"].get("log_std_min"),
        "likelihood": _likelihoods(policy, names, rows),
        "training_likelihood": _likelihoods(policy, names, parts["training"]),
        "components": {
            name: _components(getattr(policy, name)(audited.observations), audited.actions)
            for name in names
        },
        "calibration": measures.reliability(kept["rank"], SAMPLES) if plan.has_density else None,
        "decisions": [_decided(kept, setting) for setting in plan.decided],
        "grid": _grid(plan, kept) if plan.critics else None,
        "disagreement": _disagreement(kept) if plan.critics > 1 else None,
        "winners_curse": _curse(plan, kept) if plan.critics > 1 else None,
        "value_scale": _value_scale(plan, kept),
    }
    return found | {"findings": findings(found, _health(policy, parts))}


def _parts(policy: Policy, data: Dataset) -> dict[str, Dataset]:
    """The rows that the policy was trained on and, where there are any, those held out."""
    training, held = policy.bundle.split(data)
    parts = {"training": training} | ({"held_out": held} if len(held) else {})
    return {name: data.select(rows) for name, rows in parts.items()}


def _likelihoods(policy: Policy, names: list[str], rows: Dataset) -> dict[str, Any]:
    nets = ((name, getattr(policy.models, name)) for name in names)
    return {name: likelihood_summary(net, policy.spec, rows) for name, net in nets}


def _components(mixture: Mixture, actions: np.ndarray) -> dict[str, Any]:
    posterior = np.asarray(mixture.responsibilities(jnp.asarray(actions)))
    return measures.components(np.asarray(mixture.log_weights), posterior)


def _health(policy: Policy, parts: dict[str, Dataset]) -> list[tuple[str, str]]:
    """What training warns of when it looks at these rows."""
    config = config_from_json(policy.method, policy.bundle.manifest["config"])
    metrics: dict[str, float] = {}
    for part, data in parts.items():
        some = np.linspace(0, len(data) - 1, min(len(data), ROWS)).astype(int)
        batch = scale(data.select(some), policy.spec)
        looked = held_out_metrics(policy.models, batch, config, part)
        metrics |= {name: float(value) for name, value in looked.items()}
    actor = policy.models.actor
    return warnings(metrics, actor.log_std.shape[0] if isinstance(actor, MixtureNet) else 1)


def _decided(kept: Kept, knobs: Knobs) -> dict[str, Any]:
    """Mean audits of decisions as a user would get them."""
    prefix = f"decision/{knobs.n}/"
    names = [name.removeprefix(prefix) for name in kept if name.startswith(prefix)]
    fields: dict[str, Any] = {"critic_spread": None}
    fields |= {name: _number(kept[prefix + name].mean()) for name in names}
    return {"knobs": knobs.to_json(), **fields}


def _grid(plan: Plan, kept: Kept) -> dict[str, Any]:
    """Mean audits of the chosen candidate, as lists by N, then λ, then w_p."""
    names = ("violation", "collapse_dist", "support_z", "lcb", "anchor")
    means = {name: kept.get(f"grid/{name}") for name in names}
    return {
        "n": list(plan.ns),
        "lam": list(plan.lams),
        "wp": list(plan.wps),
        **{
            name: None if values is None else values.mean(axis=0, dtype=np.float64).tolist()
            for name, values in means.items()
        },
    }


def _disagreement(kept: Kept) -> dict[str, Any]:
    kinds = ("logged", "candidates", "random")
    return measures.disagreement({kind: kept[f"q/{kind}"] for kind in kinds})


def _curse(plan: Plan, kept: Kept) -> dict[str, Any]:
    """Mean cross-fitted values by N for each rule, and how much of the promised gain is kept."""
    rules = {}
    for rule, wp in plan.rules.items():
        fields = ("selecting_q", "selecting_lcb", "other_q")
        found = {f: kept[f"curse/{rule}/{f}"].mean(axis=0, dtype=np.float64) for f in fields}
        share = measures.kept_share(found["selecting_q"], found["other_q"])
        rules[rule] = {"wp": wp, "kept_share": share} | {f: v.tolist() for f, v in found.items()}
    return {"n": list(plan.curse_ns), "lam": plan.knobs.lam, "rules": rules}


def _value_scale(plan: Plan, kept: Kept) -> dict[str, Any]:
    """What w_p is to be read beside: the spread of values over a candidate set."""
    spec = plan.policy.spec
    found: dict[str, Any] = {
        "reward_scale": spec.reward_scale,
        "reward_shift": spec.reward_shift,
        "wp": plan.wp,
        "n": None,
        "lcb_std": None,
        "lcb_std_quantiles": None,
        "log_support_std": None,
    }
    if plan.critics:
        spread = kept["lcb_spread"].astype(np.float64)
        found |= {
            "n": plan.ns[-1],
            "lcb_std": float(spread.mean()),
            "lcb_std_quantiles": {str(q): float(np.quantile(spread, q)) for q in (0.1, 0.5, 0.9)},
            "log_support_std": _number(kept["log_support_spread"].mean()),
        }
    return found


def _number(value: Any) -> float | None:
    """A JSON number; what a policy does not have is NaN in its records."""
    return None if np.isnan(value) else float(value)
