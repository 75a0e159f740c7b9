"""The drift monitor keeps its error rate, sees drift, and can be put away and taken up again."""

import json

import numpy as np
import pytest
from scipy import integrate, stats

from gemrl.decide.drift import EXPONENTS, DriftMonitor, bet, rank_p
from gemrl.decide.gates import GATES
from gemrl.decide.verdict import Verdict
from gemrl.errors import ConfigError

REPEATS = 300
DELTA = 0.05
# Alarms that so many repeats at the rate DELTA exceed once in a thousand times.
ALLOWED = int(stats.binom.ppf(0.999, REPEATS, DELTA))


def episode(rng, steps=30, shift=0.0):
    """Scores of steps that hang together: a walk around a level of the episode's own."""
    level = rng.standard_normal((1, 3)) + shift
    walk = np.cumsum(0.3 * rng.standard_normal((steps, 3)), axis=0)
    return dict(zip(GATES, (level + walk).T, strict=True))


def verdict(scores, at):
    one = {name: values[at] for name, values in scores.items()}
    return Verdict(scores=one, p=one, adjusted=one, joint_p=np.asarray(0.5), alpha=0.01)


def test_bets_are_fair():
    for index in range(len(EXPONENTS)):
        # With p = exp(-x), which has no peak that an integral could miss.
        mean, _ = integrate.quad(
            lambda x, i=index: bet(np.exp(-x))[i] * np.exp(-x), 0, 600, limit=200
        )
        assert mean == pytest.approx(1, abs=1e-6)


def test_ranks_of_exchangeable_values_are_uniform_and_independent():
    rng = np.random.default_rng(0)
    found, following = [], []
    for _ in range(400):
        before, ranks = [], []
        for value in np.round(rng.standard_normal(6), 1):  # With ties.
            ranks.append(rank_p(sorted(before), value, 1 - rng.random()))
            before.append(value)
        found.append(ranks)
        following.append(ranks[-2:])
    assert stats.kstest(np.ravel(found), "uniform").pvalue > 0.001
    assert abs(np.corrcoef(np.array(following).T)[0, 1]) < 0.2


def test_a_stream_that_does_not_drift_rarely_raises_an_alarm_however_long_it_is():
    alarms = 0
    for seed in range(REPEATS):
        rng = np.random.default_rng(seed)
        monitor = DriftMonitor(DELTA, seed=seed)
        levels = rng.standard_normal((150, 3))
        for row in levels:
            monitor.episode(dict(zip(GATES, row[:, None], strict=True)))
        alarms += monitor.alarm is not None
    assert alarms <= ALLOWED


def test_independent_p_values_keep_the_rate_too():
    alarms = 0
    for seed in range(REPEATS):
        monitor = DriftMonitor(DELTA, gates=("novelty",))
        draws = 1 - np.random.default_rng(seed).random(300)
        for p in draws:
            monitor.update({"novelty": p})
        alarms += monitor.alarm is not None
    assert alarms <= ALLOWED


def test_steps_that_hang_together_break_a_test_by_steps_and_not_one_by_episodes():
    by_step = by_episode = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        episodes = [episode(rng, steps=20) for _ in range(30)]
        reference = np.sort(np.ravel([episode(rng, steps=20)["novelty"] for _ in range(200)]))
        steps = DriftMonitor(DELTA, gates=("novelty",))
        whole = DriftMonitor(DELTA, gates=("novelty",), seed=seed)
        for one in episodes:
            whole.episode(one)
            for score in one["novelty"]:
                above = len(reference) - np.searchsorted(reference, score)
                steps.update({"novelty": (1 + above) / (len(reference) + 1)})
        by_step += steps.alarm is not None
        by_episode += whole.alarm is not None
    assert by_step > 30
    assert by_episode <= stats.binom.ppf(0.999, 100, DELTA)


