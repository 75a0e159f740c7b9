"""One update of each method against pieces computed by hand in double precision."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from scipy.stats import norm

from gemrl.methods import bc, gem, iql
from gemrl.methods.protocol import Batch

OBS, ACT, ROWS, K = 3, 2, 16, 3
LEARNING_RATE = 1e-2
CONFIG = gem.GemConfig(
    hidden=(8,), critics=2, components=K, batch_size=ROWS, learning_rate=LEARNING_RATE, polyak=0.1
)
IQL_CONFIG = iql.IqlConfig(
    hidden=(8,), critics=2, batch_size=ROWS, learning_rate=LEARNING_RATE, polyak=0.1
)
KEY = jax.random.key(5)

gem_update = jax.jit(gem.update, static_argnums=2)
iql_update = jax.jit(iql.update, static_argnums=2)
bc_update = jax.jit(bc.update, static_argnums=2)
behavior_update = jax.jit(gem.update_behavior, static_argnums=2)
actor_loss = jax.jit(gem.actor_loss, static_argnums=3)


@partial(jax.jit, static_argnums=3)
def critic_losses(learner, targets, batch, config):
    """Loss, advantage, metrics and the gradient for the learner."""

    def loss(params):
        value, advantage, metrics = iql.critic_losses(params, targets, batch, config)
        return value, (advantage, metrics)

    (value, (advantage, metrics)), grads = jax.value_and_grad(loss, has_aux=True)(learner)
    return value, advantage, metrics, grads


def make_batch(seed=0):
    rng = np.random.default_rng(seed)
    return Batch(
        obs=rng.normal(size=(ROWS, OBS)).astype(np.float32),
        action=rng.uniform(-1, 1, (ROWS, ACT)).astype(np.float32),
        reward=rng.normal(size=ROWS).astype(np.float32),
        next_obs=rng.normal(size=(ROWS, OBS)).astype(np.float32),
        mask=(np.arange(ROWS) % 4 != 0).astype(np.float32),
    )


@pytest.fixture(scope="module")
def batch():
    return make_batch()


@pytest.fixture(scope="module")
def fresh():
    return gem.init(CONFIG, OBS, ACT, KEY)


@pytest.fixture(scope="module")
def fresh_iql():
    return iql.init(IQL_CONFIG, OBS, ACT, KEY)


@pytest.fixture(scope="module")
def state(fresh):
    """A state whose target critics are not its critics."""
    other = iql.init_critics(CONFIG, OBS, ACT, jax.random.key(99))
    return eqx.tree_at(lambda s: s.targets, fresh, other.critics)


def layers(net, x):
    for i, layer in enumerate(net.layers):
        x = x @ np.float64(layer.weight) + np.float64(layer.bias)
        if i < len(net.layers) - 1:
            x = np.maximum(x, 0)
    return x


def q_of(critics, batch):
    """[M, B] in float64."""
    values = []
    for critic in critics:
        first = np.float64(batch.obs) @ np.float64(critic.from_state.weight)
        first += np.float64(critic.from_state.bias)
        first += np.float64(batch.action) @ np.float64(critic.from_action)
        values.append(layers(critic.net, np.maximum(first, 0))[:, 0])
    return np.stack(values)


def value_of(value, obs):
    return layers(value.net, np.float64(obs))[:, 0]


def delta_of(state, batch):
    return q_of(state.targets, batch).min(axis=0) - value_of(state.learner.value, batch.obs)


def target_of(state, batch, config=CONFIG):
    following = value_of(state.learner.value, batch.next_obs)
    return batch.reward + config.discount * batch.mask * following


def mixture_of(net, obs):
    """Gate log-weights, means and log-stds of a network in float64."""
    out = layers(net.net, np.float64(obs))
    means = np.tanh(out[:, K:]).reshape(len(obs), K, ACT)
    return log_softmax(out[:, :K], axis=-1), means, np.float64(net.log_std)


def joint_of(net, batch):
    log_weights, means, log_std = mixture_of(net, batch.obs)
    density = norm.logpdf(np.float64(batch.action)[:, None], means, np.exp(log_std)).sum(-1)
    return log_weights + density


def first_adam_step(gradient):
    """Adam's first step from zero moments, which are corrected for their bias."""
    return -LEARNING_RATE * gradient / (np.abs(gradient) + 1e-8)


def last_bias(net):
    return np.float64(net.layers[-1].bias)


