"""Policies of random networks, untrained: what holds for them holds for any."""

import jax
import numpy as np
import pytest

import gemrl
from gemrl.decide.backend import backend_for
from gemrl.errors import KnobError
from gemrl.learn.bundle import Bundle
from gemrl.learn.spec import Spec
from gemrl.methods.networks import Critic, MixtureNet
from gemrl.methods.protocol import Models

OBS_DIM, ACTION_DIM, CRITICS, COMPONENTS, HIDDEN = 5, 3, 2, 3, (16, 16)


def random_policy(seed, backend="jax"):
    """Random networks behind a random scaler and random bounds."""
    rng = np.random.default_rng(seed)
    keys = jax.random.split(jax.random.key(seed), CRITICS + 2)
    models = Models(
        actor=MixtureNet(OBS_DIM, ACTION_DIM, COMPONENTS, HIDDEN, keys[0]),
        behavior=MixtureNet(OBS_DIM, ACTION_DIM, COMPONENTS, HIDDEN, keys[1]),
        critics=tuple(Critic(OBS_DIM, ACTION_DIM, HIDDEN, key) for key in keys[2:]),
        value=None,
    )
    low = rng.uniform(-3, 3, ACTION_DIM)
    spec = Spec(
        obs_mean=rng.normal(size=OBS_DIM).astype(np.float32),
        obs_std=rng.uniform(0.1, 3, OBS_DIM).astype(np.float32),
        action_low=low.astype(np.float32),
        action_high=(low + rng.uniform(0.5, 3, ACTION_DIM)).astype(np.float32),
        reward_scale=1.0,
        reward_shift=0.0,
    )
    manifest = {"method": "gem", "task": None, "digest": f"{seed:064x}"}
    return gemrl.Policy(Bundle(models, spec, manifest), backend)


def random_states(policy, rows, seed):
    rng = np.random.default_rng(seed)
    return policy.spec.obs_mean + 2 * policy.spec.obs_std * rng.normal(size=(rows, OBS_DIM))


def require_backend(name):
    """Skip a test of a backend that is not installed."""
    policy = random_policy(0)
    try:
        backend_for(policy.models, policy.spec, name)
    except KnobError as error:
        pytest.skip(str(error))
    return name
