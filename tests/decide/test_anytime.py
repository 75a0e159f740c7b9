"""Candidates scored in chunks, until a deadline: equal to one shot when all were scored."""

from dataclasses import fields

import numpy as np
import pytest
from random_networks import random_policy, random_states

import gemrl
from gemrl.decide.search import CHUNK, Deadlines
from gemrl.errors import KnobError

GENEROUS, TINY = 3_600_000, 1e-6
KNOBS = gemrl.Knobs(n=20, k_smooth=3)


@pytest.fixture(scope="module")
def policy(backend):
    return random_policy(5, backend)


@pytest.fixture(scope="module")
def obs(policy):
    return random_states(policy, 4, 2)


def assert_close(one, other):
    np.testing.assert_array_equal(one.candidates, other.candidates)
    for field in fields(one):
        if field.name not in ("block", "backend", "digest", "verdict"):
            np.testing.assert_allclose(
                getattr(one, field.name),
                getattr(other, field.name),
                rtol=1e-5,
                atol=1e-5,
                err_msg=field.name,
            )


@pytest.mark.parametrize("chunk", [1, 5, 8, 20, 21, 22, 1000])
def test_all_chunks_scored_equal_one_shot(policy, obs, chunk):
    whole = policy.decide(obs, KNOBS, seed=1)
    parts = policy.decide(obs, KNOBS, seed=1, chunk=chunk)
    assert_close(parts, whole)
    np.testing.assert_array_equal(parts.n_scored, 21)
    np.testing.assert_array_equal(parts.block, min(chunk, 21))
    np.testing.assert_array_equal(whole.block, 21)


def test_a_generous_deadline_scores_all(policy, obs):
    record = policy.decide(obs, KNOBS, seed=1, chunk=5, deadline_ms=GENEROUS)
    assert_close(record, policy.decide(obs, KNOBS, seed=1))


def test_a_tiny_deadline_scores_the_first_chunk_which_has_the_anchor(policy, obs):
    record = policy.decide(obs, KNOBS, seed=1, chunk=5, deadline_ms=TINY)
    np.testing.assert_array_equal(record.n_scored, 5)
    assert record.candidates.shape[1] == record.score.shape[1] == record.q.shape[2] == 5
    # The same as if there had never been more than those five.
    few = policy.decide(obs, gemrl.Knobs(n=4, k_smooth=3), seed=1)
    assert_close(record, few)


def test_more_to_smooth_over_than_were_scored_is_the_mean_of_all_scored(policy, obs):
    knobs = gemrl.Knobs(n=20, k_smooth=10)
    record = policy.decide(obs, knobs, seed=1, chunk=5, deadline_ms=TINY)
    np.testing.assert_allclose(record.action, record.candidates.mean(axis=1), atol=1e-5)


def test_where_only_a_deadline_is_given_chunks_have_the_documented_size(policy, obs):
    record = policy.decide(obs, gemrl.Knobs(n=300), seed=1, deadline_ms=TINY)
    assert CHUNK == 128
    np.testing.assert_array_equal(record.n_scored, CHUNK)
    np.testing.assert_array_equal(record.block, CHUNK)
    whole = policy.decide(obs, gemrl.Knobs(n=300), seed=1)
    np.testing.assert_array_equal(record.candidates, whole.candidates[:, :CHUNK])


def test_a_deadline_in_between_scores_whole_chunks_and_ranks_those(policy, obs):
    knobs = gemrl.Knobs(n=2000)
    policy.warm_up(knobs, batch=4, chunk=16)
    for milliseconds in (0.5, 5, 20):
        record = policy.decide(obs, knobs, seed=1, chunk=16, deadline_ms=milliseconds)
        scored = int(record.n_scored[0])
        assert 16 <= scored <= 2001
        assert scored % 16 == 0 or scored == 2001
        assert record.candidates.shape[1] == scored
        np.testing.assert_array_equal(record.chosen, record.score.argmax(axis=1))
        np.testing.assert_allclose(record.support_z.mean(axis=1), 0, atol=1e-3)
        np.testing.assert_allclose(record.support_z.std(axis=1), 1, atol=1e-3)


def test_a_single_observation_has_chunks_too(policy, obs):
    record = policy.decide(obs[0], KNOBS, seed=1, chunk=5)
    assert record.n_scored == 21
    assert_close(record, policy.decide(obs[0], KNOBS, seed=1))


def test_rows_with_their_own_knobs_take_turns(policy, obs):
    knobs = [gemrl.Knobs(n=20), gemrl.Knobs(n=0), gemrl.Knobs(n=8), gemrl.Knobs(n=20)]
    cut = policy.decide(obs, knobs, seed=1, chunk=5, deadline_ms=TINY)
    np.testing.assert_array_equal(cut.n_scored, [5, 1, 5, 5])
    np.testing.assert_array_equal(cut.block, [5, 1, 5, 5])
    whole = policy.decide(obs, knobs, seed=1, chunk=5)
    np.testing.assert_array_equal(whole.n_scored, [21, 1, 9, 21])
    plain = policy.decide(obs, knobs, seed=1)
    for i in range(4):
        assert_close(whole.row(i), plain.row(i))


