"""Summaries of rows against NumPy and SciPy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, sem, trim_mean

from gemrl.maths.statistics import (
    Estimate,
    Interval,
    clustered,
    estimate,
    interquartile_mean,
    normalized_score,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)

RANDOM = settings(max_examples=60, deadline=None, derandomize=True)
NUMBERS = st.floats(-1e4, 1e4, allow_subnormal=False)


@RANDOM
@given(st.lists(NUMBERS, min_size=2, max_size=30))
def test_estimate_is_the_mean_and_scipys_standard_error(samples):
    found = estimate(samples)
    assert found.mean == pytest.approx(np.mean(samples), rel=1e-9, abs=1e-9)
    assert found.stderr == pytest.approx(sem(samples), rel=1e-9, abs=1e-9)
    assert found.samples == len(samples)


def test_estimate_of_one_sample_has_no_error():
    found = estimate([3.5])
    assert found.mean == 3.5
    assert math.isnan(found.stderr)
    assert found.samples == 1


def test_estimate_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        estimate([])


def test_estimate_sums_float32_rewards_in_double_precision():
    samples = np.array([1e8, 1.0, 1.0], np.float32)
    assert estimate(samples).mean == pytest.approx((1e8 + 2) / 3, abs=1e-6)


def test_estimate_reads_as_mean_plus_minus_error():
    assert str(Estimate(41.23, 1.57, 100)) == "41.2 ± 1.6"
    assert f"{Estimate(0.4123, 0.0157, 100):+.2f}" == "+0.41 ± 0.02"


@RANDOM
@given(st.lists(st.lists(NUMBERS, min_size=1, max_size=6), min_size=2, max_size=8))
def test_clustered_is_the_estimate_over_the_means_of_the_groups(groups):
    found = clustered(groups)
    means = [sum(group) / len(group) for group in groups]
    assert found.mean == pytest.approx(sum(means) / len(means), rel=1e-9, abs=1e-6)
    assert found.stderr == pytest.approx(sem(means), rel=1e-9, abs=1e-6)
    assert found.samples == sum(len(group) for group in groups)


def test_clustered_does_not_gain_precision_from_more_episodes_of_the_same_seeds():
    once = clustered([[0.0], [10.0]])
    many = clustered([[0.0] * 50, [10.0] * 50])
    assert many.stderr == once.stderr == pytest.approx(5.0)
    assert many.samples == 100


def test_clustered_with_one_group_is_the_estimate_of_its_samples():
    assert clustered([[1.0, 2.0, 6.0]]) == estimate([1.0, 2.0, 6.0])


def test_normalized_score_is_zero_at_the_low_and_a_hundred_at_the_high_reference():
    assert normalized_score(-20.0, -20.0, 80.0) == 0.0
    assert normalized_score(80.0, -20.0, 80.0) == 100.0
    assert normalized_score(30.0, -20.0, 80.0) == 50.0
    assert normalized_score(130.0, -20.0, 80.0) == 150.0
    assert normalized_score(-45.0, -20.0, 80.0) == -25.0


GROUPS = st.lists(st.lists(NUMBERS, min_size=2, max_size=6), min_size=1, max_size=4)
FEW = settings(max_examples=25, deadline=None, derandomize=True)


@RANDOM
@given(st.lists(NUMBERS, min_size=1, max_size=40))
def test_interquartile_mean_is_scipys_trimmed_mean(values):
    assert interquartile_mean(values) == pytest.approx(trim_mean(values, 0.25), rel=1e-9, abs=1e-9)


@RANDOM
@given(GROUPS)
def test_interquartile_mean_pools_the_runs_of_all_tasks(groups):
    pooled = [score for runs in groups for score in runs]
    assert interquartile_mean(groups) == interquartile_mean(pooled)


def test_interquartile_mean_is_not_moved_by_an_outlier():
    assert interquartile_mean([1.0, 2.0, 3.0, 1e9]) == 2.5


@FEW
@given(GROUPS)
def test_bootstrap_bounds_are_in_order_and_within_the_scores(groups):
    found = stratified_bootstrap(groups, interquartile_mean, repeats=50)
    scores = np.concatenate(groups)
    assert found.value == interquartile_mean(groups)
    assert scores.min() - 1e-6 <= found.low <= found.high <= scores.max() + 1e-6


@FEW
@given(GROUPS)
def test_bootstrap_is_a_function_of_its_scores_and_seed_alone(groups):
    once = stratified_bootstrap(groups, interquartile_mean, repeats=20, seed=3)
    again = stratified_bootstrap(groups, interquartile_mean, repeats=20, seed=3)
    assert once == again


def test_bootstrap_resamples_within_a_task_and_never_across():
    def means(groups):
        return float(np.mean([np.mean(runs) for runs in groups]))

    constant_tasks = [[0.0, 0.0, 0.0], [100.0, 100.0]]
    assert stratified_bootstrap(constant_tasks, means) == Interval(50.0, 50.0, 50.0)


def test_bootstrap_covers_a_known_mean_about_as_often_as_it_says():
    def mean(groups):
        return float(np.mean([np.mean(runs) for runs in groups]))

    rng = np.random.default_rng(0)
    centres = np.array([[10.0], [50.0], [90.0]])
    hits = 0
    for _ in range(200):
        runs = rng.normal(centres, 5.0, (3, 20))
        found = stratified_bootstrap(runs, mean, level=0.9, repeats=200)
        hits += found.low <= 50.0 <= found.high
    assert 0.82 <= hits / 200 <= 0.95


def test_a_wider_level_gives_a_wider_interval():
    runs = [np.random.default_rng(1).normal(size=10)]
    narrow = stratified_bootstrap(runs, interquartile_mean, level=0.5)
    wide = stratified_bootstrap(runs, interquartile_mean, level=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_a_task_with_a_single_run_takes_the_bounds_away():
    found = stratified_bootstrap([[1.0, 2.0], [3.0]], interquartile_mean)
    assert found.value == 2.0
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert str(found) == "2.0"


def test_an_interval_reads_as_value_and_bounds():
    assert str(Interval(54.21, 48.06, 60.0)) == "54.2 [48.1, 60.0]"
    assert f"{Interval(0.5421, 0.4806, 0.6):.2f}" == "0.54 [0.48, 0.60]"


@FEW
@given(st.data(), st.integers(1, 3))
def test_probabilities_of_improvement_of_two_sides_sum_to_one(data, tasks):
    # Small integers, so that there are ties.
    scores = st.lists(st.integers(0, 3).map(float), min_size=2, max_size=5)
    sides = st.lists(scores, min_size=tasks, max_size=tasks)
    first, second = data.draw(sides), data.draw(sides)
    one = probability_of_improvement(first, second, repeats=30)
    other = probability_of_improvement(second, first, repeats=30)
    assert one.value + other.value == pytest.approx(1.0)
    assert 0.0 <= one.low <= one.high <= 1.0
    expected = [
        mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in zip(first, second, strict=True)
    ]
    assert one.value == pytest.approx(np.mean(expected))


def test_probability_of_improvement_is_one_where_every_run_is_better():
    assert probability_of_improvement([[5.0, 6.0]], [[1.0, 2.0, 3.0]]) == Interval(1.0, 1.0, 1.0)


def test_probability_of_improvement_needs_the_same_tasks():
    with pytest.raises(ValueError, match="2 tasks cannot be compared with 1"):
        probability_of_improvement([[1.0], [2.0]], [[1.0]])


@FEW
@given(GROUPS, st.lists(NUMBERS, min_size=1, max_size=10))
def test_a_performance_profile_falls_from_one_to_zero(groups, thresholds):
    scores = np.concatenate(groups)
    at = np.sort([*thresholds, scores.min() - 1.0, scores.max()])
    found = performance_profile(groups, at, repeats=30)
    assert found.share.shape == found.low.shape == found.high.shape == at.shape
    assert np.all(np.diff(found.share) <= 1e-12)
    assert np.all(np.diff(found.low) <= 1e-12)
    assert np.all(np.diff(found.high) <= 1e-12)
    assert np.all(found.low <= found.high)
    assert found.share[at < scores.min()] == pytest.approx(1.0)
    assert found.share[at >= scores.max()] == pytest.approx(0.0)


def test_a_performance_profile_weighs_tasks_alike_however_many_runs_they_have():
    found = performance_profile([[0.0] * 8, [10.0, 10.0]], [5.0])
    assert found.share == pytest.approx([0.5])


@pytest.mark.parametrize("groups", [[], [[1.0], []], [[[1.0, 2.0]]]])
def test_statistics_of_no_runs_are_refused(groups):
    with pytest.raises(ValueError, match="no samples"):
        stratified_bootstrap(groups, interquartile_mean)


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        performance_profile([[1.0, math.nan]], [0.0])
    with pytest.raises(ValueError, match="not finite"):
        interquartile_mean([1.0, math.inf])


def test_a_level_outside_zero_to_one_is_refused():
    with pytest.raises(ValueError, match="level"):
        stratified_bootstrap([[1.0, 2.0]], interquartile_mean, level=95)
