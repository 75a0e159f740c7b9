"""Records are kept as JSON, read again, and decided again bit for bit."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from random_networks import random_policy, random_states

import gemrl
from gemrl.errors import DataError, KnobError

KNOBS = gemrl.Knobs(n=20, k_smooth=3)
MIXED = [gemrl.Knobs(n=20), gemrl.Knobs(n=0), gemrl.Knobs(n=8, source="behavior")]


def assert_identical(one, other):
    for field in fields(one):
        value, same = getattr(one, field.name), getattr(other, field.name)
        if isinstance(value, str) or value is None:
            assert value == same
        else:
            np.testing.assert_array_equal(value, same, err_msg=field.name)
            assert np.asarray(value).dtype.kind == np.asarray(same).dtype.kind, field.name
            assert np.shape(value) == np.shape(same), field.name


@pytest.fixture(scope="module")
def policy(backend):
    return random_policy(6, backend)


@pytest.fixture(scope="module")
def obs(policy):
    return random_states(policy, 3, 3)


def calls(obs):
    """Calls of every kind: their observation, knobs and other arguments."""
    return {
        "single": (obs[0], KNOBS, {}),
        "batch": (obs, KNOBS, {}),
        "chunks": (obs, KNOBS, {"chunk": 4}),
        "cut short": (obs, KNOBS, {"chunk": 4, "deadline_ms": 1e-6}),
        "mixed": (obs, MIXED, {}),
        "mixed cut short": (obs, MIXED, {"chunk": 4, "deadline_ms": 1e-6}),
    }


@pytest.mark.parametrize("kind", calls(np.zeros((1, 1))))
def test_a_record_survives_json_and_its_replay_is_the_same_bit_for_bit(policy, obs, kind):
    given, knobs, how = calls(obs)[kind]
    record = policy.decide(given, knobs, seed=9, **how)
    kept = json.loads(json.dumps(record.to_json(), allow_nan=False))
    assert_identical(gemrl.Decision.from_json(kept), record)
    assert_identical(policy.replay(given, kept, knobs, seed=9), record)
    assert_identical(policy.replay(given, record, knobs, seed=9), record)


def test_a_replay_follows_the_schedule(policy, obs):
    knobs = gemrl.Knobs(n=20, wp=gemrl.Cosine(0.1, 50))
    record = policy.decide(obs, knobs, seed=9, t=[1, 20, 300])
    assert_identical(policy.replay(obs, record, knobs, seed=9, t=[1, 20, 300]), record)


def test_a_record_without_critics_survives_json(maze_data, observations, tmp_path):
    config = gemrl.BcConfig(steps=0, hidden=(16,), batch_size=32)
    policy = gemrl.train(maze_data, config, tmp_path / "bc", quiet=True)
    for given in (observations[:3], observations[0]):
        record = policy.decide(given)
        kept = json.loads(json.dumps(record.to_json(), allow_nan=False))
        assert_identical(gemrl.Decision.from_json(kept), record)
        assert_identical(policy.replay(given, kept), record)


@pytest.mark.parametrize(
    "other", [{"knobs": replace(KNOBS, lam=9.0)}, {"knobs": replace(KNOBS, wp=3.0)}, {"seed": 8}]
)
def test_a_replay_with_other_knobs_or_another_seed_is_refused(policy, obs, other):
    record = policy.decide(obs, KNOBS, seed=9)
    call = {"knobs": KNOBS, "seed": 9} | other
    with pytest.raises(KnobError, match="another observation, seed, step or other knobs"):
        policy.replay(obs, record, **call)


def test_another_policys_record_is_refused(policy, obs):
    record = random_policy(7).decide(obs, KNOBS)
    with pytest.raises(KnobError, match="load the policy that made it"):
        policy.replay(obs, record, KNOBS)


def test_another_backends_record_is_refused(policy, obs):
    record = replace(policy.decide(obs, KNOBS), backend="other")
    with pytest.raises(KnobError, match=r"backend 'other'.*backend='other'"):
        policy.replay(obs, record, KNOBS)


def test_a_record_of_other_knobs_or_another_batch_is_refused(policy, obs):
    record = policy.decide(obs, KNOBS)
    with pytest.raises(KnobError, match=r"21 candidates.*ask for 9"):
        policy.replay(obs, record, gemrl.Knobs(n=8))
    with pytest.raises(KnobError, match="3 decisions, and there are 2"):
        policy.replay(obs[:2], record, KNOBS)


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: kept.pop("q"),
        lambda kept: kept.update(extra=1),
        lambda kept: kept.update(action=[[1.0], [2.0, 3.0]]),
        lambda kept: kept.update(chosen="first"),
        lambda kept: kept.update(verdict={}),
        lambda kept: kept.update(verdict={"rung": "anchor"}),
        lambda kept: kept.update(verdict={"rung": ["banana"] * 3}),
        lambda kept: kept.update(verdict={"rung": [None] * 3}),
        lambda kept: kept.update(verdict=3),
    ],
)
def test_what_is_no_record_is_refused(policy, obs, damage):
    kept = policy.decide(obs, KNOBS).to_json()
    damage(kept)
    with pytest.raises(DataError, match="record of a decision"):
        gemrl.Decision.from_json(kept)
    with pytest.raises(DataError, match="record of a decision"):
        policy.replay(obs, kept, KNOBS)


def test_a_record_with_the_actions_of_fewer_rows_is_refused(policy, obs):
    record = policy.decide(obs, KNOBS, seed=9)
    for action in (record.action[:2], record.action[:, :1], record.action[0]):
        with pytest.raises(KnobError, match="cannot be replayed"):
            policy.replay(obs, replace(record, action=action), KNOBS, seed=9)


def test_what_is_no_dictionary_is_no_record():
    with pytest.raises(DataError, match="record of a decision"):
        gemrl.Decision.from_json([1, 2])
