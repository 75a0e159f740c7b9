"""The parts of networks that are written for speed equal what they stand for."""

import hypothesis.extra.numpy as arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemrl.methods.networks import Linear, mish, product, uniform

FLOATS = st.floats(-80, 80, width=32)


@pytest.mark.parametrize("leading", [(), (5,), (4, 3), (2, 3, 4), (0, 3)])
def test_a_product_and_its_gradients_are_those_of_a_matrix_product_for_any_leading_axes(leading):
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(*leading, 6)), rng.normal(size=(6, 2))
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    slope = rng.normal(size=(*leading, 2)).astype(np.float32)
    found, back = jax.vjp(product, x, weight)
    np.testing.assert_allclose(found, x @ weight, atol=1e-5)
    of_x, of_weight = back(jnp.asarray(slope))
    np.testing.assert_allclose(of_x, slope @ weight.T, atol=1e-5)
    np.testing.assert_allclose(of_weight, x.reshape(-1, 6).T @ slope.reshape(-1, 2), atol=1e-4)


@settings(deadline=None)
@given(arrays.arrays(np.float32, 16, elements=FLOATS))
def test_mish_is_the_input_times_tanh_of_its_softplus(x):
    wide = x.astype(np.float64)
    wanted = wide * np.tanh(np.logaddexp(0, wide))
    np.testing.assert_allclose(mish(jnp.asarray(x)), wanted, rtol=2e-6, atol=1e-30)


@settings(deadline=None)
@given(arrays.arrays(np.float32, 16, elements=FLOATS))
def test_the_slope_of_mish_is_the_closed_form(x):
    wide = x.astype(np.float64)
    inside = np.tanh(np.logaddexp(0, wide))
    wanted = inside + wide * (1 - inside**2) / (1 + np.exp(-wide))
    found = jax.vmap(jax.grad(mish))(jnp.asarray(x))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-6)


def test_the_slope_of_the_slope_of_mish_is_that_of_its_definition():
    x = jnp.linspace(-30, 30, 601)
    bend = [jax.vmap(jax.grad(jax.grad(f)))(x) for f in (mish, jax.nn.mish)]
    np.testing.assert_allclose(*bend, atol=5e-5)


@pytest.mark.parametrize("far", [1e3, 1e30, -1e3, -1e30])
def test_mish_and_its_slope_stay_finite_far_off(far):
    assert float(mish(jnp.float32(far))) == pytest.approx(max(far, 0.0))
    assert float(jax.grad(mish)(jnp.float32(far))) == pytest.approx(float(far > 0))


@pytest.mark.parametrize("shape", [(1,), (3, 5), (4096,), (17, 256), (300, 300), (2, 3, 4)])
def test_fresh_weights_are_the_bits_of_jaxs_own_draw_of_their_shape(shape):
    key = jax.random.key(7)
    drawn = jax.random.uniform(key, shape, minval=-0.25, maxval=0.25)
    np.testing.assert_array_equal(uniform(key, shape, 0.25), drawn)


def test_fresh_weights_are_the_same_under_a_transformation():
    keys = jax.random.split(jax.random.key(3), 2)
    together = jax.jit(jax.vmap(lambda key: Linear(5, 7, key)))(keys)
    for number, key in enumerate(keys):
        np.testing.assert_array_equal(together.weight[number], Linear(5, 7, key).weight)
