"""The mixture against SciPy's densities, finite differences and the paper's closed forms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax, logsumexp, softmax
from scipy.stats import chisquare, kstest, multivariate_normal, norm

from gemrl.maths.mixture import (
    Mixture,
    barycenter,
    em_surrogate,
    gate_entropy,
    log_joint,
    log_prob,
    mode,
    responsibilities,
    row_keys,
    sample_from_noise,
    sampling_noise,
    top_component,
)

K, A = 3, 2
RANDOM = settings(max_examples=30, deadline=None, derandomize=True)


def floats(low, high, shape):
    return arrays(np.float32, shape, elements=st.floats(low, high, width=32, allow_subnormal=False))


@st.composite
def parameters(draw):
    """Gate logits, means, log-stds and an action, all exact in float32."""
    return (
        draw(floats(-3, 3, K)),
        draw(floats(-1, 1, (K, A))),
        draw(floats(-1.5, 0, (K, A))),
        draw(floats(-1.5, 1.5, A)),
    )


def build(logits, means, log_stds):
    return Mixture(jax.nn.log_softmax(logits), jnp.asarray(means), jnp.exp(log_stds))


def reference_joint(logits, means, log_stds, action):
    """Component log-joints in float64."""
    logits, means, log_stds, action = (
        np.asarray(x, np.float64) for x in (logits, means, log_stds, action)
    )
    return log_softmax(logits) + norm.logpdf(action, means, np.exp(log_stds)).sum(-1)


def reference_log_prob(logits, means, log_stds, action):
    return logsumexp(reference_joint(logits, means, log_stds, action))


def reference_surrogate(logits, means, log_stds, action):
    joint = reference_joint(logits, means, log_stds, action)
    return np.sum(softmax(joint) * joint)


def finite_differences(function, params, step=1e-5):
    """Central differences of a float64 function with respect to each of its arrays."""
    params = [np.asarray(p, np.float64) for p in params]
    grads = [np.zeros_like(p) for p in params]
    for param, grad in zip(params, grads, strict=True):
        for index in np.ndindex(param.shape):
            kept = param[index]
            param[index] = kept + step
            above = function(*params)
            param[index] = kept - step
            below = function(*params)
            param[index] = kept
            grad[index] = (above - below) / (2 * step)
    return grads


@jax.jit
def exact_gradient(params, action):
    return jax.grad(lambda p: log_prob(build(*p), action))(params)


@jax.jit
def detached_gradient(params, action):
    return jax.grad(lambda p: em_surrogate(log_joint(build(*p), action), detach=True))(params)


@jax.jit
def attached_gradient(params, action):
    return jax.grad(lambda p: em_surrogate(log_joint(build(*p), action), detach=False))(params)


KEY = jax.random.key(0)
noise = jax.jit(sampling_noise, static_argnums=(1, 2, 3))


@partial(jax.jit, static_argnums=2)
def draw_samples(mixture, seed, n):
    return mixture.sample(seed, n)


@jax.jit
def densities(mixture, action):
    return mixture.log_prob(action), mixture.responsibilities(action)


def assert_trees_close(actual, expected, tolerance=2e-3):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def some_mixtures(batch, seed=0, components=K, action_dim=A):
    """A batch of mixtures as float32 arrays."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(*batch, components))
    return Mixture(
        jnp.asarray(log_softmax(logits, axis=-1), jnp.float32),
        jnp.asarray(rng.uniform(-1, 1, (*batch, components, action_dim)), jnp.float32),
        jnp.asarray(np.exp(rng.uniform(-2, 0, (*batch, components, action_dim))), jnp.float32),
    )


def scipy_log_prob(mixture, row, action):
    """Log density of one action under the mixture of one row, by SciPy's multivariate normal."""
    weights, means, stds = (np.asarray(x[row], np.float64) for x in jax.tree.leaves(mixture))
    return logsumexp(
        [
            log_weight + multivariate_normal(mean, np.diag(std**2)).logpdf(action)
            for log_weight, mean, std in zip(weights, means, stds, strict=True)
        ]
    )


