"""The fast backend gives the dense values, for any network, candidate set and number of threads."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import require_backend
from scipy.special import logsumexp

import gemrl
from gemrl.decide.select import Shape, Weights
from gemrl.learn.bundle import Bundle
from gemrl.learn.spec import Spec
from gemrl.maths.mixture import row_keys, sampling_noise
from gemrl.methods.networks import Critic, Layers, Linear, MixtureNet
from gemrl.methods.protocol import Models

require_backend("fast")

from gemrl.decide.fast import cache  # noqa: E402
from gemrl.decide.fast.backend import FastBackend  # noqa: E402

OBS = 5
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from deciders.policies import DIMENSIONS, load_policy, states_of  # noqa: E402
from deciders.weights import read_weights  # noqa: E402


@pytest.fixture(scope="module", params=DIMENSIONS)
def trained(request):
    """A trained policy by its action dimensions."""
    return request.param, load_policy(request.param, "fast")


def many_states(dimensions, count, seed=0):
    """States of the data, and such with a little noise once those are used up."""
    states = states_of(dimensions)
    rng = np.random.default_rng(seed)
    spread = states.std(axis=0)
    more = states[rng.integers(len(states), size=max(0, count - len(states)))]
    more = more + 0.1 * spread * rng.normal(size=more.shape)
    return np.concatenate([states, more])[:count].astype(np.float32)


def layers(x, weights):
    for number, (weight, bias) in enumerate(weights):
        x = (np.maximum(x, 0) if number else x) @ np.float64(weight) + bias
    return x


def exact_scores(dimensions, states, record, lam, wp):
    """Scores of the record's own candidates in double precision, [B, C]."""
    w = read_weights(dimensions)
    x = (np.float64(states) - w.obs_mean) / w.obs_std
    candidates = np.float64(record.candidates)
    unit = (candidates - w.middle) / w.half
    q = np.stack(
        [
            layers(
                np.maximum(unit @ c.action + (x @ c.state + c.state_bias)[:, None], 0), c.layers
            )[..., 0]
            for c in w.critics
        ]
    )
    out = layers(x, w.behavior.layers)
    components, dims = w.behavior.stds.shape
    gates = out[:, :components] - logsumexp(out[:, :components], axis=1, keepdims=True)
    means = np.tanh(out[:, components:]).reshape(-1, components, dims) * w.half + w.middle
    standard = (candidates[:, :, None] - means[:, None]) / np.float64(w.behavior.stds)
    joint = gates[:, None] - 0.5 * (standard**2 + np.log(2 * np.pi)).sum(-1)
    support = logsumexp(joint - np.log(np.float64(w.behavior.stds)).sum(-1), axis=-1)
    z = (support - support.mean(1, keepdims=True)) / np.maximum(support.std(1, keepdims=True), 1e-6)
    return q.mean(0) - lam * q.std(0) + wp * z


@pytest.mark.parametrize(
    ("n", "count"),
    [
        (64, 200),
        (1024, 20),
        pytest.param(64, 1000, marks=pytest.mark.long),
        pytest.param(1024, 40, marks=pytest.mark.long),
    ],
)
def test_scores_are_those_of_double_precision_and_the_winner_is_the_best(trained, n, count):
    dimensions, policy = trained
    states = many_states(dimensions, count)
    record = policy.decide(states, gemrl.Knobs(n=n, lam=1.0, wp=0.4), seed=1)
    assert record.backend == "fast"
    exact = exact_scores(dimensions, states, record, 1.0, 0.4)
    assert np.abs(record.score - exact).max() <= 1e-4
    rows = np.arange(len(states))
    lost = exact.max(axis=1) - exact[rows, record.chosen]
    assert (lost <= 1e-4 * exact.std(axis=1)).all()


