"""What every method promises: fit, decide, save, load, resume, and a toy task solved."""

import dataclasses
import os
import signal
import threading
import time

import jax
import numpy as np
import pytest

import gemrl
from gemrl.errors import KnobError
from gemrl.learn.bundle import config_from_json
from gemrl.learn.metrics import last_metrics
from gemrl.methods import METHODS, method_named

LOW, HIGH = -2.0, 1.5
# Small networks: what is promised here does not depend on their size.
SMALL = {"hidden": (32, 32), "batch_size": 64, "learning_rate": 1e-3, "checkpoint_every": 500}
STEPS = 1_500
FAST = {"learning_rate": 3e-3, "discount": 0.5}
OWN: dict[str, dict] = {
    "ssar": {"n_every": 100, "beta_learning_rate": 1e-4},
    "gem": {"pretrain_steps": 500, "components": 3, "critics": 2},
    "iql": {"critics": 2},
    # Soft actors begin at a temperature of 1, which must fall in few updates; rewards are small,
    # and so are the weights beside them. No action changes the next state, and a low discount
    # takes the noise of what follows off the few critics.
    "cql": {**FAST, "actor_learning_rate": 3e-3, "weight": 0.2, "samples": 3},
    "sacn": {**FAST, "critics": 4},
    "edac": {**FAST, "critics": 4, "eta": 0.01},
    # A return of 3 is the most that three steps can have.
    "dt": {
        "hidden": (32,),
        "blocks": 1,
        "context": 3,
        "max_steps": 3,
        "warmup_steps": 100,
        "target_return": 3.0,
        "steps": 600,
    },
    # Few steps, which compile sooner, and averages that follow within so few updates.
    "fql": {"flow_steps": 4},
    "ifql": {"flow_steps": 4},
    "idql": {"diffusion_steps": 3, "blocks": 1, "expansion": 2, "average_rate": 0.01},
    # Its paper's three layers: with two its critics' slopes lead the policy out of the data.
    "diffusionql": {
        "diffusion_steps": 3,
        "hidden": (64, 64, 64),
        "discount": 0.5,
        "actor_learning_rate": 1e-3,
        "average_every": 1,
        "average_start": 0,
    },
}
# Mean reward of each method's own deployment. The data's is 0.68, that of the data's mean actions
# 0.84, and the best 1.
SOLVED = 0.88
LEVEL = {"bc": 0.8}
# GEM's rule, whose support outweighs such small values, keeps near the data: well above its 0.68.
GUIDED = 0.8


def best_action(observations):
    return np.stack([np.sin(observations[:, 0]), 0.5 * observations[:, 1]], axis=1).clip(-1, 1)


def reward_of(observations, actions):
    return 1 - np.square(actions - best_action(observations)).sum(axis=1) / 2


def toy_data(count=6_000):
    """Three steps an episode; actions lie beside the best ones, and scatter."""
    rng = np.random.default_rng(0)
    observations = rng.normal(0, 1, (count, 2))
    actions = best_action(observations) + rng.normal(0.4, 0.4, (count, 2))
    actions = actions.clip(LOW, HIGH)
    rewards = reward_of(observations, actions)
    terminals = np.arange(count) % 3 == 2
    following = np.roll(observations, -1, axis=0)
    return gemrl.from_arrays(
        observations,
        actions,
        rewards,
        terminals,
        next_observations=following,
        action_low=LOW,
        action_high=HIGH,
    )


def config_of(name):
    settings = SMALL | {"steps": STEPS} | OWN.get(name, {})
    return method_named(name).config(**settings)


@pytest.fixture(scope="session")
def toy():
    return toy_data()


@pytest.fixture(scope="module")
def states():
    return np.random.default_rng(1).normal(0, 1, (256, 2)).astype(np.float32)


@pytest.fixture(scope="module", params=list(METHODS))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def run(name, tmp_path_factory):
    return tmp_path_factory.mktemp(name) / "run"


@pytest.fixture(scope="module")
def trained(name, run, toy):
    return gemrl.train(toy, config_of(name), run, quiet=True)


@pytest.fixture(scope="session")
def gem_on_the_toy(toy, tmp_path_factory):
    """GEM, for its behaviour density."""
    return gemrl.train(toy, config_of("gem"), tmp_path_factory.mktemp("density"), quiet=True)


@pytest.fixture(scope="module")
def policy(run, trained):
    return gemrl.load(run, backend="jax")


def test_the_toy_task_is_solved_to_the_stated_level(name, policy, states):
    actions = policy.decide(states, seed=0).action
    assert reward_of(states, actions).mean() >= LEVEL.get(name, SOLVED)


def test_actions_lie_within_the_bounds(policy, states):
    actions = policy.decide(states, seed=3).action
    assert actions.shape == (256, 2)
    assert (actions >= LOW).all()
    assert (actions <= HIGH).all()


def test_a_batch_decides_what_each_state_gets_alone(policy, states):
    together = policy.decide(states, seed=np.arange(256, dtype=np.uint32))
    for row in range(4):
        alone = policy.decide(states[row], seed=row)
        np.testing.assert_array_equal(alone.candidates, together.row(row).candidates)
        np.testing.assert_allclose(alone.action, together.row(row).action, atol=1e-5)


def test_the_same_seed_decides_the_same_bits(policy, states):
    once, again = (policy.decide(states, seed=5) for _ in range(2))
    np.testing.assert_array_equal(once.action, again.action)
    np.testing.assert_array_equal(once.candidates, again.candidates)


def test_a_loaded_policy_is_the_trained_one_bit_for_bit(trained, policy):
    require_same_weights(trained, policy)
    assert policy.digest == trained.digest


def test_an_interrupted_run_resumes_to_the_same_weights(name, trained, toy, tmp_path):
    out, config = tmp_path / "run", config_of(name)
    last = method_named(name).phases(config)[-1].name

    def press():
        while last_metrics(out).get("phase") != last:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    finger = threading.Thread(target=press)
    finger.start()
    with pytest.raises(KeyboardInterrupt):
        gemrl.train(toy, config, out, quiet=True)
    finger.join()
    gemrl.train(toy, config, out, resume=True, quiet=True)
    require_same_weights(trained, gemrl.load(out))


def require_same_weights(policy, other):
    pairs = zip(jax.tree.leaves(policy.models), jax.tree.leaves(other.models), strict=True)
    for one, same in pairs:
        np.testing.assert_array_equal(np.asarray(one), np.asarray(same))


def test_the_config_survives_the_bundle(name, policy):
    assert config_from_json(name, policy.bundle.manifest["config"]) == config_of(name)


def test_gems_rule_executes_any_method_with_critics(name, policy, states, gem_on_the_toy):
    if not policy.models.critics:
        with pytest.raises(KnobError, match="needs critics"):
            policy.knobs_for(None, "gem")
        return
    if policy.models.behavior is None:
        with pytest.raises(KnobError, match="density"):
            policy.knobs_for(None, "gem")
        policy = policy.with_density(gem_on_the_toy)
    knobs = dataclasses.replace(policy.knobs_for(None, "gem"), n=32)
    decision = policy.decide(states, knobs, seed=0)
    assert decision.candidates.shape == (256, 33, 2)
    assert np.isfinite(decision.support_z).all()
    assert reward_of(states, decision.action).mean() >= GUIDED
