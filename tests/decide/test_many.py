"""Many random decisions: never an action that is not finite or out of bounds."""

import itertools

import numpy as np
import pytest

import gemrl
from gemrl.decide.knobs import WORDS

ROWS = 960
# A few settings that have every word in them, for the short run: JAX compiles each for itself.
FEW = [
    {"source": "actor", "anchor": "mode", "support": "zscore", "value": "raw", "k_smooth": 1},
    {"source": "behavior", "anchor": "barycenter", "support": "raw", "value": "zscore"}
    | {"k_smooth": 4},
    {"source": "unimodal", "anchor": "none", "support": "zscore", "value": "zscore"}
    | {"k_smooth": 4},
    {"source": "actor", "anchor": "none", "support": "raw", "value": "raw", "k_smooth": 1},
]
ALL = [
    dict(zip((*WORDS, "k_smooth"), words, strict=True))
    for words in itertools.product(*WORDS.values(), (1, 4))
]


def random_knobs(rng, words, n):
    weights = {name: float(rng.choice([0, rng.uniform(0, 5)])) for name in ("lam", "wp")}
    if rng.random() < 0.2:
        weights["wp"] = gemrl.Cosine(weights["wp"], 100)
    return gemrl.Knobs(n=n, **weights, **words)


def decide_randomly(policy, count, settings, sizes, seed):
    """Random states well beyond the data; batches of one random setting and of four."""
    rng = np.random.default_rng(seed)
    low, high = policy.spec.action_low, policy.spec.action_high
    done = itertools.count()
    for batch in itertools.takewhile(lambda batch: batch * ROWS < count, done):
        obs = rng.normal(scale=10 ** rng.uniform(-2, 3), size=(ROWS, policy.spec.obs_dim))
        seeds, steps = rng.integers(2**32, size=ROWS), rng.integers(200, size=ROWS)
        words = settings[batch % len(settings)]
        n = int(rng.choice(sizes))
        if batch % 2 == 0:
            knobs = random_knobs(rng, words, max(n, int(words["anchor"] == "none")))
        else:
            picked = [settings[(batch + i) % len(settings)] for i in range(4)]
            knobs = [
                random_knobs(rng, words, max(n, int(words["anchor"] == "none")))
                for words in picked * (ROWS // 4)
            ]
        record = policy.decide(obs, knobs, seed=seeds, t=steps)
        assert np.isfinite(record.action).all()
        assert ((record.action >= low) & (record.action <= high)).all()
        real = np.arange(record.score.shape[1]) < record.n_scored[:, None]
        assert np.isfinite(record.score[real]).all()
        assert np.isfinite(record.candidates[real]).all()
        assert (record.chosen < record.n_scored).all()


def test_the_short_run_has_every_word():
    for name, words in WORDS.items():
        assert {setting[name] for setting in FEW} == set(words)


def test_ten_thousand_random_decisions_are_finite_and_within_bounds(policy):
    decide_randomly(policy, 10_000, FEW, [16], seed=0)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["jax", "fast"], indirect=True)
def test_a_million_random_decisions_are_finite_and_within_bounds(run_folder, backend):
    policy = gemrl.load(run_folder, backend)
    decide_randomly(policy, 1_000_000, ALL, [0, 1, 16], seed=1)
