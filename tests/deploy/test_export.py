"""An exported file decides as `policy.decide` does."""

import dataclasses
import itertools
import json

import equinox as eqx
import jax
import numpy as np
import onnx
import pytest
from agreement import (
    Agreement,
    agreement_of,
    count,
    expected,
    feeds_for,
    random_policy,
    random_states,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import gemrl
from gemrl.deploy.export.contract import Fixed, contract_of
from gemrl.deploy.export.verify import open_session
from gemrl.deploy.export.write import build, export_policy
from gemrl.errors import BundleError, KnobError, ObservationError

WORDS = ("source", "anchor", "support", "value")
SOME = [
    ("actor", "barycenter", "raw", "zscore"),
    ("behavior", "none", "zscore", "zscore"),
    ("unimodal", "mode", "raw", "raw"),
]
ALL = list(
    itertools.product(
        ("actor", "behavior", "unimodal"),
        ("mode", "barycenter", "none"),
        ("zscore", "raw"),
        ("raw", "zscore"),
    )
)
ROWS = 20


def session_for(policy, knobs, fixed=None):
    return open_session("the model", build(policy, knobs, fixed))


def assert_same(decision, made):
    """All outputs of the graph are those of the record."""
    for name, values in made.items():
        wanted = expected(decision, name)
        if values.dtype.kind == "f":
            np.testing.assert_allclose(values, wanted, rtol=2e-4, atol=2e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(values, wanted, err_msg=name)


@pytest.fixture(scope="module")
def untrained():
    return random_policy(0)


@pytest.fixture(scope="module")
def session(untrained):
    return session_for(untrained, gemrl.Knobs())


def require_equal_with(policy, words):
    knobs = gemrl.Knobs(n=16, lam=0.7, wp=0.3, k_smooth=3, **dict(zip(WORDS, words, strict=True)))
    session = session_for(policy, knobs)
    states, seeds = random_states(policy, ROWS, 1), np.arange(ROWS)
    made = run(session, feeds_for(session, policy, states, knobs, seeds))
    assert_same(policy.decide(states, knobs, seed=seeds), made)
    assert len(made) == 12


@pytest.mark.parametrize("words", SOME)
def test_sources_anchors_supports_and_values_decide_alike(untrained, words):
    require_equal_with(untrained, words)


@pytest.mark.long
@pytest.mark.parametrize("words", ALL)
def test_every_combination_of_words_decides_alike(untrained, words):
    require_equal_with(untrained, words)


@pytest.mark.parametrize(("n", "k_smooth"), [(0, 1), (64, 4)])
def test_one_file_serves_every_n_and_k_smooth(untrained, session, n, k_smooth):
    knobs = gemrl.Knobs(n=n, k_smooth=k_smooth)
    states, seeds = random_states(untrained, ROWS, 2), np.arange(ROWS)
    made = run(session, feeds_for(session, untrained, states, knobs, seeds))
    assert_same(untrained.decide(states, knobs, seed=seeds), made)


@settings(max_examples=25, deadline=None)
@given(
    network=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
    lam=st.floats(0, 4, width=32),
    wp=st.floats(0, 4, width=32),
)
def test_any_network_seed_and_weights_decide_alike(network, seed, lam, wp):
    policy, knobs = random_policy(network), gemrl.Knobs(n=16, lam=lam, wp=wp)
    session = session_for(policy, knobs)
    states, agreement = random_states(policy, ROWS, seed), Agreement()
    made = run(session, feeds_for(session, policy, states, knobs, seed))
    decision = policy.decide(states, knobs, seed=seed)
    count(agreement, decision, made)
    assert agreement.different == agreement.moved == 0
    assert agreement.furthest < 1e-5
    low, high = policy.spec.action_low, policy.spec.action_high
    assert ((low <= made["action"]) & (made["action"] <= high)).all()


def test_a_trained_policy_chooses_the_same_candidate(policy, maze_data):
    found = agreement_of(policy, 1024, 100, maze_data)
    assert found.states == 100
    assert found.different == found.rounded == found.moved == 0
    assert found.near_ties <= 2
    assert found.furthest < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("action_dim", [2, 3, 28])
def test_ten_thousand_states_choose_the_same_candidate(action_dim, tmp_path):
    """Of small networks; `agreement.py` does the same for any run."""
    rng = np.random.default_rng(action_dim)
    states = rng.standard_normal((5000, 6), np.float32)
    side = np.sign(rng.standard_normal((5000, 1), np.float32))
    noise = 0.1 * rng.standard_normal((5000, action_dim), np.float32)
    arrays = {
        "observations": states,
        "actions": np.clip(0.5 * side * np.tanh(states[:, :1]) + noise, -1, 1),
        "rewards": states[:, 0] * side[:, 0],
        "terminals": np.zeros(5000, bool),
        "timeouts": np.arange(5000) % 100 == 99,
    }
    config = gemrl.GemConfig(steps=500, pretrain_steps=500, hidden=(64, 64), components=4)
    data = gemrl.from_arrays(**arrays)
    policy = gemrl.train(data, config, tmp_path / "run", quiet=True)
    for n in (0, 1, 64, 1024):
        found = agreement_of(policy, n, 10_000, data)
        assert found.states == 10_000
        assert found.different == 0
        assert found.near_ties + found.rounded <= 200
        assert found.moved <= 1
        assert found.furthest < 1e-4


def test_knobs_that_are_left_out_have_their_defaults(untrained):
    knobs = gemrl.Knobs(n=16, lam=0.3, wp=1.7, k_smooth=2)
    session = session_for(untrained, knobs)
    feeds = feeds_for(session, untrained, random_states(untrained, ROWS, 3), knobs, 0)
    whole = run(session, feeds)
    bare = run(session, {k: v for k, v in feeds.items() if k not in ("lam", "wp", "k_smooth")})
    other = run(session, feeds | {"wp": np.zeros(1, np.float32)})
    for name, values in whole.items():
        np.testing.assert_array_equal(values, bare[name])
    assert not np.array_equal(whole["score"], other["score"])


@pytest.mark.parametrize("anchor", ["mode", "none"])
def test_a_file_with_a_temperature_draws_alike_and_others_take_no_noise_for_it(untrained, anchor):
    knobs = gemrl.Knobs(n=16, temperature=0.3, k_smooth=2, anchor=anchor)
    session = session_for(untrained, knobs)
    states, seeds = random_states(untrained, ROWS, 3), np.arange(ROWS)
    feeds = feeds_for(session, untrained, states, knobs, seeds)
    assert feeds["draw_noise"].shape == (ROWS, 17)
    drawn, best = (
        untrained.decide(states, dataclasses.replace(knobs, temperature=t), seed=seeds)
        for t in (0.3, 0.0)
    )
    assert (drawn.chosen != best.chosen).any()
    assert_same(drawn, run(session, feeds))
    assert_same(best, run(session, feeds | {"temperature": np.zeros(ROWS, np.float32)}))
    cold = contract_of(untrained.models, untrained.spec, gemrl.Knobs(), None)
    assert not {"draw_noise", "temperature"} & {port.name for port in cold.inputs}


@pytest.mark.parametrize("anchor", ["mode", "none"])
@pytest.mark.parametrize(
    "shape",
    [
        (ROWS, 1),
        (1, 1),
        (1, 17),
        (ROWS, 2),
        (ROWS, 16),
        (ROWS, 18),
        (ROWS, 0),
        (17, ROWS),
        (2 * ROWS, 9),
    ],
)
def test_draws_of_another_number_than_candidates_are_refused(untrained, anchor, shape):
    knobs = gemrl.Knobs(n=16, temperature=0.3, anchor=anchor)
    session = session_for(untrained, knobs)
    feeds = feeds_for(session, untrained, random_states(untrained, ROWS, 3), knobs, 0)
    with pytest.raises(Exception, match=r"Concat|Reshape"):
        run(session, feeds | {"draw_noise": np.zeros(shape, np.float32)})


def test_draws_that_are_infinite_are_draws_and_those_that_are_no_number_are_refused(untrained):
    """A uniform of 0 or 1 makes an infinite one, which is the least or the most likely draw."""
    knobs = gemrl.Knobs(n=16, temperature=0.3)
    session = session_for(untrained, knobs)
    states = random_states(untrained, ROWS, 3)
    feeds = feeds_for(session, untrained, states, knobs, 0)

    def with_draw(value, candidate=5):
        noise = feeds["draw_noise"].copy()
        noise[:, candidate] = value
        return run(session, feeds | {"draw_noise": noise})

    assert (with_draw(np.inf)["chosen"] == 5).all()
    assert (with_draw(-np.inf)["chosen"] != 5).all()
    assert np.isfinite(with_draw(-np.inf)["action"]).all()
    assert np.isnan(with_draw(np.nan)["action"]).all()
    hot = run(session, feeds | {"temperature": np.full(ROWS, np.inf, np.float32)})
    assert np.isnan(hot["action"]).all()


def test_each_state_can_have_weights_of_its_own_and_no_other_number_of_them(untrained, session):
    knobs = gemrl.Knobs(n=16)
    feeds = feeds_for(session, untrained, random_states(untrained, ROWS, 4), knobs, 0)
    weights = np.linspace(0, 2, ROWS, dtype=np.float32)
    together = run(session, feeds | {"lam": weights, "wp": weights})
    for row in range(3):
        alone = {k: v if k == "k_smooth" else v[row : row + 1] for k, v in feeds.items()}
        single = run(session, alone | {"lam": weights[row, None], "wp": weights[row, None]})
        np.testing.assert_allclose(single["score"], together["score"][row], rtol=1e-5)
    for wrong in (weights[:2], np.float32([])):
        with pytest.raises(Exception, match=r"lam|Mul|broadcast"):
            run(session, feeds | {"lam": wrong})
    one_state = {k: v if k == "k_smooth" else v[:1] for k, v in feeds.items()}
    with pytest.raises(Exception, match=r"Gather|Concat"):
        run(session, one_state | {"lam": weights})


def test_no_candidate_and_no_best_are_refused(untrained, session):
    feeds = feeds_for(session, untrained, random_states(untrained, ROWS, 5), gemrl.Knobs(n=16), 0)
    for k in (0, -1):
        with pytest.raises(Exception, match=r"TopK|Squeeze|Slice"):
            run(session, feeds | {"k_smooth": np.array([k])})
    unanchored = session_for(untrained, gemrl.Knobs(anchor="none"))
    none = {name: feeds[name][:, :0] for name in ("gate_noise", "normal_noise")}
    with pytest.raises(Exception, match=r"Slice|Gather|TopK|Reshape|Reduce|Squeeze"):
        run(unanchored, feeds | none)


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e38])
def test_a_state_that_decide_refuses_gives_no_action(untrained, session, broken):
    states = random_states(untrained, ROWS, 6).astype(np.float32)
    states[1, 2] = broken
    with pytest.raises(ObservationError):
        untrained.decide(states, gemrl.Knobs(n=16))
    made = run(session, feeds_for(session, untrained, states, gemrl.Knobs(n=16), 0))
    assert np.isnan(made["action"][1]).all()
    assert np.isfinite(np.delete(made["action"], 1, axis=0)).all()


