"""Expectile regression against SciPy, and the advantage weight against its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import expectile as scipy_expectile

from gemrl.maths.expectile import expectile_loss, guidance_weight

RANDOM = settings(max_examples=60, deadline=None, derandomize=True)


def samples(seed):
    """A skewed sample, so that the expectile is far from the mean and from the median."""
    return np.random.default_rng(seed).gamma(2.0, 1.5, 400) - 2.0


def minimizer(values, tau):
    """What minimizes the mean loss, found from the loss alone in double precision."""
    with jax.enable_x64(True):
        found = minimize_scalar(
            lambda v: float(expectile_loss(values - v, tau).mean()),
            bounds=(values.min(), values.max()),
            method="bounded",
            options={"xatol": 1e-10},
        )
    assert found.success
    return found.x


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.7, 0.9, 0.99])
def test_minimizer_satisfies_the_first_order_condition_with_the_absolute_value(tau):
    values = samples(0)
    delta = values - minimizer(values, tau)
    weight = np.abs(tau - (delta < 0))
    assert abs(np.mean(weight * delta)) < 1e-6


def test_minimizer_does_not_satisfy_the_condition_without_the_absolute_value():
    values = samples(0)
    delta = values - minimizer(values, 0.7)
    assert abs(np.mean((0.7 - (delta < 0)) * delta)) > 0.1


@pytest.mark.parametrize("tau", [0.1, 0.3, 0.7, 0.9])
@pytest.mark.parametrize("seed", [1, 2])
def test_minimizer_is_scipys_expectile(tau, seed):
    values = samples(seed)
    assert minimizer(values, tau) == pytest.approx(scipy_expectile(values, tau), abs=1e-6)


def test_minimizer_at_one_half_is_the_mean():
    values = samples(3)
    assert minimizer(values, 0.5) == pytest.approx(values.mean(), abs=1e-6)


def test_minimizer_rises_with_the_expectile_towards_the_maximum():
    values = samples(4)
    found = [minimizer(values, tau) for tau in (0.1, 0.5, 0.9, 0.999)]
    assert found == sorted(found)
    assert values.mean() < found[-1] < values.max()


@RANDOM
@given(st.floats(-100, 100, width=32), st.floats(0.01, 0.99))
def test_loss_equals_its_formula(delta, tau):
    expected = abs(tau - (1.0 if delta < 0 else 0.0)) * float(delta) ** 2
    np.testing.assert_allclose(
        expectile_loss(np.float32(delta), tau), expected, rtol=1e-5, atol=1e-30
    )


@RANDOM
@given(st.floats(-1e6, 1e6, width=32), st.floats(0, 10), st.sampled_from([1.0, 10.0, 100.0, 1e4]))
def test_weight_is_the_exponential_below_the_cap_and_the_cap_above_it(advantage, beta, cap):
    expected = np.exp(min(beta * float(advantage), np.log(cap)))
    actual = float(guidance_weight(np.float32(advantage), beta, cap))
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-30)


def test_weight_never_overflows():
    weight = np.asarray(guidance_weight(jnp.array([1e6, 1e30, 3e38]), 3.0, 100.0))
    np.testing.assert_allclose(weight, 100.0, rtol=1e-6)


@pytest.mark.parametrize("cap", [0.5, 1.0, 3.0, 13.0, 26.0, 50.0, 97.0, 100.0, 1000.0])
def test_weight_above_the_cap_is_the_cap_itself(cap):
    assert float(guidance_weight(jnp.asarray(1e6), 3.0, cap)) == cap


def test_weight_of_a_very_low_advantage_is_zero():
    np.testing.assert_array_equal(guidance_weight(jnp.array([-1e6, -3e38]), 3.0, 100.0), 0.0)


def test_weight_is_one_without_guidance():
    np.testing.assert_array_equal(guidance_weight(np.float32([-5, 0, 5]), 0.0, 100.0), 1.0)


def test_gradient_through_a_capped_weight_is_finite():
    gradient = jax.grad(lambda a: guidance_weight(a, 3.0, 100.0))(1e6)
    assert float(gradient) == 0.0