def same_bits(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def test_critic_loss_is_the_mean_square_to_reward_plus_discounted_next_value(state, batch):
    _, _, metrics, _ = critic_losses(state.learner, state.targets, batch, CONFIG)
    error = q_of(state.learner.critics, batch) - target_of(state, batch)
    assert float(metrics["critic/loss"]) == pytest.approx(np.mean(error**2), rel=1e-4)


def test_next_observation_is_ignored_where_the_mask_is_zero_and_only_there(state, batch):
    def gradient(next_obs):
        changed = batch._replace(next_obs=next_obs)
        return critic_losses(state.learner, state.targets, changed, CONFIG)[3]

    terminal = batch.mask == 0
    moved = np.where(terminal[:, None], batch.next_obs + 3, batch.next_obs)
    assert same_bits(gradient(batch.next_obs), gradient(moved))
    moved = np.where(terminal[:, None], batch.next_obs, batch.next_obs + 3)
    assert not same_bits(gradient(batch.next_obs), gradient(moved))


def test_advantage_is_the_minimum_of_the_target_critics_minus_the_value(state, batch):
    _, advantage, _, _ = critic_losses(state.learner, state.targets, batch, CONFIG)
    np.testing.assert_allclose(advantage, delta_of(state, batch), rtol=1e-4, atol=1e-5)
    by_online_critics = q_of(state.learner.critics, batch).min(axis=0)
    assert np.abs(by_online_critics - q_of(state.targets, batch).min(axis=0)).max() > 0.05


def test_value_loss_is_the_expectile_loss_of_the_advantage(state, batch):
    total, _, metrics, _ = critic_losses(state.learner, state.targets, batch, CONFIG)
    delta = delta_of(state, batch)
    expected = np.mean(np.abs(CONFIG.expectile - (delta < 0)) * delta**2)
    assert float(metrics["value/loss"]) == pytest.approx(expected, rel=1e-4)
    assert float(total) == pytest.approx(float(metrics["critic/loss"]) + expected, rel=1e-4)


def bias_gradients(state, batch):
    """By hand: the value's from its own loss alone, and each critic's."""
    delta = delta_of(state, batch)
    by_value = np.mean(-2 * np.abs(CONFIG.expectile - (delta < 0)) * delta)
    error = q_of(state.learner.critics, batch) - target_of(state, batch)
    return by_value, 2 * error.mean(axis=1) / len(error)


def test_value_learns_from_its_own_loss_alone_and_critics_from_theirs(state, batch):
    _, _, _, grads = critic_losses(state.learner, state.targets, batch, CONFIG)
    by_value, by_critic = bias_gradients(state, batch)
    np.testing.assert_allclose(last_bias(grads.value.net), [by_value], rtol=1e-4)
    for critic, expected in zip(grads.critics, by_critic, strict=True):
        np.testing.assert_allclose(last_bias(critic.net), [expected], rtol=1e-4)


def test_one_update_moves_critics_and_value_by_adams_step_on_those_gradients(state, batch):
    after, _ = gem_update(state, batch, CONFIG)
    by_value, by_critic = bias_gradients(state, batch)
    moved = last_bias(after.learner.value.net) - last_bias(state.learner.value.net)
    np.testing.assert_allclose(moved, first_adam_step(by_value), rtol=1e-3)
    for old, new, gradient in zip(
        state.learner.critics, after.learner.critics, by_critic, strict=True
    ):
        moved = last_bias(new.net) - last_bias(old.net)
        np.testing.assert_allclose(moved, first_adam_step(gradient), rtol=1e-3)


def test_targets_become_the_polyak_average_of_themselves_and_the_updated_critics(state, batch):
    after, _ = gem_update(state, batch, CONFIG)
    leaves = (jax.tree.leaves(t) for t in (state.targets, after.learner.critics, after.targets))
    for old, critic, new in zip(*leaves, strict=True):
        expected = 0.9 * np.float64(old) + 0.1 * np.float64(critic)
        np.testing.assert_allclose(new, expected, atol=1e-6)


@pytest.mark.parametrize("method", [gem, iql, bc], ids=["gem", "iql", "bc"])
def test_an_update_keeps_the_types_of_its_state_and_so_is_compiled_once(method, batch):
    config = method.METHOD.config(hidden=(8,), batch_size=ROWS)
    fresh = jax.eval_shape(lambda: method.init(config, OBS, ACT, KEY))
    for phase in method.phases(config):
        updated = jax.eval_shape(lambda s, p=phase: p.update(s, batch, config)[0], fresh)
        before, after = (
            [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]
            for tree in (fresh, updated)
        )
        assert before == after


def test_fresh_targets_are_the_critics(fresh):
    assert same_bits(fresh.targets, fresh.learner.critics)


# Advantages on both sides of the cap: exp(3 * 2) is above 100, exp(3 * 1) below.
ADVANTAGE = np.linspace(-2, 2, ROWS).astype(np.float32)


GUIDED = [replace(CONFIG, gate_entropy=a, weight_cap=c) for a, c in ((0.0, 100.0), (0.5, 13.0))]


@pytest.mark.parametrize("config", GUIDED, ids=["plain", "entropy_and_low_cap"])
def test_actor_loss_equals_its_formula_with_cap_and_entropy_bonus(state, batch, config):
    joint = joint_of(state.actor, batch)
    weight = np.minimum(np.exp(config.beta * np.float64(ADVANTAGE)), config.weight_cap)
    surrogate = np.sum(softmax(joint, axis=-1) * joint, axis=-1)
    gates = np.exp(mixture_of(state.actor, batch.obs)[0])
    entropy = np.mean(-np.sum(gates * np.log(gates + 1e-6), axis=-1))
    expected = -np.mean(weight * surrogate) - config.gate_entropy * entropy

    loss, metrics = actor_loss(state.actor, ADVANTAGE, batch, config)
    assert float(loss) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert float(metrics["actor/weight"]) == pytest.approx(weight.mean(), rel=1e-4)
    assert float(metrics["actor/gate_entropy"]) == pytest.approx(entropy, rel=1e-4)
    log_prob = np.log(np.exp(joint).sum(axis=-1))
    assert float(metrics["actor/nll"]) == pytest.approx(-log_prob.mean(), rel=1e-4)


@pytest.mark.parametrize("config", GUIDED, ids=["cap_100", "cap_13"])
def test_share_of_capped_weights_is_the_share_of_advantages_above_the_cap(state, batch, config):
    _, metrics = actor_loss(state.actor, ADVANTAGE, batch, config)
    expected = np.mean(np.exp(config.beta * np.float64(ADVANTAGE)) >= config.weight_cap)
    assert expected > 0
    assert float(metrics["actor/weight_clipped"]) == pytest.approx(expected)


def test_actor_learns_by_the_weighted_gradient_of_the_exact_log_likelihood(state, batch):
    grads = jax.jit(jax.grad(lambda a: gem.actor_loss(a, ADVANTAGE, batch, CONFIG)[0]))(state.actor)
    joint = joint_of(state.actor, batch)
    gamma = softmax(joint, axis=-1)
    weight = np.minimum(np.exp(CONFIG.beta * np.float64(ADVANTAGE)), CONFIG.weight_cap)
    _, means, log_std = mixture_of(state.actor, batch.obs)
    squared = ((batch.action[:, None] - means) / np.exp(log_std)) ** 2
    expected = -np.mean(weight[:, None, None] * gamma[..., None] * (squared - 1), axis=0)
    np.testing.assert_allclose(grads.log_std, expected, rtol=1e-3, atol=1e-4)


def test_actor_of_gem_moves_by_adams_step_on_that_gradient(state, batch):
    after, metrics = gem_update(state, batch, CONFIG)
    advantage = delta_of(state, batch)
    weight = np.minimum(np.exp(CONFIG.beta * advantage), CONFIG.weight_cap)
    gamma = softmax(joint_of(state.actor, batch), axis=-1)
    _, means, log_std = mixture_of(state.actor, batch.obs)
    squared = ((batch.action[:, None] - means) / np.exp(log_std)) ** 2
    gradient = -np.mean(weight[:, None, None] * gamma[..., None] * (squared - 1), axis=0)
    np.testing.assert_allclose(
        after.actor.log_std - state.actor.log_std, first_adam_step(gradient), rtol=1e-3
    )
    assert float(metrics["actor/weight"]) == pytest.approx(weight.mean(), rel=1e-4)


def test_frozen_behavior_keeps_its_bits_through_updates(state, batch):
    after = state
    for _ in range(3):
        after, metrics = gem_update(after, batch, CONFIG)
    assert same_bits(after.behavior, state.behavior)
    assert same_bits(after.behavior_opt_state, state.behavior_opt_state)
    assert not any(name.startswith("behavior/") for name in metrics)


# A range that a few steps cross.
THAWED = replace(CONFIG, freeze_behavior=False, log_std_min=-1.05, log_std_max=-0.95)


def test_thawed_behavior_learns_on_as_in_its_own_phase_and_changes_nothing_else(state, batch):
    thawed, metrics = gem_update(state, batch, THAWED)
    frozen, _ = gem_update(state, batch, CONFIG)
    alone, _ = behavior_update(state, batch, CONFIG)
    assert not same_bits(thawed.behavior, state.behavior)
    for one, other in ((thawed.behavior, alone.behavior), (thawed.actor, frozen.actor)):
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
    expected = -np.mean(np.log(np.exp(joint_of(state.behavior, batch)).sum(axis=-1)))
    assert float(metrics["behavior/nll"]) == pytest.approx(expected, rel=1e-4)


def test_behavior_phase_leaves_everything_else_as_it_was(state, batch):
    after, _ = behavior_update(state, batch, CONFIG)
    assert not same_bits(after.behavior, state.behavior)
    for name in ("learner", "targets", "actor", "opt_state"):
        assert same_bits(getattr(after, name), getattr(state, name)), name


def test_log_stds_of_gem_stay_within_their_range(state, batch):
    after = state
    for _ in range(20):
        after, metrics = gem_update(after, batch, THAWED)
    for name, net in (("actor", after.actor), ("behavior", after.behavior)):
        log_std = np.asarray(net.log_std)
        assert (log_std >= np.float32(-1.05)).all()
        assert (log_std <= np.float32(-0.95)).all()
        assert ((log_std == np.float32(-1.05)) | (log_std == np.float32(-0.95))).any()
        at_floor = np.mean(log_std == np.float32(-1.05))
        assert float(metrics[f"{name}/log_std_at_floor"]) == pytest.approx(at_floor)


CLONE = bc.BcConfig(hidden=(8,), batch_size=ROWS, log_std_min=-1.1, learning_rate=0.05)


def test_a_log_std_that_reached_its_floor_can_rise_again():
    state = bc.init(CLONE, OBS, ACT, KEY)
    near = make_batch()
    means = np.tanh(layers(state.actor.net, np.float64(near.obs))[:, 1:])
    near = near._replace(action=means.astype(np.float32))
    for _ in range(3):
        state, _ = bc_update(state, near, CLONE)
    np.testing.assert_array_equal(state.actor.log_std, np.full((1, ACT), np.float32(-1.1)))
    far = near._replace(action=np.where(means > 0, -1, 1).astype(np.float32))
    for _ in range(6):
        state, _ = bc_update(state, far, CLONE)
    assert (np.asarray(state.actor.log_std) > -1.05).all()


def test_behavior_cloning_minimizes_the_negative_log_likelihood(batch):
    state = bc.init(CLONE, OBS, ACT, KEY)
    _, metrics = bc_update(state, batch, CLONE)
    means = np.tanh(layers(state.actor.net, np.float64(batch.obs))[:, 1:])
    stds = np.exp(np.float64(state.actor.log_std))
    expected = -norm.logpdf(batch.action, means, stds).sum(axis=-1).mean()
    assert float(metrics["actor/nll"]) == pytest.approx(expected, rel=1e-4)


def test_critics_of_iql_and_gem_start_equal_for_the_same_key(fresh, fresh_iql, state):
    assert same_bits(fresh.learner, fresh_iql.learner)
    assert same_bits(fresh.targets, fresh_iql.targets)
    assert not same_bits(fresh.targets, state.targets)


def test_critics_of_iql_and_gem_stay_equal_on_the_same_batches(fresh, fresh_iql):
    ours, theirs = fresh, fresh_iql
    for seed in range(4):
        ours, _ = gem_update(ours, make_batch(seed), CONFIG)
        theirs, _ = iql_update(theirs, make_batch(seed), IQL_CONFIG)
    one, other = (jax.tree.leaves((s.learner, s.targets)) for s in (ours, theirs))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_critics_of_an_ensemble_start_different(fresh):
    first, second = fresh.learner.critics
    assert not same_bits(first, second)


def test_actor_loss_of_iql_is_the_weighted_negative_log_likelihood(fresh_iql, batch):
    state = fresh_iql
    _, metrics = iql_update(state, batch, IQL_CONFIG)
    means = np.tanh(layers(state.actor.net, np.float64(batch.obs))[:, 1:])
    stds = np.exp(np.float64(state.actor.log_std))
    log_prob = norm.logpdf(batch.action, means, stds).sum(axis=-1)
    weight = np.minimum(np.exp(3.0 * delta_of(state, batch)), 100.0)
    assert float(metrics["actor/loss"]) == pytest.approx(-np.mean(weight * log_prob), rel=1e-4)
    assert float(metrics["actor/nll"]) == pytest.approx(-log_prob.mean(), rel=1e-4)