def test_the_lower_index_wins_a_tie(untrained):
    flat = jax.tree.map(np.zeros_like, untrained.models.critics)
    models = dataclasses.replace(untrained.models, critics=flat)
    policy = gemrl.Policy(dataclasses.replace(untrained.bundle, models=models), "jax")
    knobs = gemrl.Knobs(n=64, wp=0.0, k_smooth=4)
    session, states = session_for(policy, knobs), random_states(policy, ROWS, 7)
    made = run(session, feeds_for(session, policy, states, knobs, 0))
    decision = policy.decide(states, knobs)
    assert (made["chosen"] == 0).all()
    mean = decision.candidates[:, :4].mean(axis=1)
    np.testing.assert_allclose(made["action"], mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("n", "batch", "k_smooth"), [(0, ROWS, 1), (16, ROWS, 1)])
def test_a_fixed_file_has_constant_shapes_and_decides_alike(untrained, n, batch, k_smooth):
    knobs = gemrl.Knobs(n=n, k_smooth=k_smooth, lam=0.5)
    data = build(untrained, knobs, Fixed(n, batch))
    inferred = onnx.shape_inference.infer_shapes(onnx.load_from_string(data), data_prop=True)
    graph = inferred.graph
    known = [*graph.input, *graph.output, *graph.value_info]
    assert {out for node in graph.node for out in node.output} <= {value.name for value in known}
    for value in known:
        dims = value.type.tensor_type.shape.dim
        assert all(dim.WhichOneof("value") == "dim_value" for dim in dims), value.name
    constants = {constant.name for constant in graph.initializer}
    assert all(node.input[1] in constants for node in graph.node if node.op_type == "TopK")
    assert not constants & {value.name for value in graph.input}

    session = open_session("the model", data)
    states, seeds = random_states(untrained, batch, 8), np.arange(batch)
    made = run(session, feeds_for(session, untrained, states, knobs, seeds))
    assert_same(untrained.decide(states, knobs, seed=seeds), made)


