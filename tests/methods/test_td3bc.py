"""TD3+BC: a smoothed target by the smaller critic, a value of size 1, an actor that waits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_losses import ACT, KEY, OBS, ROWS, layers, make_batch, same_bits

from gemrl.methods import td3, td3bc
from gemrl.methods.actor_critic import values

CONFIG = td3bc.Td3BcConfig(hidden=(8, 8), batch_size=ROWS, alpha=2.0)
STILL = td3bc.Td3BcConfig(hidden=(8, 8), batch_size=ROWS, policy_noise=0.0)
update = jax.jit(td3bc.update, static_argnums=2)


@pytest.fixture(scope="module")
def batch():
    return make_batch()


@pytest.fixture(scope="module")
def state():
    """A state whose targets are not its networks."""
    fresh, other = (td3bc.init(CONFIG, OBS, ACT, jax.random.key(k)) for k in (5, 9))
    return eqx.tree_at(
        lambda s: (s.target_critics, s.target_actor), fresh, (other.critics, other.actor)
    )


def test_the_target_is_the_smaller_target_critics_value_of_the_target_actors_action(state, batch):
    action = np.tanh(layers(state.target_actor.net, np.float64(batch.next_obs)))
    q = values(state.target_critics, batch.next_obs, jnp.asarray(action, jnp.float32))
    expected = batch.reward + 0.99 * batch.mask * np.asarray(q).min(axis=0)
    np.testing.assert_allclose(td3bc.twin_target(state, batch, KEY, STILL), expected, atol=1e-4)


def test_the_targets_action_is_smoothed_by_clipped_noise_within_the_bounds(state):
    obs = jax.random.normal(KEY, (4000, OBS))
    mean = np.asarray(state.target_actor.mean(obs))
    found = np.asarray(td3.smoothed(state.target_actor, obs, KEY, CONFIG))
    assert (np.abs(found) <= 1).all()
    inside = np.abs(mean) < 0.5
    added = (found - mean)[inside]
    assert np.abs(added).max() == pytest.approx(0.5, abs=1e-6)
    # A normal of std 0.2, of which 1.2 % beyond 2.5 standard deviations are brought to them.
    assert added.std() == pytest.approx(0.2, rel=0.05)
    assert abs(added.mean()) < 0.01


def test_the_actors_loss_is_the_distance_less_alpha_times_the_value_of_mean_size_1(state, batch):
    action = np.tanh(layers(state.actor.net, np.float64(batch.obs)))
    q = np.asarray(values(state.critics[:1], batch.obs, jnp.asarray(action, jnp.float32)))[0]
    expected = -2.0 * q.mean() / np.abs(q).mean() + np.square(action - batch.action).mean()
    loss, _ = td3bc.actor_loss(state.actor, state.critics, batch, CONFIG)
    assert float(loss) == pytest.approx(expected, abs=1e-4)


def test_the_actor_and_the_targets_move_at_every_second_update_only(state, batch):
    first, _ = update(state, batch, CONFIG)
    second, _ = update(first, batch, CONFIG)
    assert not same_bits(first.critics, state.critics)
    for kept in ("actor", "target_critics", "target_actor", "actor_opt_state"):
        assert same_bits(getattr(first, kept), getattr(state, kept)), kept
        assert not same_bits(getattr(second, kept), getattr(first, kept)), kept


def test_the_actors_metrics_have_over_all_updates_the_mean_that_they_have_over_its_turns(
    state, batch
):
    first, waiting = update(state, batch, CONFIG)
    second, turn = update(first, batch, CONFIG)
    _, wanted = td3bc.actor_loss(first.actor, second.critics, batch, CONFIG)
    for name, value in wanted.items():
        assert float(waiting[name] + turn[name]) / 2 == pytest.approx(float(value), rel=1e-5)