def random_models(seed, dims, hidden, components, critics, log_std, scale):
    """Untrained networks whose proposals are as wide as told, made without JAX's compiler."""
    rng = np.random.default_rng(seed)

    def linear(inputs, outputs, factor=1.0):
        limit = factor / np.sqrt(inputs)
        layer = object.__new__(Linear)
        object.__setattr__(layer, "weight", _uniform(rng, limit, inputs, outputs))
        object.__setattr__(layer, "bias", _uniform(rng, limit, outputs))
        return layer

    def stacked(*sizes, factor=1.0):
        net = object.__new__(Layers)
        pairs = itertools.pairwise(sizes)
        object.__setattr__(net, "layers", tuple(linear(i, o, factor) for i, o in pairs))
        object.__setattr__(net, "norms", None)
        object.__setattr__(net, "activation", "relu")
        return net

    def mixture():
        net = object.__new__(MixtureNet)
        object.__setattr__(net, "net", stacked(OBS, *hidden, components * (1 + dims)))
        object.__setattr__(net, "log_std", np.full((components, dims), log_std, np.float32))
        return net

    def critic():
        net = object.__new__(Critic)
        object.__setattr__(net, "from_state", linear(OBS, hidden[0], scale))
        object.__setattr__(net, "from_action", linear(dims, hidden[0], scale).weight)
        object.__setattr__(net, "norm", None)
        object.__setattr__(net, "net", stacked(*hidden, 1, factor=scale))
        return net

    return Models(
        actor=mixture(),
        behavior=mixture(),
        critics=tuple(critic() for _ in range(critics)),
        value=None,
    )


def _uniform(rng, limit, *shape):
    return rng.uniform(-limit, limit, shape).astype(np.float32)


def exact_q(models, spec, states, candidates):
    """Each critic's values in double precision, [B, M, C]."""
    x = (np.float64(states) - spec.obs_mean) / spec.obs_std
    unit = (np.float64(candidates) - spec.action_middle) / spec.action_half
    return np.stack(
        [
            layers(
                np.maximum(
                    unit @ np.float64(c.from_action)
                    + (x @ np.float64(c.from_state.weight) + c.from_state.bias)[:, None],
                    0,
                ),
                [(layer.weight, layer.bias) for layer in c.net.layers],
            )[..., 0]
            for c in models.critics
        ],
        axis=1,
    )


def both(models, dims, seed=0):
    """The same networks behind each backend."""
    rng = np.random.default_rng(seed)
    low = rng.uniform(-3, 3, dims)
    spec = Spec(
        obs_mean=rng.normal(size=OBS).astype(np.float32),
        obs_std=rng.uniform(0.1, 3, OBS).astype(np.float32),
        action_low=low.astype(np.float32),
        action_high=(low + rng.uniform(0.5, 3, dims)).astype(np.float32),
        reward_scale=1.0,
        reward_shift=0.0,
    )
    bundle = Bundle(models, spec, {"method": "gem", "task": None, "digest": "0" * 64})
    return gemrl.Policy(bundle, "jax"), gemrl.Policy(bundle, "fast")


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    dims=st.integers(1, 30),
    hidden=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    components=st.integers(1, 5),
    critics=st.integers(1, 3),
    log_std=st.floats(-6, 0.5),
    scale=st.floats(0.2, 4),
    n=st.sampled_from([0, 1, 7, 40, 90, 300]),
)
def test_random_networks_of_any_width_have_the_values_of_double_precision(
    seed, dims, hidden, components, critics, log_std, scale, n
):
    models = random_models(seed, dims, hidden, components, critics, log_std, scale)
    _, fast = both(models, dims, seed)
    states = np.random.default_rng(seed).normal(size=(3, OBS)).astype(np.float32)
    record = fast.decide(states, gemrl.Knobs(n=n), seed=seed)
    exact = exact_q(models, fast.spec, states, record.candidates)
    # What a layer sums up is of the size of its weights, and rounds to float32 in proportion.
    size = 1 + np.abs(exact).max() + scale**3
    np.testing.assert_allclose(record.q, exact, atol=1e-5 * size)


@pytest.mark.parametrize(
    ("log_std", "dims", "least", "most"), [(-6.0, 2, 0.0, 0.4), (0.5, 16, 1.0, 1.0)]
)
def test_narrow_proposals_are_cheap_and_wide_ones_go_dense(log_std, dims, least, most):
    models = random_models(3, dims, (64, 64), 2, 2, log_std, 1.0)
    dense, fast = both(models, dims)
    states = np.random.default_rng(0).normal(size=(20, OBS)).astype(np.float32)
    knobs = gemrl.Knobs(n=64)
    share = FastBackend(models, fast.spec).dense_share(states, Shape.of(knobs))
    assert least <= share.mean() <= most
    record = fast.decide(states, knobs)
    exact = exact_q(models, fast.spec, states, record.candidates)
    np.testing.assert_allclose(record.q, exact, atol=1e-5)
    assert (dense.decide(states[:2], knobs).chosen == record.chosen[:2]).all()