def without(policy, **models):
    """The policy of a method that lacks some models."""
    changed = dataclasses.replace(policy.models, **models)
    return gemrl.Policy(dataclasses.replace(policy.bundle, models=changed), "jax")


def test_a_policy_without_a_density_has_no_support_and_says_so(untrained, tmp_path):
    policy = without(untrained, behavior=None)
    knobs = gemrl.Knobs(n=16, wp=0.0, k_smooth=3)
    contract = contract_of(policy.models, policy.spec, knobs, None)
    session, states = session_for(policy, knobs), random_states(policy, ROWS, 9)
    made = run(session, feeds_for(session, policy, states, knobs, 0))
    assert_same(policy.decide(states, knobs), made)
    assert set(made) == {"action", "chosen", "score", "lcb"}
    assert {"log_support", "violation", "executed_collapse_dist"} <= set(contract.left_out)
    with pytest.raises(KnobError, match="wp"):
        export_policy(policy, tmp_path / "policy.onnx", gemrl.Knobs())
    cloned = gemrl.Knobs(wp=0.0, source="behavior")
    with pytest.raises(KnobError, match="behavior"):
        export_policy(policy, tmp_path / "policy.onnx", cloned)


def test_a_policy_with_nothing_but_an_actor_needs_nothing_but_the_state(untrained, tmp_path):
    policy = without(untrained, behavior=None, critics=())
    contract = contract_of(policy.models, policy.spec, policy.default_knobs, None)
    assert [port.name for port in contract.inputs] == ["observation"]
    assert [port.name for port in contract.outputs] == ["action"]
    session, states = session_for(policy, policy.default_knobs), random_states(policy, ROWS, 10)
    made = run(session, {"observation": states.astype(np.float32)})
    np.testing.assert_allclose(made["action"], policy.decide(states).action, atol=1e-6)
    states[3, 0] = np.nan
    made = run(session, {"observation": states.astype(np.float32)})
    np.testing.assert_array_equal(np.isnan(made["action"]).all(axis=1), np.arange(ROWS) == 3)
    with pytest.raises(KnobError, match="n must be 0"):
        export_policy(policy, tmp_path / "policy.onnx", gemrl.Knobs(n=4, wp=0.0))
    found = export_policy(policy, tmp_path / "policy.onnx")
    assert found["decisions"] == 4
    about = json.loads((tmp_path / "policy.json").read_text())
    assert about["left_out"] == list(contract.left_out)
    assert {"score", "violation"} <= set(about["left_out"])


def test_networks_that_are_not_known_are_refused(untrained):
    class Twice(eqx.Module):
        inner: eqx.Module

        def __call__(self, obs, action):
            return 2 * self.inner(obs, action)

    doubled = tuple(map(Twice, untrained.models.critics))
    with pytest.raises(BundleError, match=r"export knows.*Twice"):
        build(without(untrained, critics=doubled), gemrl.Knobs())


def test_a_policy_gives_the_same_file_each_time(untrained):
    assert build(untrained, gemrl.Knobs()) == build(untrained, gemrl.Knobs())
