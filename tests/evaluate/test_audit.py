"""The audit without an environment: its statistics, its report, its text, its page, its command."""

import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

import gemrl
from gemrl.cli import main
from gemrl.errors import DataError, GemrlError
from gemrl.evaluate.audit import audit, describe, looks, measures, write_page
from gemrl.evaluate.audit.findings import findings
from gemrl.evaluate.rerank import rerank
from gemrl.methods.td3bc import Td3BcConfig

# As many as the fixture `observations` has: each size of batch is compiled once.
STATES = 40
BLOCK = 16
KEYS = {
    *("run", "models", "rows", "knobs", "log_std_min", "likelihood", "training_likelihood"),
    *("components", "calibration", "decisions", "grid", "disagreement", "winners_curse"),
    *("value_scale", "findings"),
}
WITHOUT_SIMULATOR = """
import sys
for name in ("mujoco", "gymnasium", "gymnasium_robotics", "minari"):
    sys.modules[name] = None
from gemrl.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module", autouse=True)
def _several_blocks():
    """The states go through in three blocks, of which the last is not full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(looks, "CANDIDATES_TOGETHER", BLOCK * 1025)
        yield


@pytest.fixture(scope="module")
def report(policy, maze_data):
    return audit(policy, maze_data, gemrl.Knobs(n=64, wp=0.5), states=STATES)


@pytest.fixture(scope="module")
def baselines(maze_data, tmp_path_factory):
    """Policies without a density: with critics, and without."""
    small = {"steps": 60, "hidden": (16, 16), "batch_size": 32}
    folder = tmp_path_factory.mktemp("baselines")
    configs = {"iql": gemrl.IqlConfig(**small), "bc": gemrl.BcConfig(**small)}
    return {
        name: gemrl.train(maze_data, config, folder / name, quiet=True)
        for name, config in configs.items()
    }


@pytest.fixture(scope="module")
def reports(report, baselines, maze_data):
    """A report of each method."""
    others = {
        name: audit(policy, maze_data, policy.default_knobs, states=STATES)
        for name, policy in baselines.items()
    }
    return {"gem": report, **others}


@pytest.fixture(scope="module")
def held_out(policy, maze_data):
    config = policy.bundle.manifest["config"]
    return maze_data.select(maze_data.split_episodes(config["holdout"], config["seed"])[1])


# Calibration of support


def test_actions_drawn_from_the_density_itself_have_uniform_ranks(policy, maze_data):
    rows = np.linspace(0, len(maze_data) - 1, 1500).astype(int)
    density = policy.behavior(maze_data.observations[rows])
    drawn = np.clip(np.asarray(density.sample(7, 100)), -1, 1)
    assert (np.abs(drawn) == 1).any()  # Clipped ones tie where all dimensions are at a bound.
    log_density = np.asarray(density.log_prob(drawn))
    ties = np.random.default_rng(0).uniform(size=len(rows))
    found = measures.reliability(measures.ranks(log_density[:, 0], log_density[:, 1:], ties), 99)
    assert abs(found["largest_deviation"]) < 1.63 / np.sqrt(len(rows))  # Kolmogorov's 99% band.


def test_a_rank_is_the_share_of_samples_that_are_less_likely():
    rng = np.random.default_rng(1)
    x = np.linspace(-3, 3, 25)
    samples = rng.normal(size=(25, 20_000))
    found = measures.ranks(norm.logpdf(x), norm.logpdf(samples), rng.uniform(size=25))
    assert found == pytest.approx(2 * norm.sf(np.abs(x)), abs=0.015)


def test_equal_values_are_put_in_a_random_order():
    ties = np.array([0.0, 0.25, 0.999])
    assert measures.ranks(np.zeros(3), np.zeros((3, 9)), ties) == pytest.approx(ties)
    between = measures.ranks(np.array([2.0]), np.array([[1.0, 2.0, 3.0]]), np.array([0.5]))
    assert between == pytest.approx(0.5)