# A fixed mixture whose components overlap, for statements that need no more than an example.
OVERLAPPING = (
    np.array([0.3, -0.4, 0.1], np.float32),
    np.array([[-0.5, 0.2], [0.1, -0.3], [0.6, 0.4]], np.float32),
    np.array([[-0.7, -0.9], [-0.4, -0.6], [-1.0, -0.5]], np.float32),
)
ACTION = np.array([0.2, 0.1], np.float32)


@RANDOM
@given(parameters())
def test_log_density_equals_scipy(drawn):
    logits, means, log_stds, action = drawn
    mixture = build(logits, means, log_stds)
    expected = scipy_log_prob(mixture, ..., action.astype(np.float64))
    np.testing.assert_allclose(mixture.log_prob(action), expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(log_prob(mixture, action), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("floor", [-3.0, -5.0])
def test_log_density_stays_exact_far_from_narrow_components(floor):
    # 14 standard deviations away and more: the density itself is zero in float32.
    mixture = build(OVERLAPPING[0], OVERLAPPING[1], np.full((K, A), floor, np.float32))
    action = np.array([1.0, -1.0], np.float32)
    expected = scipy_log_prob(mixture, ..., action.astype(np.float64))
    assert expected < -200
    np.testing.assert_allclose(mixture.log_prob(action), expected, rtol=1e-5)
    assert np.isfinite(exact_gradient(OVERLAPPING, 100 * action)[0]).all()


@RANDOM
@given(parameters())
def test_log_density_gradient_equals_finite_differences(drawn):
    *params, action = drawn
    expected = finite_differences(lambda *p: reference_log_prob(*p, action), params)
    assert_trees_close(exact_gradient(tuple(params), action), expected)


@RANDOM
@given(parameters())
def test_log_density_gradient_equals_the_closed_forms_of_appendix_d(drawn):
    logits, means, log_stds, action = (np.asarray(x, np.float64) for x in drawn)
    gamma = softmax(reference_joint(logits, means, log_stds, action))
    offset = action - means
    variance = np.exp(2 * log_stds)
    by_logits, by_means, by_log_stds = exact_gradient(tuple(drawn[:3]), drawn[3])
    close = {"rtol": 2e-3, "atol": 2e-3}
    np.testing.assert_allclose(by_logits, gamma - softmax(logits), **close)
    np.testing.assert_allclose(by_means, gamma[:, None] * offset / variance, **close)
    np.testing.assert_allclose(by_log_stds, gamma[:, None] * (offset**2 / variance - 1), **close)


@RANDOM
@given(parameters())
def test_responsibilities_are_the_posterior_over_components_and_sum_to_one(drawn):
    logits, means, log_stds, action = drawn
    mixture = build(logits, means, log_stds)
    prior = softmax(logits.astype(np.float64))
    likelihood = [
        multivariate_normal(m, np.diag(np.exp(2 * s.astype(np.float64)))).pdf(action)
        for m, s in zip(means, log_stds, strict=True)
    ]
    expected = prior * likelihood / np.sum(prior * likelihood)
    gamma = np.asarray(mixture.responsibilities(action))
    np.testing.assert_allclose(gamma, expected, atol=1e-4)
    np.testing.assert_allclose(gamma.sum(), 1.0, atol=1e-6)
    assert (gamma >= 0).all()


@RANDOM
@given(parameters())
def test_detached_surrogate_has_the_gradient_of_the_exact_log_likelihood(drawn):
    *params, action = drawn
    expected = finite_differences(lambda *p: reference_log_prob(*p, action), params)
    assert_trees_close(detached_gradient(tuple(params), action), expected)


def test_attached_surrogate_has_another_gradient_than_the_log_likelihood():
    exact = finite_differences(lambda *p: reference_log_prob(*p, ACTION), OVERLAPPING)
    attached = finite_differences(lambda *p: reference_surrogate(*p, ACTION), OVERLAPPING)
    actual = attached_gradient(OVERLAPPING, ACTION)
    assert_trees_close(actual, attached)
    for got, other in zip(actual, exact, strict=True):
        assert np.abs(got - other).max() > 0.05


@pytest.mark.parametrize("detach", [True, False])
@RANDOM
@given(drawn=parameters())
def test_log_density_is_the_surrogate_plus_the_entropy_of_responsibilities(detach, drawn):
    logits, means, log_stds, action = drawn
    joint = log_joint(build(logits, means, log_stds), action)
    gamma = softmax(reference_joint(logits, means, log_stds, action))
    entropy = -np.sum(gamma * np.log(np.maximum(gamma, 1e-300)))
    expected = reference_log_prob(logits, means, log_stds, action)
    actual = em_surrogate(joint, detach=detach) + entropy
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@RANDOM
@given(floats(-30, 6, K))
def test_gate_entropy_has_one_millionth_inside_the_log(logits):
    weights = softmax(logits.astype(np.float64))
    expected = -np.sum(weights * np.log(weights + 1e-6))
    actual = gate_entropy(jax.nn.log_softmax(logits))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_gate_entropy_of_a_certain_gate_is_minus_one_millionth_and_finite():
    certain = jnp.array([0.0, -jnp.inf, -jnp.inf])
    np.testing.assert_allclose(gate_entropy(certain), -np.log(1 + 1e-6), atol=1e-7)
    uniform = jnp.full(4, -np.log(4))
    np.testing.assert_allclose(gate_entropy(uniform), -np.log(0.25 + 1e-6), rtol=1e-6)


@RANDOM
@given(parameters())
def test_mode_is_the_mean_of_the_heaviest_component(drawn):
    logits, means, log_stds, _ = drawn
    mixture = build(logits, means, log_stds)
    heaviest = int(np.argmax(np.asarray(mixture.log_weights)))
    np.testing.assert_array_equal(mixture.mode(), means[heaviest])
    np.testing.assert_array_equal(mode(mixture), means[heaviest])


def test_mode_of_equally_heavy_components_is_the_first_of_them():
    means = jnp.array([[0.1], [0.2], [0.3]])
    mixture = Mixture(jnp.log(jnp.array([0.2, 0.4, 0.4])), means, jnp.ones((3, 1)))
    np.testing.assert_array_equal(mixture.mode(), means[1])


@RANDOM
@given(parameters())
def test_barycenter_is_the_weighted_mean_of_the_means(drawn):
    logits, means, log_stds, _ = drawn
    expected = np.average(means.astype(np.float64), axis=0, weights=softmax(logits.astype(float)))
    np.testing.assert_allclose(barycenter(build(logits, means, log_stds)), expected, atol=1e-6)


def test_mode_and_barycenter_of_a_batch_are_those_of_its_rows():
    mixtures = some_mixtures((5, 2), seed=3)
    weights, means = np.exp(np.float64(mixtures.log_weights)), np.float64(mixtures.means)
    modes, centers = np.asarray(mixtures.mode()), np.asarray(barycenter(mixtures))
    assert modes.shape == centers.shape == (5, 2, A)
    for row in np.ndindex(5, 2):
        np.testing.assert_allclose(modes[row], means[row][np.argmax(weights[row])], atol=1e-7)
        np.testing.assert_allclose(centers[row], weights[row] @ means[row], atol=1e-6)


def test_top_component_is_the_heaviest_gaussian_with_weight_one():
    mixtures = some_mixtures((4,), seed=5)
    top = top_component(mixtures)
    assert top.means.shape == top.stds.shape == (4, 1, A)
    np.testing.assert_array_equal(top.log_weights, np.zeros((4, 1)))
    action = np.random.default_rng(0).uniform(-1, 1, (4, A)).astype(np.float32)
    density = top.log_prob(action)
    for row in range(4):
        heaviest = int(np.argmax(mixtures.log_weights[row]))
        mean, std = (np.float64(x[row, heaviest]) for x in (mixtures.means, mixtures.stds))
        expected = multivariate_normal(mean, np.diag(std**2)).logpdf(action[row])
        np.testing.assert_allclose(density[row], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("batch", "candidates"),
    [((), (7,)), ((5,), ()), ((5,), (7,)), ((2, 3), (2, 4))],
)
def test_densities_of_a_batch_equal_those_of_each_action_alone(batch, candidates):
    mixtures = some_mixtures(batch, seed=1)
    rng = np.random.default_rng(2)
    actions = rng.uniform(-1, 1, (*batch, *candidates, A)).astype(np.float32)
    actual, gamma = (np.asarray(x) for x in densities(mixtures, actions))
    assert actual.shape == (*batch, *candidates)
    assert gamma.shape == (*batch, *candidates, K)
    for index in np.ndindex(*batch, *candidates):
        row = index[: len(batch)]
        expected = scipy_log_prob(mixtures, row, actions[index])
        np.testing.assert_allclose(actual[index], expected, rtol=1e-5, atol=1e-5)
        weights, means, stds = (np.float64(x[row]) for x in jax.tree.leaves(mixtures))
        joint = reference_joint(weights, means, np.log(stds), actions[index])
        np.testing.assert_allclose(gamma[index], softmax(joint), atol=1e-5)


def test_actions_with_fewer_batch_axes_than_the_mixture_are_refused():
    with pytest.raises(ValueError, match=r"\(2,\).*do not fit a mixture"):
        some_mixtures((5,)).log_prob(jnp.zeros(2))


def test_responsibilities_of_equal_log_joints_are_uniform_even_when_they_are_extreme():
    for value in (0.0, -1e4, 1e4):
        np.testing.assert_allclose(responsibilities(jnp.full(4, value)), np.full(4, 0.25))


def test_few_samples_are_a_prefix_of_many():
    mixture = some_mixtures((), seed=4)
    few, many = (draw_samples(mixture, 7, n) for n in (5, 20_000))
    assert few.shape == (5, A)
    assert many.shape == (20_000, A)
    np.testing.assert_allclose(few, many[:5], atol=1e-6)


def test_noise_drawn_in_chunks_equals_noise_drawn_at_once():
    for part, whole in zip(noise(KEY, 12, A, 8), noise(KEY, 20_000, A), strict=True):
        np.testing.assert_array_equal(part, whole[8:20])


def test_noise_is_uniform_for_the_gate_and_standard_normal_for_the_action():
    gate, normal = (np.asarray(x) for x in noise(KEY, 20_000, A))
    assert kstest(gate, "uniform").pvalue > 1e-3
    for column in normal.T:
        assert kstest(column, "norm").pvalue > 1e-3
    correlation = np.corrcoef(np.column_stack([gate, normal]).T)
    assert np.abs(correlation - np.eye(1 + A)).max() < 5 / np.sqrt(20_000)


def test_another_seed_gives_other_samples_and_the_same_seed_the_same():
    mixture = some_mixtures(())
    first, again, other = (np.asarray(draw_samples(mixture, seed, 5)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


def test_a_mixture_alone_samples_as_row_zero_of_a_batch_and_rows_differ():
    one = some_mixtures(())
    batch = jax.tree.map(lambda x: jnp.stack([x, x, x]), one)
    samples = np.asarray(draw_samples(batch, 11, 5))
    alone = draw_samples(one, 11, 5)
    assert alone.shape == (5, A)
    np.testing.assert_allclose(samples[0], alone, atol=1e-6)
    assert (samples[0] != samples[1]).all()
    assert (samples[1] != samples[2]).all()


def test_row_keys_do_not_depend_on_the_number_of_rows():
    few, many = (jax.random.key_data(row_keys(5, rows)) for rows in (2, 9))
    np.testing.assert_array_equal(few, many[:2])
    assert len(np.unique(many, axis=0)) == 9


def test_samples_have_the_mean_and_covariance_of_the_mixture():
    mixture = some_mixtures((), seed=8)
    weights, means, stds = (np.float64(x) for x in jax.tree.leaves(mixture))
    weights = np.exp(weights)
    mean = weights @ means
    second = np.einsum("k,ki,kj->ij", weights, means, means) + np.diag(weights @ stds**2)
    covariance = second - np.outer(mean, mean)
    # One gate for the whole action: its dimensions are dependent.
    assert abs(covariance[0, 1]) > 0.02

    samples = np.float64(draw_samples(mixture, 0, 20_000))
    products = np.einsum("ni,nj->nij", samples - mean, samples - mean)
    for values, expected in ((samples, mean), (products, covariance)):
        error = values.std(axis=0) / np.sqrt(len(values))
        assert (np.abs(values.mean(axis=0) - expected) < 4.5 * error).all()


def test_samples_come_from_each_component_as_often_as_its_weight():
    weights = np.array([0.6, 0.35, 0.05])
    means = np.array([[-3.0, 0.0], [0.0, 3.0], [3.0, 0.0]])
    mixture = Mixture(
        jnp.log(jnp.asarray(weights)), jnp.asarray(means, jnp.float32), jnp.full((K, A), 0.1)
    )
    samples = np.asarray(draw_samples(mixture, 0, 20_000))
    distance = np.linalg.norm(samples[:, None] - means, axis=-1)
    counts = np.bincount(distance.argmin(axis=1), minlength=K)
    assert distance.min(axis=1).max() < 1.0
    assert chisquare(counts, weights * 20_000).pvalue > 1e-3


def test_a_component_without_weight_is_never_sampled():
    weights = jnp.log(jnp.array([0.0, 0.5, 0.0, 0.5]))
    means = jnp.arange(4.0)[:, None]
    gate = jnp.array([0.0, 0.25, 0.5, 0.75, 0.9999999])
    samples = sample_from_noise(Mixture(weights, means, jnp.ones((4, 1))), gate, jnp.zeros((5, 1)))
    np.testing.assert_array_equal(samples[:, 0], [1, 1, 3, 3, 3])


def test_samples_are_the_component_mean_plus_its_std_times_the_noise():
    mixture = build(*OVERLAPPING)
    edges = np.cumsum(softmax(np.float64(OVERLAPPING[0])))
    gate = jnp.asarray([edges[0] - 0.01, edges[0] + 0.01, edges[1] - 0.01, edges[1] + 0.01, 0.999])
    normal = np.random.default_rng(0).normal(size=(5, A)).astype(np.float32)
    component = [0, 1, 1, 2, 2]
    expected = OVERLAPPING[1][component] + np.exp(OVERLAPPING[2])[component] * normal
    np.testing.assert_allclose(sample_from_noise(mixture, gate, normal), expected, atol=1e-6)


@RANDOM
@given(parameters(), floats(0.125, 8, A), floats(-5, 5, A))
def test_affine_map_changes_the_density_by_the_log_of_its_determinant(drawn, scale, shift):
    logits, means, log_stds, x = drawn
    y = np.float64(scale) * x + shift
    expected = reference_log_prob(logits, means, log_stds, x) - np.log(np.float64(scale)).sum()
    moved = build(logits, means, log_stds).affine(scale, shift)
    np.testing.assert_allclose(moved.log_prob(np.float32(y)), expected, rtol=1e-3, atol=2e-3)


def test_affine_map_of_samples_equals_samples_of_the_affine_map():
    mixture = some_mixtures((), seed=6)
    scale, shift = np.array([2.0, 0.3], np.float32), np.array([-1.0, 4.0], np.float32)
    moved = draw_samples(mixture.affine(scale, shift), 2, 5)
    expected = np.asarray(draw_samples(mixture, 2, 5)) * scale + shift
    np.testing.assert_allclose(moved, expected, rtol=1e-5, atol=1e-5)
