"""A task with two good actions and none between them: unimodal actors average, GEM must not."""

import numpy as np
import pytest

import gemrl

MODES = np.array([-0.6, 0.6])
SMALL = {"hidden": (32, 32), "batch_size": 64, "learning_rate": 1e-3}


def two_mode_data(reward_low, reward_high):
    """One state with a little noise; actions around -0.6 and +0.6, each with its own reward."""
    rng = np.random.default_rng(0)
    count = 2_000
    side = rng.integers(0, 2, count)
    actions = rng.normal(MODES[side], 0.05)[:, None]
    observations = rng.normal(0.0, 0.01, (count, 2))
    rewards = np.where(side == 0, reward_low, reward_high)
    return gemrl.from_arrays(observations, actions, rewards, terminals=np.ones(count))


@pytest.fixture(scope="module")
def states():
    return np.random.default_rng(1).normal(0.0, 0.01, (12, 2)).astype(np.float32)


def train_gem(data, out):
    config = gemrl.GemConfig(steps=1_000, pretrain_steps=500, components=4, critics=2, **SMALL)
    return gemrl.train(data, config, out, quiet=True)


@pytest.fixture(scope="module")
def even_gem(tmp_path_factory):
    """GEM where both modes are equally good."""
    return train_gem(two_mode_data(1.0, 1.0), tmp_path_factory.mktemp("even"))


@pytest.fixture(scope="module", params=[(0.0, 1.0), (1.0, 0.0)], ids=["right", "left"])
def uneven(request, tmp_path_factory):
    """GEM where one mode is better, and that mode."""
    policy = train_gem(two_mode_data(*request.param), tmp_path_factory.mktemp("uneven"))
    return policy, MODES[int(np.argmax(request.param))]


def distance_to_a_mode(actions):
    return np.abs(np.asarray(actions)[..., :1] - MODES).min(axis=-1)


@pytest.mark.parametrize(
    "config",
    [
        gemrl.BcConfig(steps=500, **SMALL),
        gemrl.IqlConfig(steps=500, critics=2, **SMALL),
    ],
    ids=["bc", "iql"],
)
def test_unimodal_actors_fall_between_the_modes(config, states, tmp_path):
    policy = gemrl.train(two_mode_data(1.0, 1.0), config, tmp_path, quiet=True)
    assert (np.abs(policy.actor(states).mode()) < 0.3).all()


def test_gem_decides_for_a_mode_in_every_state(even_gem, states):
    for seed in range(5):
        record = even_gem.decide(states, gemrl.Knobs(n=64), seed=seed)
        assert (distance_to_a_mode(record.action) < 0.2).all()


def test_gems_anchor_is_a_mode_where_the_mean_of_its_mixture_is_not(even_gem, states):
    mixture = even_gem.actor(states)
    mean = (np.exp(mixture.log_weights)[..., None] * mixture.means).sum(axis=1)
    assert (distance_to_a_mode(mixture.mode()) < 0.2).all()
    assert (distance_to_a_mode(mean) > 0.2).all()


def test_gems_actor_and_density_cover_both_modes(even_gem, states):
    for mixture in (even_gem.actor(states), even_gem.behavior(states)):
        for mode in MODES:
            near = np.abs(mixture.means[..., 0] - mode) < 0.2
            weight = (np.exp(mixture.log_weights) * near).sum(axis=1)
            assert (np.abs(weight - 0.5) < 0.2).all()


def test_support_keeps_gem_off_the_gap_between_the_modes(even_gem, states):
    density = even_gem.behavior(states)
    at_modes = [np.asarray(density.log_prob(np.full((12, 1), mode, np.float32))) for mode in MODES]
    between = np.asarray(density.log_prob(np.zeros((12, 1), np.float32)))
    assert (np.minimum(*at_modes) - between > 2).all()


def test_gem_picks_the_better_mode(uneven, states):
    policy, better = uneven
    record = policy.decide(states, gemrl.Knobs(n=64))
    assert (np.abs(record.candidates[:, 0, 0] - better) < 0.2).all()
    assert (np.abs(record.action[:, 0] - better) < 0.2).all()


def test_critics_learn_the_rewards_of_the_modes(uneven, states):
    policy, better = uneven
    actions = np.broadcast_to(np.float32([[better], [-better]]), (12, 2, 1))
    values = policy.q_values(states, actions)
    np.testing.assert_allclose(values[..., 0], 1.0, atol=0.15)
    np.testing.assert_allclose(values[..., 1], 0.0, atol=0.15)
