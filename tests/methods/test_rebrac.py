"""ReBRAC: two penalties, a value brought to size 1, norms in the critics, published betas."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_losses import ACT, KEY, OBS, ROWS, layers, make_batch, same_bits

from gemrl.data.tasks import TASKS
from gemrl.methods import rebrac
from gemrl.methods.actor_critic import values

CONFIG = rebrac.RebracConfig(
    hidden=(8, 8), batch_size=ROWS, actor_beta=0.3, critic_beta=0.7, policy_noise=0.0
)
update = jax.jit(rebrac.update, static_argnums=2)


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(4)
    next_action = rng.uniform(-1, 1, (ROWS, ACT)).astype(np.float32)
    return make_batch()._replace(next_action=next_action)


@pytest.fixture(scope="module")
def state():
    """A state whose targets are not its networks."""
    fresh, other = (rebrac.init(CONFIG, OBS, ACT, jax.random.key(k)) for k in (5, 9))
    return eqx.tree_at(
        lambda s: (s.target_critics, s.target_actor), fresh, (other.critics, other.actor)
    )


def test_last_layers_begin_small_as_published():
    fresh = rebrac.init(rebrac.RebracConfig(), OBS, ACT, KEY)
    for net, limit in [(c.net, 3e-3) for c in fresh.critics] + [(fresh.actor.net, 1e-3)]:
        *others, last = net.layers
        assert 0.9 * limit < jnp.max(jnp.abs(last.weight)) <= limit
        assert jnp.max(jnp.abs(last.bias)) <= limit
        assert all(jnp.max(jnp.abs(other.weight)) > 0.05 for other in others)
    assert fresh.target_critics is fresh.critics


@pytest.mark.parametrize("norms", [True, False])
def test_the_critics_have_norms_unless_told_and_the_actor_has_none(norms):
    fresh = rebrac.init(replace(CONFIG, critic_norms=norms), OBS, ACT, KEY)
    assert all((critic.norm is not None) is norms for critic in fresh.critics)
    assert all((critic.net.norms is not None) is norms for critic in fresh.critics)
    assert fresh.actor.net.norms is None


def lowest(critics, obs, action):
    return np.float64(values(critics, obs, jnp.asarray(action, jnp.float32))).min(axis=0)


def test_the_target_takes_the_distance_to_the_datas_next_action_off_the_next_value(state, batch):
    action = np.tanh(layers(state.target_actor.net, np.float64(batch.next_obs)))
    penalty = 0.7 * ((action - batch.next_action) ** 2).sum(axis=1)
    following = lowest(state.target_critics, batch.next_obs, action) - penalty
    expected = batch.reward + 0.99 * batch.mask * following
    np.testing.assert_allclose(rebrac.target_of(state, batch, KEY, CONFIG), expected, atol=1e-4)


def test_the_actors_loss_is_the_distance_less_the_value_over_its_mean_size(state, batch):
    action = np.tanh(layers(state.actor.net, np.float64(batch.obs)))
    q = lowest(state.critics, batch.obs, action)
    away = ((action - batch.action) ** 2).sum(axis=1).mean()
    loss, metrics = rebrac.actor_loss(state.actor, state.critics, batch, CONFIG)
    assert float(loss) == pytest.approx(0.3 * away - q.mean() / np.abs(q).mean(), abs=1e-4)
    assert float(metrics["actor/distance"]) == pytest.approx(away, rel=1e-4)


def test_the_actors_gradient_does_not_change_with_the_scale_of_the_values(state, batch):
    def slope(critics):
        return jax.grad(lambda a: rebrac.actor_loss(a, critics, batch, CONFIG)[0])(state.actor)

    def tenfold(critics):
        last = [leaf for c in critics for leaf in (c.net.layers[-1].weight, c.net.layers[-1].bias)]
        return eqx.tree_at(
            lambda cs: [x for c in cs for x in (c.net.layers[-1].weight, c.net.layers[-1].bias)],
            critics,
            [10 * leaf for leaf in last],
        )

    one, other = (jax.tree.leaves(slope(c)) for c in (state.critics, tenfold(state.critics)))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert max(float(jnp.abs(leaf).max()) for leaf in one) > 1e-3


def test_each_penalty_moves_its_own_network_only(state, batch):
    state = eqx.tree_at(lambda s: s.count, state, jnp.int32(1))  # The actor's turn.
    base, by_actor, by_critic = (
        update(state, batch, replace(CONFIG, **change))[0]
        for change in ({}, {"actor_beta": 5.0}, {"critic_beta": 5.0})
    )
    assert same_bits(base.critics, by_actor.critics)
    assert not same_bits(base.actor, by_actor.actor)
    assert not same_bits(base.critics, by_critic.critics)


def test_the_actor_and_all_targets_wait_for_their_turn(state, batch):
    first, _ = update(state, batch, CONFIG)
    second, _ = update(first, batch, CONFIG)
    for name in ("actor", "target_actor", "target_critics"):
        assert same_bits(getattr(first, name), getattr(state, name)), name
        assert not same_bits(getattr(second, name), getattr(first, name)), name
    assert not same_bits(first.critics, state.critics)


def test_critics_are_normed_at_every_hidden_layer_and_the_actor_is_not(state):
    for critic in state.critics:
        assert critic.norm is not None
        assert critic.net.norms is not None
        assert len(critic.net.norms) == len(CONFIG.hidden) - 1
    assert state.actor.net.norms is None


def test_actor_and_critics_learn_at_rates_of_their_own(state, batch):
    state = eqx.tree_at(lambda s: s.count, state, jnp.int32(1))
    config = replace(CONFIG, learning_rate=1e-4, actor_learning_rate=1e-2)
    after, _ = update(state, batch, config)
    for name, rate in (("critics", 1e-4), ("actor", 1e-2)):
        pairs = zip(*(jax.tree.leaves(getattr(s, name)) for s in (state, after)), strict=True)
        largest = max(float(jnp.abs(new - old).max()) for old, new in pairs)
        assert largest == pytest.approx(rate, rel=1e-2), name  # Adam's first step.


@pytest.mark.parametrize("task", [name for name in TASKS if not name.startswith("maze2d")])
def test_every_task_has_an_entry_of_its_own(task):
    fitting = [start for start in rebrac.RebracConfig.published if task.startswith(start)]
    assert len(fitting) == 1
    assert rebrac.RebracConfig.for_task(task).hidden == (256, 256, 256)


def test_antmaze_is_trained_on_a_hundred_times_the_sparse_reward(batch):
    config = rebrac.RebracConfig.for_task("antmaze-medium-play-v2")
    assert (config.actor_beta, config.critic_beta) == (0.001, 0.0005)
    assert (config.learning_rate, config.discount) == (5e-5, 0.999)
    task_rewards = np.array([-1.0, 0.0], np.float32)
    rewards = config.rewarded(batch._replace(reward=task_rewards)).reward
    np.testing.assert_array_equal(rewards, [0.0, 100.0])
    assert config.value_limit(1.0) == pytest.approx(10 * 200 / 0.001)
