"""A temperature draws among the candidates by their scores, with every backend and in every way."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import random_method, random_policy, random_states
from scipy.special import softmax

import gemrl
from gemrl.decide import dense
from gemrl.errors import ConfigError, KnobError
from gemrl.evaluate.reproduce import comparison
from gemrl.evaluate.reproduce.budget import Budget
from gemrl.evaluate.reproduce.study import Study
from gemrl.evaluate.tune import grid_for
from gemrl.evaluate.tune.choices import Grid, grid_of
from gemrl.learn.bundle import Bundle, config_from_json, save_bundle

ROWS = 3000
CHOSEN_FROM = ("candidates", "q", "lcb", "log_support", "support_z", "score", "n_scored", "wp")


@pytest.fixture(scope="module")
def policy(backend):
    return random_policy(0, backend)


@pytest.fixture(scope="module")
def state(policy):
    return random_states(policy, 1, 0)[0]


def drawn_many(policy, state, knobs):
    """One state, decided with many seeds."""
    return policy.decide(np.tile(state, (ROWS, 1)), knobs, seed=np.arange(ROWS))


@pytest.mark.parametrize("temperature", [0.02, 0.3])
def test_candidates_are_drawn_in_proportion_to_exp_score_over_temperature(
    policy, state, temperature
):
    record = drawn_many(policy, state, gemrl.Knobs(n=6, temperature=temperature))
    best_first = np.argsort(-record.score, axis=1)
    chances = softmax(np.float64(record.score) / temperature, axis=1)
    chances = np.take_along_axis(chances, best_first, axis=1)
    place = (best_first == record.chosen[:, None]).argmax(axis=1)
    seen = np.bincount(place, minlength=7)
    spread = np.sqrt((chances * (1 - chances)).sum(axis=0))
    assert (np.abs(seen - chances.sum(axis=0)) < 4 * spread + 1e-9).all()
    # The test can tell: the best alone, or any alike, would not pass.
    assert 0.2 * ROWS < chances[:, 0].sum() < 0.95 * ROWS


def test_a_temperature_changes_the_choice_and_nothing_that_is_chosen_from(policy, state):
    cold, warm = (drawn_many(policy, state, gemrl.Knobs(n=6, temperature=t)) for t in (0.0, 0.3))
    for name in CHOSEN_FROM:
        np.testing.assert_array_equal(getattr(warm, name), getattr(cold, name), err_msg=name)
    assert (warm.chosen != cold.chosen).any()
    rows = np.arange(ROWS)
    np.testing.assert_array_equal(warm.action, warm.candidates[rows, warm.chosen])
    np.testing.assert_array_equal(warm.violation, warm.support_z[rows, warm.chosen] < -2)


@pytest.mark.parametrize("anchor", ["mode", "none"])
def test_nearly_no_heat_takes_the_best_and_great_heat_takes_any(policy, state, anchor):
    knobs = gemrl.Knobs(n=4, anchor=anchor)
    cold = drawn_many(policy, state, dataclasses.replace(knobs, temperature=1e-9))
    np.testing.assert_array_equal(cold.chosen, cold.score.argmax(axis=1))
    hot = drawn_many(policy, state, dataclasses.replace(knobs, temperature=1e6))
    shares = np.bincount(hot.chosen, minlength=cold.score.shape[1]) / ROWS
    np.testing.assert_allclose(shares, 1 / cold.score.shape[1], atol=4 * 0.5 / np.sqrt(ROWS))


def test_without_candidates_the_anchor_is_executed_at_any_temperature(policy, state):
    alone = policy.decide(state, gemrl.Knobs(n=0, temperature=5.0), seed=9)
    np.testing.assert_array_equal(alone.action, policy.decide(state, gemrl.Knobs(n=0)).action)


def test_smoothing_takes_the_mean_of_several_draws_without_replacement(policy, state):
    knobs = gemrl.Knobs(n=6, temperature=0.3)
    one = drawn_many(policy, state, knobs)
    three = drawn_many(policy, state, dataclasses.replace(knobs, k_smooth=3))
    np.testing.assert_array_equal(three.chosen, one.chosen)
    # The others besides the first are drawn too: a mean over the three best would not have it in.
    noise = np.stack([gumbel(seed, 7) for seed in range(40)])
    heated = three.score[:40] + np.float32(0.3) * noise
    drawn = np.argsort(-heated, axis=1)[:, :3]
    means = np.take_along_axis(three.candidates[:40], drawn[:, :, None], axis=1).mean(axis=1)
    np.testing.assert_allclose(three.action[:40], means, atol=1e-6)


def gumbel(seed, count):
    """A decision's noise, in double precision."""
    key = jax.random.fold_in(jax.random.key(seed), 0)
    key = jax.random.fold_in(key, np.uint32(2**32 - 1))
    words = [jax.random.key_data(jax.random.fold_in(key, c))[0] for c in range(count)]
    uniform = ((np.array(words, np.uint32) >> 9) + 0.5) / 2**23
    return -np.log(-np.log(uniform))


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_and_batches_draw_as_one_shot_alone(policy, chunk):
    knobs = gemrl.Knobs(n=9, temperature=0.3)
    states, seeds = random_states(policy, 12, 1), np.arange(12)
    whole = policy.decide(states, knobs, seed=seeds)
    chunked = policy.decide(states, knobs, seed=seeds, chunk=chunk)
    np.testing.assert_array_equal(chunked.chosen, whole.chosen)
    for row in range(3):
        alone = policy.decide(states[row], knobs, seed=row)
        assert alone.chosen == whole.chosen[row]
        np.testing.assert_array_equal(alone.action, whole.action[row])


