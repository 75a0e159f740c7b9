"""What decides the scores of the methods that make actions of noise: FQL, IFQL, IDQL, Diffusion-QL.

Closed forms are computed again in NumPy, from the networks' own weights.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gemrl.errors import ConfigError
from gemrl.maths.score import lcb
from gemrl.methods import diffusionql, fql, idql, ifql, iql, method_named
from gemrl.methods.actor_critic import values
from gemrl.methods.generative import (
    Diffusion,
    Flow,
    OneStep,
    diffusion_loss,
    flow_loss,
    plain_field,
    vp_rates,
)
from gemrl.methods.implicit import update_implicit
from gemrl.methods.protocol import Batch

OBS, ACT, ROWS = 3, 2, 16
TINY = {"hidden": (16, 16), "batch_size": ROWS}
KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(0, 1, shape), jnp.float32)

    return Batch(
        obs=normal(ROWS, OBS),
        action=jnp.tanh(normal(ROWS, ACT)),
        reward=normal(ROWS),
        next_obs=normal(ROWS, OBS),
        mask=jnp.asarray(np.arange(ROWS) % 4 != 0, jnp.float32),
    )


def started(method, **settings):
    """A method's module, its settings and its first state."""
    config = method.METHOD.config(**(TINY | settings))
    return config, method.init(config, OBS, ACT, jax.random.key(0))