def test_a_density_twice_too_narrow_gives_the_reliability_curve_of_theory():
    rng = np.random.default_rng(2)
    logged, samples = 2 * rng.normal(size=4000), rng.normal(size=(4000, 400))
    found = measures.ranks(norm.logpdf(logged), norm.logpdf(samples), rng.uniform(size=4000))
    curve = measures.reliability(found, 400)
    levels = np.array(curve["levels"])
    expected = 2 * norm.sf(norm.isf(levels / 2) / 2)
    assert curve["below"] == pytest.approx(expected, abs=0.03)
    assert curve["largest_deviation"] == pytest.approx(np.max(expected - levels), abs=0.03)


def test_the_audits_ranks_are_those_of_logged_actions_among_samples_at_their_states(
    report, policy, held_out
):
    at = np.linspace(0, len(held_out) - 1, STATES).astype(int)
    density = policy.behavior(held_out.observations[at])
    samples = np.clip(np.asarray(density.sample(3, 2000)), -1, 1)
    logged = np.asarray(density.log_prob(held_out.actions[at]))
    expected = (np.asarray(density.log_prob(samples)) < logged[:, None]).mean(axis=1)
    found = report["calibration"]
    below = [(expected <= level).mean() for level in found["levels"]]
    # Other samples, so other ranks by the noise of 256 of them.
    assert found["below"] == pytest.approx(below, abs=0.12)
    assert found["rows"] == STATES


# Reranking


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, (16, 64)),
        ({"support": "raw", "value": "zscore"}, (64,)),
        ({"anchor": "none", "source": "behavior", "k_smooth": 3}, (64,)),
    ],
)
def test_reranked_candidates_are_chosen_as_deciding_anew_would(
    changes, sizes, policy, observations
):
    knobs = gemrl.Knobs(**{"n": 64, **changes})
    record = policy.decide(observations, knobs, seed=5)
    lams, wps = [0.0, 1.0, 2.5], [0.0, 0.1, 0.7]
    grid = np.array(lams, np.float32), np.array(wps, np.float32)
    words = {"support": knobs.support, "value": knobs.value}
    rows = np.arange(len(observations))
    counts = np.array(sizes) + (knobs.anchor != "none")
    found = rerank(record.q, record.log_support, counts, *grid, **words)
    for k, n in enumerate(sizes):
        for i, lam in enumerate(lams):
            for j, wp in enumerate(wps):
                fresh = policy.decide(observations, replace(knobs, n=n, lam=lam, wp=wp), seed=5)
                chosen = np.asarray(found.chosen[k, i, j])
                # Rounding may swap two candidates whose scores are equal but for it.
                best = fresh.score[rows, fresh.chosen]
                assert fresh.score[rows, chosen] == pytest.approx(best, abs=1e-4)
                same = chosen == fresh.chosen
                assert same.mean() > 0.9
                z = np.asarray(found.support_z[k, i, j])
                assert z[same] == pytest.approx(fresh.chosen_support_z[same], abs=1e-3)
                lcb = fresh.lcb[rows, chosen]
                assert np.asarray(found.lcb[k, i, j]) == pytest.approx(lcb, abs=1e-4)


def test_without_a_density_value_alone_is_reranked(baselines, observations):
    record = baselines["iql"].decide(observations, gemrl.Knobs(wp=0.0), seed=5)
    one = np.ones(1, np.float32)
    found = rerank(record.q, None, np.array([1025]), one, 0 * one)
    assert (np.asarray(found.chosen[0, 0, 0]) == record.chosen).mean() > 0.9
    assert np.isnan(found.support_z).all()


def test_the_grid_holds_what_deciding_at_each_setting_gives(report, policy, held_out):
    at = np.linspace(0, len(held_out) - 1, STATES).astype(int)
    seeds = np.random.SeedSequence(0).generate_state(STATES)
    grid = report["grid"]
    assert grid["n"] == [16, 64, 256, 1024]
    assert 0.5 in grid["wp"]
    for n, lam, wp in ((16, 0.0, 0.1), (64, 1.0, 0.5), (1024, 2.0, 0.0)):
        knobs = gemrl.Knobs(n=n, lam=lam, wp=wp)
        decision = policy.decide(held_out.observations[at], knobs, seed=seeds)
        i, j, k = grid["n"].index(n), grid["lam"].index(lam), grid["wp"].index(wp)
        # One state more or less where rounding swaps two candidates.
        assert grid["violation"][i][j][k] == pytest.approx(decision.violation.mean(), abs=0.026)
        distance = decision.collapse_dist.mean()
        assert grid["collapse_dist"][i][j][k] == pytest.approx(distance, abs=0.02)
        chosen_z = decision.chosen_support_z.mean()
        assert grid["support_z"][i][j][k] == pytest.approx(chosen_z, abs=0.05)
        assert grid["anchor"][i][j][k] == pytest.approx((decision.chosen == 0).mean(), abs=0.026)


