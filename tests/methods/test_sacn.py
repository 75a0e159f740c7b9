"""SAC-N and what methods on SAC share: the squashed density, the temperature, the lowest target."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from test_losses import ACT, KEY, OBS, ROWS, layers, make_batch, q_of

from gemrl.methods import sacn
from gemrl.methods.sac import sampled, soft_actor_loss, soft_init, temperature_loss
from gemrl.methods.samplers import TanhGaussian

CONFIG = sacn.SacNConfig(hidden=(8,), batch_size=ROWS, critics=4)
update = jax.jit(sacn.update, static_argnums=2)


@pytest.fixture(scope="module")
def batch():
    return make_batch()


@pytest.fixture(scope="module")
def state():
    """A state whose targets are not its critics, at a temperature of a half."""
    fresh, other = (soft_init(CONFIG, OBS, ACT, jax.random.key(k)) for k in (5, 9))
    return eqx.tree_at(
        lambda s: (s.targets, s.log_temperature), fresh, (other.critics, jnp.log(0.5))
    )


def test_the_squashed_density_is_the_gaussians_over_the_slope_of_tanh(state, batch):
    actor = state.actor
    action, log_prob = sampled(actor, batch.obs, KEY)
    mean, log_std = np.split(layers(actor.net, np.float64(batch.obs)), 2, axis=-1)
    raw = mean + np.exp(log_std) * np.float64(jax.random.normal(KEY, (ROWS, ACT)))
    expected = (norm.logpdf(raw, mean, np.exp(log_std)) - np.log(1 - np.tanh(raw) ** 2)).sum(-1)
    np.testing.assert_allclose(action, np.tanh(raw), atol=1e-5)
    np.testing.assert_allclose(log_prob, expected, atol=1e-4)


def test_the_squashed_density_integrates_to_one():
    actor = TanhGaussian(OBS, 1, (8,), KEY, log_std_min=-5, log_std_max=2)
    noise = jnp.linspace(-8, 8, 20_001)[:, None]
    action, log_prob = actor.with_log_prob(jnp.ones(OBS), noise)
    assert np.trapezoid(np.exp(np.float64(log_prob)), action[:, 0]) == pytest.approx(1, abs=1e-3)


def test_the_density_and_its_gradient_stay_finite_where_tanh_saturates():
    actor = TanhGaussian(OBS, ACT, (8,), KEY, log_std_min=-5, log_std_max=2)
    far = eqx.tree_at(lambda a: a.net.layers[-1].bias, actor, jnp.full(2 * ACT, 50.0))
    noise = jnp.zeros((1, ACT))
    value, grads = eqx.filter_value_and_grad(
        lambda a: jnp.sum(a.with_log_prob(jnp.ones((1, OBS)), noise)[1])
    )(far)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    np.testing.assert_array_equal(far(jnp.ones(OBS), jnp.zeros(ACT)), np.ones(ACT))


def test_log_stds_are_kept_in_their_range():
    actor = TanhGaussian(OBS, ACT, (8,), KEY, log_std_min=-1, log_std_max=-1)
    obs = jnp.ones(OBS)
    raw = np.arctanh(np.float64(actor(obs, jnp.ones(ACT))))
    middle = np.arctanh(np.float64(actor(obs, jnp.zeros(ACT))))
    np.testing.assert_allclose(raw - middle, np.exp(-1), rtol=1e-4)


def test_the_target_is_the_lowest_of_all_critics_with_entropy(state, batch):
    action, log_prob = sampled(state.actor, batch.next_obs, KEY)
    there = batch._replace(obs=batch.next_obs, action=np.asarray(action))
    soft = q_of(state.targets, there).min(axis=0) - 0.5 * np.float64(log_prob)
    expected = batch.reward + 0.99 * batch.mask * soft
    np.testing.assert_allclose(sacn.target_of(state, batch, KEY, CONFIG), expected, atol=1e-4)


def test_the_actor_climbs_the_lowest_critic_and_its_entropy(state, batch):
    action, log_prob = sampled(state.actor, batch.obs, KEY)
    lowest = q_of(state.critics, batch._replace(action=np.asarray(action))).min(axis=0)
    expected = np.mean(0.5 * np.float64(log_prob) - lowest)
    loss, _ = soft_actor_loss(state.actor, state.critics, jnp.float32(0.5), batch, KEY)
    assert float(loss) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("entropy", "sign"), [(-ACT - 1.0, -1), (-ACT + 1.0, 1)])
def test_the_temperature_rises_below_the_target_entropy_and_falls_above(entropy, sign):
    slope = jax.grad(lambda log: temperature_loss(log, jnp.float32(entropy), ACT)[0])
    assert float(slope(jnp.float32(0.3))) == pytest.approx(sign)


def test_one_update_moves_each_part_by_adams_step_and_the_targets_towards_the_critics(state, batch):
    after, metrics = update(state, batch, CONFIG)
    entropy = float(metrics["actor/entropy"])
    expected = -3e-4 * np.sign(entropy + ACT)
    assert float(after.log_temperature - state.log_temperature) == pytest.approx(expected, rel=1e-2)
    for old, critic, new in zip(
        *(jax.tree.leaves(t) for t in (state.targets, after.critics, after.targets)), strict=True
    ):
        mixed = 0.995 * np.float64(old) + 0.005 * np.float64(critic)
        np.testing.assert_allclose(new, mixed, atol=1e-6)


def test_every_critic_is_drawn_to_the_same_target(state, batch):
    _, metrics = update(state, batch, CONFIG)
    key = jax.random.split(jax.random.split(jax.random.wrap_key_data(state.key))[1])[0]
    target = np.float64(sacn.target_of(state, batch, key, CONFIG))
    expected = np.mean((q_of(state.critics, batch) - target) ** 2)
    assert float(metrics["critic/loss"]) == pytest.approx(expected, rel=1e-4)
