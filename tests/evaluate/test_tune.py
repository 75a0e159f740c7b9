"""Knobs chosen from the log: choices by reranking, fitted values, recommendation, regret, page."""

import json
import re
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import gemrl
from gemrl.data.tasks import RewardTransform
from gemrl.decide.policy import Policy
from gemrl.errors import ConfigError, DataError, GemrlError
from gemrl.evaluate.rows import read_rows
from gemrl.evaluate.tune import Budget, grid_for, tune
from gemrl.evaluate.tune.choices import choose_at, grid_of
from gemrl.evaluate.tune.estimate import (
    Interval,
    covered,
    interval,
    is_one_trajectory,
    rank_correlation,
    replicates,
    t_quantile,
)
from gemrl.evaluate.tune.fqe import Bounds, FqeConfig, Transitions, fit, value_bounds, values_of
from gemrl.evaluate.tune.online import spend
from gemrl.evaluate.tune.page import write_page
from gemrl.evaluate.tune.recommend import Recommendation, recommend
from gemrl.evaluate.tune.regret import describe_regret, regrets
from gemrl.evaluate.tune.words import describe, describe_online
from gemrl.learn.spec import spec_of
from gemrl.methods.protocol import Batch
from gemrl.tune_command import TuneArgs
from gemrl.tune_command import tune as tune_command

QUICK = FqeConfig(updates=60, batch_size=64, hidden=(16, 16))
CHEAP = Budget(states=3000, fits=2, fqe=QUICK)
SMALL_GRID = {"n": 8, "lams": (1.0,), "wps": (0.0, 0.4, 2.0)}


@pytest.fixture(scope="module", autouse=True)
def _one_block_size():
    """Each size of batch is compiled once: all decisions go through in blocks of 40 states."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gemrl.evaluate.tune.choices.CANDIDATES_TOGETHER", 40 * 9)
        yield


@pytest.fixture(scope="module")
def report(policy, maze_data):
    return tune(policy, maze_data, grid_for(policy, **SMALL_GRID), CHEAP)


# What the settings choose


def test_every_setting_chooses_as_a_decision_with_its_knobs_does(policy, observations):
    grid = grid_of(gemrl.Knobs(n=8), (0.0, 1.0), (0.0, 0.4, 3.0))
    found = choose_at(policy, grid, observations, (0, 0))
    seeds = np.random.SeedSequence([0, 0]).generate_state(len(observations))
    for k, knobs in enumerate(grid.settings):
        decided = policy.decide(observations, knobs, seed=seeds)
        assert np.array_equal(found.action[k], decided.action)
        assert np.allclose(found.support_z[k], decided.chosen_support_z, atol=1e-4)
        assert np.array_equal(found.violation[k], decided.violation)
        at = np.arange(len(observations)), decided.chosen
        assert np.allclose(found.lcb[k], decided.lcb[at], atol=1e-5)
        assert np.allclose(found.log_support[k], decided.log_support[at], atol=1e-5)


def test_choices_do_not_depend_on_the_size_of_a_block(policy, observations, monkeypatch):
    grid = grid_of(gemrl.Knobs(n=8), (1.0,), (0.0, 3.0))
    whole = choose_at(policy, grid, observations, (0, 0))
    monkeypatch.setattr("gemrl.evaluate.tune.choices.CANDIDATES_TOGETHER", 17 * 9)
    assert np.allclose(
        choose_at(policy, grid, observations, (0, 0)).action, whole.action, atol=1e-6
    )


def test_the_default_is_always_one_of_the_settings(policy):
    grid = grid_for(policy, n=8, lams=(3.0,), wps=(2.0,))
    assert grid.settings[grid.default_at] == replace(policy.default_knobs, n=8)
    assert len(grid.settings) == 4


# Fitted Q evaluation


def two_states(rng, rows=2000):
    """States -1 and 1 take turns; state 1 earns 1, and any action a earns 0.3 a on top."""
    obs = rng.choice([-1.0, 1.0], (rows, 1)).astype(np.float32)
    action = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    reward = (obs[:, 0] > 0) + 0.3 * action[:, 0]
    return Batch(obs, action, reward, -obs, np.ones(rows, np.float32))


def test_fitted_values_equal_the_closed_form():
    rng, discount = np.random.default_rng(0), 0.5
    batch = two_states(rng)
    chosen = np.array([-0.8, 0.5], np.float32)  # What each of two settings always does.
    actions = np.broadcast_to(chosen[:, None, None], (2, len(batch.obs), 1))
    data = Transitions(
        jax.tree.map(jnp.asarray, batch), jnp.asarray(actions), jnp.ones(actions.shape[:2])
    )
    config = FqeConfig(updates=800, batch_size=128, hidden=(32, 32), polyak=0.1)
    minibatches = rng.integers(len(batch.obs), size=(config.updates, config.batch_size))
    bounds = value_bounds(batch.reward, batch.mask, discount)
    nets = fit(data, minibatches, discount, bounds, config, jax.random.key(0))
    states = jnp.array([[-1.0], [1.0]])
    at = jnp.broadcast_to(chosen[:, None, None], (2, 2, 1))
    found = values_of(nets, states, at, jnp.ones((2, 2)), bounds)
    # V(s) = r(s) + 0.3 a + V(-s) / 2 has the solution 2/3 at -1, 4/3 at 1, and 0.6 a on top.
    expected = np.array([2 / 3, 4 / 3])[None] + 0.6 * chosen[:, None]
    assert np.allclose(found, expected, atol=0.06)


def test_what_the_log_cannot_tell_counts_as_the_worst():
    batch = two_states(np.random.default_rng(0), rows=64)
    actions = jnp.zeros((2, 64, 1))
    covered = jnp.stack([jnp.ones(64), jnp.zeros(64)])
    data = Transitions(jax.tree.map(jnp.asarray, batch), actions, covered)
    config = FqeConfig(updates=500, batch_size=64, hidden=(32, 32), polyak=0.1)
    rows = np.tile(np.arange(64), (config.updates, 1))
    bounds = Bounds(-0.6, 2.6, 0.0)
    nets = fit(data, rows, 0.5, bounds, config, jax.random.key(0))
    known, unknown = values_of(nets, batch.obs, jnp.zeros((2, 64, 1)), jnp.ones((2, 64)), bounds)
    # One step is certain, and then comes the least value there is.
    assert np.allclose(unknown, (batch.obs[:, 0] > 0) - 0.3, atol=0.1)
    assert np.allclose(known, np.where(batch.obs[:, 0] > 0, 4 / 3, 2 / 3), atol=0.1)


def test_a_setting_may_be_as_rare_as_the_log_itself():
    """Of 100 choices one may lie below the log's first percentile, the likeliest of them."""
    support = np.tile(np.arange(100.0), (3, 1))
    support[0] += 100  # None is rare.
    support[1, 0] -= 100  # One is.
    support[2, :4] = [-101, -104, -103, -102]
    found = covered(support, -50.0, 0.01)
    assert found[:2].all()
    assert np.flatnonzero(found[2] == 0).tolist() == [1, 2, 3]
    assert covered(support, -np.inf, 0.0).all()