def test_a_record_is_replayed_with_its_draw(policy, state):
    knobs = gemrl.Knobs(n=9, temperature=0.3)
    record = policy.decide(state, knobs, seed=4)
    again = policy.replay(state, record.to_json(), knobs, seed=4)
    assert again.chosen == record.chosen
    np.testing.assert_array_equal(again.action, record.action)


def test_a_record_of_another_temperature_is_not_replayed(policy):
    knobs = gemrl.Knobs(n=9, temperature=0.3)
    states, seeds = random_states(policy, 40, 1), np.arange(40)
    record = policy.decide(states, knobs, seed=seeds)
    with pytest.raises(KnobError, match="other knobs"):
        policy.replay(states, record, dataclasses.replace(knobs, temperature=0.0), seed=seeds)


def test_rows_of_a_batch_may_have_temperatures_of_their_own(policy):
    states = random_states(policy, 12, 2)
    each = [gemrl.Knobs(n=9, temperature=(0.0, 0.1, 3.0)[row % 3]) for row in range(12)]
    together = policy.decide(states, each, seed=np.arange(12))
    for row, knobs in enumerate(each):
        alone = policy.decide(states[row], knobs, seed=row)
        assert alone.chosen == together.chosen[row]
        np.testing.assert_array_equal(alone.action, together.action[row])


def test_a_search_that_a_deadline_ends_draws_among_what_was_scored(policy):
    knobs = gemrl.Knobs(n=9, temperature=0.3)
    states, seeds = random_states(policy, 12, 3), np.arange(12)
    ended = policy.decide_again(
        states, knobs, seed=seeds, block=np.full(12, 5), n_scored=np.full(12, 5)
    )
    smaller = policy.decide(states, dataclasses.replace(knobs, n=4), seed=seeds)
    np.testing.assert_array_equal(ended.chosen, smaller.chosen)
    np.testing.assert_array_equal(ended.action, smaller.action)


