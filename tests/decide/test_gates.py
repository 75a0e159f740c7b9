"""The gates keep their false-alarm rate, and the guard goes down its ladder in order."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import gemrl
from gemrl.decide.gates import FILE, GATES, Gates
from gemrl.decide.guard import Guard
from gemrl.decide.knobs import Cosine, Knobs
from gemrl.decide.novelty import fit_density
from gemrl.errors import (
    BundleError,
    ConfigError,
    DataError,
    KnobError,
    ObservationError,
    RefusedError,
)

KNOBS = Knobs(n=32, wp=1.0)
ALL_SEARCHING = ("smaller_n", "anchor", "behavior")


@pytest.fixture(scope="session")
def gates(policy, maze_data):
    return Gates.calibrate(policy, maze_data, KNOBS, states=800, components=8)


@pytest.fixture(scope="session")
def density():
    """A small density, for gates whose scores are made up."""
    states = np.random.default_rng(0).standard_normal((200, 2))
    return fit_density(states, np.zeros(2), np.ones(2), seed=0, components=2)


@pytest.fixture
def far(observations):
    """States that the data does not hold."""
    return observations[:6] + 50.0


def made_up(density, scores, names=GATES):
    """Gates calibrated on given scores [n, gates]."""
    columns = dict(zip(names, np.asarray(scores, float).T, strict=True))
    return Gates.from_scores(columns, density, KNOBS, "0" * 64, episodes=1)


def correlated(rng, size):
    """Scores of three gates that hang together, one of them with ties and one with heavy tails."""
    common = rng.standard_normal((size, 1))
    scores = common + rng.standard_normal((size, 3))
    return np.stack([scores[:, 0], np.round(scores[:, 1], 1), np.exp(scores[:, 2])], axis=1)


def columns(scores):
    return dict(zip(GATES, scores.T, strict=True))


def test_p_values_are_uniform_over_calibrations_of_exchangeable_states(density):
    found = []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        scores = rng.standard_cauchy((100, 1)) * np.ones((1, 1))
        one = made_up(density, scores[:99], names=("novelty",))
        found.append(float(one.verdict_of({"novelty": scores[99]}, 0.05).p["novelty"][0]))
    # On a grid of hundredths the distance to the uniform distribution is one step at the least.
    assert stats.kstest(found, "uniform").statistic < 0.01 + 1.63 / np.sqrt(len(found))


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_every_gate_and_all_together_keep_their_false_alarm_rate(density, alpha):
    calibrations, fresh = 60, 500
    alarms = dict.fromkeys((*GATES, "joint"), 0)
    for seed in range(calibrations):
        rng = np.random.default_rng(seed)
        verdict = made_up(density, correlated(rng, 1000)).verdict_of(
            columns(correlated(rng, fresh)), alpha
        )
        for name in GATES:
            alarms[name] += int(verdict.flags[name].sum())
        alarms["joint"] += int(verdict.flagged.sum())
    # Alarms of one calibration share its threshold, whose own error adds to that of the count.
    rate_error = np.sqrt(alpha * (1 - alpha) * (1 / 1000 + 1 / fresh) / calibrations)
    for name, count in alarms.items():
        rate = count / (calibrations * fresh)
        assert rate <= alpha + 4 * rate_error, name
        assert rate >= 0.75 * alpha - 4 * rate_error, name


def test_the_joint_rate_is_not_bonferronis_where_gates_say_the_same(density):
    rng = np.random.default_rng(0)
    same = np.repeat(rng.standard_normal((2000, 1)), 3, axis=1)
    new = np.repeat(rng.standard_normal((20_000, 1)), 3, axis=1)
    verdict = made_up(density, same).verdict_of(columns(new), 0.05)
    assert verdict.flagged.mean() == pytest.approx(0.05, abs=0.015)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)),
)
def test_flags_are_monotone_in_alpha_and_adjusted_values_never_smaller(density, seed, alphas):
    rng = np.random.default_rng(seed)
    one = made_up(density, correlated(rng, 400))
    scores = columns(correlated(rng, 50) * 1.5)
    low, high = (one.verdict_of(scores, alpha) for alpha in sorted(alphas))
    assert (high.flagged | ~low.flagged).all()
    for name in GATES:
        assert (high.flags[name] | ~low.flags[name]).all()
        assert (low.adjusted[name] >= low.p[name]).all()
        assert ((low.p[name] > 0) & (low.p[name] <= 1)).all()
    np.testing.assert_array_equal(low.joint_p, np.min(list(low.adjusted.values()), axis=0))


def test_a_stranger_score_never_has_a_larger_p_value(density):
    rng = np.random.default_rng(0)
    one = made_up(density, correlated(rng, 300))
    scores = np.sort(correlated(rng, 200), axis=0)
    verdict = one.verdict_of(columns(scores), 0.05)
    for name in GATES:
        assert (np.diff(verdict.p[name]) <= 0).all()


def test_a_rate_that_cannot_be_kept_is_refused(density, policy, gates):
    few = made_up(density, np.arange(27.0).reshape(9, 3))
    with pytest.raises(KnobError, match=r"9 calibration states cannot keep a rate below"):
        few.verdict_of(columns(np.zeros((1, 3))), 0.05)
    few.verdict_of(columns(np.zeros((1, 3))), few.smallest_alpha)
    for alpha in (0, 1, -0.1, float("nan"), "x", None):
        with pytest.raises(KnobError, match="alpha"):
            gates.require_alpha(alpha)
    with pytest.raises(KnobError, match="cannot keep"):
        Guard(policy, gates, alpha=1e-6)


def test_the_density_finds_strange_what_training_states_exclude():
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, 4000)
    ring = np.stack([np.cos(angle), np.sin(angle), np.full(4000, 7.0)], axis=1)
    found = fit_density(ring, ring.mean(axis=0), np.array([0.7, 0.7, 1.0]), seed=0, components=16)
    on, centre, off = np.array([[1.0, 0, 7]]), np.array([[0.0, 0, 7]]), np.array([[1.0, 0, 7.5]])
    assert found.novelty(centre) > found.novelty(on) + 5
    assert found.novelty(off) > found.novelty(on) + 5
    many = rng.standard_normal((1300, 3))
    np.testing.assert_allclose(
        found.novelty(many), np.concatenate([found.novelty(row[None]) for row in many]), rtol=1e-9
    )


def test_the_density_integrates_to_one():
    rng = np.random.default_rng(1)
    states = np.concatenate([rng.normal(-2, 0.3, 500), rng.normal(1, 1.0, 500)])[:, None]
    found = fit_density(states, np.zeros(1), np.ones(1), seed=0, components=4)
    grid = np.linspace(-12, 12, 20_001)
    mass = np.exp(-found.novelty(grid[:, None])).sum() * (grid[1] - grid[0])
    assert mass == pytest.approx(1, abs=1e-3)


def test_calibration_uses_held_out_episodes_alone_and_the_same_seed_gives_the_same(
    policy, maze_data, gates
):
    again = Gates.calibrate(policy, maze_data, KNOBS, states=800, components=8)
    for name in GATES:
        np.testing.assert_array_equal(gates.calibration[name], again.calibration[name])
    config = policy.bundle.manifest["config"]
    _, held = maze_data.split_episodes(config["holdout"], config["seed"])
    novelty = gates.density.novelty(maze_data.observations[held])
    assert np.isin(gates.calibration["novelty"], novelty).all()
    assert gates.episodes <= len(np.unique(maze_data.episodes[held]))
    assert len(gates.joint) == min(800, len(held))


def test_other_data_and_a_policy_that_held_out_nothing_are_refused(policy, maze_data, tmp_path):
    with pytest.raises(DataError, match="not the dataset"):
        Gates.calibrate(policy, maze_data.select(np.arange(5000)), KNOBS)
    config = gemrl.BcConfig(steps=5, hidden=(8,), holdout=0.0)
    whole = gemrl.train(maze_data, config, tmp_path / "bc", quiet=True)
    with pytest.raises(DataError, match="held out no episode"):
        Gates.calibrate(whole, maze_data)


def test_a_policy_without_critics_or_density_has_the_novelty_gate_alone(maze_data, tmp_path):
    config = gemrl.BcConfig(steps=5, hidden=(8,))
    policy = gemrl.train(maze_data, config, tmp_path / "bc", quiet=True)
    gates = Gates.calibrate(policy, maze_data, states=300, components=2)
    assert gates.names == ("novelty",)
    gates.save(tmp_path / "bc")
    assert Gates.load(tmp_path / "bc", policy).names == ("novelty",)
    assert Guard(policy, gates, alpha=0.05).ladder == ("smaller_n", "anchor", "refuse")
    guard = Guard(policy, gates, alpha=0.05, on_novelty="refuse")
    with pytest.raises(RefusedError):
        guard.decide(np.full(4, 50.0))
    with pytest.raises(ConfigError, match="no behaviour density"):
        Guard(policy, gates, 0.05, ladder=("behavior",))


def test_a_schedule_is_calibrated_at_each_states_own_step(policy, maze_data):
    knobs = Knobs(n=8, wp=Cosine(end=0.2, horizon=50))
    gates = Gates.calibrate(policy, maze_data, knobs, states=50, components=2)
    assert gates.knobs == knobs
    assert len(gates.joint) == 50


def test_judging_a_batch_is_judging_each_state(policy, gates, observations, far):
    states = np.concatenate([observations, far])
    decision = policy.decide(states, KNOBS, seed=3)
    batch = gates.judge(states, decision, 0.05)
    assert batch.flags["novelty"][-len(far) :].all()
    assert not batch.flagged[: len(observations)].all()
    for i, state in enumerate(states):
        one = gates.judge(state, decision.row(i), 0.05)
        assert one.joint_p.shape == ()
        other = batch[i]
        for name in GATES:
            np.testing.assert_allclose(one.scores[name], other.scores[name], rtol=1e-9)
            # Rounding may bring a score past one of the calibration's.
            np.testing.assert_allclose(one.p[name], other.p[name], atol=2 / len(gates.joint))
        assert one.to_json().keys() == other.to_json().keys()


def test_a_verdict_is_plain_json(policy, gates, observations):
    verdict = gates.judge(observations, policy.decide(observations, KNOBS), 0.05)
    found = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert set(found["p"]) == set(found["flags"]) == set(GATES)
    assert found["rung"] == ["search"] * len(observations)
    assert found["executed_joint_p"] is None
    one = verdict[3].to_json()
    assert json.loads(json.dumps(one, allow_nan=False)) == one
    assert one["p"]["novelty"] == found["p"]["novelty"][3]


def test_an_observation_that_is_not_the_decisions_is_refused(policy, gates, observations):
    decision = policy.decide(observations[0], KNOBS)
    for wrong in (observations, observations[0, :3]):
        with pytest.raises(ObservationError, match="must be"):
            gates.judge(wrong, decision)


def test_saved_gates_come_back_the_same(policy, gates, observations, tmp_path):
    path = gates.save(tmp_path)
    assert path == tmp_path / FILE
    back = Gates.load(tmp_path, policy)
    decision = policy.decide(observations, KNOBS)
    one, other = (g.judge(observations, decision, 0.05) for g in (gates, back))
    assert one.to_json() == other.to_json()
    assert (back.knobs, back.bundle, back.episodes) == (gates.knobs, gates.bundle, gates.episodes)


def test_damaged_files_of_gates_are_refused(gates, policy, run_folder, tmp_path):
    good = gates.save(tmp_path / "good.safetensors").read_bytes()
    bad = tmp_path / "bad.safetensors"
    rng = np.random.default_rng(0)
    for _ in range(40):
        data = bytearray(good)
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        bad.write_bytes(data)
        with pytest.raises(BundleError):
            Gates.load(bad)
    for data in (b"", good[:100], good[:-1], good + b"\0"):
        bad.write_bytes(data)
        with pytest.raises(BundleError):
            Gates.load(bad)
    with pytest.raises(BundleError, match="no gates there"):
        Gates.load(tmp_path / "nowhere")
    with pytest.raises(BundleError, match="not readable as gates"):
        Gates.load(run_folder / "weights.safetensors")


def test_gates_of_another_policy_are_refused(policy, gates, tmp_path):
    other = dataclasses.replace(gates, bundle="f" * 64)
    with pytest.raises(BundleError, match="belong to policy ffff"):
        Guard(policy, other)
    other.save(tmp_path)
    with pytest.raises(BundleError, match="belong to policy ffff"):
        Gates.load(tmp_path, policy)


def test_a_decision_of_another_policy_is_not_judged(policy, gates, observations):
    decision = dataclasses.replace(policy.decide(observations[0]), digest="f" * 64)
    with pytest.raises(BundleError, match="judge decisions of the policy"):
        gates.judge(observations[0], decision)


def test_a_policy_with_the_novelty_gate_alone_takes_its_anchor_in_novel_states(
    maze_data, observations, tmp_path
):
    config = gemrl.BcConfig(steps=0, hidden=(16,), batch_size=32)
    policy = gemrl.train(maze_data, config, tmp_path / "bc", quiet=True)
    gates = Gates.calibrate(policy, maze_data, states=300, components=4)
    guard = Guard(policy, gates, alpha=0.05, ladder=("anchor", "refuse"))
    far = observations[0] + 50 * policy.spec.obs_std
    decision = guard.decide(far)
    assert decision.verdict.rung == "anchor"
    np.testing.assert_array_equal(decision.action, policy.decide(far).action)


def test_a_guard_that_is_not_needed_changes_nothing(policy, gates, observations):
    plain = policy.decide(observations, KNOBS, seed=5)
    decision = Guard(policy, gates, 0.02, ladder=ALL_SEARCHING).decide(observations, KNOBS, seed=5)
    kept = decision.verdict.rung == "search"
    assert kept.any()
    np.testing.assert_array_equal(kept, ~decision.verdict.flagged)
    for name in ("action", "executed_log_support", "executed_support_z"):
        np.testing.assert_array_equal(getattr(decision, name)[kept], getattr(plain, name)[kept])
    np.testing.assert_array_equal(decision.q, plain.q)


def flagged_by(gates, name):
    """Gates that find every score of one gate strange and nothing else so."""
    size = len(gates.joint)
    low, high = np.linspace(-1e9, -1e9 + 1, size), np.linspace(1e9, 1e9 + 1, size)
    scores = {gate: low if gate == name else high for gate in gates.names}
    # In another order for each gate, as scores come.
    rng = np.random.default_rng(0)
    shuffled = {gate: rng.permutation(values) for gate, values in scores.items()}
    return Gates.from_scores(shuffled, gates.density, gates.knobs, gates.bundle, 1)


def test_a_record_whose_action_a_guard_replaced_is_replayed_as_the_search(
    policy, gates, observations
):
    guard = Guard(policy, flagged_by(gates, "novelty"), 0.05, ("behavior",))
    for states, seed in ((observations[:5], np.arange(5)), (observations[0], 3)):
        record = guard.decide(states, KNOBS, seed=seed)
        plain = policy.decide(states, KNOBS, seed=seed)
        assert (record.rung == "behavior").all()
        assert (record.action != plain.action).any()
        for kept in (record, json.loads(json.dumps(record.to_json()))):
            again = policy.replay(states, kept, KNOBS, seed=seed)
            np.testing.assert_array_equal(again.action, plain.action)
        other = dataclasses.replace(record, chosen=record.chosen + 1)
        with pytest.raises(KnobError, match="cannot be replayed"):
            policy.replay(states, other, KNOBS, seed=seed)


def test_a_row_of_a_guarded_record_is_a_record_also_out_of_json(policy, gates, observations):
    guard = Guard(policy, flagged_by(gates, "novelty"), 0.05, ("behavior",))
    record = guard.decide(observations[:3], KNOBS, seed=4)
    read = gemrl.Decision.from_json(json.loads(json.dumps(record.to_json())))
    for row in (record.row(1), read.row(1)):
        assert row.rung == "behavior"
        again = gemrl.Decision.from_json(json.loads(json.dumps(row.to_json())))
        assert again.verdict == record.verdict[1].to_json()
        np.testing.assert_array_equal(row.action, record.action[1])


def test_the_rows_that_a_guard_left_alone_must_act_as_they_did(policy, gates, observations):
    record = Guard(policy, gates, 0.02, ladder=ALL_SEARCHING).decide(observations, KNOBS, seed=5)
    alone = record.rung == "search"
    assert alone.any()
    policy.replay(observations, record, KNOBS, seed=5)
    moved = dataclasses.replace(record, action=record.action + alone[:, None])
    with pytest.raises(KnobError, match="cannot be replayed"):
        policy.replay(observations, moved, KNOBS, seed=5)


def test_a_novel_state_enters_the_ladder_at_the_anchor(policy, gates, observations):
    strange = flagged_by(gates, "novelty")
    decision = Guard(policy, strange, 0.05).decide(observations, KNOBS)
    assert set(decision.verdict.rung) == {"anchor"}
    anchor = policy.decide(observations, dataclasses.replace(KNOBS, n=0))
    np.testing.assert_allclose(decision.action, anchor.action, atol=1e-6)
    ladder = ("smaller_n", "behavior")
    assert Guard(policy, strange, 0.05, ladder).on_novelty == "behavior"
    assert Guard(policy, strange, 0.05, ("smaller_n",)).on_novelty == "smaller_n"


def test_a_novel_state_enters_the_ladder_where_the_user_says(policy, gates, observations):
    strange = flagged_by(gates, "novelty")
    guard = Guard(policy, strange, 0.05, on_novelty="behavior")
    decision = guard.decide(observations, KNOBS)
    assert set(decision.verdict.rung) == {"behavior"}
    mode = np.asarray(policy.behavior(observations).mode())
    np.testing.assert_allclose(decision.action, mode, atol=1e-6)
    support = np.asarray(policy.behavior(observations).log_prob(decision.action))
    np.testing.assert_allclose(decision.executed_log_support, support, rtol=1e-5, atol=1e-5)
    assert (decision.verdict.executed_joint_p <= 0.05).all()


def test_the_users_controller_is_asked_and_kept_within_bounds(policy, gates, observations):
    strange = flagged_by(gates, "novelty")
    guard = Guard(
        policy,
        strange,
        0.05,
        ladder=("anchor", "controller"),
        on_novelty="controller",
        controller=lambda rows: np.full((len(rows), 2), 3.0),
    )
    decision = guard.decide(observations, KNOBS)
    assert set(decision.verdict.rung) == {"controller"}
    np.testing.assert_array_equal(decision.action, 1.0)
    guard.controller = lambda rows: np.zeros(3)
    with pytest.raises(ConfigError, match="the controller gave"):
        guard.decide(observations, KNOBS)


def test_refuse_raises_with_the_record_of_the_others(policy, gates, observations, far):
    states = np.concatenate([observations[:3], far])
    guard = Guard(policy, gates, 0.02, ladder=("refuse",))
    with pytest.raises(RefusedError, match="unlike the data") as caught:
        guard.decide(states, KNOBS)
    refused = np.asarray(caught.value.rows)
    assert set(range(3, len(states))) <= set(refused.tolist())
    record = caught.value.decision
    assert np.isnan(record.action[refused]).all()
    told = record.verdict.to_json()
    assert all(told["executed_joint_p"][row] is None for row in refused)
    json.dumps(told, allow_nan=False)
    others = np.setdiff1d(np.arange(len(states)), refused)
    np.testing.assert_array_equal(
        record.action[others], policy.decide(states, KNOBS).action[others]
    )
    with pytest.raises(RefusedError):
        guard.decide(far[0], KNOBS)


def test_rungs_are_tried_in_order_until_one_is_like_the_data(policy, maze_data, observations):
    """An unguarded search, judged by gates that were calibrated at a careful one."""
    careful = Gates.calibrate(policy, maze_data, Knobs(n=0), states=800, components=8)
    risky = Knobs(n=256, wp=0.0, source="behavior")
    guard = Guard(policy, careful, 0.2, ladder=ALL_SEARCHING, smaller_n=8)
    decision = guard.decide(observations, risky, seed=1)
    verdict = decision.verdict
    assert set(verdict.rung) >= {"search", "smaller_n", "anchor"}
    first = policy.decide(observations, risky, seed=1)
    eight = policy.decide(observations, dataclasses.replace(risky, n=8), seed=1)
    anchor = policy.decide(observations, dataclasses.replace(risky, n=0), seed=1)
    flagged = {
        "search": careful.judge(observations, first, 0.2),
        "smaller_n": careful.judge(observations, eight, 0.2),
        "anchor": careful.judge(observations, anchor, 0.2),
    }
    actions = {"search": first.action, "smaller_n": eight.action, "anchor": anchor.action}
    novel = flagged["search"].adjusted["novelty"] <= 0.2

    def unlike(rung):
        p = flagged[rung].adjusted
        return (p["support"] <= 0.2) | (p["spread"] <= 0.2)

    for row in range(len(observations)):
        rungs = ["anchor", "behavior"] if novel[row] else ["smaller_n", "anchor", "behavior"]
        expected = "search"
        if flagged["search"].flagged[row]:
            expected = next(r for r in rungs if r == "behavior" or not unlike(r)[row])
        assert verdict.rung[row] == expected
        if expected in actions:
            np.testing.assert_allclose(decision.action[row], actions[expected][row], atol=1e-6)


def test_a_guarded_batch_is_each_state_alone(policy, gates, observations, far):
    states = np.concatenate([observations[:5], far[:3]])
    guard = Guard(policy, gates, 0.1, ladder=ALL_SEARCHING)
    seeds = np.arange(len(states))
    batch = guard.decide(states, KNOBS, seed=seeds)
    assert (batch.verdict.rung != "search").any()
    for i, state in enumerate(states):
        one = guard.decide(state, KNOBS, seed=int(seeds[i]))
        assert one.action.shape == (2,)
        assert str(one.verdict.rung) == batch.verdict.rung[i]
        np.testing.assert_allclose(one.action, batch.action[i], atol=1e-5)
        np.testing.assert_allclose(one.verdict.joint_p, batch.verdict.joint_p[i], atol=0.01)
        np.testing.assert_allclose(
            one.executed_log_support, batch.executed_log_support[i], rtol=1e-4, atol=1e-4
        )


def test_settling_a_decision_made_elsewhere_is_deciding(policy, gates, observations, far):
    guard = Guard(policy, gates, ladder=ALL_SEARCHING)
    for obs in (*observations[:3], *far[:3], np.stack([observations[0], far[0]])):
        whole = guard.decide(obs, KNOBS, seed=4)
        decision = policy.decide(obs, KNOBS, seed=4)
        verdict = gates.judge(obs, decision, guard.alpha)
        settled = guard.settle(obs, decision, verdict, KNOBS, seed=4)
        np.testing.assert_array_equal(settled.action, whole.action)
        np.testing.assert_array_equal(settled.verdict.rung, whole.verdict.rung)
        np.testing.assert_allclose(
            settled.executed_log_support, whole.executed_log_support, rtol=1e-5
        )


@pytest.mark.parametrize(
    ("ladder", "message"),
    [
        ((), "must have a rung"),
        (("refuse", "anchor"), "refuse last"),
        (("anchor", "anchor"), "twice"),
        (("jump",), "must be of"),
        (("controller", "refuse"), "controller="),
    ],
)
def test_ladders_that_cannot_be_gone_down_are_refused(policy, gates, ladder, message):
    with pytest.raises((KnobError, ConfigError), match=message):
        Guard(policy, gates, 0.05, ladder=ladder)
    with pytest.raises(KnobError, match="must be of the ladder anchor"):
        Guard(policy, gates, 0.05, ladder=("anchor",), on_novelty="refuse")


def test_the_page_on_gates_shows_exactly_what_the_committed_rows_give():
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("gates_tables", root / "tools/gates_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tables = module.tables(root / "docs" / "gates")
    assert "### Closed loop: maze2d-umaze-v1" in tables
    assert tables in (root / "docs" / "gates.md").read_text(encoding="utf-8")
