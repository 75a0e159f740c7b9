"""T1 to T4 as experiments: what is measured, and what is said of it."""

import json
from dataclasses import replace

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import gemrl
from gemrl.data.recipes import make_dataset
from gemrl.data.tasks import task_named
from gemrl.decide.knobs import Knobs
from gemrl.evaluate.cells import here
from gemrl.evaluate.reproduce import mechanisms
from gemrl.evaluate.reproduce.budget import Budget
from gemrl.evaluate.reproduce.document import Document, Plot, Table, write
from gemrl.evaluate.reproduce.facts import Facts, facts_of
from gemrl.evaluate.reproduce.mechanisms import (
    exchange_rate,
    guidance,
    modes,
    projection,
    reading,
    support_scale,
    winner,
)
from gemrl.evaluate.reproduce.mechanisms.fitting import datasets, fit, two_modes
from gemrl.evaluate.reproduce.mechanisms.seen import Effort, Seen
from gemrl.evaluate.reproduce.study import Study
from gemrl.evaluate.rollouts import rollout
from gemrl.evaluate.rows import Row
from gemrl.maths.statistics import Estimate

UMAZE = "maze2d-umaze-v1"
WEIGHTS = exchange_rate.WEIGHTS


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    plt.close("all")


SMALL = Effort(states=24, transitions=100, repeats=40, datasets=4, samples=300, episodes=2)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study with one small trained policy and its baselines."""
    out = tmp_path_factory.mktemp("study")
    budget = Budget((UMAZE,), steps=200, seeds=1, episodes=2, n=32, sweep_n=8)
    found = Study(budget, out, here)
    found.begin()
    file = out / "data.hdf5"
    make_dataset(task_named(UMAZE), 8_000, 0, file)
    config = gemrl.GemConfig(
        steps=200, pretrain_steps=200, components=4, hidden=(32, 32), batch_size=64
    )
    run = found.policy(UMAZE, "gem", 0)
    gemrl.train(gemrl.load_dataset(file), config, run, quiet=True, baselines=True)
    return found


@pytest.fixture(scope="module")
def seen(study):
    return Seen(study, task_named(UMAZE), 0, study.dataset(UMAZE), SMALL)


@pytest.fixture(scope="module")
def _few_weights():
    """Two weights a sweep are enough to see that it is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange_rate, "WEIGHTS", {"raw": (0.1, 1.0), "zscore": (0.1, 1.0)})
        yield


@pytest.fixture(scope="module")
def collected(study, _few_weights):
    """The study's folder after everything was measured once."""
    mechanisms.collect(study, SMALL)
    return study.out


@pytest.fixture(scope="module")
def records(collected):
    return facts_of(collected).records["mechanisms"]


# Fits


def test_one_component_is_the_gaussian_of_maximum_likelihood():
    data = datasets(two_modes(1.0, 0.2), SMALL.datasets, SMALL.samples)
    found = fit(data, np.ones(data.shape[:2]), 1)
    assert np.allclose(found.means[:, 0, 0], data.mean(axis=(1, 2)), atol=1e-5)
    assert np.allclose(found.stds[:, 0, 0], data.std(axis=(1, 2)), atol=1e-5)


def test_two_components_find_both_modes():
    data = datasets(two_modes(1.0, 0.1), SMALL.datasets, SMALL.samples)
    found = fit(data, np.ones(data.shape[:2]), 2)
    assert np.allclose(np.sort(found.means[..., 0], axis=1), [-0.5, 0.5], atol=0.03)
    assert np.allclose(np.exp(found.log_weights.max(axis=1)), 0.6, atol=0.08)


def test_weights_are_shares_of_samples():
    data = datasets(two_modes(1.0, 0.2), SMALL.datasets, SMALL.samples)
    right = data[..., 0] > 0
    found = fit(data, 5.0 * right, 1)
    for one, mask, mean, std in zip(data, right, found.means, found.stds, strict=True):
        assert mean[0, 0] == pytest.approx(one[mask].mean(), abs=1e-5)
        assert std[0, 0] == pytest.approx(one[mask].std(), abs=1e-5)


# T1


def test_maximum_likelihood_averages_separate_modes_and_reverse_kl_settles_on_one(records):
    records = reading.pick(records, experiment=projection.CONTROLLED)
    far = {r["fit"]: r for r in reading.pick(records, separation=8)}
    assert far["likelihood"]["distance"] > 3
    assert far["likelihood"]["log_density"] < -4
    assert far["mixture"]["distance"] < 0.3
    assert far["reverse"]["distance"] < 0.1
    near = {r["fit"]: r for r in reading.pick(records, separation=1)}
    assert near["likelihood"]["log_density"] == pytest.approx(
        near["reverse"]["log_density"], abs=0.1
    )