@pytest.mark.parametrize("quiet", [20, 300])
def test_a_stream_that_drifts_raises_an_alarm_soon(quiet):
    waits = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        monitor = DriftMonitor(DELTA, seed=seed)
        for _ in range(quiet):
            monitor.episode(episode(rng))
        drifted = next(i for i in range(200) if monitor.episode(episode(rng, shift=4.0)))
        waits.append(drifted + 1)
        assert monitor.alarm is not None
    assert np.median(waits) <= 15


def test_the_alarm_names_the_gate_that_drifted_and_stays():
    rng = np.random.default_rng(0)
    monitor = DriftMonitor(DELTA)
    for _ in range(50):
        monitor.learn(episode(rng))
    for _ in range(40):
        scores = episode(rng)
        scores["spread"] = scores["spread"] + 10
        monitor.episode(scores)
    assert monitor.alarm is not None
    assert monitor.alarm["gate"] == "spread"
    first = dict(monitor.alarm)
    assert monitor.episode(episode(rng))
    assert monitor.alarm == first
    assert first["step"] <= 20


def test_one_decision_at_a_time_is_the_whole_episode():
    rng = np.random.default_rng(0)
    one, other = DriftMonitor(DELTA), DriftMonitor(DELTA)
    for _ in range(5):
        scores = episode(rng)
        for at in range(len(scores["novelty"])):
            one.add(verdict(scores, at))
        assert one.end_episode() == other.episode(scores)
    for name in GATES:
        assert one.capital[name] == pytest.approx(other.capital[name])


def test_a_monitor_that_is_put_away_goes_on_as_if_it_had_not_been():
    rng = np.random.default_rng(0)
    monitor = DriftMonitor(0.2, seed=7)
    for _ in range(10):
        monitor.episode(episode(rng))
    scores = episode(rng)
    monitor.add(verdict(scores, 0))
    back = DriftMonitor.from_json(json.loads(json.dumps(monitor.to_json(), allow_nan=False)))
    for one in (monitor, back):
        one.add(verdict(scores, 1))
        one.end_episode()
    for shift in np.linspace(0, 6, 30):
        scores = episode(rng, shift=shift)
        assert monitor.episode(scores) == back.episode(scores)
    assert monitor.alarm is not None
    assert monitor.to_json() == back.to_json()


def test_capital_never_overflows():
    monitor = DriftMonitor(DELTA, gates=("novelty",))
    for _ in range(2000):
        monitor.update({"novelty": 1e-300})
    assert np.isfinite(monitor.capital["novelty"])
    json.dumps(monitor.to_json(), allow_nan=False)


@pytest.mark.parametrize("delta", [0, 1, -1, float("nan"), None])
def test_an_error_rate_that_is_none_is_refused(delta):
    with pytest.raises(ConfigError, match="delta"):
        DriftMonitor(delta)


def test_what_cannot_be_ranked_is_refused():
    monitor = DriftMonitor(DELTA)
    with pytest.raises(ConfigError, match="no decision"):
        monitor.end_episode()
    with pytest.raises(ConfigError, match="no scores for spread"):
        monitor.episode({"support": np.ones(2), "novelty": np.ones(2), "spread": np.ones(0)})
    with pytest.raises(ConfigError, match="not a number"):
        monitor.episode({name: np.array([np.nan]) for name in GATES})
    for p in (0.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="p-value"):
            monitor.update(dict.fromkeys(GATES, p))
    batch = {name: np.ones(2) for name in GATES}
    with pytest.raises(ConfigError, match="batch"):
        monitor.add(Verdict(batch, batch, batch, np.ones(2), 0.01))
    with pytest.raises(ConfigError, match="gates"):
        DriftMonitor(DELTA, gates=())
    monitor.episode({name: np.ones(2) for name in GATES})
    with pytest.raises(ConfigError, match="before the first"):
        monitor.learn({name: np.ones(2) for name in GATES})
    for bad in ({}, {**monitor.to_json(), "capital": {}}, {**monitor.to_json(), "step": "x"}):
        with pytest.raises(ConfigError, match="not the state"):
            DriftMonitor.from_json(bad)
