"""Policies of random networks, untrained: what holds for them holds for any."""

import contextlib
import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest

import gemrl
from gemrl.decide.backend import backend_for
from gemrl.errors import KnobError
from gemrl.learn.bundle import Bundle, config_from_json, config_to_json, save_bundle
from gemrl.learn.spec import Spec
from gemrl.methods import METHODS, method_named
from gemrl.methods.networks import Critic, MixtureNet
from gemrl.methods.protocol import Models

OBS_DIM, ACTION_DIM, CRITICS, COMPONENTS, HIDDEN = 5, 3, 2, 3, (16, 16)
SMALL = {
    "hidden": HIDDEN,
    "critics": CRITICS,
    "components": COMPONENTS,
    "blocks": 2,
    "expansion": 2,
    "diffusion_steps": 3,
    "flow_steps": 3,
}
LOOKING_BACK = [name for name, method in METHODS.items() if method.context is not None]
"""Methods whose policies decide from a history."""
PRESENT = [name for name in METHODS if name not in LOOKING_BACK]


def random_policy(seed, backend="jax"):
    """Random networks behind a random scaler and random bounds."""
    keys = jax.random.split(jax.random.key(seed), CRITICS + 2)
    models = Models(
        actor=MixtureNet(OBS_DIM, ACTION_DIM, COMPONENTS, HIDDEN, keys[0]),
        behavior=MixtureNet(OBS_DIM, ACTION_DIM, COMPONENTS, HIDDEN, keys[1]),
        critics=tuple(Critic(OBS_DIM, ACTION_DIM, HIDDEN, key) for key in keys[2:]),
        value=None,
    )
    manifest = {"method": "gem", "task": None, "digest": f"{seed:064x}"}
    return gemrl.Policy(Bundle(models, random_spec(seed), manifest), backend)


def random_method(name, seed=0, obs_dim=OBS_DIM, action_dim=ACTION_DIM, **settings):
    """A policy of any method with random weights, also those that would begin as ones or zeros.

    Only shapes are asked of the method: compiling its initial weights would take longer.
    """
    method = method_named(name)
    known = {field.name for field in dataclasses.fields(method.config)}
    small = SMALL | settings
    if name in LOOKING_BACK:
        small |= {"hidden": HIDDEN[:1], "target_return": 1.0}
    config = method.config(**{key: value for key, value in small.items() if key in known})
    shapes = eqx.filter_eval_shape(
        lambda key: method.models(method.init(config, obs_dim, action_dim, key)), jax.random.key(0)
    )
    rng = np.random.default_rng(seed)

    def random(leaf):
        # As wide as fresh weights are.
        limit = 1 / np.sqrt(leaf.shape[0]) if len(leaf.shape) == 2 else 1.0
        return rng.uniform(-limit, limit, leaf.shape).astype(np.float32)

    models = jax.tree.map(random, shapes)
    manifest = {
        "method": name,
        "config": config_to_json(config),
        "task": None,
        "digest": f"{name} {seed}",
    }
    spec = random_spec(seed, obs_dim, action_dim)
    return gemrl.Policy(Bundle(models, spec, manifest), "jax")


def saved(folder, name, **about):
    """The run folder of such a policy."""
    policy = random_method(name, **about)
    config = config_from_json(name, policy.bundle.manifest["config"])
    data = {"source": "none", "fingerprint": "none"}
    save_bundle(folder, name, config, policy.models, policy.spec, task=None, dataset=data)
    return folder


def random_spec(seed, obs_dim=OBS_DIM, action_dim=ACTION_DIM):
    rng = np.random.default_rng(seed)
    low = rng.uniform(-3, 3, action_dim)
    return Spec(
        obs_mean=rng.normal(size=obs_dim).astype(np.float32),
        obs_std=rng.uniform(0.1, 3, obs_dim).astype(np.float32),
        action_low=low.astype(np.float32),
        action_high=(low + rng.uniform(0.5, 3, action_dim)).astype(np.float32),
        reward_scale=1.0,
        reward_shift=0.0,
    )


def random_states(policy, rows, seed):
    rng, spec = np.random.default_rng(seed), policy.spec
    return spec.obs_mean + 2 * spec.obs_std * rng.normal(size=(rows, spec.obs_dim))


def require_backend(name):
    """Skip a test of a backend that is not installed."""
    policy = random_policy(0)
    try:
        backend_for(policy.models, policy.spec, name)
    except KnobError as error:
        pytest.skip(str(error))
    return name


@contextlib.contextmanager
def quickly_compiled():
    """Let JAX compile in a hurry, for tests of what does not hang on how well it compiles."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