def test_settings_that_choose_alike_get_the_same_network():
    batch = two_states(np.random.default_rng(0), rows=64)
    data = Transitions(jax.tree.map(jnp.asarray, batch), jnp.zeros((3, 64, 1)), jnp.ones((3, 64)))
    rows = np.random.default_rng(1).integers(64, size=(20, 16))
    bounds = value_bounds(batch.reward, batch.mask, 0.9)
    nets = fit(data, rows, 0.9, bounds, QUICK, jax.random.key(0))
    values = values_of(nets, batch.obs, jnp.zeros((3, 64, 1)), jnp.ones((3, 64)), bounds)
    assert np.array_equal(values[0], values[1])
    assert np.array_equal(values[0], values[2])


def test_values_are_bounded_by_what_rewards_allow():
    reward, going_on = np.array([1.0, 3.0]), np.ones(2)
    assert np.allclose(value_bounds(reward, going_on, 0.9)[:2], (10.0, 30.0))
    # Where an episode can end at once, one reward may be all there is.
    assert np.allclose(value_bounds(reward, np.array([1.0, 0.0]), 0.9)[:2], (1.0, 30.0))
    assert np.allclose(value_bounds(-reward, np.array([1.0, 0.0]), 0.9)[:2], (-30.0, -1.0))


def test_no_state_is_valued_by_networks_that_saw_its_episode(
    monkeypatch, report, policy, maze_data
):
    seen = []

    def spy(data, minibatches, *rest):
        seen.append(set(np.unique(episodes[minibatches])))
        return fit(data, minibatches, *rest)

    def watch(evidence, *rest):
        nonlocal episodes
        episodes = evidence.episodes
        return replicates(evidence, *rest)

    episodes = np.empty(0)
    monkeypatch.setattr("gemrl.evaluate.tune.estimate.fit", spy)
    monkeypatch.setattr("gemrl.evaluate.tune.replicates", watch)
    again = tune(policy, maze_data, grid_for(policy, **SMALL_GRID), CHEAP)
    assert again == report
    assert len(seen) == 2 * CHEAP.fits
    for one, other in zip(seen[::2], seen[1::2], strict=True):
        assert one
        assert other
        assert not one & other


