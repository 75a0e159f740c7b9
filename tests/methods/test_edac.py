"""EDAC: the likeness of slopes, what it does to the critics, and that it is SAC-N without it."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_losses import ACT, OBS, ROWS, make_batch, q_of, same_bits

from gemrl.errors import ConfigError
from gemrl.methods import edac, sacn
from gemrl.methods.sac import soft_init

CONFIG = edac.EdacConfig(hidden=(8,), batch_size=ROWS, critics=3, eta=2.0)
update = jax.jit(edac.update, static_argnums=2)


@pytest.fixture(scope="module")
def batch():
    return make_batch()


@pytest.fixture(scope="module")
def state():
    return soft_init(CONFIG, OBS, ACT, jax.random.key(5))


def slopes(critics, batch, step=1e-6):
    """[M, B, A] by central differences in float64."""
    columns = []
    for unit in np.eye(ACT):
        up, down = (
            q_of(critics, batch._replace(action=np.float64(batch.action) + sign * step * unit))
            for sign in (1, -1)
        )
        columns.append((up - down) / (2 * step))
    return np.stack(columns, axis=-1)


def test_likeness_is_the_mean_cosine_of_slopes_summed_over_pairs(state, batch):
    slope = slopes(state.critics, batch)
    unit = slope / np.linalg.norm(slope, axis=-1, keepdims=True)
    cosines = np.einsum("iba,jba->bij", unit, unit) * (1 - np.eye(3))
    expected = cosines.sum(axis=(1, 2)).mean() / 2
    assert float(edac.likeness(state.critics, batch)) == pytest.approx(expected, abs=1e-4)


def test_critics_that_are_the_same_are_fully_alike(state, batch):
    same = (state.critics[0],) * 4
    assert float(edac.likeness(same, batch)) == pytest.approx(4, abs=1e-3)


def test_a_critic_without_a_slope_has_a_finite_gradient(state, batch):
    flat = jax.tree.map(jnp.zeros_like, state.critics[0])
    grads = jax.grad(lambda c: edac.likeness(c, batch))((flat, *state.critics[1:]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_descending_the_loss_makes_slopes_less_alike(state, batch):
    config = replace(CONFIG, eta=1_000.0, learning_rate=1e-2)
    after, _ = update(state, batch, config)
    assert float(edac.likeness(after.critics, batch)) < float(edac.likeness(state.critics, batch))


def test_with_no_weight_on_likeness_it_is_sac_n(state, batch):
    ours, _ = update(state, batch, replace(CONFIG, eta=0.0))
    plain = sacn.SacNConfig(hidden=(8,), batch_size=ROWS, critics=3)
    theirs, _ = jax.jit(sacn.update, static_argnums=2)(state, batch, plain)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_likeness_moves_the_critics_and_neither_actor_nor_temperature(state, batch):
    one, two = (update(state, batch, replace(CONFIG, eta=eta))[0] for eta in (0.0, 50.0))
    assert not same_bits(one.critics, two.critics)
    assert same_bits(one.actor, two.actor)
    assert same_bits(one.log_temperature, two.log_temperature)


def test_targets_stay_as_they_are_but_for_following(state, batch):
    after, _ = update(state, batch, replace(CONFIG, polyak=1.0))
    assert same_bits(after.targets, after.critics)
    assert not same_bits(after.targets, eqx.filter(state.targets, eqx.is_array))


@pytest.mark.parametrize(
    ("task", "eta"),
    [("maze2d-large-v1", 0.1), ("hopper-medium-v2", 1.0), ("walker2d-medium-expert-v2", 5.0)],
)
def test_eta_is_the_published_one(task, eta):
    assert edac.EdacConfig.for_task(task).eta == eta


def test_one_critic_has_no_pair_to_compare():
    with pytest.raises(ConfigError, match="critics = 1: must be at least 2"):
        edac.EdacConfig(critics=1)
