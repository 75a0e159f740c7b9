"""AWAC: its weights, where its gradients flow, and the spread of its actor."""

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.stats import norm
from test_losses import ACT, KEY, OBS, ROWS, layers, make_batch, q_of, same_bits

from gemrl.methods import awac
from gemrl.methods.actor_critic import new_critics, next_key, weighted_regression

CONFIG = awac.AwacConfig(hidden=(8,), batch_size=ROWS, temperature=0.5, weight_cap=3.0)
update = jax.jit(awac.update, static_argnums=2)
# Weights on both sides of the cap: exp(2 * 1) is above 3, exp(2 * 0.5) below.
ADVANTAGE = np.linspace(-1, 1, ROWS).astype(np.float32)


@pytest.fixture(scope="module")
def batch():
    return make_batch()


@pytest.fixture(scope="module")
def state():
    """A state whose targets are not its critics."""
    fresh = awac.init(CONFIG, OBS, ACT, KEY)
    other = new_critics(CONFIG, OBS, ACT, jax.random.key(9))
    return eqx.tree_at(lambda s: s.targets, fresh, other)


def test_the_actor_regresses_on_actions_weighted_by_capped_exponential_advantage(state, batch):
    loss, metrics = weighted_regression(
        state.actor, ADVANTAGE, batch, 1 / CONFIG.temperature, CONFIG.weight_cap
    )
    means = np.tanh(layers(state.actor.net, np.float64(batch.obs))[:, 1:])
    log_prob = norm.logpdf(batch.action, means, np.exp(np.float64(state.actor.log_std))).sum(-1)
    weight = np.minimum(np.exp(np.float64(ADVANTAGE) / 0.5), 3.0)
    assert float(loss) == pytest.approx(-np.mean(weight * log_prob), rel=1e-4)
    assert float(metrics["actor/weight_clipped"]) == pytest.approx(np.mean(weight >= 3.0))


def test_the_value_of_the_actor_is_the_lowest_critics_of_one_clipped_action(state, batch):
    value = awac.value_of_actor(state.actor, state.critics, batch.obs, KEY)
    means = np.tanh(layers(state.actor.net, np.float64(batch.obs))[:, 1:])
    noise = np.float64(jax.random.normal(KEY, (ROWS, ACT)))
    action = np.clip(means + np.exp(np.float64(state.actor.log_std)) * noise, -1, 1)
    expected = q_of(state.critics, batch._replace(action=action)).min(axis=0)
    np.testing.assert_allclose(value, expected, atol=1e-4)


def test_terminals_are_not_bootstrapped_and_others_are(state, batch):
    """With all rows terminal the targets do not matter; without, they do."""
    other = eqx.tree_at(lambda s: s.targets, state, state.critics)
    for mask, alike in ((0.0, True), (1.0, False)):
        masked = batch._replace(mask=np.full(ROWS, mask, np.float32))
        one, two = (update(s, masked, CONFIG)[0].critics for s in (state, other))
        assert same_bits(one, two) == alike


def test_the_actor_moves_by_the_gradient_of_the_weighted_likelihood_alone(state, batch):
    """The advantage is a number to it, so it does not climb Q."""
    after, _ = update(state, batch, CONFIG)
    _, key = next_key(state.key)
    _, action_key = jax.random.split(key)
    advantage = q_of(after.critics, batch).min(axis=0) - np.float64(
        awac.value_of_actor(state.actor, after.critics, batch.obs, action_key)
    )
    weight = np.minimum(np.exp(advantage / 0.5), 3.0)[:, None]
    means = np.tanh(layers(state.actor.net, np.float64(batch.obs))[:, 1:])
    std = np.exp(np.float64(state.actor.log_std[0]))
    slope = -np.mean(weight * (((batch.action - means) / std) ** 2 - 1), axis=0)
    moved = np.asarray(after.actor.log_std - state.actor.log_std)[0]
    # Adam's first step is its rate against the sign of the gradient.
    np.testing.assert_allclose(moved, -3e-4 * np.sign(slope), rtol=1e-3)


def test_targets_follow_and_log_stds_stay_in_their_range(state, batch):
    config = awac.AwacConfig(
        hidden=(8,), batch_size=ROWS, log_std_min=-1.001, log_std_max=-0.999, polyak=0.1
    )
    after, metrics = update(state, batch, config)
    for old, critic, new in zip(
        *(jax.tree.leaves(t) for t in (state.targets, after.critics, after.targets)), strict=True
    ):
        np.testing.assert_allclose(new, 0.9 * np.float64(old) + 0.1 * np.float64(critic), atol=1e-6)
    log_std = np.asarray(after.actor.log_std)
    assert (log_std >= np.float32(-1.001)).all()
    assert (log_std <= np.float32(-0.999)).all()
    assert np.isfinite(list(map(float, metrics.values()))).all()


@pytest.mark.parametrize(
    ("task", "temperature"), [("antmaze-umaze-v2", 0.1), ("hopper-medium-v2", 1 / 3)]
)
def test_lambda_is_the_published_one_for_the_suite(task, temperature):
    assert awac.AwacConfig.for_task(task).temperature == pytest.approx(temperature)
