"""What every setting of a grid of (λ, w_p) chooses, out of candidates that are scored once."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gemrl.decide.knobs import Cosine, Knobs
from gemrl.decide.policy import Policy
from gemrl.errors import ConfigError
from gemrl.evaluate.rerank import rerank
from gemrl.maths.audits import violation
from gemrl.progress import Report, silent

# Candidates that are held in memory together.
CANDIDATES_TOGETHER = 2**16


@dataclass(frozen=True)
class Choices:
    """The top candidate of K settings at B states, with what the record says of it."""

    action: Float[np.ndarray, "k b a"]
    """In environment units."""
    value: Float[np.ndarray, "k b"]
    """Mean over the critics."""
    lcb: Float[np.ndarray, "k b"]
    """The critics' lower confidence bound, with the setting's λ."""
    critic_std: Float[np.ndarray, "k b"]
    """The critics' standard deviation: how much they disagree."""
    log_support: Float[np.ndarray, "k b"]
    """Log density under the behaviour mixture."""
    support_z: Float[np.ndarray, "k b"]
    """Support in standard deviations of the candidate set."""
    violation: Float[np.ndarray, "k b"]
    """1 where support_z lies below -2."""
    anchor: Float[np.ndarray, "k b"]
    """1 where the first candidate was chosen, which is the anchor."""


@dataclass(frozen=True)
class Grid:
    """Settings that differ in λ and w_p alone. One of them is the suite's default."""

    default: Knobs
    lams: tuple[float, ...]
    wps: tuple[float, ...]

    def __post_init__(self) -> None:
        if isinstance(self.default.wp, Cosine):
            raise ConfigError(
                "the default is a schedule of w_p; settings are compared at constant w_p"
            )
        if self.default.temperature > 0:
            raise ConfigError(
                f"temperature = {self.default.temperature:g}: settings are compared by the "
                "candidates that they rank best, so it must be 0"
            )

    @property
    def settings(self) -> list[Knobs]:
        """Every λ with every w_p."""
        return [replace(self.default, lam=lam, wp=wp) for lam in self.lams for wp in self.wps]

    @property
    def default_at(self) -> int:
        """Which of the settings is the default."""
        return self.settings.index(self.default)


def grid_of(default: Knobs, lams: Sequence[float], wps: Sequence[float]) -> Grid:
    """The grid of the values given, in rising order, with the default's own among them."""
    # A value that is no knob's is refused here, by the knobs themselves.
    all_lams = {replace(default, lam=lam).lam for lam in (*lams, default.lam)}
    checked = [replace(default, wp=wp).wp for wp in (*wps, default.wp)]
    all_wps = {wp for wp in checked if not isinstance(wp, Cosine)}
    return Grid(default, tuple(sorted(all_lams)), tuple(sorted(all_wps)))


def choose_at(
    policy: Policy, grid: Grid, obs: np.ndarray, seed: Sequence[int], report: Report = silent
) -> Choices:
    """What each setting of the grid chooses at each state, from one scoring a state."""
    count = len(obs)
    block = max(1, min(CANDIDATES_TOGETHER // (grid.default.n + 1), count))
    seeds = np.random.SeedSequence(list(seed)).generate_state(count)
    parts = []
    for first in range(0, count, block):
        # Each size of batch is compiled once, so the last block is filled up, and cut afterwards.
        at = np.minimum(np.arange(first, first + block), count - 1)
        real = min(block, count - first)
        parts.append(_cut(_choose(policy, grid, obs[at], seeds[at]), real))
        report(first + real)
    return Choices(
        **{f.name: np.concatenate([getattr(p, f.name) for p in parts], 1) for f in fields(Choices)}
    )


def _choose(policy: Policy, grid: Grid, obs: np.ndarray, seeds: np.ndarray) -> Choices:
    knobs = grid.default
    record = policy.decide(obs, knobs, seed=seeds)
    found = rerank(
        record.q,
        record.log_support,
        np.array([record.lcb.shape[-1]], np.int32),
        np.array(grid.lams, np.float32),
        np.array(grid.wps, np.float32),
        support=knobs.support,
        value=knobs.value,
    )
    # [1, L, P, B] with λ outermost, as the settings are listed.
    chosen, lcb, support_z = (np.asarray(values).reshape(-1, len(obs)) for values in found)
    rows = np.arange(len(obs))
    return Choices(
        action=record.candidates[rows, chosen],
        value=record.q.mean(axis=1)[rows, chosen],
        lcb=lcb,
        critic_std=record.q.std(axis=1)[rows, chosen],
        log_support=record.log_support[rows, chosen],
        support_z=support_z,
        violation=np.asarray(violation(jnp.asarray(support_z)), np.float32),
        anchor=(chosen == 0).astype(np.float32) * (knobs.anchor != "none"),
    )


def _cut(choices: Choices, count: int) -> Choices:
    return Choices(**{f.name: getattr(choices, f.name)[:, :count] for f in fields(Choices)})