# Intervals and ranks


@pytest.mark.parametrize("level", [0.6, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("freedom", [1, 4, 30])
def test_quantiles_of_students_t(level, freedom):
    assert t_quantile(level, freedom) == pytest.approx(stats.t.ppf(level, freedom), rel=1e-3)


def test_an_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(2000, 6))
    low = np.array([interval(row, 0.9).low for row in samples])
    assert np.mean(low <= 0) >= 0.9


def test_rank_correlation_is_spearmans():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, 20), rng.integers(0, 5, 20)
    assert rank_correlation(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert rank_correlation(np.ones(3), np.arange(3)) is None


# The recommendation


def settings_of(wps):
    return [gemrl.Knobs(n=8, wp=wp) for wp in wps]


def test_the_best_lower_bound_wins_and_not_the_best_mean():
    gains = [Interval(0, 0, 0), Interval(5, -1, 11), Interval(2, 1, 3), Interval(1, 0.5, 1.5)]
    choice = recommend(settings_of((0.4, 1, 2, 3)), 0, gains, 0.95)
    assert (choice.knobs.wp, choice.kept_default) == (2, False)


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([Interval(0, 0, 0), Interval(5, -1, 11)], "told apart"),
        ([Interval(0, 0, 0), Interval(-5, -6, -4)], "worth less"),
        ([Interval(0, 0, 0), Interval(0, 0, 0)], "choose alike"),
        ([Interval(0, 0, 0)], "no other"),
    ],
)
def test_the_default_is_kept_where_nothing_is_better_and_the_reason_is_told(gains, said):
    choice = recommend(settings_of((0.4, 1))[: len(gains)], 0, gains, 0.95)
    assert choice.kept_default
    assert choice.knobs.wp == 0.4
    assert said in choice.reason


def test_the_flags_and_the_code_of_a_setting_give_that_setting_back():
    """A command begins with the policy's own knobs, and code with the class's."""
    own = gemrl.Knobs(n=50, wp=0.0, anchor="none", temperature=0.25)
    setting = replace(own, temperature=0.0, lam=2.0, k_smooth=3)
    said = Recommendation(setting, True, "").to_json(own)
    assert said["flags"] == "--n 50 --lam 2 --wp 0 --k-smooth 3 --temperature 0.0"
    fine = Recommendation(replace(own, lam=0.123456789, wp=1 / 3), True, "").to_json(own)
    assert fine["flags"] == "--n 50 --lam 0.123456789 --wp 0.3333333333333333"
    assert "lam=0.123456789, wp=0.3333333333333333" in fine["code"]
    assert said["code"] == ("gemrl.Knobs(n=50, lam=2, wp=0.0, k_smooth=3, anchor='none')")
    assert "temperature" not in Recommendation(setting, True, "").to_json(setting)["flags"]


def test_identical_settings_keep_the_default(policy, maze_data):
    """A single candidate, the anchor: λ and w_p have nothing to choose."""
    found = tune(policy, maze_data, grid_for(policy, n=0, lams=(1.0,), wps=(0.0, 2.0)), CHEAP)
    assert found["recommendation"]["kept_default"]
    assert "alike" in found["recommendation"]["reason"]
    assert {s["difference"]["mean"] for s in found["settings"]} == {0.0}


@pytest.fixture(scope="module")
def one_step(tmp_path_factory):
    """A log of single steps that mostly does -0.5, sometimes 0.5, and is paid a fifth of that."""
    rng = np.random.default_rng(0)
    count = 6000
    often = np.where(rng.uniform(size=count) < 0.8, -0.5, 0.5)
    actions = np.clip(rng.normal(often, 0.1), -1, 1).astype(np.float32)[:, None]
    states = rng.normal(size=(count, 2)).astype(np.float32)
    data = gemrl.from_arrays(
        observations=states,
        actions=actions,
        rewards=0.2 * actions[:, 0],
        next_observations=states,
        terminals=np.ones(count, bool),
    )
    config = gemrl.GemConfig(
        steps=300,
        pretrain_steps=300,
        components=2,
        hidden=(32, 32),
        holdout=0.3,
        learning_rate=3e-3,
        critics=2,
        batch_size=64,
    )
    folder = tmp_path_factory.mktemp("tune") / "one"
    return gemrl.train(data, config, folder, quiet=True), data


