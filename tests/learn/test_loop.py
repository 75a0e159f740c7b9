"""The compiled loop: calls may be cut anywhere, and its totals are what they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemrl
from gemrl.learn.loop import no_totals, run_updates
from gemrl.learn.spec import unpack
from gemrl.methods import method_of

OBS, ACTION, BATCH, STEPS = 3, 2, 4, 40
CONFIG = gemrl.BcConfig(hidden=(8,), batch_size=BATCH)
WIDTH = 2 * OBS + ACTION + 2


def toy(state, batch, config):
    """An update whose every number can be told by hand."""
    x = batch.obs[0, 0]
    return state + x, {"toy/x": x, "toy/largest": jnp.abs(x), "toy/state": state}


def toy_minibatches(values):
    minibatches = np.zeros((len(values), BATCH, WIDTH), np.float32)
    minibatches[:, 0, 0] = values
    return minibatches


def run(update, state, minibatches, pieces, start=0, totals=None, config=CONFIG):
    """Updates in pieces that end at the given numbers."""
    if totals is None:
        batch = unpack(jnp.asarray(minibatches[0]), OBS, ACTION)
        totals = no_totals(update, state, batch, config)
    at = start
    for end in pieces:
        state, totals = run_updates()(
            *(state, totals, jnp.asarray(minibatches), start, at, end),
            **{"update": update, "config": config, "obs_dim": OBS, "action_dim": ACTION},
        )
        at = end
    return state, totals


def cuts(count):
    """Ways to cut so many updates into pieces, some of them empty."""
    inner = st.lists(st.integers(0, count), max_size=6)
    return inner.map(lambda ends: [*sorted(ends), count])


@pytest.fixture(scope="module")
def minibatches():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(STEPS, BATCH, WIDTH)).astype(np.float32)
    rows[..., OBS : OBS + ACTION] = np.clip(rows[..., OBS : OBS + ACTION], -1, 1)
    rows[..., -1] = 1
    return rows


@pytest.fixture(scope="module")
def bc_updates(minibatches):
    """An update, a function that gives its fresh state, and what forty updates in one go make
    of it.
    """
    method = method_of(CONFIG)
    update = method.phases(CONFIG)[0].update

    def fresh():
        state = method.init(CONFIG, OBS, ACTION, jax.random.key(0))
        return jax.tree.map(jnp.copy, state)

    return update, fresh, run(update, fresh(), minibatches, [STEPS])


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@settings(max_examples=25, deadline=None)
@given(pieces=cuts(STEPS))
def test_updates_in_pieces_are_those_in_one_go_bit_for_bit_with_their_totals(
    pieces, bc_updates, minibatches
):
    update, fresh, whole = bc_updates
    assert_same(run(update, fresh(), minibatches, pieces), whole)


@settings(max_examples=10, deadline=None)
@given(edge=st.integers(1, STEPS - 1))
def test_updates_in_two_windows_are_those_in_one_bit_for_bit(edge, bc_updates, minibatches):
    update, fresh, whole = bc_updates
    # Windows are of one shape; what lies past the updates asked for is not looked at.
    padding = np.full((STEPS, BATCH, WIDTH), np.nan, np.float32)
    first = np.concatenate([minibatches[:edge], padding])[:STEPS]
    second = np.concatenate([minibatches[edge:], padding])[:STEPS]
    state, totals = run(update, fresh(), first, [edge])
    assert_same(run(update, state, second, [STEPS], edge, totals), whole)


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.integers(-1000, 1000), min_size=STEPS, max_size=STEPS),
    pieces=cuts(STEPS),
)
def test_sums_are_sums_and_metrics_named_largest_are_maxima(values, pieces):
    state, totals = run(toy, jnp.float32(0), toy_minibatches(values), pieces)
    # Whole numbers of this size are exact in single precision.
    assert float(state) == sum(values)
    assert set(totals.sums) == {"toy/x", "toy/state"}
    assert set(totals.largest) == {"toy/largest"}
    assert float(totals.sums["toy/x"]) == sum(values)
    states = np.cumsum([0, *values])[:-1]
    assert float(totals.sums["toy/state"]) == pytest.approx(float(states.sum()), rel=1e-5)
    assert float(totals.largest["toy/largest"]) == max(abs(value) for value in values)
    assert int(totals.broken) == -1


@settings(max_examples=30, deadline=None)
@given(
    bad=st.lists(st.integers(0, STEPS - 1), min_size=1, max_size=4),
    value=st.sampled_from([np.nan, np.inf, -np.inf]),
    pieces=cuts(STEPS),
)
def test_broken_is_the_first_bad_update_wherever_calls_are_cut(bad, value, pieces):
    values = np.ones(STEPS)
    values[bad] = value
    _, totals = run(toy, jnp.float32(0), toy_minibatches(values), pieces)
    assert int(totals.broken) == min(bad)


def test_updates_before_the_first_asked_for_are_not_made():
    values = np.arange(STEPS)
    state, totals = run(toy, jnp.float32(0), toy_minibatches(values), [STEPS], start=0)
    assert float(state) == values.sum()
    # The window holds updates 100 to 139 of a phase.
    state, totals = run(toy, jnp.float32(0), toy_minibatches(values), [107], start=100)
    assert float(state) == values[:7].sum()
    assert float(totals.largest["toy/largest"]) == 6