@pytest.mark.parametrize("listed", [False, True])
def test_each_row_stops_at_its_own_deadline_and_is_what_it_would_be_alone(policy, obs, listed):
    deadlines = np.array([GENEROUS, TINY, GENEROUS, TINY])
    knobs = [KNOBS] * 4 if listed else KNOBS
    record = policy.decide(obs, knobs, seed=np.arange(4), chunk=5, deadline_ms=deadlines)
    np.testing.assert_array_equal(record.n_scored, [21, 5, 21, 5])
    for row in range(4):
        alone = policy.decide_again(
            obs[row], KNOBS, seed=row, block=5, n_scored=record.n_scored[row]
        )
        assert_close(record.row(row), alone)


def test_deadlines_can_be_brought_forward_while_the_search_runs(policy, obs):
    class AfterTwoLooks(Deadlines):
        looks = 0

        def passed(self, rows):
            self.looks += 1
            if self.looks == 2:
                self.bring_forward(0.0)
            return super().passed(rows)

    deadlines = AfterTwoLooks.after(GENEROUS, 4)
    late = AfterTwoLooks(deadlines.at)
    record = policy.decide(obs, KNOBS, seed=1, chunk=5, deadline_ms=late)
    np.testing.assert_array_equal(record.n_scored, 10)


def test_a_decision_made_again_from_its_sizes_is_bit_identical(policy, obs):
    for limit in (5, 10, 20, 21):
        first, second = (
            policy.decide_again(obs, KNOBS, seed=3, block=np.full(4, 5), n_scored=np.full(4, limit))
            for _ in range(2)
        )
        np.testing.assert_array_equal(first.n_scored, limit)
        for field in fields(first):
            if field.name != "verdict":
                np.testing.assert_array_equal(
                    getattr(first, field.name), getattr(second, field.name)
                )
    for block, limit in ((0, 21), (5, 22), (5, 4), (22, 22)):
        with pytest.raises(KnobError, match="these knobs"):
            policy.decide_again(obs[0], KNOBS, block=block, n_scored=limit)
    with pytest.raises(KnobError, match="1 decisions"):
        policy.decide_again(obs, KNOBS, block=5, n_scored=5)


def test_a_seed_with_a_row_number_draws_as_that_row_of_a_batch(policy, obs):
    batch = policy.decide(obs, KNOBS, seed=7)
    for row in (0, 3):
        alone = policy.decide(obs[row : row + 1], KNOBS, seed=np.array([[7, row]]))
        np.testing.assert_array_equal(alone.candidates[0], batch.candidates[row])
    with pytest.raises(KnobError, match="seed"):
        policy.decide(obs, KNOBS, seed=np.zeros((4, 3), int))


@pytest.mark.parametrize(
    "value", [0, -1, -0.5, np.nan, np.inf, "5", True, [5], np.ones(3)], ids=repr
)
def test_a_bad_deadline_is_refused_by_name(policy, obs, value):
    with pytest.raises(KnobError, match=r"deadline_ms = .*must be above 0"):
        policy.decide(obs, KNOBS, deadline_ms=value)


@pytest.mark.parametrize("value", [0, -1, 1.5, "5", True, 2**21], ids=repr)
def test_a_bad_chunk_is_refused_by_name(policy, obs, value):
    with pytest.raises(KnobError, match=r"chunk = .*whole number from 1"):
        policy.decide(obs, KNOBS, chunk=value)


@pytest.mark.parametrize("value", [0, -1, 1.5], ids=repr)
def test_a_bad_batch_to_warm_up_for_is_refused_by_name(policy, value):
    with pytest.raises(KnobError, match=r"batch = .*whole number from 1"):
        policy.warm_up(KNOBS, batch=value)


def test_nothing_is_compiled_after_a_warm_up(obs):
    from gemrl.decide import dense

    policy = random_policy(5, "jax")
    programs = (dense._look, dense._decide, dense._score, dense._rank)
    knobs = gemrl.Knobs(n=23, wp=gemrl.Cosine(0.1, 9))
    policy.warm_up(knobs)
    policy.warm_up(knobs, batch=4, chunk=7)
    before = [program._cache_size() for program in programs]
    policy.decide(obs[0], knobs, seed=8, t=3)
    policy.decide(obs, knobs, seed=8, t=3, chunk=7)
    policy.decide(obs, knobs, seed=8, t=3, chunk=7, deadline_ms=TINY)
    assert [program._cache_size() for program in programs] == before