def test_a_setting_that_is_clearly_better_is_recommended(one_step):
    policy, data = one_step
    grid = grid_for(policy, n=32, lams=(1.0,), wps=(0.0, 0.1, 3.0))
    fqe = FqeConfig(updates=300, batch_size=128, hidden=(32, 32))
    found = tune(policy, data, grid, Budget(fits=3, fqe=fqe))
    assert not found["recommendation"]["kept_default"]
    assert found["recommendation"]["knobs"]["wp"] == 0.1
    by_wp = {s["knobs"]["wp"]: s["value"]["mean"] for s in found["settings"]}
    assert by_wp[0.1] > 0 > by_wp[0.4]
    assert by_wp[3.0] == pytest.approx(-0.1, abs=0.02)
    # Beyond the log lies more reward, by the critics; the log does not vouch for it.
    assert by_wp[0.0] < by_wp[3.0]
    assert found["estimate"]["over"] == "episode starts"
    flags = found["recommendation"]["flags"]
    assert re.fullmatch(r"--n 32 --lam 1 --wp 0.1", flags)


# Data


def test_a_dataset_that_is_not_the_policys_is_refused(policy, maze_data):
    other = replace(maze_data, rewards=maze_data.rewards + 1)
    with pytest.raises(DataError, match="not the dataset"):
        tune(policy, other, budget=CHEAP)


def test_too_few_held_out_episodes_keep_the_default_and_say_so(policy, maze_data):
    found = tune(policy, maze_data, grid_for(policy, **SMALL_GRID), replace(CHEAP, states=300))
    assert found["estimate"] is None
    assert found["recommendation"]["kept_default"]
    assert "too few" in found["recommendation"]["reason"]
    assert "too few" in describe(found)
    assert all(s["value"] is None for s in found["settings"])


def test_a_policy_without_held_out_episodes_is_refused(policy, maze_data):
    manifest = policy.bundle.manifest
    without = manifest | {"config": manifest["config"] | {"holdout": 0.0}}
    with pytest.raises(ConfigError, match="holdout"):
        tune(Policy(replace(policy.bundle, manifest=without)), maze_data)


def test_a_policy_without_knobs_is_refused(policy, maze_data):
    for missing in ({"critics": ()}, {"behavior": None}):
        models = replace(policy.models, **missing)
        with pytest.raises(ConfigError, match="no knobs"):
            tune(Policy(replace(policy.bundle, models=models)), maze_data)


def test_a_log_cut_by_time_limits_has_no_starts(maze_data, one_step):
    policy, steps = one_step
    assert is_one_trajectory(
        maze_data, spec_of(maze_data, np.arange(len(maze_data)), RewardTransform())
    )
    assert not is_one_trajectory(steps, policy.spec)


@pytest.mark.parametrize(
    "wrong",
    [{"fits": 1}, {"states": 0}, {"coverage": 1.0}, {"confidence": 0.5}, {"fqe": FqeConfig(0)}],
)
def test_a_budget_out_of_range_is_refused(wrong):
    with pytest.raises(ConfigError, match="must"):
        Budget(**wrong)


# The report


