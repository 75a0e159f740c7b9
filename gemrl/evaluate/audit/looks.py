"""One pass over the audited states, in blocks: what is kept of each state, and nothing more.

Candidates are scored once a state, for the largest N. Every other setting is reranked from that
record, so that a whole grid of knobs costs hardly more than one setting.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gemrl.data.dataset import Dataset
from gemrl.decide.decision import Decision
from gemrl.decide.knobs import Cosine, Knobs
from gemrl.decide.policy import Policy
from gemrl.evaluate.audit.measures import cross_fitted, ranks
from gemrl.evaluate.rerank import rerank
from gemrl.evaluate.rollouts import audit_fields
from gemrl.maths.audits import collapse_distance, violation
from gemrl.maths.mixture import Mixture, sample_from_noise, sampling_noise
from gemrl.progress import Report

# The grid that is looked at beside the knobs given.
BUDGETS = (16, 64, 256, 1024)
PESSIMISM = (0.0, 1.0, 2.0)
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0)
# Where the winner's curse is looked at; 0 is the anchor alone.
CURSE_BUDGETS = (0, 1, 4, 16, 64, 256, 1024)
# Samples of the density at a state, among which a logged action is ranked.
SAMPLES = 256
# Actions of a state at which the critics' spread is looked at: candidates, and random ones.
PROBES = 32
# Candidates that are held in memory together.
CANDIDATES_TOGETHER = 2**16

Kept = dict[str, np.ndarray]
"""Arrays by name, with the states along the first axis."""


@dataclass(frozen=True)
class Plan:
    """What to look at: the policy, the knobs that were asked about, and the grid around them."""

    policy: Policy
    knobs: Knobs
    seed: int

    @property
    def critics(self) -> int:
        """How many critics there are."""
        return len(self.policy.models.critics)

    @property
    def has_density(self) -> bool:
        """Whether there is a behaviour density."""
        return self.policy.models.behavior is not None

    @property
    def anchors(self) -> int:
        """How many candidates are anchors: one or none."""
        return int(self.knobs.anchor != "none")

    @property
    def wp(self) -> float:
        """The support weight where it must be one number: of a schedule, its end."""
        return self.knobs.wp.end if isinstance(self.knobs.wp, Cosine) else self.knobs.wp

    @property
    def words(self) -> dict[str, str]:
        """The knobs that say how value and support are put together."""
        return {"support": self.knobs.support, "value": self.knobs.value}

    def counts(self, ns: tuple[int, ...]) -> np.ndarray:
        """How many candidates there are for each N, the anchor among them."""
        return np.array(ns, np.int32) + self.anchors

    @cached_property
    def ns(self) -> tuple[int, ...]:
        """Numbers of candidates on the grid."""
        return tuple(sorted({*BUDGETS, self.knobs.n} - {0}))

    @cached_property
    def lams(self) -> tuple[float, ...]:
        """Pessimism on the grid."""
        return tuple(sorted({*PESSIMISM, self.knobs.lam}))

    @cached_property
    def wps(self) -> tuple[float, ...]:
        """Support weights on the grid; without a density there is nothing to weigh."""
        return tuple(sorted({*WEIGHTS, self.wp})) if self.has_density else (0.0,)

    @cached_property
    def curse_ns(self) -> tuple[int, ...]:
        """Numbers of candidates at which the winner's curse is looked at."""
        asked = {*CURSE_BUDGETS, *self.ns}
        return tuple(sorted(asked if self.anchors else asked - {0}))

    @cached_property
    def rules(self) -> dict[str, float]:
        """Support weights by the name of the rule whose winner's curse is looked at."""
        return {"value": 0.0, "knobs": self.wp} if self.has_density else {"value": 0.0}

    @cached_property
    def decided(self) -> tuple[Knobs, ...]:
        """Settings that are decided as a user would: the anchor alone, and the knobs given."""
        sizes = {self.knobs.n} | ({0} if self.anchors else set())
        return tuple(replace(self.knobs, n=n) for n in sorted(sizes))