def test_a_mode_of_the_density_is_denser_than_nearly_all_its_draws(records):
    found = {r["action"]: r for r in reading.pick(records, experiment=projection.TRAINED)}
    assert set(found) == set(projection.ACTIONS)
    for record in found.values():
        assert 0 <= record["weak"] <= 1
        assert 0 <= record["rank"] <= 1
    assert found["behavior mode"]["distance"] == pytest.approx(0, abs=1e-6)
    assert found["behavior mode"]["rank"] > 0.8
    assert found["behavior mode"]["rank"] > found["bc"]["rank"]


# T2


def test_guided_em_tilts_as_the_weights_say(records):
    records = reading.pick(records, experiment=guidance.CONTROLLED)
    exact = reading.pick(records, components=2, beta=1.0)[0]
    assert exact["slope"] == pytest.approx(1, abs=0.05)
    assert exact["moved"] == pytest.approx(1, abs=0.1)
    assert reading.pick(records, components=1, beta=3.0)[0]["slope"] > 1.3


def test_deciles_are_in_order_of_advantage_and_the_tilt_follows_it(records):
    records = reading.pick(records, experiment=guidance.DECILES)
    assert [r["decile"] for r in records] == list(range(1, 11))
    advantages = [r["advantage"] for r in records]
    assert advantages == sorted(advantages)
    assert records[-1]["predicted"] > records[0]["predicted"]


def test_a_slope_is_that_of_a_line():
    x = np.array([0.0, 1.0, 2.0, 5.0])
    assert guidance.slope(x, 3 * x - 7) == pytest.approx(3)


# T3


def test_standardized_support_has_the_same_scale_everywhere_and_raw_support_not(records):
    records = reading.pick(records, experiment=support_scale.TRAINED)
    for record in records:
        if record["mode"] == "zscore":
            assert record["scale"] == pytest.approx(record["wp"])
            assert record["scale_cv"] == pytest.approx(0, abs=1e-9)
        assert 0 <= record["changed"] <= 1
    smallest = min(r["n"] for r in records)
    raw = reading.pick(records, mode="raw", n=smallest, wp=0.4)[0]
    # Its weight is such that it contributes the same in the mean state.
    assert raw["scale"] == pytest.approx(0.4)
    assert raw["scale_cv"] > 0.05
    assert reading.pick(records, mode="both", wp=0.4)[0]["leverage_factor"] == pytest.approx(1)


def row(task, wp, value, score, seed=0):
    knobs = Knobs(n=8, lam=task_named(task).lam, wp=wp, value=value)
    about = {"env_id": "e", "simulator": "s", "method": "gem", "data_fingerprint": "f"}
    audits = dict.fromkeys(
        (
            "violation",
            "collapse_dist",
            "support_z",
            "executed_violation",
            "executed_collapse_dist",
            "executed_support_z",
            "lcb_spread",
        )
    )
    return Row(
        task=task,
        bundle=f"{task}{seed}",
        data_origin="regenerated",
        train_seed=seed,
        updates=10,
        protocol="validation",
        episode_seed=0,
        knobs=knobs.to_json(),
        episode_return=0.0,
        score=score,
        length=1,
        **about,
        **audits,
    )


def test_the_regret_of_one_weight_is_that_of_hand_made_scores(monkeypatch):
    # Raw: tasks want 0.1 and 2. Standardized: both want 1, and one is worse off by 4 there.
    raw = {UMAZE: {0.1: 50}, "maze2d-medium-v1": {2.0: 30}}
    zscored = {UMAZE: {1.0: 50}, "maze2d-medium-v1": {1.0: 26}}
    rows = [
        row(task, wp, value, float(best[task].get(wp, 0)))
        for value, best in (("raw", raw), ("zscore", zscored))
        for task in best
        for wp in WEIGHTS[value]
    ]
    monkeypatch.setattr(exchange_rate, "WEIGHTS", WEIGHTS)
    scores = exchange_rate.scores_of(rows)
    one = exchange_rate.shared(scores, "raw")
    assert (one.weight, one.score) == (0.1, 25)
    assert one.own_regret.mean == one.regret.mean == 15
    both = exchange_rate.shared(scores, "zscore")
    assert (both.weight, both.score) == (1.0, 38)
    assert (both.own_regret.mean, both.regret.mean) == (0, 2)
    # Chosen on the other task alone, each raw weight scores nothing on the task left out.
    assert one.left_out is not None
    assert one.left_out.mean == 40
    document = Document("x")
    exchange_rate.chapter(document, rows)
    assert "serves all tasks" in document.parts[-1]