# Components, critics and the winner's curse


def test_usage_dead_components_and_entropy_are_those_of_the_gates():
    weights = np.array([[0.5, 0.4999, 0.0001], [0.9, 0.0999, 0.0001]])
    posterior = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    found = measures.components(np.log(weights), posterior)
    assert found["usage"] == pytest.approx([0.7, 0.2999, 0.0001])
    assert found["responsibility"] == pytest.approx([0.75, 0.25, 0])
    assert found["dead"] == [2]
    entropy = -(weights * np.log(weights)).sum(axis=1).mean()
    assert found["gate_entropy"] == pytest.approx(entropy, abs=1e-4)
    assert found["effective"] == pytest.approx(np.exp(entropy), abs=1e-3)


def test_disagreement_is_the_critics_standard_deviation_at_each_kind_of_action():
    rng = np.random.default_rng(3)
    scale = {"logged": 0.1, "candidates": 0.2, "random": 1.0}
    shapes = {"logged": 1, "candidates": 16, "random": 16}
    q = {k: 5 + s * rng.normal(size=(500, 8, shapes[k])) for k, s in scale.items()}
    found = measures.disagreement(q)
    for kind, values in q.items():
        of = found["kinds"][kind]
        spread = values.std(axis=1)
        assert of["spread_mean"] == pytest.approx(spread.mean())
        assert of["spread_median"] == pytest.approx(np.median(spread))
        assert of["value_mean"] == pytest.approx(values.mean())
        assert sum(of["histogram"]) == pytest.approx(1)
    assert found["told_apart"] > 0.99
    same = measures.disagreement(dict.fromkeys(q, q["random"][..., :1]))
    assert same["told_apart"] == 0
    assert same["kinds"]["random"]["over_logged"] == {"0.1": 0, "0.5": 0, "0.9": 0}


def test_independent_critics_of_worthless_candidates_show_the_whole_curse():
    q = np.random.default_rng(4).normal(size=(4000, 2, 65)).astype(np.float32)
    words = {"support": "zscore", "value": "raw"}
    both = measures.cross_fitted(q, None, np.array([1, 65]), 1.0, 0.0, words)
    only, found = ({name: values[:, i] for name, values in both.items()} for i in (0, 1))
    draws = np.random.default_rng(5).normal(size=(4000, 65)).max(axis=1)
    assert found["selecting_q"].mean() == pytest.approx(draws.mean(), abs=0.05)
    assert found["other_q"].mean() == pytest.approx(0, abs=0.05)
    assert only["selecting_q"].mean() == pytest.approx(only["other_q"].mean(), abs=1e-6)


def test_critics_that_agree_show_no_curse():
    one = np.random.default_rng(6).normal(size=(100, 1, 33)).astype(np.float32)
    words = {"support": "zscore", "value": "raw"}
    found = measures.cross_fitted(np.repeat(one, 4, axis=1), None, np.array([33]), 1.0, 0.0, words)
    assert found["other_q"] == pytest.approx(found["selecting_q"])
    assert found["selecting_q"][:, 0] == pytest.approx(one.max(axis=(1, 2)))
    assert measures.kept_share([1.0, 3.0], [1.0, 2.0]) == 0.5
    assert measures.kept_share([1.0, 1.0], [1.0, 2.0]) is None


def test_the_anchors_value_is_the_same_to_both_halves_of_the_critics(report):
    curse = report["winners_curse"]
    assert curse["n"] == [0, 1, 4, 16, 64, 256, 1024]
    for curve in curse["rules"].values():
        assert curve["selecting_q"][0] == pytest.approx(curve["other_q"][0], abs=1e-4)
    by_value = curse["rules"]["value"]["selecting_lcb"]
    assert all(b >= a - 1e-4 for a, b in itertools.pairwise(by_value))


# The report