def test_the_report_is_json_and_has_a_line_a_setting(report):
    assert json.loads(json.dumps(report)) == report
    assert [s["knobs"]["wp"] for s in report["settings"]] == [0.0, 0.4, 2.0]
    assert [s["default"] for s in report["settings"]] == [False, True, False]
    default = report["settings"][1]
    assert default["difference"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    for setting in report["settings"]:
        assert setting["value"]["low"] <= setting["value"]["mean"] <= setting["value"]["high"]
        assert setting["value"]["mean"] >= report["estimate"]["least_value"]
    text = describe(report)
    assert report["recommendation"]["flags"] in text
    assert report["recommendation"]["code"] in text
    assert "default" in text
    assert "rank correlation" in text


def test_the_recommendation_as_code_is_the_setting(report):
    found = report["recommendation"]
    inner = re.fullmatch(r"gemrl\.Knobs\((.*)\)", found["code"])[1]
    values = dict(part.split("=") for part in inner.split(", "))
    knobs = gemrl.Knobs(n=int(values["n"]), lam=float(values["lam"]), wp=float(values["wp"]))
    assert knobs.to_json() == found["knobs"]


def test_more_support_weight_means_more_support(report):
    z = [s["frontier"]["support_z"] for s in report["settings"]]
    assert z == sorted(z)
    assert z[0] < z[-1]


def test_the_page_stands_alone(report, tmp_path):
    text = write_page(report, tmp_path / "tune.html").read_text()
    assert report["recommendation"]["flags"] in text
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert text.count("<img") == 5


# Real episodes


@pytest.fixture(scope="module")
def online_run(run_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("online") / "run"
    shutil.copytree(run_folder, folder)
    return folder


def test_episodes_are_spent_on_the_settings_and_none_is_run_twice(online_run):
    policy, rows_file = gemrl.load(online_run), online_run / "rows.jsonl"
    grid = grid_for(policy, n=2, lams=(1.0,), wps=(0.4, 2.0))
    first = spend(policy, grid, 3, rows_file)
    assert len(read_rows(rows_file)) == 3
    assert sum(s["episodes"] for s in first["online"]["settings"]) == 3
    assert "validation" in describe_online(first)
    # Another process that is told to spend more goes on from the rows.
    spend(policy, grid, 4, rows_file)
    assert len(read_rows(rows_file)) == 4
    before = rows_file.read_bytes()
    assert spend(policy, grid, 3, rows_file) == first
    assert rows_file.read_bytes() == before


def test_fewer_episodes_than_settings_are_refused(policy, tmp_path):
    with pytest.raises(ConfigError, match="at least 3"):
        spend(policy, grid_for(policy, **SMALL_GRID), 2, tmp_path / "rows.jsonl")


@pytest.fixture(scope="module")
def swept(report, online_run):
    """One real row, told three times with other settings and scores."""
    policy = gemrl.load(online_run)
    (row,) = gemrl.evaluate_policy(
        policy, gemrl.Knobs(n=0), episodes=1, protocol="validation", quiet=True
    )

    def rows(scores):
        return [
            replace(row, knobs=s["knobs"], score=score + 0.1 * seed, episode_seed=seed)
            for s, score in zip(report["settings"], scores, strict=True)
            for seed in range(3)
        ]

    return rows


def test_regret_is_the_distance_to_the_best_setting(report, swept):
    (found,) = regrets(report, swept((10.0, 30.0, 50.0)))
    assert found["best"]["knobs"]["wp"] == 2.0
    assert found["best"]["regret"] == 0
    assert found["default"]["regret"] == pytest.approx(20.0)
    means = [s["value"]["mean"] for s in report["settings"]]
    assert found["rank_correlation"] == pytest.approx(stats.spearmanr(means, [1, 2, 3]).statistic)


def test_a_bad_recommendation_is_shown_as_bad(report, swept):
    taken = report["settings"][2]
    advised = report | {"recommendation": report["recommendation"] | {"knobs": taken["knobs"]}}
    (bad,) = regrets(advised, swept((10.0, 50.0, 30.0)))
    assert bad["bad"]
    assert bad["gain"]["mean"] == pytest.approx(-20.0)
    assert "WOULD HAVE BEEN BAD" in describe_regret(bad)
    (good,) = regrets(advised, swept((10.0, 50.0, 60.0)))
    assert not good["bad"]
    assert "BAD" not in describe_regret(good)


def test_rows_of_another_policy_are_refused(report, swept):
    rows = [replace(row, bundle="another") for row in swept((1.0, 2.0, 3.0))]
    with pytest.raises(DataError, match="no episode of this policy"):
        regrets(report, rows)


# The command


def test_the_command_prints_json_and_writes_a_page(run_folder, maze_arrays, tmp_path, capsys):
    np.savez(tmp_path / "data.npz", **maze_arrays)
    args = TuneArgs(
        run=run_folder,
        dataset=str(tmp_path / "data.npz"),
        **SMALL_GRID,
        states=3000,
        fits=2,
        updates=20,
        json=True,
        html=tmp_path / "page.html",
    )
    tune_command(args)
    found = json.loads(capsys.readouterr().out)
    assert len(found["settings"]) == 3
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rows": ("missing.jsonl",)}, "no such file"),
        ({"html": "nowhere/page.html"}, "folder"),
        ({"wps": (-1.0,)}, "wp"),
        ({"episodes": 50, "html": "page.html"}, "--html does not go with"),
        ({"episodes": 50, "fits": 3}, "--fits does not go with"),
    ],
)
def test_a_mistake_is_told_before_the_work_begins(run_folder, tmp_path, wrong, said):
    paths = {"html": lambda p: tmp_path / p, "rows": lambda ps: tuple(tmp_path / p for p in ps)}
    given = {name: paths.get(name, lambda v: v)(value) for name, value in wrong.items()}
    with pytest.raises(GemrlError, match=said):
        tune_command(TuneArgs(run=run_folder, **given))