def test_the_best_weight_is_told_beside_the_spread_of_the_value_term(monkeypatch):
    monkeypatch.setattr(exchange_rate, "WEIGHTS", WEIGHTS)
    best = {UMAZE: (0.1, 0.5), "maze2d-medium-v1": (0.4, 0.2), "maze2d-large-v1": (2.0, 0.1)}
    rows = [
        replace(row(task, wp, "raw", 10.0 if wp == wanted else 4.0), lcb_spread=spread)
        for task, (wanted, spread) in best.items()
        for wp in WEIGHTS["raw"]
    ]
    assert exchange_rate.spreads_of(rows) == pytest.approx({t: s for t, (_, s) in best.items()})
    document = Document("x")
    exchange_rate.chapter(document, rows)
    table = next(part for part in document.parts if isinstance(part, Table))
    assert table.lines[1] == ["maze2d-medium-v1", "0.20", "0.4", "10.0", "4.0"]
    said = [part for part in document.parts if isinstance(part, str)]
    assert any("over 3 tasks: -1.00" in part for part in said)
    assert any("loses 4.0 ± 2.0" in part for part in said)


def test_a_task_without_both_sweeps_is_left_out():
    rows = [row(UMAZE, wp, "raw", 1.0) for wp in WEIGHTS["raw"]]
    assert exchange_rate.scores_of(rows)["raw"][0.1] == {}


# T4


def test_the_winners_overestimate_grows_with_candidates_and_stays_below_the_bound(records):
    records = reading.pick(records, experiment=winner.CONTROLLED)
    plain = reading.pick(records, setting="independent", lam=0.0)
    assert plain[-1]["overestimate"] > plain[3]["overestimate"] > plain[1]["overestimate"]
    for record in records:
        if record["n"] > 1:
            assert record["overestimate"] < record["bound"]


def test_pessimism_helps_where_the_spread_tells_and_not_where_the_error_is_shared(records):
    records = reading.pick(records, experiment=winner.CONTROLLED)

    def taken_off(setting):
        many = winner.COUNTS[-1]
        plain, careful = (
            reading.pick(records, setting=setting, lam=lam, n=many)[0] for lam in (0.0, 3.5)
        )
        return plain["overestimate"] - careful["overestimate"]

    assert taken_off("uneven, known") > 3
    assert taken_off("uneven") > 1
    assert taken_off("shared") < 0.6


@pytest.mark.parametrize("setting", winner.SETTINGS)
def test_the_mean_error_has_the_stated_sigma_or_less(setting):
    rng = np.random.default_rng(0)
    drawn = [winner.noise(setting, 40, rng) for _ in range(400)]
    errors = np.concatenate([d.errors.mean(axis=0) for d in drawn])
    assert errors.std() < 1.05 * drawn[0].sigma


def test_an_anchor_that_nobody_chose_is_not_overrated(records):
    records = reading.pick(records, experiment=winner.TRAINED)
    for record in reading.pick(records, n=0):
        assert record["overestimate"] == pytest.approx(0, abs=1e-5)
        assert record["gain"] == 0
    many = max(r["n"] for r in records)
    plain = reading.pick(records, lam=0.0, wp=0.0)
    assert reading.pick(plain, n=many)[0]["overestimate"] > 0


# Modes


def decision(scores, components):
    """What the rules look at, of a decision with these scores [B, C]."""

    class Scored:
        score = np.array(scores, np.float32)

    return Scored(), np.array(components)


def test_a_sticky_rule_leaves_a_component_only_for_a_clearly_better_score():
    # The spread of scores is 1 in both rows; the other component is better by 0.2 and by 2.
    scored, components = decision([[0.0, 0.2, -2.0], [0.0, 2.0, 0.0]], [[0, 1, 1], [0, 1, 0]])
    even = np.zeros((2, 2))
    sticky = modes.Rule("sticky", Knobs(), margin=0.5)
    last = np.array([0, 0])
    assert modes.pick_candidate(sticky, scored, components, even, last).tolist() == [0, 1]
    assert modes.pick_candidate(sticky, scored, components, even, None).tolist() == [1, 1]
    # A component that has no candidate cannot be kept.
    gone = np.array([5, 5])
    assert modes.pick_candidate(sticky, scored, components, even, gone).tolist() == [1, 1]


def test_light_components_are_left_out_but_never_the_anchor():
    scored, components = decision([[0.0, 3.0, 1.0]], [[0, 1, 0]])
    heavy = modes.Rule("heavy", Knobs(), least_weight=0.5)
    log_weights = np.log([[0.9, 0.1]])
    assert modes.pick_candidate(heavy, scored, components, log_weights, None).tolist() == [2]
    assert modes.pick_candidate(
        modes.Rule("plain", Knobs()), scored, components, log_weights, None
    ).tolist() == [1]