def test_another_temperature_needs_no_other_program():
    policy = random_policy(0)
    state = random_states(policy, 1, 0)[0]
    policy.decide(state, gemrl.Knobs(n=6, temperature=0.1))
    programs = dense._decide._cache_size()
    for temperature in (0.2, 0.3, 5.0):
        policy.decide(state, gemrl.Knobs(n=6, temperature=temperature))
    assert dense._decide._cache_size() == programs


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 3.0]), st.sampled_from([1, 4]))
def test_both_backends_draw_the_same(seed, temperature, k_smooth):
    knobs = gemrl.Knobs(n=16, temperature=temperature, k_smooth=k_smooth)
    try:
        fast = random_policy(1, "fast")
    except KnobError as error:
        pytest.skip(str(error))
    states = random_states(fast, 8, seed % 100)
    found, wanted = (policy.decide(states, knobs, seed=seed) for policy in (fast, random_policy(1)))
    np.testing.assert_array_equal(found.chosen, wanted.chosen)
    np.testing.assert_allclose(found.action, wanted.action, atol=1e-5)


# Diffusion-QL, whose paper draws.


def with_rewards(policy, scale):
    """The same networks, as if trained on rewards of another scale."""
    spec = dataclasses.replace(policy.spec, reward_scale=scale)
    return gemrl.Policy(Bundle(policy.models, spec, policy.bundle.manifest), "jax")


@pytest.mark.parametrize(
    ("scale", "own", "temperature"), [(1, 1, 1), (0.25, 1, 0.25), (1, 4, 0.25)]
)
def test_diffusion_ql_draws_by_exp_q_in_units_of_its_papers_rewards(scale, own, temperature):
    policy = with_rewards(random_method("diffusionql", reward_scale=own), scale)
    assert policy.default_knobs == gemrl.Knobs(
        n=50, lam=1.0, wp=0.0, anchor="none", temperature=temperature
    )


def test_a_density_of_other_reward_units_changes_no_draw_of_diffusion_ql():
    policy = with_rewards(random_method("diffusionql"), 1.0)
    density = with_rewards(random_method("gem"), 0.1)
    guided = policy.with_density(density)
    states, seeds = random_states(policy, 30, 2), np.arange(30)
    own = policy.decide(states, policy.default_knobs, seed=seeds)
    same = guided.decide(states, guided.knobs_for(None), seed=seeds)
    assert (own.chosen != own.lcb.argmax(axis=1)).any()
    np.testing.assert_array_equal(same.chosen, own.chosen)


def test_tuning_compares_the_best_candidates_and_says_so(capsys):
    policy = with_rewards(random_method("diffusionql"), 1.0).with_density(random_method("gem"))
    assert grid_for(policy).default.temperature == 0
    assert "with a temperature of 0" in capsys.readouterr().err
    for grid in (grid_of, Grid):
        with pytest.raises(ConfigError, match="temperature = 1"):
            grid(policy.default_knobs, (1.0,), (0.0,))


def test_a_policy_without_critics_refuses_a_temperature():
    policy = random_method("bc")
    with pytest.raises(KnobError, match=r"temperature = 2.0: method 'bc' has no critics"):
        policy.decide(random_states(policy, 3, 2), gemrl.Knobs(n=0, wp=0.0, temperature=2.0))


def test_a_study_draws_in_the_units_of_the_density_once_both_are_trained(tmp_path):
    task = "antmaze-umaze-v2"
    study = Study(Budget((task,), methods=("diffusionql",), gem=False), tmp_path)
    untrained = comparison.own_cell(study, task, "diffusionql", 0)
    save(random_method("diffusionql", reward_scale=4.0), study.policy(task, "diffusionql", 0), 1.0)
    # A plan is made before anything is trained, and a training can end before the density's.
    assert comparison.own_cell(study, task, "diffusionql", 0) == untrained
    save(random_method("gem"), study.density(task, 0), 0.1)
    cell = comparison.own_cell(study, task, "diffusionql", 0)
    assert cell.knobs == dataclasses.replace(untrained.knobs, temperature=0.1 / 4)


def save(policy, folder, reward_scale):
    """A policy's bundle, with rewards of this scale."""
    manifest = policy.bundle.manifest
    config = config_from_json(policy.method, manifest["config"])
    spec = dataclasses.replace(policy.spec, reward_scale=reward_scale)
    data = {"source": "none", "fingerprint": "none"}
    save_bundle(folder, policy.method, config, policy.models, spec, task=None, dataset=data)