def test_noise_is_that_of_jax():
    """A mixture of one broad component at 0 whose samples are its noise."""
    dims, n = 3, 4000
    models = random_models(0, dims, (16, 16), 1, 1, 0.0, 1.0)
    _, fast = both(models, dims)
    wide = np.float32([1e3] * dims)
    spec = Spec(
        fast.spec.obs_mean, fast.spec.obs_std, -wide, wide, reward_scale=1.0, reward_shift=0.0
    )
    policy = gemrl.Policy(Bundle(models, spec, fast.bundle.manifest), "fast")
    obs = np.zeros(OBS)
    mixture = policy.actor(obs)
    _, normal = sampling_noise(row_keys(17, 1)[0], n, dims)
    record = policy.decide(obs, gemrl.Knobs(n=n, anchor="none"), seed=17)
    noise = (record.candidates - mixture.means[0]) / mixture.stds[0]
    inside = np.abs(record.candidates) < 1e3
    assert inside.mean() > 0.6
    np.testing.assert_allclose(noise[inside], np.asarray(normal)[inside], atol=2e-6)


def fields_of(record):
    return {name: value for name, value in vars(record).items() if isinstance(value, np.ndarray)}


def assert_same_bits(one, other):
    for name, value in fields_of(one).items():
        np.testing.assert_array_equal(value, getattr(other, name), err_msg=name)


def test_threads_and_batches_change_no_bit(trained):
    dimensions, policy = trained
    states = many_states(dimensions, 9)
    shape = Shape.of(gemrl.Knobs(n=70))
    weights = Weights(*(np.full(9, x, np.float32) for x in (1.0, 0.4, 0.0)))
    seeds = np.arange(9).astype(np.uint32)
    results = [
        FastBackend(policy.models, policy.spec, threads).decide(states, seeds, weights, shape)
        for threads in (1, 2, 5)
    ]
    for other in results[1:]:
        for name, value in results[0].items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)
    batch = policy.decide(states, gemrl.Knobs(n=70), seed=seeds)
    for row in (0, 4, 8):
        alone = policy.decide(states[row], gemrl.Knobs(n=70), seed=int(seeds[row]))
        assert_same_bits(alone, batch.row(row))


def test_threads_of_the_caller_do_not_disturb_one_another(trained):
    dimensions, policy = trained
    states = many_states(dimensions, 40)
    knobs = gemrl.Knobs(n=200)
    alone = [policy.decide(state, knobs, seed=3) for state in states]
    found = {}

    def run(part):
        for row in part:
            found[row] = policy.decide(states[row], knobs, seed=3)

    threads = [threading.Thread(target=run, args=(range(i, 40, 4),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for row, record in enumerate(alone):
        assert_same_bits(record, found[row])


def test_a_forked_child_decides_batches_too():
    dimensions = DIMENSIONS[0]
    policy = load_policy(dimensions, "fast")
    states, knobs = many_states(dimensions, 8), gemrl.Knobs(n=20)
    parent = FastBackend(policy.models, policy.spec, threads=2)
    shape, weights = Shape.of(knobs), Weights(*np.ones((3, 8), np.float32))
    expected = parent.decide(states, np.asarray(1, np.uint32), weights, shape)["action"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX has threads, and the child does without JAX.
        child = os.fork()
    if child == 0:  # pragma: no cover (another process)
        signal.alarm(60)
        found = parent.decide(states, np.asarray(1, np.uint32), weights, shape)["action"]
        os._exit(0 if np.array_equal(found, expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_cache_folder_that_cannot_be_written_is_said_and_not_used(monkeypatch, tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("GEMRL_HOME", str(blocked))
    folder = cache._folder()
    assert blocked not in folder.parents
    assert os.access(folder, os.W_OK)
    assert "cannot be written" in capsys.readouterr().err


def test_a_second_process_compiles_nothing_and_says_nothing():
    dimensions = DIMENSIONS[0]
    policy = load_policy(dimensions, "fast")
    expected = policy.decide(states_of(dimensions)[0], gemrl.Knobs(n=20), seed=1).action
    home = cache.FOLDER.parents[1]
    kept = sorted(path.name for path in cache.FOLDER.rglob("*") if path.is_file())
    code = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "import gemrl; from deciders.policies import *\n"
        f"policy, obs = load_policy({dimensions}, 'fast'), states_of({dimensions})[0]\n"
        "print(policy.decide(obs, gemrl.Knobs(n=20), seed=1).action.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(BENCHMARKS)],
        env=os.environ | {"GEMRL_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "compiled" not in done.stderr
    assert done.stdout.strip() == str(expected.tolist())
    assert kept == sorted(path.name for path in cache.FOLDER.rglob("*") if path.is_file())
