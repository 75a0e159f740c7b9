"""CQL: the importance-weighted gap, what the multiplier does, and where gradients flow."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm
from test_losses import ACT, KEY, OBS, ROWS, layers, make_batch, q_of, same_bits

from gemrl.methods import cql
from gemrl.methods.actor_critic import next_key, regression
from gemrl.methods.sac import sampled

CONFIG = cql.CqlConfig(hidden=(8,), batch_size=ROWS, samples=4, weight=2.0)
update = jax.jit(cql.update, static_argnums=2)


@pytest.fixture(scope="module")
def batch():
    return make_batch()


@pytest.fixture(scope="module")
def state():
    """A state whose targets are not its critics."""
    fresh, other = (cql.init(CONFIG, OBS, ACT, jax.random.key(k)) for k in (5, 9))
    return eqx.tree_at(lambda s: s.soft.targets, fresh, other.soft.critics)


@pytest.fixture(scope="module")
def drawn(state, batch):
    return cql.drawn_actions(state.soft.actor, batch, KEY, CONFIG)


def density_of(actor, obs, action):
    """log pi(a|s) by change of variables, in float64."""
    mean, log_std = np.split(layers(actor.net, np.float64(obs)), 2, axis=-1)
    raw = np.arctanh(np.float64(action))
    log_std = np.clip(log_std, actor.log_std_min, actor.log_std_max)
    slope = np.log(1 - np.float64(action) ** 2)
    return (norm.logpdf(raw, mean, np.exp(log_std)) - slope).sum(axis=-1)


def gap_of(critics, batch, actions, log_density):
    over = np.stack([q_of(critics, batch._replace(action=a)) for a in np.moveaxis(actions, 1, 0)])
    weighted = np.moveaxis(over, 0, -1) - np.float64(log_density)
    return (logsumexp(weighted, axis=-1) - q_of(critics, batch)).mean(axis=1)


def test_a_third_of_the_actions_is_uniform_and_the_rest_the_actors_here_and_at_the_next(
    state, batch, drawn
):
    actions, log_density = (np.asarray(part) for part in drawn)
    assert actions.shape == (ROWS, 12, ACT)
    np.testing.assert_allclose(log_density[:, :4], -ACT * np.log(2), rtol=1e-6)
    for number in range(4, 12):
        obs = batch.obs if number < 8 else batch.next_obs
        expected = density_of(state.soft.actor, obs, actions[:, number])
        np.testing.assert_allclose(log_density[:, number], expected, atol=1e-3)


def test_the_gap_is_the_importance_weighted_log_sum_exp_less_the_datas_value(state, batch, drawn):
    gap = cql.conservative_gap(state.soft.critics, batch, *drawn)
    expected = gap_of(state.soft.critics, batch, *map(np.asarray, drawn))
    np.testing.assert_allclose(gap, expected, rtol=1e-4)


def test_the_estimate_comes_near_the_integral_when_many_actions_are_drawn(state, batch):
    """Of exp Q over the square of actions, once for each of the three kinds that are summed."""
    few = batch._replace(obs=batch.obs[:2], next_obs=batch.obs[:2], action=batch.action[:2])
    config = replace(CONFIG, samples=4_000)
    critics = state.soft.critics[:1]
    gap = cql.conservative_gap(critics, few, *cql.drawn_actions(state.soft.actor, few, KEY, config))
    line = np.linspace(-1, 1, 41)
    grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    q = np.stack([q_of(critics, few._replace(action=np.tile(a, (2, 1)))) for a in grid], axis=-1)
    integral = np.log(np.exp(q).mean(axis=-1) * 4)
    expected = np.mean(integral - q_of(critics, few)) + np.log(3 * 4_000)
    assert float(gap[0]) == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("count", [1, 10])
def test_the_target_is_the_lowest_next_value_without_entropy_or_the_best_of_ten(
    state, batch, count
):
    _, metrics = update(state, batch, replace(CONFIG, max_q_backup=count > 1))
    _, key = next_key(state.soft.key)
    backup_key, _, _ = jax.random.split(key, 3)
    actions, _ = sampled(state.soft.actor, batch.next_obs, backup_key, count)
    following = np.max(
        [
            q_of(
                state.soft.targets, batch._replace(obs=batch.next_obs, action=np.asarray(action))
            ).min(axis=0)
            for action in np.moveaxis(np.asarray(actions), 1, 0)
        ],
        axis=0,
    )
    target = batch.reward + 0.99 * batch.mask * following
    expected = np.mean((q_of(state.soft.critics, batch) - target) ** 2)
    assert float(metrics["critic/loss"]) == pytest.approx(expected, rel=1e-4)


def test_the_critics_loss_is_the_error_and_the_weighted_gap_of_each(state, batch, drawn):
    target = np.linspace(-1, 1, ROWS).astype(np.float32)
    loss, metrics = cql.critic_loss(state.soft.critics, batch, target, drawn, 3.0, CONFIG)
    error, _ = regression(state.soft.critics, batch, target)
    gap = 2.0 * gap_of(state.soft.critics, batch, *map(np.asarray, drawn))
    assert float(loss) == pytest.approx(float(error) + 3.0 * gap.sum(), rel=1e-4)
    assert float(metrics["critic/gap"]) == pytest.approx(gap.mean(), rel=1e-4)


def test_the_gap_gives_the_actor_no_gradient(state, batch):
    def loss(actor):
        drawn = cql.drawn_actions(actor, batch, KEY, CONFIG)
        return jnp.sum(cql.conservative_gap(state.soft.critics, batch, *drawn))

    grads = jax.tree.leaves(jax.grad(loss)(state.soft.actor))
    assert all(not leaf.any() for leaf in grads)


@pytest.mark.parametrize(("target_gap", "sign"), [(-100.0, 1), (100.0, -1)])
def test_the_multiplier_rises_while_the_gap_is_above_its_target_and_falls_below(
    state, batch, target_gap, sign
):
    config = replace(CONFIG, lagrange=True, target_gap=target_gap)
    after, metrics = update(state, batch, config)
    assert float(metrics["critic/multiplier"]) == 1.0
    assert float(after.log_multiplier) == pytest.approx(sign * 3e-4, rel=1e-3)


def test_the_multiplier_weighs_the_gap_in_the_critics_step(state, batch):
    config = replace(CONFIG, lagrange=True)
    heavy = eqx.tree_at(lambda s: s.log_multiplier, state, jnp.float32(5.0))
    one, two = (update(s, batch, config)[0].soft for s in (state, heavy))
    assert not same_bits(one.critics, two.critics)
    assert same_bits(one.actor, two.actor)


def test_without_lagrange_the_multiplier_stays_out_of_it(state, batch):
    heavy = eqx.tree_at(lambda s: s.log_multiplier, state, jnp.float32(5.0))
    one, two = (update(s, batch, CONFIG)[0] for s in (state, heavy))
    assert same_bits(one.soft, two.soft)
    assert float(two.log_multiplier) == 5.0


def test_antmaze_has_the_multiplier_and_the_papers_rewards(batch):
    config = cql.CqlConfig.for_task("antmaze-umaze-v2")
    assert (config.lagrange, config.target_gap, config.weight) == (True, 5.0, 5.0)
    rewards = config.rewarded(batch._replace(reward=np.array([-1.0, 0.0], np.float32))).reward
    np.testing.assert_array_equal(rewards, [-2.0, 2.0])
    assert not cql.CqlConfig.for_task("hopper-medium-v2").lagrange