def test_an_action_belongs_to_the_component_it_most_likely_came_from():
    mixture = two_modes(1.0, 0.1)
    actor = gemrl.maths.mixture.Mixture(*(jnp.asarray(x)[None] for x in vars(mixture).values()))
    found = modes.component_of(actor, np.array([[[-0.4], [0.6]]]))
    assert found.tolist() == [[0, 1]]


def test_the_plain_rule_gives_the_episodes_that_rows_are_made_of(seen):
    knobs, seeds = Knobs(n=8, wp=1.0), np.array([0])
    rows, _ = rollout(seen.gem, knobs, seen.task, seeds.tolist(), "validation")
    found = modes.roll(seen.gem, modes.Rule("mixture", knobs), seen, seeds)
    assert found["score"] == pytest.approx([r.score for r in rows])
    assert found["support_z"] == pytest.approx([r.support_z for r in rows], abs=1e-3)
    assert (found["jumped"] <= found["switched"]).all()
    assert ((found["moved"] > 0) & (found["moved"] < 2)).all()


# Reading


def test_errors_are_between_seeds_and_within_the_only_one():
    one = [{"x": 3.0, "x_error": 0.5}]
    assert reading.over_seeds(one, "x") == Estimate(3.0, 0.5, 1)
    three = [{"x": v, "x_error": 9.0} for v in (1.0, 2.0, 3.0)]
    assert reading.over_seeds(three, "x").stderr == pytest.approx(1 / np.sqrt(3))


def test_differences_are_paired_by_training_seed():
    ours = [{"seed": s, "x": v} for s, v in enumerate((1.0, 5.0))]
    theirs = [{"seed": s, "x": v} for s, v in ((1, 4.0), (0, 0.0))]
    assert reading.difference(ours, theirs, "x") == Estimate(1.0, 0.0, 2)
    one, other = {"x": 3.0, "x_error": 0.3}, {"x": 1.0, "x_error": 0.4}
    assert reading.difference([one], [other], "x") == Estimate(2.0, pytest.approx(0.5), 1)


def test_a_statement_is_decided_where_a_95_percent_interval_says_so():
    # Student's interval is 4.30 standard errors wide for three seeds, 12.7 for two.
    assert reading.sign(Estimate(4.4, 1.0, 3)) == 1
    assert reading.sign(Estimate(-4.4, 1.0, 3)) == -1
    assert reading.sign(Estimate(4.2, 1.0, 3)) == 0
    assert reading.sign(Estimate(4.4, 1.0, 2)) == 0
    assert reading.sign(Estimate(2.0, 1.0, 1)) == 1
    assert reading.sign(Estimate(1.0, float("nan"), 1)) == 0
    assert reading.sign(Estimate(0.6, 0.01, 3), than=0.5) == 1
    found = {"a": Estimate(9.0, 1.0, 3), "b": Estimate(1.0, 1.0, 3), "c": Estimate(-9.0, 1.0, 3)}
    assert reading.by_task(found, form="+.0f") == (
        "Holds in a (+9 ± 1); Undecided in b (+1 ± 1); Does not hold in c (-9 ± 1)."
    )
    assert reading.by_task(found, below=True).startswith("Holds in c")


# The whole


def test_all_is_measured_once_and_rendered_from_records_alone(study, collected, tmp_path):
    facts = facts_of(collected)
    document = mechanisms.render(facts)
    titles = [p for p in document.parts if isinstance(p, str) and p.startswith("## ")]
    assert len(titles) == 6
    assert sum(isinstance(p, Table) for p in document.parts) >= 9
    assert sum(isinstance(p, Plot) for p in document.parts) >= 8
    written = write(document, tmp_path, "mechanisms")
    assert all(path.exists() for path in written)
    before = (collected / "records" / "mechanisms.jsonl").read_text()
    mechanisms.collect(study, SMALL)
    assert (collected / "records" / "mechanisms.jsonl").read_text() == before
    for line in before.splitlines():
        assert not any(isinstance(v, list | dict) for v in json.loads(line).values())


def test_findings_follow_the_numbers(records):
    def said(change):
        document = Document("x")
        modes.chapter(document, [change(dict(r)) for r in records])
        return "\n".join(p for p in document.parts if isinstance(p, str))

    def with_gain(sense):
        def change(record):
            if record["experiment"] == modes.ROLLOUTS:
                better = record["rule"] in ("heaviest component", "mixture, sticky by 2")
                record |= {"gain": sense * 9.0 * better, "gain_error": 1.0}
            return record

        return change

    assert "speaks for jumping as the cause" in said(with_gain(1))
    assert "not surely better at the chosen w_p" in said(with_gain(-1))


def test_without_records_each_chapter_says_what_it_is_about():
    document = mechanisms.render(Facts([], {}))
    assert sum(isinstance(p, str) and p.startswith("## ") for p in document.parts) == 6
    assert not any(isinstance(p, Table | Plot) for p in document.parts)
