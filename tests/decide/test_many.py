"""Many random decisions: never an action that is not finite or out of bounds."""

import numpy as np
import pytest

import gemrl


def decide_randomly(policy, count, seed):
    """Random states well beyond the data, with random knobs; every action is checked."""
    rng = np.random.default_rng(seed)
    done = 0
    while done < count:
        obs = rng.normal(scale=10 ** rng.uniform(-2, 3), size=(1000, policy.spec.obs_dim))
        knobs = gemrl.Knobs(
            n=16,
            lam=float(rng.uniform(0, 5)),
            wp=float(rng.uniform(0, 5)),
            k_smooth=int(rng.choice([1, 4])),
            support=str(rng.choice(["zscore", "raw"])),
        )
        record = policy.decide(obs, knobs, seed=int(rng.integers(2**32)))
        assert np.isfinite(record.action).all()
        assert (record.action >= policy.spec.action_low).all()
        assert (record.action <= policy.spec.action_high).all()
        assert np.isfinite(record.score).all()
        done += len(obs)


def test_ten_thousand_random_decisions_are_finite_and_within_bounds(policy):
    decide_randomly(policy, 10_000, seed=0)


@pytest.mark.long
def test_a_million_random_decisions_are_finite_and_within_bounds(policy):
    decide_randomly(policy, 1_000_000, seed=1)