def log_normal(x, mean, std):
    z = (x - mean) / std
    return (-0.5 * z**2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(axis=-1)


@pytest.mark.parametrize("name", ["actor", "behavior"])
def test_the_audited_likelihoods_are_those_of_the_mixtures_densities(
    name, report, policy, held_out
):
    mixture = getattr(policy, name)(held_out.observations)
    log_weights, means, stds = (
        np.asarray(x, np.float64) for x in (mixture.log_weights, mixture.means, mixture.stds)
    )
    each = log_normal(held_out.actions.astype(np.float64)[:, None], means, stds)
    nll = -np.log(np.exp(log_weights + each).sum(axis=1))
    gap = -each[np.arange(len(each)), log_weights.argmax(axis=1)] - nll
    found = report["likelihood"][name]
    assert found["rows"] == len(held_out) == report["rows"]["count"]
    assert found["nll"] == pytest.approx(nll.mean(), rel=1e-3)
    assert found["gap"] == pytest.approx(gap.mean(), rel=1e-3)
    assert found["gap_median"] == pytest.approx(np.median(gap), rel=1e-3, abs=1e-4)
    kept = policy.bundle.manifest["calibration"][name]["training"]
    assert report["training_likelihood"][name]["nll"] == pytest.approx(kept["nll"], rel=1e-3)


def test_decisions_are_those_of_the_anchor_and_of_the_knobs_given(report, policy, held_out):
    assert report["rows"]["part"] == "held out"
    assert report["rows"]["states"] == STATES
    anchor, search = report["decisions"]
    assert (anchor["knobs"]["n"], search["knobs"]["n"]) == (0, 64)
    assert (anchor["violation"], anchor["lcb_spread"], anchor["support_z"]) == (0, 0, 0)
    at = np.linspace(0, len(held_out) - 1, STATES).astype(int)
    seeds = np.random.SeedSequence(0).generate_state(STATES)
    decision = policy.decide(held_out.observations[at], gemrl.Knobs(n=64, wp=0.5), seed=seeds)
    assert search["violation"] == pytest.approx(decision.violation.mean())
    assert search["executed_collapse_dist"] == pytest.approx(
        decision.executed_collapse_dist.mean(), rel=1e-4
    )
    spread = decision.q.std(axis=1)[np.arange(STATES), decision.chosen]
    assert search["critic_spread"] == pytest.approx(spread.mean(), rel=1e-4)


def test_the_report_has_the_same_keys_for_every_method_and_says_what_is_missing(reports):
    for method, found in reports.items():
        assert set(found) == KEYS
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert found["run"]["method"] == method
    iql, bc = reports["iql"], reports["bc"]
    assert iql["calibration"] is bc["calibration"] is None
    assert iql["grid"]["violation"] is None
    assert np.shape(iql["grid"]["lcb"]) == (4, 3, 1)
    assert list(iql["winners_curse"]["rules"]) == ["value"]
    assert bc["grid"] is bc["disagreement"] is bc["winners_curse"] is None
    assert bc["value_scale"]["lcb_std"] is None
    for name, lacking in (("iql", ["density"]), ("bc", ["density", "critics"])):
        notes = [f["text"] for f in reports[name]["findings"] if f["about"] == "models"]
        assert len(notes) == len(lacking)
        for text, word in zip(notes, lacking, strict=True):
            assert word in text


def test_states_go_through_in_blocks_and_little_is_kept_of_each(policy, held_out):
    plan = looks.Plan(policy, gemrl.Knobs(n=64, wp=0.5), seed=0)
    done = []
    rows = held_out.select(np.arange(STATES))
    kept = looks.look_at_all(plan, rows, lambda count, detail="": done.append(count))
    assert done == [BLOCK, 2 * BLOCK, STATES]
    assert {len(values) for values in kept.values()} == {STATES}
    assert max(values[0].size for values in kept.values()) < 200
    assert sum(values[0].nbytes for values in kept.values()) < 10_000


def test_a_schedule_is_audited_along_its_course_and_its_end_is_on_the_grid(policy, maze_data):
    knobs = gemrl.Knobs(n=64, wp=gemrl.Cosine(0.3, horizon=10))
    found = audit(policy, maze_data, knobs, states=STATES)
    assert 0.3 in found["grid"]["wp"]
    assert found["value_scale"]["wp"] == 0.3
    assert found["knobs"]["wp"]["horizon"] == 10


def test_a_policy_with_nothing_held_out_is_audited_on_its_training_rows_with_a_warning(
    maze_data, tmp_path
):
    config = gemrl.BcConfig(steps=60, hidden=(16, 16), batch_size=32, holdout=0.0)
    policy = gemrl.train(maze_data, config, tmp_path / "bc", quiet=True)
    found = audit(policy, maze_data, policy.default_knobs, states=STATES)
    assert found["rows"]["part"] == "training"
    assert found["rows"]["count"] == found["rows"]["training"] == len(maze_data)
    assert found["likelihood"] == found["training_likelihood"]
    assert (found["findings"][0]["level"], found["findings"][0]["about"]) == ("warning", "rows")


# Words


def finding(report, about, **changes):
    """The findings about one key of a report in which that key is changed."""
    changed = report | {about: report[about] | changes}
    return [f for f in findings(changed, []) if f["about"] == about]


def test_support_that_is_off_is_warned_of_with_its_direction(report):
    assert finding(report, "calibration", largest_deviation=0.05, chance_band=0.04) == []
    off = {"largest_at": 0.3, "chance_band": 0.04}
    (sure,) = finding(report, "calibration", largest_deviation=0.2, **off)
    (wide,) = finding(report, "calibration", largest_deviation=-0.2, **off)
    assert (sure["level"], wide["level"]) == ("warning", "warning")
    assert "50% of the held-out actions" in sure["text"]
    assert "too sure" in sure["text"]
    assert "too lenient" in wide["text"]


@pytest.mark.parametrize(("safe_from", "said"), [(0.7, "w_p = 0.7"), (np.inf, "no w_p up to 2")])
def test_high_violation_is_warned_of_with_the_weight_that_would_mend_it(report, safe_from, said):
    grid, decided = report["grid"], report["decisions"][-1]
    rates = np.where(np.array(grid["wp"]) < safe_from, 0.3, 0.0)
    everywhere = np.broadcast_to(rates, (len(grid["n"]), len(grid["lam"]), len(rates)))
    changed = report | {
        "grid": grid | {"violation": everywhere.tolist()},
        "decisions": [decided | {"violation": 0.3}],
    }
    (warned,) = (f for f in findings(changed, []) if f["about"] == "decisions")
    assert warned["level"] == "warning"
    assert "30% of the states" in warned["text"]
    assert said in warned["text"]


def test_dead_components_blind_critics_and_a_curse_are_told(report):
    dead = finding(report, "components", actor=report["components"]["actor"] | {"dead": [1, 3]})
    assert any("2 dead of 4" in f["text"] and "1, 3" in f["text"] for f in dead)
    (blind,) = finding(report, "disagreement", told_apart=0.5)
    assert blind["level"] == "warning"
    rules = {"value": {"wp": 0.0, "selecting_q": [1.0, 3.0], "other_q": [1.0, 1.5]}}
    rules["value"]["kept_share"] = 0.25
    (cursed,) = finding(report, "winners_curse", n=[0, 64], rules=rules)
    assert cursed["level"] == "warning"
    assert "+0.5 of it (25%)" in cursed["text"]


def test_warnings_come_before_notes_and_those_of_training_are_among_them(report):
    found = findings(report, [("actor/dead", "the actor hardly uses its components")])
    levels = [f["level"] for f in found]
    assert levels == sorted(levels, key=lambda level: level != "warning")
    assert {"level": "warning", "about": "actor", "text": found[0]["text"]} in found
    assert found[0]["text"] == "the actor hardly uses its components"


def test_the_text_tells_findings_and_numbers_in_aligned_columns(reports):
    text = describe(reports["gem"])
    for found in reports["gem"]["findings"]:
        assert found["text"] in text
    assert f"{reports['gem']['likelihood']['behavior']['gap']:.3f}" in text
    for title in ("NLL gap", "support calibration", "violation at λ 1", "winner's curse"):
        assert title in text
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("violation at"))
    assert len({len(line) for line in lines[start : start + 5]}) == 1
    assert "winner's curse" not in describe(reports["bc"])


