"""The upper-confidence rule that spends evaluation episodes on settings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemrl.errors import ConfigError
from gemrl.evaluate.bandit import best_arm, next_arm, score_by_budget

SCORES = st.lists(st.floats(-200, 200), min_size=1, max_size=6)
PULLS = st.lists(SCORES, min_size=1, max_size=6)


def run(means, spread, episodes, seed=0):
    """Scores of each arm after so many pulls of normal arms."""
    rng = np.random.default_rng(seed)
    pulls = [[] for _ in means]
    for _ in range(episodes):
        arm = next_arm(pulls)
        pulls[arm].append(float(rng.normal(means[arm], spread)))
    return pulls


def test_pulls_concentrate_on_the_best_arm():
    pulls = run([10.0, 50.0, 30.0, 20.0], 10.0, 200)
    assert len(pulls[1]) > 150
    assert best_arm(pulls) == 1


def test_an_arm_that_was_unlucky_once_is_tried_again():
    pulls = [[-1.0], [0.0, 1.0, -1.0] * 20]
    for _ in range(200):
        arm = next_arm(pulls)
        pulls[arm].append(100.0 if arm == 0 else 0.0)
    assert best_arm(pulls) == 0


@given(PULLS)
@settings(max_examples=50, deadline=None)
def test_every_arm_is_pulled_once_before_any_is_pulled_twice(pulls):
    missing = [*pulls, []]
    assert next_arm(missing) == len(pulls)
    assert 0 <= next_arm(pulls) < len(pulls)


@given(
    st.lists(st.lists(st.integers(-50, 50), min_size=1, max_size=5), min_size=2, max_size=5),
    st.sampled_from([0.25, 2.0, 8.0]),
    st.integers(-100, 100),
)
@settings(max_examples=50, deadline=None)
def test_the_rule_has_no_unit(pulls, scale, shift):
    """Scores in another unit lead to the same choices, but where rounding decides a tie."""
    scaled = [[scale * x + shift for x in scores] for scores in pulls]
    means = np.array([np.mean(scores) for scores in pulls])
    assert best_arm(scaled) == best_arm(pulls) or np.ptp(means) < 1e-9 or _tied(means)
    one, other = next_arm(pulls), next_arm(scaled)
    assert one == other or abs(_bound(pulls, one) - _bound(pulls, other)) < 1e-6


def _tied(means):
    first, second = np.sort(means)[::-1][:2]
    return first - second < 1e-9


def _bound(pulls, arm):
    spread = np.std(np.concatenate([np.asarray(s, float) for s in pulls]))
    total = sum(len(scores) for scores in pulls)
    return np.mean(pulls[arm]) + spread * np.sqrt(2 * np.log(total) / len(pulls[arm]))


def test_equal_scores_are_pulled_in_turn():
    pulls = [[1.0], [1.0], [1.0]]
    for _ in range(6):
        pulls[next_arm(pulls)].append(1.0)
    assert [len(scores) for scores in pulls] == [3, 3, 3]


def test_the_best_arm_is_among_those_that_were_pulled():
    assert best_arm([[], [-5.0], []]) == 1
    with pytest.raises(ConfigError, match="evaluated"):
        best_arm([[], []])


def test_one_episode_picks_a_setting_at_random_and_many_pick_the_best():
    rng = np.random.default_rng(0)
    validation = [rng.normal(mean, 5.0, 50) for mean in (0.0, 20.0, 40.0, 60.0)]
    test = [1.0, 21.0, 41.0, 61.0]
    one, few, many = score_by_budget(validation, test, (1, 8, 60), rng, repeats=60)
    assert abs(one.mean - np.mean(test)) < 4 * one.stderr
    assert one.mean < few.mean <= many.mean == 61.0
    assert (one.samples, many.stderr) == (60, 0.0)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=4), st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_a_budget_gives_a_score_that_some_setting_has(test, budget):
    validation = [[score, score + 1] for score in test]
    (found,) = score_by_budget(validation, test, (budget,), np.random.default_rng(0), repeats=3)
    assert min(test) - 1e-9 <= found.mean <= max(test) + 1e-9


@pytest.mark.parametrize(
    ("validation", "test", "budgets"),
    [([[1.0]], [1.0, 2.0], (1,)), ([[1.0], []], [1.0, 2.0], (1,)), ([[1.0]], [1.0], (0,))],
)
def test_settings_without_scores_are_refused(validation, test, budgets):
    with pytest.raises(ConfigError):
        score_by_budget(validation, test, budgets, np.random.default_rng(0))
