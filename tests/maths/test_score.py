"""The decision's score against NumPy in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gemrl.maths.score import lcb, moments, score, standardize, top_k, top_k_mean, zscore

RANDOM = settings(max_examples=60, deadline=None, derandomize=True)
CANDIDATES = 9


def floats(low, high, shape):
    return arrays(np.float32, shape, elements=st.floats(low, high, width=32, allow_subnormal=False))


def numpy_zscore(x):
    x = np.float64(x)
    return (x - x.mean()) / max(x.std(), 1e-6)


@RANDOM
@given(floats(-50, 50, CANDIDATES))
def test_zscore_equals_numpy_with_the_population_std(x):
    assume(x.std() > 0.1)
    np.testing.assert_allclose(zscore(x), numpy_zscore(x), atol=1e-3)


@RANDOM
@given(floats(-20, 20, CANDIDATES), st.floats(-20, 20), st.floats(0.125, 16))
def test_zscore_is_invariant_to_shift_and_scale(x, shift, scale):
    assume(x.std() > 0.1)
    moved = np.float32(scale * np.float64(x) + shift)
    assume(moved.std() > 0.1)
    np.testing.assert_allclose(zscore(moved), zscore(x), atol=2e-3)


@RANDOM
@given(floats(-20, 20, CANDIDATES))
def test_zscore_has_mean_zero_and_std_one(x):
    assume(x.std() > 0.1)
    z = np.float64(zscore(x))
    assert abs(z.mean()) < 1e-3
    assert z.std() == pytest.approx(1.0, abs=1e-3)


@RANDOM
@given(st.floats(-1e6, 1e6, width=32))
def test_zscore_of_one_candidate_is_zero(value):
    np.testing.assert_array_equal(zscore(jnp.full(1, value)), [0.0])


@RANDOM
@example(123.456, 5)
@example(3.3, 17)
@given(st.floats(-1e3, 1e3, width=32), st.sampled_from([2, 3, 5, 17, 65]))
def test_zscore_of_equal_candidates_is_zero(value, count):
    np.testing.assert_array_equal(zscore(jnp.full(count, np.float32(value))), np.zeros(count))


def test_zscore_below_the_clamp_divides_by_one_millionth():
    x = np.array([0.0, 1e-8, -1e-8, 0.0], np.float32)
    np.testing.assert_allclose(zscore(x), x / 1e-6, rtol=1e-4, atol=1e-7)


def test_moments_are_the_mean_and_the_population_std():
    x = np.array([1.0, 2.0, 4.0, 9.0])
    mean, std = moments(jnp.asarray(x))
    assert float(mean) == pytest.approx(4.0)
    assert float(std) == pytest.approx(np.sqrt(9.5), rel=1e-6)  # (9 + 4 + 0 + 25) / 4
    assert float(standardize(jnp.asarray(9.0), mean, std)) == pytest.approx(5 / np.sqrt(9.5))


@RANDOM
@given(floats(-50, 50, (4, CANDIDATES)), st.floats(0, 5))
def test_lcb_is_the_mean_minus_lam_population_stds_over_the_critics(q, lam):
    q64 = np.float64(q)
    expected = q64.mean(axis=0) - lam * q64.std(axis=0, ddof=0)
    np.testing.assert_allclose(lcb(q, lam), expected, rtol=1e-4, atol=1e-4)


def test_lcb_of_one_critic_is_its_value_whatever_lam():
    q = np.array([[1.5, -2.25, 0.0]], np.float32)
    np.testing.assert_array_equal(lcb(q, 7.0), q[0])


@RANDOM
@given(floats(-50, 50, CANDIDATES), floats(-5, 5, CANDIDATES), st.floats(0, 5))
def test_score_is_value_plus_weighted_support(value, support, wp):
    expected = np.float64(value) + wp * np.float64(support)
    np.testing.assert_allclose(score(value, support, wp), expected, rtol=1e-5, atol=1e-5)


@RANDOM
@given(floats(-50, 50, CANDIDATES), st.integers(1, CANDIDATES))
def test_top_k_is_the_descending_order_of_scores(scores, k):
    top = np.asarray(top_k(jnp.asarray(scores), k))
    by_value_then_index = sorted(range(CANDIDATES), key=lambda i: (-scores[i], i))
    np.testing.assert_array_equal(top, by_value_then_index[:k])


@RANDOM
@given(arrays(np.float32, CANDIDATES, elements=st.sampled_from([-1.0, 0.0, 2.0])))
def test_top_k_gives_a_tie_to_the_lower_index(scores):
    top = np.asarray(jax.jit(top_k, static_argnums=1)(scores, CANDIDATES))
    by_value_then_index = sorted(range(CANDIDATES), key=lambda i: (-scores[i], i))
    np.testing.assert_array_equal(top, by_value_then_index)


def test_top_k_takes_negative_zero_for_zero():
    scores = jnp.array([-0.0, 0.0, -0.0, 0.0])
    np.testing.assert_array_equal(top_k(scores, 4), [0, 1, 2, 3])


def test_top_k_with_more_than_there_are_gives_all():
    np.testing.assert_array_equal(top_k(jnp.array([1.0, 3.0, 2.0]), 10), [1, 2, 0])


def test_top_k_mean_by_hand():
    actions = jnp.array([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.5]])
    scores = jnp.array([3.0, 1.0, 2.0])
    np.testing.assert_array_equal(top_k_mean(actions, top_k(scores, 1)), [0.0, 1.0])
    np.testing.assert_allclose(top_k_mean(actions, top_k(scores, 2)), [-0.5, 0.75])


def test_top_k_mean_with_more_than_there_are_is_the_mean_of_all():
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 2)).astype(np.float32)
    top = top_k(jnp.arange(5.0), 100)
    expected = np.float64(actions).mean(axis=0)
    np.testing.assert_allclose(top_k_mean(jnp.asarray(actions), top), expected, atol=1e-6)


@RANDOM
@given(
    floats(-50, 50, (4, CANDIDATES)),
    floats(-20, 20, CANDIDATES),
    st.permutations(range(CANDIDATES)),
)
def test_permuting_the_candidates_permutes_their_scores(q, log_support, order):
    assume(log_support.std() > 0.1)
    order = np.array(order)

    def scores(q, log_support):
        return np.asarray(score(lcb(q, 1.0), zscore(log_support), 0.4))

    permuted = scores(q[:, order], log_support[order])
    np.testing.assert_allclose(permuted, scores(q, log_support)[order], rtol=1e-5, atol=1e-3)