def in_numpy(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same(one, other, **tolerance):
    for a, b in zip(in_numpy(one), in_numpy(other), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def moved(one, other):
    return any(
        not np.array_equal(a, b) for a, b in zip(in_numpy(one), in_numpy(other), strict=True)
    )


def mish(x):
    return x * np.tanh(np.log1p(np.exp(x)))


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def numpy_field(field, activation, obs, action, time):
    """A plain field from its weights."""
    x = np.asarray(obs) @ np.asarray(field.from_state.weight) + np.asarray(field.from_state.bias)
    x = x + np.asarray(action) @ np.asarray(field.from_action)
    x = x + np.asarray(time) @ np.asarray(field.from_time)
    for layer in field.body.layers.layers:
        x = activation(x) @ np.asarray(layer.weight) + np.asarray(layer.bias)
    return x


def diffusion_of(steps, clip_start):
    field = plain_field(OBS, ACT, (16, 16), KEY, activation="mish", times=steps)
    return Diffusion(field, steps, clip_start=clip_start)


# Samplers


def test_a_flow_takes_euler_steps_along_its_velocity(batch):
    flow = Flow(plain_field(OBS, ACT, (16, 16), KEY, activation="gelu", times=1), 4)
    noise = jax.random.normal(KEY, (ROWS, ACT))
    expected = np.asarray(noise)
    for time in (0.0, 0.25, 0.5, 0.75):
        velocity = numpy_field(flow.net, tanh_gelu, batch.obs, expected, np.full((ROWS, 1), time))
        expected = expected + velocity / 4
    np.testing.assert_allclose(flow(batch.obs, noise), expected.clip(-1, 1), atol=1e-5)


@pytest.mark.parametrize("steps", [1, 5, 50])
def test_the_variance_preserving_schedule_ends_at_the_same_noise_for_every_t(steps):
    rates = vp_rates(steps)
    assert (np.diff(rates) > 0).all()
    # The rate's integral over unit time is 0.1 + (10 - 0.1) / 2.
    np.testing.assert_allclose(np.prod(1 - rates), np.exp(-5.05))


def test_idqls_step_removes_the_seen_noise_and_adds_the_forward_variance(batch):
    diffusion = diffusion_of(3, clip_start=False)
    noise = jax.random.normal(KEY, (ROWS, 3, ACT))
    rates = vp_rates(3)
    kept = np.cumprod(1 - rates)
    x = np.asarray(noise)[:, 0]
    for number, step in enumerate((2, 1, 0)):
        place = np.tile(np.eye(3)[step], (ROWS, 1))
        seen = numpy_field(diffusion.net, mish, batch.obs, x, place)
        x = (x - rates[step] / np.sqrt(1 - kept[step]) * seen) / np.sqrt(1 - rates[step])
        if step > 0:
            x = x + np.sqrt(rates[step]) * np.asarray(noise)[:, number + 1]
        x = x.clip(-1, 1)
    found = diffusion(batch.obs, noise.reshape(ROWS, -1))
    np.testing.assert_allclose(found, x, atol=1e-4)


def test_diffusion_qls_step_draws_from_the_posterior_of_a_clipped_start(batch):
    diffusion = diffusion_of(3, clip_start=True)
    noise = jax.random.normal(KEY, (ROWS, 3, ACT))
    kept = np.cumprod(1 - vp_rates(3))
    x = np.asarray(noise)[:, 0]
    for number, step in enumerate((2, 1, 0)):
        place = np.tile(np.eye(3)[step], (ROWS, 1))
        seen = numpy_field(diffusion.net, mish, batch.obs, x, place)
        start = ((x - np.sqrt(1 - kept[step]) * seen) / np.sqrt(kept[step])).clip(-1, 1)
        if step == 0:
            x = start
            break
        # Bayes' rule with the prior N(sqrt(kept') start, 1 - kept') and one forward step.
        alpha, before = kept[step] / kept[step - 1], kept[step - 1]
        precision = 1 / (1 - before) + alpha / (1 - alpha)
        mean = (np.sqrt(before) * start / (1 - before) + np.sqrt(alpha) * x / (1 - alpha)) / (
            precision
        )
        x = mean + np.asarray(noise)[:, number + 1] / np.sqrt(precision)
    found = diffusion(batch.obs, noise.reshape(ROWS, -1))
    np.testing.assert_allclose(found, x, atol=1e-4)


@pytest.mark.parametrize("steps", [5, 20])
def test_every_draw_of_diffusion_is_part_of_its_noise(steps):
    diffusion = diffusion_of(steps, clip_start=True)
    assert diffusion.noise_size == steps * ACT
    at = 0.1 * jax.random.normal(KEY, (diffusion.noise_size,))
    once, again = (diffusion(jnp.ones(OBS), at) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    slopes = jax.jacobian(lambda noise: diffusion(jnp.ones(OBS), noise))(at)
    assert (jnp.abs(slopes).max(axis=0) > 0).all()


def samplers():
    return {
        "one step": OneStep(plain_field(OBS, ACT, (16, 16), KEY, activation="gelu")),
        "flow": Flow(plain_field(OBS, ACT, (16, 16), KEY, activation="gelu", times=1), 10),
        "diffusion": diffusion_of(5, clip_start=True),
        "clipped diffusion": diffusion_of(5, clip_start=False),
    }


@pytest.mark.parametrize("name", samplers())
def test_one_state_serves_many_candidates(name):
    sampler = samplers()[name]
    noise = 3 * jax.random.normal(KEY, (7, sampler.noise_size))
    together = sampler(jnp.ones(OBS), noise)
    alone = jnp.stack([sampler(jnp.ones(OBS), row) for row in noise])
    assert together.shape == (7, ACT)
    assert (jnp.abs(together) <= 1).all()
    np.testing.assert_allclose(together, alone, atol=1e-5)


# Losses of the models of the data


def test_flow_matching_regresses_the_velocity_of_the_straight_way(batch):
    flow = Flow(plain_field(OBS, ACT, (16, 16), KEY, activation="gelu", times=1), 10)
    noise_key, time_key = jax.random.split(KEY)
    noise = np.asarray(jax.random.normal(noise_key, (ROWS, ACT)))
    time = np.asarray(jax.random.uniform(time_key, (ROWS, 1)))
    action = np.asarray(batch.action)
    velocity = numpy_field(flow.net, tanh_gelu, batch.obs, noise + time * (action - noise), time)
    expected = np.square(velocity - (action - noise)).mean()
    np.testing.assert_allclose(flow_loss(flow, batch, KEY), expected, rtol=1e-5)


def test_denoising_regresses_the_noise_in_an_action(batch):
    diffusion = diffusion_of(5, clip_start=True)
    noise_key, step_key = jax.random.split(KEY)
    noise = np.asarray(jax.random.normal(noise_key, (ROWS, ACT)))
    step = np.asarray(jax.random.randint(step_key, (ROWS,), 0, 5))
    assert len(set(step.tolist())) >= 3
    kept = np.cumprod(1 - vp_rates(5))[step][:, None]
    noised = np.sqrt(kept) * np.asarray(batch.action) + np.sqrt(1 - kept) * noise
    seen = numpy_field(diffusion.net, mish, batch.obs, noised, np.eye(5)[step])
    found = diffusion_loss(diffusion, batch, KEY)
    np.testing.assert_allclose(found, np.square(seen - noise).mean(), rtol=1e-5)


# FQL


@pytest.mark.parametrize("normalize_q", [True, False])
def test_fqls_policy_loss_is_matching_and_distillation_less_q(batch, normalize_q):
    config, state = started(fql, alpha=2.5, normalize_q=normalize_q)
    flow, one_step = state.policies.flow, state.policies.one_step
    flow_key, noise_key = jax.random.split(KEY)
    noise = jax.random.normal(noise_key, (ROWS, ACT))
    action = np.asarray(one_step.net(batch.obs, noise))
    distance = np.square(action - np.asarray(flow(batch.obs, noise))).mean()
    q = np.asarray(values(state.critics, batch.obs, action.clip(-1, 1))).mean(axis=0)
    size = np.abs(q).mean() if normalize_q else 1.0
    expected = flow_loss(flow, batch, flow_key) + 2.5 * distance - q.mean() / size
    found, _ = fql.policy_loss(state.policies, state.critics, batch, KEY, config)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_fqls_flow_learns_from_the_data_alone(batch):
    config, state = started(fql)
    slopes = jax.grad(fql.policy_loss, has_aux=True)(
        state.policies, state.critics, batch, KEY, config
    )[0]
    alone = jax.grad(flow_loss)(state.policies.flow, batch, jax.random.split(KEY)[0])
    assert_same(slopes.flow, alone, atol=1e-6)
    assert all(np.abs(leaf).max() > 0 for leaf in in_numpy(slopes.one_step))


def test_fqls_target_is_the_critics_mean_or_where_asked_their_minimum(batch):
    config, state = started(fql)
    noise = jax.random.normal(KEY, (ROWS, ACT))
    action = state.policies.one_step(batch.next_obs, noise)
    q = np.asarray(values(state.target_critics, batch.next_obs, action))
    for pessimistic, next_q in ((False, q.mean(axis=0)), (True, q.min(axis=0))):
        asked = dataclasses.replace(config, pessimistic=pessimistic)
        expected = np.asarray(batch.reward) + 0.99 * np.asarray(batch.mask) * next_q
        np.testing.assert_allclose(fql.backup(state, batch, KEY, asked), expected, rtol=1e-5)


def test_fqls_critics_are_layer_normalized_gelu_networks():
    _, state = started(fql)
    for critic in state.critics:
        assert critic.norm is not None
        assert critic.net.norms is not None
        assert critic.net.activation == "gelu"


def test_fqls_published_settings_do_not_normalize_and_other_tasks_do():
    settings = fql.FqlConfig.for_task
    assert settings("antmaze-large-play-v2").alpha == 3
    assert settings("antmaze-medium-diverse-v2").alpha == 10
    assert not settings("antmaze-umaze-v2").normalize_q
    assert settings("antmaze-umaze-v2", alpha=7.0).alpha == 7
    assert settings("halfcheetah-medium-v2").alpha == 3
    assert settings("halfcheetah-medium-replay-v2").alpha == 30
    assert settings("hopper-medium-v2").alpha == 100
    assert not settings("walker2d-medium-v2").normalize_q
    assert settings("maze2d-medium-v1").normalize_q


def test_ifqls_value_is_normalized_like_its_critics():
    _, state = started(ifql)
    net = state.critics.learner.value.net
    assert net.activation == "gelu"
    assert net.norms is not None


# IFQL and IDQL


@pytest.mark.parametrize("method", [ifql, idql])
def test_the_critics_are_trained_as_iqls_are(method, batch):
    config, state = started(method)
    critics, _ = update_implicit(state.critics, batch, config)
    other = iql.init(config.iql(), OBS, ACT, KEY)
    learner = state.critics.learner
    opt_state = config.optimizer().init((learner, other.actor))
    other = iql.IqlState(learner, learner.critics, other.actor, opt_state)
    other, _ = iql.update(other, batch, config.iql())
    assert_same(critics.learner, other.learner, atol=1e-6)
    assert_same(critics.targets, other.targets, atol=1e-6)


@pytest.mark.parametrize("method", [ifql, idql])
def test_the_proposal_never_sees_a_reward(method, batch):
    config, state = started(method)
    step = jax.jit(method.update, static_argnums=2)
    one, _ = step(state, batch, config)
    other, _ = step(state, batch._replace(reward=batch.reward + 10), config)
    assert_same(method.models(one).actor, method.models(other).actor, atol=0, rtol=0)
    assert moved(method.models(one).actor, method.models(state).actor)
    assert moved(method.models(one).critics, method.models(other).critics)


@pytest.mark.parametrize("method", [ifql, idql])
def test_the_expectile_is_the_published_one(method):
    settings = method.METHOD.config.for_task
    assert settings("antmaze-large-play-v2").expectile == 0.9
    assert settings("hopper-medium-v2").expectile == 0.7
    with pytest.raises(ConfigError, match="expectile"):
        settings(None, expectile=1.0)


def test_idql_leaves_inputs_out_in_training_alone(batch):
    _, state = started(idql, dropout=0.5)
    net, place = state.diffusion.net, jnp.ones(5) / 5
    without = net(batch.obs, batch.action, place)
    np.testing.assert_array_equal(without, net(batch.obs, batch.action, place))
    for key in (KEY, jax.random.key(4)):
        assert not np.allclose(without, net(batch.obs, batch.action, place, key))
    block = eqx.tree_at(lambda b: b.norm.scale, net.body.blocks[0], jnp.zeros(16))
    x = jnp.ones((ROWS, 16))
    # With nothing let through the norm, what is dropped inside does not touch the residual.
    np.testing.assert_array_equal(block(x, KEY), block(x, None))


def test_idql_proposes_by_the_average_and_ranks_by_the_targets(batch):
    config, state = started(idql, average_rate=0.25)
    after, _ = idql.update(state, batch, config)
    expected = jax.tree.map(lambda a, b: 0.75 * a + 0.25 * b, state.average, after.diffusion)
    found = idql.models(after)
    assert_same(found.actor, expected, atol=1e-6)
    assert_same(found.critics, after.critics.targets, atol=0)


# Diffusion-QL


def test_diffusion_qls_q_loss_is_of_one_critic_by_the_size_of_the_other(batch):
    config, state = started(diffusionql, eta=2.0)
    seen = set()
    for number in range(8):
        key = jax.random.key(number)
        cloning_key, noise_key, _ = jax.random.split(key, 3)
        noise = jax.random.normal(noise_key, (ROWS, state.actor.noise_size))
        q = np.asarray(values(state.critics, batch.obs, state.actor(batch.obs, noise)))
        cloning = float(diffusion_loss(state.actor, batch, cloning_key))
        either = [cloning - 2 * q[i].mean() / np.abs(q[1 - i]).mean() for i in (0, 1)]
        found, _ = diffusionql.actor_loss(state.actor, state.critics, batch, key, config)
        matching = [i for i in (0, 1) if np.isclose(found, either[i], rtol=1e-4)]
        assert len(matching) == 1
        seen.update(matching)
    assert seen == {0, 1}


def test_diffusion_qls_policy_climbs_through_every_denoising_step(batch):
    config, state = started(diffusionql)

    def slopes(eta):
        asked = dataclasses.replace(config, eta=eta)
        loss = jax.grad(diffusionql.actor_loss, has_aux=True)
        return loss(state.actor, state.critics, batch, KEY, asked)[0].net.from_time

    by_q = np.abs(np.asarray(slopes(1.0)) - np.asarray(slopes(0.0))).max(axis=1)
    assert by_q.shape == (5,)
    assert (by_q > 1e-6).all()


def test_the_scale_of_q_does_not_move_diffusion_qls_policy(batch):
    config, state = started(diffusionql)
    larger = tuple(
        eqx.tree_at(
            lambda c: (c.net.layers[-1].weight, c.net.layers[-1].bias),
            critic,
            (100 * critic.net.layers[-1].weight, 100 * critic.net.layers[-1].bias),
        )
        for critic in state.critics
    )
    slopes = [
        jax.grad(diffusionql.actor_loss, has_aux=True)(state.actor, critics, batch, KEY, config)[0]
        for critics in (state.critics, larger)
    ]
    assert_same(*slopes, atol=1e-5)


def test_the_max_q_backup_takes_each_critics_best_of_ten_actions(batch):
    for max_q_backup, count in ((False, 1), (True, 10)):
        config, state = started(diffusionql, max_q_backup=max_q_backup)
        noise = jax.random.normal(KEY, (count, ROWS, state.average.noise_size))
        drawn = [state.average(batch.next_obs, one) for one in noise]
        q = np.stack([values(state.target_critics, batch.next_obs, a) for a in drawn])
        next_q = q.max(axis=0).min(axis=0)
        expected = np.asarray(batch.reward) + 0.99 * np.asarray(batch.mask) * next_q
        found = diffusionql.backup(state, batch, KEY, config)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_diffusion_qls_average_waits_and_then_moves_at_its_turn(batch):
    config, state = started(diffusionql, average_start=2, average_every=2, average_rate=0.5)
    step = jax.jit(diffusionql.update, static_argnums=2)
    moves = []
    for _ in range(5):
        after, _ = step(state, batch, config)
        moves.append(moved(state.average, after.average))
        assert moved(state.actor, after.actor)
        state = after
    assert moves == [False, False, True, False, True]


def test_diffusion_qls_gradients_are_scaled_back_to_the_published_norm():
    config, state = started(diffusionql, grad_norm=2.0)
    slopes = jax.tree.map(lambda leaf: jnp.full_like(leaf, 50.0), state.actor)
    optimizer = config.actor_optimizer()
    _, after = optimizer.update(slopes, optimizer.init(state.actor))
    # Adam's first moment is a tenth of the gradient that it was given.
    moment = np.sqrt(sum(np.square(leaf).sum() for leaf in in_numpy(after[1][0].mu)))
    np.testing.assert_allclose(moment, 0.2, rtol=1e-4)


def test_diffusion_qls_published_settings_are_by_task():
    settings = diffusionql.DiffusionQlConfig.for_task
    assert settings("walker2d-medium-v2").grad_norm == 1
    assert settings("walker2d-medium-expert-v2").grad_norm == 5
    large = settings("antmaze-large-play-v2")
    assert (large.eta, large.max_q_backup) == (4.5, True)
    umaze = settings("antmaze-umaze-v2")
    assert (umaze.eta, umaze.max_q_backup) == (0.5, False)
    assert settings("antmaze-medium-play-v2").actor_learning_rate == 1e-3
    with pytest.raises(ConfigError, match="critics"):
        settings(None, critics=3)


def test_diffusion_qls_antmaze_rewards_are_the_papers(batch):
    config = diffusionql.DiffusionQlConfig.for_task("antmaze-umaze-v2")
    reward = jnp.asarray([0.0, 1.0])
    found = config.rewarded(batch._replace(reward=reward - 1)).reward
    np.testing.assert_allclose(found, 4 * (np.array([0.0, 1.0]) - 0.5))


# Deployment


@pytest.mark.parametrize(
    ("name", "count"), [("fql", 1), ("ifql", 32), ("idql", 64), ("diffusionql", 50)]
)
def test_a_method_is_deployed_with_its_papers_count_of_samples_and_no_anchor(name, count):
    deploy = method_named(name).deploy
    assert deploy is not None
    assert (deploy["n"], deploy["anchor"], deploy["wp"]) == (count, "none", 0.0)
    # Samples are ranked by the smaller of two critics, which the lower bound with lam 1 is.
    q = jax.random.normal(KEY, (2, 9))
    bound = lcb(q, jnp.float32(deploy.get("lam", 1.0)))
    np.testing.assert_allclose(bound, np.asarray(q).min(axis=0), atol=1e-6)