# The page


@pytest.mark.parametrize("method", ["gem", "iql", "bc"])
def test_the_page_holds_its_pictures_and_fetches_nothing(method, reports, tmp_path):
    page = write_page(reports[method], tmp_path / "page.html").read_text(encoding="utf-8")
    images = re.findall(r'<img[^>]*src="data:image/png;base64,([^"]+)"', page)
    # Usage of each mixture; reliability, a pair for each λ; critics; a curse for each rule.
    assert len(images) == {"gem": 2 + 1 + 6 + 2 + 2, "iql": 1 + 2 + 1, "bc": 1}[method]
    assert len(set(images)) == len(images)
    assert page.count("How to read it") == {"gem": 5, "iql": 3, "bc": 1}[method]
    assert not re.search(r'(?:src|href)="(?!data:)|https?://|@import|url\(', page)
    for found in reports[method]["findings"]:
        assert found["level"] in page
    assert "None" not in page


# Mistakes, and the command


def test_the_audit_refuses_another_dataset(policy, maze_data):
    other = maze_data.select(np.arange(len(maze_data) - 1))
    with pytest.raises(DataError, match="not the dataset") as caught:
        audit(policy, other, gemrl.Knobs(), states=5)
    assert maze_data.fingerprint[:16] in str(caught.value)
    assert other.fingerprint[:16] in str(caught.value)


