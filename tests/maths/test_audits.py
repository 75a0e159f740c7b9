"""The audits against hand calculation and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax, logsumexp
from scipy.stats import multivariate_normal

from gemrl.maths.audits import collapse_distance, nll_gap, violation
from gemrl.maths.mixture import Mixture
from gemrl.maths.score import zscore

RANDOM = settings(max_examples=100, deadline=None, derandomize=True)


def outlier(count, low=-1.0, rest=0.0):
    """One candidate far below the others, which are equal: the lowest z that a set can hold."""
    return np.float32([low] + [rest] * (count - 1))


def supports(count):
    return arrays(np.float32, count, elements=st.floats(-100, 100, width=32, allow_subnormal=False))


@RANDOM
@example(outlier(5))
@example(outlier(5, -7.3, 1.1))
@example(outlier(5, -85.88842, -85.88612))
@given(st.integers(1, 5).flatmap(supports))
def test_violation_is_impossible_with_fewer_than_six_candidates(log_support):
    assert not np.asarray(violation(zscore(jnp.asarray(log_support)))).any()


@pytest.mark.parametrize("count", [2, 3, 5, 6, 17])
def test_lowest_possible_z_is_minus_the_root_of_the_others(count):
    z = np.asarray(zscore(jnp.asarray(outlier(count))))
    assert z[0] == pytest.approx(-np.sqrt(count - 1), rel=1e-6)


@pytest.mark.parametrize("count", [6, 7, 17])
def test_violation_is_possible_with_six_candidates_or_more(count):
    flags = np.asarray(violation(zscore(jnp.asarray(outlier(count)))))
    np.testing.assert_array_equal(flags, [True] + [False] * (count - 1))


def test_violation_means_a_z_strictly_below_minus_two():
    z = jnp.array([-2.0, -2.0001, -1.9999, 0.0, 3.0])
    np.testing.assert_array_equal(violation(z), [False, True, False, False, False])


def test_collapse_distance_is_the_distance_to_the_nearest_mean():
    means = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    assert float(collapse_distance(jnp.array([0.0, 1.0]), means)) == pytest.approx(1.0)
    assert float(collapse_distance(jnp.array([3.0, 3.0]), means)) == pytest.approx(1.0)
    assert float(collapse_distance(jnp.array([-3.0, -4.0]), means)) == pytest.approx(5.0)
    assert float(collapse_distance(jnp.array([3.0, 4.0]), means)) == 0.0


def test_collapse_distance_of_a_batch_uses_each_row_its_own_means():
    action = jnp.array([[1.0, 1.0], [1.0, 1.0]])
    means = jnp.array([[[1.0, 1.0], [9.0, 9.0]], [[4.0, 5.0], [1.0, -1.0]]])
    np.testing.assert_allclose(collapse_distance(action, means), [0.0, 2.0], atol=1e-6)


def test_nll_gap_equals_scipy():
    rng = np.random.default_rng(0)
    weights = np.float32(log_softmax(rng.normal(size=(20, 3)), axis=-1))
    means = rng.uniform(-1, 1, (20, 3, 2)).astype(np.float32)
    stds = np.exp(rng.uniform(-2, 0, (20, 3, 2))).astype(np.float32)
    actions = rng.uniform(-1, 1, (20, 2)).astype(np.float32)
    nll, gap = jax.jit(nll_gap)(
        Mixture(jnp.asarray(weights), jnp.asarray(means), jnp.asarray(stds)), jnp.asarray(actions)
    )
    for row in range(20):
        log_normal = [
            multivariate_normal(means[row, k], np.diag(np.float64(stds[row, k]) ** 2)).logpdf(
                actions[row]
            )
            for k in range(3)
        ]
        expected = -logsumexp(np.float64(weights[row]) + log_normal)
        top = -log_normal[int(np.argmax(weights[row]))]
        assert float(nll[row]) == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert float(gap[row]) == pytest.approx(top - expected, rel=1e-4, abs=1e-3)


def test_nll_gap_leaves_the_gate_weight_out_and_so_can_be_negative():
    # At the mean of the heaviest of two far components: the mixture pays log 0.6, the top does not.
    mixture = Mixture(
        jnp.log(jnp.array([0.6, 0.4])), jnp.array([[-5.0], [5.0]]), jnp.full((2, 1), 0.1)
    )
    gap = jax.jit(nll_gap)
    _, at_heaviest = gap(mixture, jnp.array([-5.0]))
    _, at_other = gap(mixture, jnp.array([5.0]))
    assert float(at_heaviest) == pytest.approx(np.log(0.6), abs=1e-5)
    assert float(at_other) == pytest.approx(0.5 * 100**2 + np.log(0.4), rel=1e-5)


def test_nll_gap_of_one_component_is_zero():
    mixture = Mixture(jnp.zeros((4, 1)), jnp.ones((4, 1, 2)), jnp.full((4, 1, 2), 0.3))
    _, gap = jax.jit(nll_gap)(mixture, jnp.linspace(-1, 1, 8).reshape(4, 2))
    np.testing.assert_allclose(gap, np.zeros(4), atol=1e-5)
