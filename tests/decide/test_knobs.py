"""Knobs refuse what cannot be decided with, say why, and survive JSON."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemrl
from gemrl.errors import KnobError

RANDOM = settings(max_examples=100, deadline=None, derandomize=True)
NAN, INF = math.nan, math.inf

NOT_WHOLE = [NAN, INF, -1, 1.5, 4.0, np.float64(4.0), True, np.True_, "8", None, [8], 10**30]
NOT_A_WEIGHT = [NAN, INF, -INF, -0.1, True, np.True_, "1", None, 1j, [1.0], np.float32(NAN)]
WORDS = {
    "source": ("actor", "behavior", "unimodal"),
    "anchor": ("mode", "barycenter", "none"),
    "support": ("zscore", "raw"),
    "value": ("raw", "zscore"),
}
NOT_A_WORD = ["", "Actor", "both", None, 3, True, ["raw"], b"raw"]


def refusal(**knobs):
    """The message with which knobs are refused."""
    with pytest.raises(KnobError) as caught:
        gemrl.Knobs(**knobs)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


def test_defaults_are_the_documented_ones():
    knobs = gemrl.Knobs()
    assert knobs.n == 1024
    assert knobs.lam == 1.0
    assert knobs.wp == 0.4
    assert knobs.k_smooth == 1
    assert knobs.source == "actor"
    assert knobs.anchor == "mode"
    assert knobs.support == "zscore"
    assert knobs.value == "raw"
    assert gemrl.Cosine(0.4, 300).start == 1.0


@pytest.mark.parametrize("value", NOT_WHOLE, ids=repr)
@pytest.mark.parametrize(("name", "low"), [("n", "0"), ("k_smooth", "1")])
def test_a_count_that_is_no_whole_number_in_range_is_refused_by_name(name, low, value):
    message = refusal(**{name: value})
    assert message.startswith(f"{name} = {value!r}")
    assert "whole number" in message
    assert f"from {low} " in message


def test_k_smooth_of_zero_is_refused():
    message = refusal(k_smooth=0)
    assert "k_smooth = 0" in message
    assert "from 1 " in message


@pytest.mark.parametrize("value", NOT_A_WEIGHT, ids=repr)
@pytest.mark.parametrize("name", ["lam", "wp", "temperature"])
def test_a_weight_that_is_no_finite_number_of_at_least_zero_is_refused_by_name(name, value):
    message = refusal(**{name: value})
    assert message.startswith(f"{name} = {value!r}")
    assert "finite" in message
    assert "at least 0" in message


@pytest.mark.parametrize("name", ["lam", "wp", "temperature"])
def test_a_weight_too_large_for_any_float_is_refused_by_name(name):
    assert refusal(**{name: 10**400}).startswith(f"{name} = 1000")


@pytest.mark.parametrize("value", NOT_A_WORD, ids=repr)
@pytest.mark.parametrize("name", WORDS)
def test_an_unknown_word_is_refused_with_the_words_that_are_known(name, value):
    message = refusal(**{name: value})
    assert message.startswith(f"{name} = {value!r}")
    for word in WORDS[name]:
        assert word in message


@pytest.mark.parametrize("name", WORDS)
def test_an_array_in_place_of_a_word_is_refused_by_name(name):
    assert refusal(**{name: np.array(["raw", "mode"])}).startswith(f"{name} = ")


@pytest.mark.parametrize("name", WORDS)
def test_every_documented_word_is_accepted(name):
    for word in WORDS[name]:
        assert getattr(gemrl.Knobs(**{name: word}), name) == word


def test_no_candidates_and_no_anchor_are_refused_together():
    message = refusal(n=0, anchor="none")
    assert "n = 0" in message
    assert "anchor = 'none'" in message
    assert gemrl.Knobs(n=0).anchor == "mode"
    assert gemrl.Knobs(n=1, anchor="none").n == 1


@pytest.mark.parametrize("kind", [int, np.int8, np.int32, np.int64, np.uint16])
def test_numpy_integers_are_accepted_as_counts(kind):
    knobs = gemrl.Knobs(n=kind(64), k_smooth=kind(2))
    assert (knobs.n, knobs.k_smooth) == (64, 2)
    assert type(knobs.n) is type(knobs.k_smooth) is int


@pytest.mark.parametrize("kind", [int, float, np.float16, np.float32, np.float64, np.int64])
def test_numpy_numbers_are_accepted_as_weights(kind):
    knobs = gemrl.Knobs(lam=kind(2), wp=kind(0))
    assert (knobs.lam, knobs.wp) == (2.0, 0.0)
    assert type(knobs.lam) is type(knobs.wp) is float
    assert gemrl.Knobs(wp=Fraction(1, 4)).wp == 0.25


def test_knobs_of_equal_values_are_equal_whatever_the_numbers_types():
    assert gemrl.Knobs(n=np.int64(8), lam=np.float32(0.5)) == gemrl.Knobs(n=8, lam=0.5)
    assert hash(gemrl.Knobs(wp=np.float64(1))) == hash(gemrl.Knobs(wp=1))


def test_knobs_cannot_be_changed_after_they_were_checked():
    with pytest.raises(AttributeError):
        gemrl.Knobs().n = -5


@pytest.mark.parametrize("name", ["end", "start"])
@pytest.mark.parametrize("value", NOT_A_WEIGHT, ids=repr)
def test_a_schedule_with_a_bad_weight_is_refused_by_name(name, value):
    values = {"end": 0.4, "horizon": 100, name: value}
    with pytest.raises(KnobError) as caught:
        gemrl.Cosine(**values)
    assert str(caught.value).startswith(f"wp.{name} = {value!r}")
    assert "at least 0" in str(caught.value)


@pytest.mark.parametrize("value", [0, *NOT_WHOLE], ids=repr)
def test_a_schedule_with_a_bad_horizon_is_refused_by_name(value):
    with pytest.raises(KnobError) as caught:
        gemrl.Cosine(0.4, value)
    assert str(caught.value).startswith(f"wp.horizon = {value!r}")
    assert "whole number from 1" in str(caught.value)


def test_schedule_starts_at_start_is_halfway_at_half_and_ends_at_end():
    schedule = gemrl.Cosine(0.2, 100)
    assert schedule.at(np.array(0)) == pytest.approx(1.0)
    assert schedule.at(np.array(50)) == pytest.approx(0.6)
    assert schedule.at(np.array(100)) == pytest.approx(0.2)
    # A third of the way the cosine of 60 degrees is one half.
    assert gemrl.Cosine(0.0, 300, start=4.0).at(np.array(100)) == pytest.approx(3.0)


def test_schedule_stays_at_its_end_beyond_the_horizon():
    later = gemrl.Cosine(0.2, 100).at(np.array([100, 101, 1_000, 2**31 - 1]))
    np.testing.assert_allclose(later, 0.2, rtol=1e-12)


@RANDOM
@given(st.floats(0, 10), st.floats(0, 10), st.integers(1, 500))
def test_schedule_falls_monotonically_between_its_ends(one, other, horizon):
    end, start = sorted((one, other))
    weights = gemrl.Cosine(end, horizon, start).at(np.arange(horizon + 10))
    assert (np.diff(weights) <= 1e-12).all()
    assert weights[0] == pytest.approx(start)
    assert weights[-1] == pytest.approx(end)


def test_schedule_without_a_step_is_refused_and_the_message_says_what_to_give():
    knobs = gemrl.Knobs(wp=gemrl.Cosine(0.4, 300))
    with pytest.raises(KnobError, match=r"wp is a Cosine schedule.*t="):
        knobs.weight_at(None, 1)


def test_schedule_without_a_step_is_refused_by_decide(policy, observations):
    knobs = gemrl.Knobs(n=0, wp=gemrl.Cosine(0.4, 300))
    with pytest.raises(ValueError, match=r"Cosine.*t="):
        policy.decide(observations[0], knobs)


def test_weight_of_each_row_follows_its_own_step():
    knobs = gemrl.Knobs(wp=gemrl.Cosine(0.2, 100))
    np.testing.assert_allclose(
        knobs.weight_at(np.array([0, 50, 100, 999]), 4), [1.0, 0.6, 0.2, 0.2], rtol=1e-6
    )
    np.testing.assert_allclose(gemrl.Knobs(wp=0.7).weight_at(None, 3), [0.7] * 3, rtol=1e-6)


weights = st.floats(0, 1e6)
schedules = st.builds(gemrl.Cosine, weights, st.integers(1, 10_000), weights)
valid_knobs = st.builds(
    gemrl.Knobs,
    n=st.integers(1, 2**20),
    lam=weights,
    wp=weights | schedules,
    k_smooth=st.integers(1, 1000),
    temperature=st.just(0.0) | weights,
    **{name: st.sampled_from(words) for name, words in WORDS.items()},
)


@RANDOM
@given(valid_knobs)
def test_knobs_survive_json(knobs):
    text = json.dumps(knobs.to_json(), allow_nan=False)
    assert gemrl.Knobs.from_json(json.loads(text)) == knobs


def test_knobs_from_json_are_checked_like_any_others():
    with pytest.raises(KnobError, match="lam = -1"):
        gemrl.Knobs.from_json({"lam": -1})
    with pytest.raises(KnobError, match=r"wp\.horizon = 0"):
        gemrl.Knobs.from_json({"wp": {"end": 0.1, "horizon": 0}})
    assert gemrl.Knobs.from_json({}) == gemrl.Knobs()


@RANDOM
@given(valid_knobs)
def test_description_names_what_differs_from_the_defaults_and_nothing_else(knobs):
    words = knobs.describe()
    assert f"N {knobs.n}" in words
    for name in WORDS:
        differs = getattr(knobs, name) != getattr(gemrl.Knobs(), name)
        assert (f"{name} {getattr(knobs, name)}" in words) == differs
    assert ("temperature" in words) == (knobs.temperature != 0)