@pytest.mark.parametrize("states", [0, -3])
def test_the_audit_refuses_fewer_than_one_state(policy, maze_data, states):
    with pytest.raises(GemrlError, match=f"states = {states}"):
        audit(policy, maze_data, gemrl.Knobs(), states=states)


def test_the_audit_refuses_a_seed_out_of_range_and_knobs_that_nothing_serves(
    policy, baselines, maze_data
):
    with pytest.raises(GemrlError, match="seed = -1"):
        audit(policy, maze_data, gemrl.Knobs(), states=5, seed=-1)
    with pytest.raises(GemrlError, match="no critics"):
        audit(baselines["bc"], maze_data, gemrl.Knobs(n=8, wp=0.0), states=5)


@pytest.fixture(scope="module")
def saved(maze_arrays, tmp_path_factory):
    """A run and its data file, as the command needs them."""
    folder = tmp_path_factory.mktemp("saved")
    np.savez(folder / "umaze.npz", **maze_arrays)
    words = ["train", str(folder / "umaze.npz"), "--task", "maze2d-umaze-v1", "--steps", "60"]
    words += ["--pretrain-steps", "60", "--hidden", "32", "32", "--critics", "3"]
    words += ["--components", "4", "--batch-size", "64", "--out", str(folder / "run")]
    assert main(words) == 0
    return folder


def test_the_command_writes_json_and_a_page_with_no_simulator_to_be_had(saved, tmp_path):
    words = [saved / "run", "--states", "12", "--json", "--html", tmp_path / "a.html"]
    command = [sys.executable, "-c", WITHOUT_SIMULATOR, "audit", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == KEYS
    assert "pictures in" in done.stderr
    assert "data:image/png" in (tmp_path / "a.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--states", "0"], "states = 0"),
        (["--seed", "-1"], "seed = -1"),
        (["--states", str(STATES), "--n", "64", "--html", "/dev/null/page.html"], "page.html"),
        (["--dataset", "no-such-file.hdf5"], "no-such-file.hdf5"),
    ],
)
def test_mistakes_are_one_line_and_exit_with_2(words, said, saved, capsys):
    assert main(["audit", str(saved / "run"), *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.strip().splitlines()[-1]
    assert said in last
    assert "Traceback" not in captured.err


def test_a_proposal_without_a_density_is_audited_by_what_its_critics_say(maze_data, tmp_path):
    config = Td3BcConfig(steps=20, hidden=(8, 8), batch_size=32)
    policy = gemrl.train(maze_data, config, tmp_path, quiet=True)
    found = audit(policy, maze_data, gemrl.Knobs(n=4, wp=0.0), states=4)
    assert (found["likelihood"], found["components"], found["log_std_min"]) == ({}, {}, None)
    assert found["disagreement"] is not None
    told = describe(found)
    assert "likelihood of logged actions" not in told
    assert "td3bc" in told
    write_page(found, tmp_path / "audit.html")
    assert "td3bc" in (tmp_path / "audit.html").read_text()
