"""A batch with knobs for each row: each row gets what it would get alone."""

from dataclasses import fields

import numpy as np
import pytest
from random_networks import ACTION_DIM, CRITICS, random_policy, random_states

import gemrl
from gemrl.errors import KnobError

MIXED = [
    gemrl.Knobs(n=4, lam=0.0),
    gemrl.Knobs(n=12, wp=2.0, k_smooth=3),
    gemrl.Knobs(n=4, lam=2.0),
    gemrl.Knobs(n=12, source="behavior", anchor="none", support="raw"),
    gemrl.Knobs(n=0),
    gemrl.Knobs(n=12, wp=gemrl.Cosine(0.1, 50), k_smooth=3),
    gemrl.Knobs(n=12, source="unimodal", anchor="barycenter", value="zscore"),
]
STEPS = np.arange(len(MIXED)) * 9
NOT_PADDED = ("action", "chosen", "n_scored", "wp", "violation", "block")


def assert_row_is_as_alone(row, alone):
    """Candidates bit for bit, what is computed of them up to rounding."""
    np.testing.assert_array_equal(row.candidates, alone.candidates)
    assert row.n_scored == alone.n_scored
    assert row.block == alone.block
    gap = alone.score.max() - alone.score[row.chosen]
    assert gap <= 1e-5
    for field in fields(row):
        value, other = getattr(row, field.name), getattr(alone, field.name)
        if field.name in ("backend", "digest", "verdict"):
            assert value == other
        elif row.chosen == alone.chosen:
            np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-5, err_msg=field.name)


@pytest.fixture(scope="module")
def mixed(backend):
    policy = random_policy(3, backend)
    obs = random_states(policy, len(MIXED), 1)
    return policy, obs, policy.decide(obs, MIXED, seed=6, t=STEPS)


def test_each_row_equals_that_row_of_a_batch_with_its_knobs_alone(mixed):
    policy, obs, record = mixed
    for i in (0, 1, 2, 5):
        alone = policy.decide(obs, MIXED[i], seed=6, t=STEPS).row(i)
        assert_row_is_as_alone(record.row(i), alone)


def test_with_a_seed_for_each_row_each_equals_its_single_decision(mixed):
    policy, obs, _ = mixed
    seeds = np.arange(len(MIXED)) * 77
    record = policy.decide(obs, tuple(MIXED), seed=seeds, t=STEPS)
    for i, knobs in enumerate(MIXED):
        alone = policy.decide(obs[i], knobs, seed=int(seeds[i]), t=int(STEPS[i]))
        assert_row_is_as_alone(record.row(i), alone)


def test_rows_with_fewer_candidates_hold_nan_at_the_end_and_say_how_many_are_real(mixed):
    _, _, record = mixed
    counts = [5, 13, 5, 12, 1, 13, 13]
    np.testing.assert_array_equal(record.n_scored, counts)
    assert record.candidates.shape == (len(MIXED), 13, ACTION_DIM)
    assert record.q.shape == (len(MIXED), CRITICS, 13)
    real = np.arange(13) < np.array(counts)[:, None]
    np.testing.assert_array_equal(np.isfinite(record.candidates).all(-1), real)
    np.testing.assert_array_equal(np.isfinite(record.q).all(1), real)
    for name in ("lcb", "log_support", "support_z", "score"):
        np.testing.assert_array_equal(np.isfinite(getattr(record, name)), real, err_msg=name)
    assert (record.chosen < counts).all()
    for name in NOT_PADDED:
        assert np.isfinite(getattr(record, name)).all(), name
    for i, count in enumerate(counts):
        assert record.row(i).candidates.shape == (count, ACTION_DIM)
        assert record.row(i).q.shape == (CRITICS, count)


def test_weights_of_each_row_are_those_of_its_knobs_and_step(mixed):
    _, _, record = mixed
    schedule = gemrl.Cosine(0.1, 50).at(STEPS[5])
    np.testing.assert_allclose(record.wp, [0.4, 2.0, 0.4, 0.4, 0.4, schedule, 0.4], rtol=1e-6)


def test_a_list_of_equal_knobs_equals_the_knobs_themselves(backend):
    policy = random_policy(4, backend)
    obs = random_states(policy, 5, 1)
    listed = policy.decide(obs, [gemrl.Knobs(n=12)] * 5, seed=2)
    plain = policy.decide(obs, gemrl.Knobs(n=12), seed=2)
    for name in ("action", "candidates", "q", "score", "chosen"):
        np.testing.assert_array_equal(getattr(listed, name), getattr(plain, name))


@pytest.mark.parametrize(
    ("rows", "knobs", "said"),
    [
        (3, [gemrl.Knobs()] * 2, r"knobs has 2 entries: must be 3"),
        (3, [], r"knobs has 0 entries: must be 3"),
        (3, [gemrl.Knobs(), None, gemrl.Knobs()], r"must be gemrl\.Knobs, or a list"),
        (3, {"n": 4}, r"must be gemrl\.Knobs, or a list"),
        (3, "n=4", r"must be gemrl\.Knobs, or a list"),
        (None, [gemrl.Knobs()], r"a single observation takes one gemrl\.Knobs"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(rows, knobs, said):
    policy = random_policy(3)
    obs = random_states(policy, rows or 1, 1)
    with pytest.raises(KnobError, match=said):
        policy.decide(obs if rows else obs[0], knobs)


def test_a_schedule_in_a_list_needs_the_step():
    policy = random_policy(3)
    with pytest.raises(KnobError, match=r"Cosine.*t="):
        policy.decide(random_states(policy, len(MIXED), 1), MIXED)


def test_an_overflow_in_one_group_names_the_row_of_the_batch():
    policy = random_policy(3)
    obs = random_states(policy, 3, 1)
    obs[2] = 3e38
    with pytest.raises(ValueError, match="row 2"):
        policy.decide(obs, [gemrl.Knobs(n=4), gemrl.Knobs(n=0), gemrl.Knobs(n=4)])