def look_at_all(plan: Plan, rows: Dataset, report: Report) -> Kept:
    """Everything the report needs of each state."""
    count = len(rows)
    largest = plan.ns[-1] if plan.critics else 0
    block = max(1, min(CANDIDATES_TOGETHER // (largest + 1), count))
    seeds = np.random.SeedSequence(plan.seed).generate_state(count)
    rng = np.random.default_rng(plan.seed)
    spec = plan.policy.spec
    random_actions = rng.uniform(
        spec.action_low, spec.action_high, (count, PROBES, spec.action_dim)
    )
    ties = rng.uniform(size=count)
    blocks = []
    for first in range(0, count, block):
        # Each size of batch is compiled once, so the last block is filled up, and cut afterwards.
        at = np.minimum(np.arange(first, first + block), count - 1)
        obs, actions = rows.observations[at], rows.actions[at]
        kept, record = _decide(plan, obs, seeds[at], at, largest)
        if plan.has_density:
            kept["rank"] = _ranks(plan, obs, actions, ties[at], seeds[at])
        if plan.critics:
            kept |= _spreads(plan, obs, actions, random_actions[at], record)
            kept |= _grid(plan, obs, record)
        if plan.critics > 1:
            kept |= _curse(plan, record)
        real = min(block, count - first)
        blocks.append({name: values[:real] for name, values in kept.items()})
        report(first + real)
    return {name: np.concatenate([kept[name] for kept in blocks]) for name in blocks[0]}


def _decide(
    plan: Plan, obs: np.ndarray, seeds: np.ndarray, at: np.ndarray, largest: int
) -> tuple[Kept, Decision]:
    """Audits of the decisions asked about, and the record with the most candidates."""
    # A schedule is looked at along its whole course, a step of it at each state.
    t = at % plan.knobs.wp.horizon if isinstance(plan.knobs.wp, Cosine) else None
    kept: Kept = {}
    record = None
    for knobs in plan.decided:
        decision = plan.policy.decide(obs, knobs, seed=seeds, t=t)
        for name, values in audit_fields(decision).items():
            kept[f"decision/{knobs.n}/{name}"] = values
        if plan.critics:
            rows = np.arange(len(obs))
            spread = decision.q.std(axis=1)[rows, decision.chosen]
            kept[f"decision/{knobs.n}/critic_spread"] = spread
        record = decision if knobs.n == largest else record
    if record is None:
        record = plan.policy.decide(obs, replace(plan.knobs, n=largest), seed=seeds, t=t)
    return kept, record


def _ranks(
    plan: Plan, obs: np.ndarray, actions: np.ndarray, ties: np.ndarray, seeds: np.ndarray
) -> np.ndarray:
    """Where the density puts logged actions among its own samples."""
    spec = plan.policy.spec
    given = (plan.policy.behavior(obs), actions, spec.action_low, spec.action_high, seeds)
    log_density = np.asarray(_log_densities(*given))
    return ranks(log_density[:, 0], log_density[:, 1:], ties)


@jax.jit
def _log_densities(
    density: Mixture, actions: np.ndarray, low: np.ndarray, high: np.ndarray, seeds: np.ndarray
) -> Float[Array, "b n"]:
    """Log density of each state's logged action, then of samples, all clipped as candidates are.

    In one evaluation: equal actions must have equal densities to the last bit.
    """
    keys = jax.vmap(jax.random.key)(seeds)
    noise = jax.vmap(lambda key: sampling_noise(key, SAMPLES, actions.shape[1]))(keys)
    samples = sample_from_noise(density, *noise)
    together = jnp.concatenate([actions[:, None], samples], axis=1)
    return density.log_prob(jnp.clip(together, low, high))


def _spreads(
    plan: Plan, obs: np.ndarray, actions: np.ndarray, random: np.ndarray, record: Decision
) -> Kept:
    """Critics' values of logged, random and candidate actions, and the spread of candidates."""
    probed = np.concatenate([actions[:, None], random], axis=1)
    q = plan.policy.q_values(obs, probed)
    return {
        "q/logged": q[..., :1],
        "q/candidates": record.q[..., plan.anchors : plan.anchors + PROBES],
        "q/random": q[..., 1:],
        "lcb_spread": record.lcb.std(axis=-1),
        "log_support_spread": record.log_support.std(axis=-1),
    }


def _grid(plan: Plan, obs: np.ndarray, record: Decision) -> Kept:
    """Audits of the chosen candidate [B, N, L, P] for every setting of the grid."""
    log_support = record.log_support if plan.has_density else None
    axes = (plan.counts(plan.ns), np.array(plan.lams, np.float32), np.array(plan.wps, np.float32))
    found = rerank(record.q, log_support, *axes, **plan.words)
    chosen, lcb, support_z = (jnp.moveaxis(values, -1, 0) for values in found)
    kept: dict[str, Any] = {"lcb": lcb}
    if plan.anchors:
        kept["anchor"] = chosen == 0
    if plan.has_density:
        states = np.arange(len(obs))[:, None, None, None]
        actions = jnp.asarray(record.candidates[states, np.asarray(chosen)])
        means = jnp.asarray(plan.policy.behavior(obs).means)[:, None, None, None]
        kept |= {
            "violation": violation(support_z),
            "support_z": support_z,
            "collapse_dist": collapse_distance(actions, means),
        }
    return {f"grid/{name}": np.asarray(values) for name, values in kept.items()}


def _curse(plan: Plan, record: Decision) -> Kept:
    """Cross-fitted values [B, N] of what each rule chooses."""
    log_support = record.log_support if plan.has_density else None
    counts = plan.counts(plan.curse_ns)
    return {
        f"curse/{rule}/{name}": values
        for rule, wp in plan.rules.items()
        for name, values in cross_fitted(
            record.q, log_support, counts, plan.knobs.lam, wp, plan.words
        ).items()
    }
