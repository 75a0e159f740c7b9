"""Summaries of rows against NumPy and SciPy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import sem

from gemrl.maths.statistics import Estimate, clustered, estimate, normalized_score

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
