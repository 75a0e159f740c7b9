"""What holds for random networks, knobs and candidate sets, with each backend."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import ACTION_DIM, CRITICS, random_policy, random_states, require_backend

import gemrl
from gemrl.decide.backend import Scored, Shape, Weights

RANDOM = settings(max_examples=15, deadline=None, derandomize=True)
ROWS, CANDIDATES = 4, 11
# JAX compiles each for itself, so there are few.
WORDS = [
    {},
    {"source": "behavior", "anchor": "barycenter", "k_smooth": 3, "value": "zscore"},
    {"source": "unimodal", "anchor": "none", "support": "raw"},
]


@pytest.fixture(scope="session", params=["fast", pytest.param("jax", marks=pytest.mark.long)])
def backend(request):
    """JAX compiles for minutes here; shorter tests hold it to the same in every run."""
    return require_backend(request.param)


networks = st.integers(0, 2**16)
seeds = st.integers(0, 2**32 - 1)
weights = st.floats(0, 10)
words = st.sampled_from(WORDS)

policy_of = cache(random_policy)


def assert_scores_agree(one, other):
    """Up to rounding, which a small spread of the support or the value makes larger."""
    np.testing.assert_array_equal(one.candidates, other.candidates)
    np.testing.assert_allclose(one.q, other.q, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(one.log_support, other.log_support, rtol=1e-5, atol=1e-5)
    spread = min(1.0, *(x.std(axis=-1).min() for x in (one.log_support, one.lcb)))
    slack = 1e-5 * (1 + np.abs(one.wp)) / max(spread, 1e-6)
    assert (np.abs(one.score - other.score).max(axis=-1) <= slack).all()
    rows = np.arange(len(one.chosen))
    lost = one.score.max(axis=-1) - one.score[rows, other.chosen]
    assert (lost <= 2 * slack).all()


@RANDOM
@given(networks, seeds, words, weights, weights, st.sampled_from([3, 8]))
def test_all_chunks_equal_one_shot(backend, network, seed, words, lam, wp, chunk):
    policy = policy_of(network % 5, backend)
    obs = random_states(policy, ROWS, network)
    knobs = gemrl.Knobs(n=CANDIDATES, lam=lam, wp=wp, **words)
    whole = policy.decide(obs, knobs, seed=seed)
    parts = policy.decide(obs, knobs, seed=seed, chunk=chunk)
    assert_scores_agree(whole, parts)


@RANDOM
@given(networks, seeds, st.lists(st.tuples(words, weights, weights), min_size=ROWS, max_size=ROWS))
def test_knobs_for_each_row_equal_each_row_with_its_own(backend, network, seed, drawn):
    policy = policy_of(network % 5, backend)
    obs = random_states(policy, ROWS, network)
    knobs = [gemrl.Knobs(n=CANDIDATES, lam=lam, wp=wp, **words) for words, lam, wp in drawn]
    together = policy.decide(obs, knobs, seed=seed)
    for i in range(ROWS):
        alone = policy.decide(obs, knobs[i], seed=seed)
        row, own = together.row(i), alone.row(i)
        np.testing.assert_array_equal(row.candidates, own.candidates)
        assert_scores_agree(batch_of(row), batch_of(own))


def batch_of(row):
    """A single record as a batch of one."""
    names = ("candidates", "q", "log_support", "lcb", "score", "wp", "chosen")
    fields = {name: np.asarray(getattr(row, name))[None] for name in names}
    return type("Batch", (), fields)


@RANDOM
@given(networks, seeds, words, weights, weights)
def test_the_same_call_gives_the_same_record_bit_for_bit(backend, network, seed, words, lam, wp):
    policy = policy_of(network % 5, backend)
    obs = random_states(policy, ROWS, network)
    knobs = gemrl.Knobs(n=CANDIDATES, lam=lam, wp=wp, **words)
    one, other = (policy.decide(obs, knobs, seed=seed) for _ in range(2))
    for name, value in one.to_json().items():
        assert value == other.to_json()[name], name


@RANDOM
@given(networks, seeds, words)
def test_few_candidates_are_a_prefix_of_many_and_batches_do_not_matter(
    backend, network, seed, words
):
    policy = policy_of(network % 5, backend)
    obs = random_states(policy, ROWS, network)
    few, many = (policy.decide(obs, gemrl.Knobs(n=n, **words), seed=seed) for n in (2, CANDIDATES))
    np.testing.assert_array_equal(few.candidates, many.candidates[:, : few.candidates.shape[1]])
    first = policy.decide(obs[0], gemrl.Knobs(n=CANDIDATES, **words), seed=seed)
    np.testing.assert_array_equal(first.candidates, many.candidates[0])


@RANDOM
@given(networks, words, st.permutations(range(ROWS)))
def test_the_order_of_rows_with_seeds_of_their_own_does_not_matter(backend, network, words, order):
    policy = policy_of(network % 5, backend)
    obs, own = random_states(policy, ROWS, network), np.arange(ROWS) + network
    knobs = gemrl.Knobs(n=CANDIDATES, **words)
    plain = policy.decide(obs, knobs, seed=own)
    moved = policy.decide(obs[order], knobs, seed=own[order])
    np.testing.assert_array_equal(moved.candidates, plain.candidates[order])
    np.testing.assert_allclose(moved.score, plain.score[order], rtol=1e-4, atol=1e-4)


def random_set(rng, rows):
    """A candidate set with values and support far enough apart to stand above any clamp."""
    return Scored(
        rng.uniform(-1, 1, (rows, CANDIDATES + 1, ACTION_DIM)).astype(np.float32),
        rng.normal(size=(rows, CRITICS, CANDIDATES + 1)).astype(np.float32),
        rng.normal(size=(rows, CANDIDATES + 1)).astype(np.float32),
    )


def ranked(backend, scored, lam, wp, knobs):
    policy = policy_of(0, backend)
    rows = len(scored.log_support)
    obs = random_states(policy, rows, 0).astype(np.float32)
    begun = policy.backend.begin(obs, np.zeros((), np.uint32))
    weights = Weights(*(np.full(rows, x, np.float32) for x in (lam, wp, 0.0)))
    return policy.backend.rank(begun, scored, weights, Shape.of(knobs))


@RANDOM
@given(seeds, weights, weights, st.floats(-20, 20), st.floats(0.1, 10))
def test_shift_and_scale_of_the_support_change_no_score(backend, seed, lam, wp, shift, scale):
    scored = random_set(np.random.default_rng(seed), ROWS)
    moved = scored._replace(log_support=np.float32(scale * scored.log_support + shift))
    knobs = gemrl.Knobs(n=CANDIDATES)
    one, other = (ranked(backend, s, lam, wp, knobs) for s in (scored, moved))
    np.testing.assert_allclose(one["support_z"], other["support_z"], atol=2e-4)
    np.testing.assert_allclose(one["score"], other["score"], atol=2e-4 * (1 + wp))


@RANDOM
@given(seeds, weights, st.floats(-20, 20), st.floats(0.1, 10))
def test_shift_and_scale_of_all_critics_change_no_standardized_score(
    backend, seed, wp, shift, scale
):
    scored = random_set(np.random.default_rng(seed), ROWS)
    moved = scored._replace(q=np.float32(scale * scored.q + shift))
    knobs = gemrl.Knobs(n=CANDIDATES, k_smooth=3, value="zscore")
    one, other = (ranked(backend, s, 1.0, wp, knobs) for s in (scored, moved))
    np.testing.assert_allclose(one["score"], other["score"], atol=1e-3)
    np.testing.assert_allclose(other["lcb"], scale * one["lcb"] + shift, rtol=1e-4, atol=1e-3)


@RANDOM
@given(seeds, weights, weights, st.permutations(range(CANDIDATES + 1)), st.booleans())
def test_the_order_of_candidates_does_not_matter(backend, seed, lam, wp, order, smooth):
    scored = random_set(np.random.default_rng(seed), ROWS)
    moved = Scored(scored.candidates[:, order], scored.q[:, :, order], scored.log_support[:, order])
    knobs = gemrl.Knobs(n=CANDIDATES, k_smooth=3 if smooth else 1)
    one, other = (ranked(backend, s, lam, wp, knobs) for s in (scored, moved))
    np.testing.assert_allclose(other["score"], one["score"][:, order], rtol=1e-4, atol=1e-4)
    best = np.sort(one["score"], axis=1)[:, ::-1]
    clear = (best[:, 0] - best[:, 1] > 1e-3) & (best[:, 2] - best[:, 3] > 1e-3)
    np.testing.assert_array_equal(np.array(order)[other["chosen"]][clear], one["chosen"][clear])
    np.testing.assert_allclose(other["action"][clear], one["action"][clear], atol=1e-5)


def candidates_and_scores(backend):
    """What the test below compares between processes."""
    policy = policy_of(1, backend)
    record = policy.decide(random_states(policy, 9, 5), gemrl.Knobs(n=100), seed=3)
    return record.candidates, record.score


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux sets a process's cores")
def test_candidates_do_not_depend_on_the_number_of_threads(backend, tmp_path):
    code = (
        "import os, sys\n"
        "os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])\n"
        "import numpy as np\n"
        "from test_properties import candidates_and_scores\n"
        "c, s = candidates_and_scores(sys.argv[1])\n"
        "np.savez(sys.argv[2], c=c, s=s)\n"
    )
    candidates, scores = candidates_and_scores(backend)
    kept = tmp_path / "kept.npz"
    folders = [str(Path(__file__).parent), *sys.path]
    subprocess.run(
        [sys.executable, "-c", code, backend, str(kept)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        check=True,
    )
    with np.load(kept) as one_core:
        np.testing.assert_array_equal(one_core["c"], candidates)
        np.testing.assert_allclose(one_core["s"], scores, rtol=1e-5, atol=1e-5)
