"""SSAR: each state's weight follows how far the actor strays from selected actions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_losses import ACT, OBS, ROWS, layers, make_batch, same_bits

from gemrl.methods import iql, ssar
from gemrl.methods.actor_critic import values

SETTINGS = {"hidden": (8, 8), "batch_size": ROWS, "alpha": 2.0, "actor_every": 1, "n_every": 2}
# A threshold that the fresh actor is beyond, and one that it keeps to.
CONFIG = ssar.SsarConfig(**SETTINGS, noise=1e-3, beta_learning_rate=1e-2)
WIDE = ssar.SsarConfig(**SETTINGS, noise=10.0, beta_learning_rate=1e-2)
update = jax.jit(ssar.update, static_argnums=2)
update_judge = jax.jit(ssar.update_judge, static_argnums=2)


@pytest.fixture(scope="module")
def batch():
    return make_batch()


@pytest.fixture(scope="module")
def state():
    return ssar.init(CONFIG, OBS, ACT, jax.random.key(2))


def with_value_lower_by(state, shift):
    """A state whose selecting value says so much less of every state."""
    return eqx.tree_at(
        lambda s: s.judge.learner.value.net.layers[-1].bias,
        state,
        replace_fn=lambda bias: bias - shift,
    )


@pytest.fixture(scope="module")
def all_selected(state):
    return with_value_lower_by(state, 1e3)


def test_the_weight_begins_at_one_over_alpha_and_stays_below_its_ceiling(state):
    at_first = eqx.tree_at(
        lambda net: net.layers[-1].weight, state.beta, jnp.zeros_like(state.beta.layers[-1].weight)
    )
    obs = 100 * jax.random.normal(jax.random.key(0), (200, OBS))
    np.testing.assert_allclose(ssar.coefficient(at_first, obs, CONFIG), 1 / 2.0, rtol=1e-4)
    found = np.asarray(ssar.coefficient(state.beta, obs, CONFIG))
    assert (found >= 0).all()
    assert (found <= 1.5 / 2.0).all()


def test_actions_are_selected_by_iqls_advantage(state, batch):
    advantage = np.asarray(iql.advantage(state.judge.learner, state.judge.targets, batch))
    middle = np.sort(advantage)[ROWS // 2 - 1 : ROWS // 2 + 1].mean()
    half = with_value_lower_by(state, -float(middle))
    np.testing.assert_array_equal(ssar.selected(half, batch), advantage > middle)


def test_the_actors_loss_weighs_each_states_distance(state, batch):
    action = np.tanh(layers(state.td3.actor.net, np.float64(batch.obs)))
    q = np.asarray(values(state.td3.critics[:1], batch.obs, jnp.asarray(action, jnp.float32)))[0]
    weight = np.linspace(0, 2, ROWS)
    expected = -q.mean() / np.abs(q).mean()
    expected += (weight[:, None] * np.square(action - batch.action)).mean()
    loss, _ = ssar.actor_loss(
        state.td3.actor, state.td3.critics, jnp.asarray(weight, jnp.float32), batch
    )
    assert float(loss) == pytest.approx(expected, abs=1e-4)


def test_the_weight_grows_where_the_actor_is_beyond_the_threshold(all_selected, batch):
    before = ssar.coefficient(all_selected.beta, batch.obs, CONFIG).mean()
    for config, grows in ((CONFIG, True), (WIDE, False)):
        after, _ = update(all_selected, batch, config)
        assert (ssar.coefficient(after.beta, batch.obs, config).mean() > before) == grows


def test_actions_that_are_not_selected_move_no_weight(state, batch):
    none = with_value_lower_by(state, -1e3)
    after, metrics = update(none, batch, CONFIG)
    assert float(metrics["beta/selected"]) == 0
    assert same_bits(after.beta, none.beta)


def test_the_threshold_rises_until_the_actor_keeps_to_it(all_selected, batch):
    far = near = all_selected
    seen = []
    for _ in range(4):
        far, metrics = update(far, batch, CONFIG)
        near, kept_to = update(near, batch, WIDE)
        seen.append(float(metrics["beta/n"]))
    np.testing.assert_allclose(seen, [1.0, 1.2, 1.2, 1.4], rtol=1e-5)
    assert float(kept_to["beta/n"]) == 1.0
    assert bool(far.rising)
    assert not bool(near.rising)


def test_the_judge_learns_before_the_policy_and_not_after(state, batch):
    first, main = ssar.phases(ssar.SsarConfig(steps=10))
    assert (first.steps, main.steps) == (10, 10)
    judged, _ = update_judge(state, batch, CONFIG)
    assert not same_bits(judged.judge, state.judge)
    assert same_bits(judged.td3, state.td3)
    after, _ = update(judged, batch, CONFIG)
    assert same_bits(after.judge, judged.judge)


def test_the_critics_have_norms_and_expert_data_their_published_threshold(state):
    assert all(critic.norm is not None for critic in state.td3.critics)
    for robot in ("halfcheetah", "hopper", "walker2d"):
        assert ssar.SsarConfig.for_task(f"{robot}-expert-v2").n_end == 1.5
        assert ssar.SsarConfig.for_task(f"{robot}-medium-v2").n_end == 3.0
