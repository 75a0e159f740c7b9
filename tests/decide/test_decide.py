"""Decisions recomputed from their own records in double precision, and what they promise."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.special import log_softmax, logsumexp
from scipy.stats import norm

import gemrl
from gemrl.errors import KnobError, ObservationError

CRITICS, ACTION_DIM, OBS_DIM = 3, 2, 4
ABLATIONS = {
    "default": {},
    "no_pw": {"wp": 0.0},
    "no_lcb": {"lam": 0.0},
    "no_anchor": {"anchor": "none"},
    "anchor_bary": {"anchor": "barycenter"},
    "behavior_only_cands": {"source": "behavior"},
    "unimodal_actor_cands": {"source": "unimodal"},
    "raw": {"support": "raw"},
    "value_zscore": {"value": "zscore"},
    "smooth": {"k_smooth": 3},
    "cosine": {"wp": gemrl.Cosine(0.2, 100)},
}
# Each combination of words is compiled for itself, so they are tried together.
GROUPS = [
    ("default",),
    ("no_pw", "no_lcb"),
    ("cosine",),
    ("no_anchor", "raw", "unimodal_actor_cands"),
    ("anchor_bary", "value_zscore", "smooth", "behavior_only_cands"),
]
PER_STATE = ("chosen", "n_scored", "wp", "violation", "collapse_dist")
PER_STATE += tuple(
    f"executed_{x}" for x in ("log_support", "support_z", "violation", "collapse_dist")
)
PER_STATE += ("block",)
WHOLE_RECORD = ("backend", "digest", "verdict")
PER_CANDIDATE = ("lcb", "log_support", "support_z", "score")


def knob_values(names):
    return {key: value for name in names for key, value in ABLATIONS[name].items()}


BY_SOURCE = {"actor": {}, "unimodal": knob_values(GROUPS[3]), "behavior": knob_values(GROUPS[4])}


@pytest.fixture(scope="session")
def bc_policy(maze_data, tmp_path_factory):
    """A proposal without critics and without a density: fresh networks will do."""
    config = gemrl.BcConfig(steps=0, hidden=(16,), batch_size=32)
    return gemrl.train(maze_data, config, tmp_path_factory.mktemp("runs") / "bc", quiet=True)


@pytest.fixture(scope="session")
def iql_policy(maze_data, tmp_path_factory):
    """A proposal with critics but without a density: fresh networks will do."""
    config = gemrl.IqlConfig(steps=0, hidden=(16,), batch_size=32, critics=2)
    return gemrl.train(maze_data, config, tmp_path_factory.mktemp("runs") / "iql", quiet=True)


@pytest.fixture(scope="session")
def shifted_policy(policy):
    """The same networks behind other action bounds, which no power of two divides."""
    return with_spec(policy, action_low=np.float32([-0.4, 0.7]), action_high=np.float32([0.1, 2.3]))


@pytest.fixture(scope="session")
def saved(run_folder):
    """The trained weights and scaler as they lie on disk."""
    manifest = json.loads((run_folder / "manifest.json").read_text())
    scaler = {name: np.float64(value) for name, value in manifest["spec"].items()}
    weights = load_file(run_folder / "weights.safetensors")
    return {name: np.float64(value) for name, value in weights.items()}, scaler


def with_spec(policy, **changes):
    spec = replace(policy.spec, **changes)
    return gemrl.Policy(replace(policy.bundle, spec=spec))


def as_float64(mixture):
    return tuple(np.float64(x) for x in (mixture.log_weights, mixture.means, mixture.stds))


def mixture_log_prob(mixture, actions):
    """Log density by SciPy: mixture [B, K], actions [B, A] or [B, C, A]."""
    log_weights, means, stds = as_float64(mixture)
    for _ in range(actions.ndim - 2):
        log_weights, means, stds = (np.expand_dims(x, 1) for x in (log_weights, means, stds))
    joint = norm.logpdf(np.float64(actions)[..., None, :], means, stds).sum(-1)
    return logsumexp(log_weights + joint, axis=-1)


def nearest_mean(mixture, actions):
    means = as_float64(mixture)[1]
    return np.linalg.norm(means - np.float64(actions)[:, None], axis=-1).min(axis=-1)


def assert_same_decision(one, other, rtol=1e-5, atol=1e-5):
    assert one.chosen == other.chosen
    for field in fields(one):
        if field.name in WHOLE_RECORD:
            assert getattr(one, field.name) == getattr(other, field.name)
            continue
        np.testing.assert_allclose(
            getattr(one, field.name),
            getattr(other, field.name),
            rtol=rtol,
            atol=atol,
            err_msg=field.name,
        )


def assert_record_follows_from_itself(record, policy, obs, knobs, wp):
    """Recompute each field in float64 from the fields that come before it."""
    rows = np.arange(len(obs))
    behavior = policy.behavior(obs)
    candidates = record.candidates
    count = candidates.shape[1]

    np.testing.assert_allclose(
        record.q, policy.q_values(obs, candidates), rtol=1e-5, atol=1e-5, err_msg="q"
    )
    q = np.float64(record.q)
    expected = q.mean(axis=1) - knobs.lam * q.std(axis=1)
    np.testing.assert_allclose(record.lcb, expected, rtol=1e-5, atol=1e-5, err_msg="lcb")

    np.testing.assert_allclose(
        record.log_support,
        mixture_log_prob(behavior, candidates),
        rtol=1e-5,
        atol=1e-4,
        err_msg="log_support",
    )
    support = np.float64(record.log_support)
    mean = support.mean(axis=1, keepdims=True)
    std = np.maximum(support.std(axis=1, keepdims=True), 1e-6)
    # Rounding of the support in float32, in units of its spread over the candidates.
    slack = 1e-5 + 1e-6 * (1 + np.abs(support).max(axis=1, keepdims=True)) / std
    assert (np.abs(record.support_z - (support - mean) / std) <= slack).all()

    value = np.float64(record.lcb)
    if knobs.value == "zscore":
        spread = np.maximum(value.std(axis=1, keepdims=True), 1e-6)
        value = (value - value.mean(axis=1, keepdims=True)) / spread
    term = np.float64(record.log_support if knobs.support == "raw" else record.support_z)
    np.testing.assert_allclose(record.wp, wp, rtol=1e-6, err_msg="wp")
    np.testing.assert_allclose(
        record.score, value + wp[:, None] * term, rtol=1e-4, atol=1e-3, err_msg="score"
    )

    order = np.argsort(-record.score, axis=1, kind="stable")
    np.testing.assert_array_equal(record.chosen, order[:, 0])
    best = order[:, : min(knobs.k_smooth, count)]
    action = np.float64(candidates)[rows[:, None], best].mean(axis=1)
    np.testing.assert_allclose(record.action, action, atol=1e-6, err_msg="action")
    np.testing.assert_array_equal(record.n_scored, np.full(len(obs), count))

    chosen = candidates[rows, record.chosen]
    chosen_z = record.support_z[rows, record.chosen]
    np.testing.assert_array_equal(record.chosen_support_z, chosen_z)
    np.testing.assert_array_equal(record.violation, chosen_z < -2)
    np.testing.assert_allclose(record.collapse_dist, nearest_mean(behavior, chosen), atol=1e-5)

    executed = mixture_log_prob(behavior, record.action)
    np.testing.assert_allclose(record.executed_log_support, executed, rtol=1e-5, atol=1e-4)
    executed_z = (np.float64(record.executed_log_support) - mean[:, 0]) / std[:, 0]
    assert (np.abs(record.executed_support_z - executed_z) <= slack[:, 0]).all()
    np.testing.assert_array_equal(record.executed_violation, record.executed_support_z < -2)
    np.testing.assert_allclose(
        record.executed_collapse_dist, nearest_mean(behavior, record.action), atol=1e-5
    )


def decide_and_recompute(policy, obs, knobs):
    """Decide with these knobs, by a step for each row where there is a schedule, and check."""
    t = None
    wp = np.full(len(obs), 0.0 if isinstance(knobs.wp, gemrl.Cosine) else knobs.wp)
    if isinstance(knobs.wp, gemrl.Cosine):
        t = np.arange(len(obs)) * 4
        wp = 0.2 + 0.8 * (1 + np.cos(np.pi * np.minimum(t, 100) / 100)) / 2
    record = policy.decide(obs, knobs, seed=3, t=t)
    assert_record_follows_from_itself(record, policy, obs, knobs, wp)
    return record


@pytest.mark.parametrize("n", [0, 1, 16])
@pytest.mark.parametrize("names", GROUPS, ids="+".join)
def test_every_field_follows_from_the_record_itself(policy, observations, names, n):
    changes = knob_values(names)
    if n == 0 and "no_anchor" in names:
        with pytest.raises(KnobError, match="n = 0"):
            gemrl.Knobs(n=n, **changes)
        changes.pop("anchor")
    record = decide_and_recompute(policy, observations, gemrl.Knobs(n=n, **changes))
    assert record.candidates.shape[1] == n + (changes.get("anchor") != "none")


def test_sets_of_six_and_more_hold_violations_and_support_weight_avoids_them(policy, observations):
    def share(wp):
        records = [
            policy.decide(observations, gemrl.Knobs(n=16, lam=0.0, wp=wp), seed=s)
            for s in range(20)
        ]
        return np.mean([record.violation for record in records])

    assert share(0.0) > 0
    assert share(100.0) == 0


def forward(weights, name, x):
    """An MLP of the bundle in NumPy."""
    count = sum(key.startswith(f"{name}/layers/") for key in weights) // 2
    for i in range(count):
        x = x @ weights[f"{name}/layers/{i}/weight"] + weights[f"{name}/layers/{i}/bias"]
        if i < count - 1:
            x = np.maximum(x, 0)
    return x


def test_q_values_equal_a_numpy_forward_pass_of_the_saved_weights(policy, observations, saved):
    weights, scaler = saved
    actions = np.random.default_rng(0).uniform(-1, 1, (len(observations), 6, ACTION_DIM))
    scaled = (observations - scaler["obs_mean"]) / scaler["obs_std"]
    middle = (scaler["action_low"] + scaler["action_high"]) / 2
    half = (scaler["action_high"] - scaler["action_low"]) / 2
    unit = (actions - middle) / half
    expected = []
    for i in range(CRITICS):
        name = f"critics/{i}"
        first = scaled @ weights[f"{name}/from_state/weight"] + weights[f"{name}/from_state/bias"]
        first = first[:, None] + unit @ weights[f"{name}/from_action"]
        expected.append(forward(weights, f"{name}/net", np.maximum(first, 0))[..., 0])
    expected = np.stack(expected, axis=1)
    actual = policy.q_values(observations, actions)
    assert actual.shape == (len(observations), CRITICS, 6)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    single = policy.q_values(observations[2], actions[2])
    assert single.shape == (CRITICS, 6)
    np.testing.assert_allclose(single, expected[2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["actor", "behavior"])
def test_mixtures_equal_a_numpy_forward_pass_of_the_saved_weights(
    policy, observations, saved, name
):
    weights, scaler = saved
    out = forward(weights, f"{name}/net", (observations - scaler["obs_mean"]) / scaler["obs_std"])
    log_std = weights[f"{name}/log_std"]
    components = len(log_std)
    means = np.tanh(out[:, components:]).reshape(-1, components, ACTION_DIM)
    half = (scaler["action_high"] - scaler["action_low"]) / 2
    mixture = getattr(policy, name)(observations)
    np.testing.assert_allclose(
        mixture.log_weights, log_softmax(out[:, :components], axis=-1), rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(
        mixture.means, means * half + (scaler["action_low"] + half), rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(
        mixture.stds, np.broadcast_to(np.exp(log_std) * half, means.shape), rtol=1e-5
    )


def test_a_single_observation_gives_mixtures_without_a_batch_axis(policy, observations):
    one, many = policy.actor(observations[4]), policy.actor(observations)
    assert one.log_weights.shape == (4,)
    assert one.means.shape == one.stds.shape == (4, ACTION_DIM)
    np.testing.assert_allclose(one.means, many.means[4], atol=1e-6)
    np.testing.assert_allclose(one.mode(), one.means[np.argmax(one.log_weights)])


@pytest.mark.parametrize("changes", [{}, BY_SOURCE["behavior"]], ids=["default", "changed"])
def test_without_candidates_the_anchor_is_executed_and_nothing_is_flagged(
    policy, observations, changes
):
    for scale in (1, 100):
        record = policy.decide(scale * observations, gemrl.Knobs(n=0, **changes))
        zeros = np.zeros(len(observations))
        np.testing.assert_array_equal(record.action, record.candidates[:, 0])
        np.testing.assert_array_equal(record.support_z, zeros[:, None])
        np.testing.assert_array_equal(record.executed_support_z, zeros)
        np.testing.assert_array_equal(record.chosen, zeros)
        assert not record.violation.any()
        assert not record.executed_violation.any()


@pytest.mark.parametrize("n", [0, 16])
def test_anchor_is_the_clipped_mean_of_the_actors_heaviest_component(policy, observations, n):
    log_weights, means, _ = as_float64(policy.actor(observations))
    heaviest = means[np.arange(len(observations)), log_weights.argmax(axis=1)]
    record = policy.decide(observations, gemrl.Knobs(n=n))
    np.testing.assert_allclose(record.candidates[:, 0], np.clip(heaviest, -1, 1), atol=1e-5)


@pytest.mark.parametrize("n", [0, 16])
def test_barycenter_anchor_is_the_weighted_mean_of_the_actors_means(policy, observations, n):
    log_weights, means, _ = as_float64(policy.actor(observations))
    center = (np.exp(log_weights)[..., None] * means).sum(axis=1)
    record = policy.decide(observations, gemrl.Knobs(n=n, **BY_SOURCE["behavior"]))
    np.testing.assert_allclose(record.candidates[:, 0], np.clip(center, -1, 1), atol=1e-5)


def samples(policy, obs, source, n, seed):
    """The candidates of a source without the anchor, [B, n, A]."""
    record = policy.decide(obs, gemrl.Knobs(n=n, **BY_SOURCE[source]), seed=seed)
    return record.candidates[:, -n:]


def many_samples(policy, obs, source):
    """256 candidates for each state, of 16 seeds."""
    parts = [samples(policy, obs, source, 16, seed) for seed in range(16)]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize(
    ("source", "few", "many"),
    [("actor", 1, 16), ("behavior", 1, 16), ("unimodal", 1, 16)],
)
def test_samples_for_few_candidates_are_a_prefix_of_those_for_many(
    policy, observations, source, few, many
):
    short, long = (samples(policy, observations, source, n, seed=2) for n in (few, many))
    assert short.shape[1] == few
    assert long.shape[1] == many
    np.testing.assert_allclose(short, long[:, :few], atol=1e-6)


def test_candidates_for_sixteen_are_a_prefix_of_those_for_sixty_four(policy, observations):
    for seed, obs in enumerate(observations):
        short, long = (policy.decide(obs, gemrl.Knobs(n=n), seed=seed) for n in (16, 64))
        assert long.candidates.shape == (65, ACTION_DIM)
        np.testing.assert_allclose(short.candidates, long.candidates[:17], atol=1e-6)


def heaviest_component(mixture):
    """Its means and standard deviations, [B, 1, A]."""
    log_weights, means, stds = as_float64(mixture)
    rows, heaviest = np.arange(len(means)), log_weights.argmax(axis=1)
    return means[rows, heaviest][:, None], stds[rows, heaviest][:, None]


@pytest.mark.parametrize("source", ["actor", "behavior", "unimodal"])
def test_candidates_are_distributed_as_their_source(policy, observations, source):
    drawn = many_samples(policy, observations, source)
    mixture = policy.behavior(observations) if source == "behavior" else policy.actor(observations)
    log_weights, means, stds = as_float64(mixture)
    if source == "unimodal":
        means, stds = heaviest_component(mixture)
        log_weights = np.zeros((len(observations), 1))
    n = drawn.shape[1]
    for x in (-0.9, -0.5, 0.0, 0.5, 0.9):
        # Clipping to the bounds changes nothing of the distribution function within them.
        below = (np.exp(log_weights)[..., None] * norm.cdf(x, means, stds)).sum(axis=1)
        error = np.sqrt((n * below * (1 - below)).sum(axis=0))
        count = (drawn <= x).sum(axis=(0, 1))
        assert (np.abs(count - n * below.sum(axis=0)) < 4.5 * error + 1).all()


def test_unimodal_candidates_stay_with_the_heaviest_component_where_the_actors_do_not(
    policy, observations
):
    mean, std = heaviest_component(policy.actor(observations))

    def farthest(source):
        # Clipping brings a sample closer to its mean, which lies within the bounds.
        return (np.abs(many_samples(policy, observations, source) - mean) / std).max()

    assert farthest("unimodal") < 5.5
    assert farthest("actor") > 5.5


@pytest.mark.parametrize("n", [0, 16])
def test_records_have_the_documented_shapes(policy, observations, n):
    count = n + 1
    single = policy.decide(observations[0], gemrl.Knobs(n=n))
    batch = policy.decide(observations, gemrl.Knobs(n=n))
    for record, lead in ((single, ()), (batch, (len(observations),))):
        assert record.action.shape == (*lead, ACTION_DIM)
        assert record.candidates.shape == (*lead, count, ACTION_DIM)
        assert record.q.shape == (*lead, CRITICS, count)
        for name in PER_CANDIDATE:
            assert getattr(record, name).shape == (*lead, count), name
        for name in PER_STATE:
            assert np.shape(getattr(record, name)) == lead, name
    assert {field.name for field in fields(single)} == {
        *PER_STATE,
        *PER_CANDIDATE,
        *WHOLE_RECORD,
        "action",
        "candidates",
        "q",
    }


@pytest.mark.parametrize("n", [0, 16])
def test_first_row_of_a_batch_equals_the_single_decision(policy, observations, n):
    knobs = gemrl.Knobs(n=n)
    batch = policy.decide(observations, knobs, seed=7)
    assert_same_decision(policy.decide(observations[0], knobs, seed=7), batch.row(0))


@pytest.mark.parametrize(("n", "source"), [(16, "actor"), (0, "actor"), (0, "behavior")])
def test_a_seed_for_each_row_gives_each_row_what_it_gets_alone(policy, observations, n, source):
    knobs = gemrl.Knobs(n=n, **BY_SOURCE[source] | {"wp": gemrl.Cosine(0.1, 100)})
    seeds = np.arange(len(observations)) * 1_000_003 % 2**32
    seeds[1] = 2**32 - 1
    steps = np.arange(len(observations)) * 5
    batch = policy.decide(observations, knobs, seed=seeds, t=steps)
    for row in range(0, len(observations), 3):
        alone = policy.decide(observations[row], knobs, seed=int(seeds[row]), t=int(steps[row]))
        assert_same_decision(alone, batch.row(row), atol=1e-4)


def test_a_batch_of_more_rows_than_are_evaluated_together_equals_each_alone(policy, observations):
    many = np.tile(observations, (30, 1)) * np.linspace(0.5, 1.5, 1_200, dtype=np.float32)[:, None]
    batch = policy.decide(many, gemrl.Knobs(n=0))
    assert batch.action.shape == (1_200, ACTION_DIM)
    for row in (0, 1, 1_022, 1_023, 1_024, 1_025, 1_199):
        assert_same_decision(policy.decide(many[row], gemrl.Knobs(n=0)), batch.row(row))


def test_rows_of_a_batch_with_one_seed_draw_different_candidates(policy, observations):
    same = np.stack([observations[0]] * len(observations))
    record = policy.decide(same, gemrl.Knobs(n=16), seed=0)
    for row in range(1, len(observations)):
        assert (record.candidates[0, 1:] != record.candidates[row, 1:]).any(axis=-1).all()


def test_the_same_seed_gives_the_same_decision_bit_for_bit(policy, observations):
    one, other = (policy.decide(observations, gemrl.Knobs(n=16), seed=4) for _ in range(2))
    for field in fields(one):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


def test_another_seed_gives_other_candidates_and_the_same_anchor(policy, observations):
    one, other = (policy.decide(observations, gemrl.Knobs(n=16), seed=s) for s in (4, 5))
    np.testing.assert_array_equal(one.candidates[:, 0], other.candidates[:, 0])
    assert (one.candidates[:, 1:] != other.candidates[:, 1:]).any(axis=-1).all()


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 - 1, np.int64(5), np.uint32(7)])
def test_every_whole_seed_of_32_bits_is_accepted(policy, observations, seed):
    record = policy.decide(observations[0], gemrl.Knobs(n=16), seed=seed)
    other = policy.decide(observations[0], gemrl.Knobs(n=16), seed=1)
    assert (record.candidates[1:] != other.candidates[1:]).any()


@pytest.mark.parametrize("k_smooth", [1, 3])
@pytest.mark.parametrize("bounds", ["own", "shifted"])
def test_actions_and_candidates_lie_within_the_bounds(
    policy, shifted_policy, observations, bounds, k_smooth
):
    chosen = policy if bounds == "own" else shifted_policy
    low, high = chosen.spec.action_low, chosen.spec.action_high
    for seed in range(20):
        changes = {} if k_smooth == 1 else BY_SOURCE["behavior"]
        knobs = gemrl.Knobs(n=16, wp=1.0, **changes)
        assert knobs.k_smooth == k_smooth
        record = chosen.decide(observations, knobs, seed=seed)
        for actions in (record.action, record.candidates):
            assert (actions >= low).all()
            assert (actions <= high).all()
    assert ((record.candidates == low) | (record.candidates == high)).any()


def test_candidates_and_densities_are_in_environment_units(policy, shifted_policy, observations):
    knobs = gemrl.Knobs(n=16)
    unit, shifted = policy.decide(observations, knobs), shifted_policy.decide(observations, knobs)
    half, middle = np.float64([0.25, 0.8]), np.float64([-0.15, 1.5])
    np.testing.assert_allclose(shifted.candidates, unit.candidates * half + middle, atol=1e-5)
    np.testing.assert_allclose(shifted.q, unit.q, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(
        shifted.log_support, unit.log_support - np.log(half).sum(), rtol=1e-3, atol=1e-2
    )


BAD_OBSERVATIONS = {
    "nan": (np.array([0, np.nan, 0, 0]), "nan"),
    "inf": (np.array([0, 0, np.inf, 0]), "inf"),
    "nan_in_batch": (np.array([[0] * 4, [0, 0, 0, np.nan]], np.float32), r"\[1, 3\]"),
    "beyond_float32": (np.array([0, 0, 0, 1e39]), r"1e\+39.*\[3\]"),
    "too_short": (np.zeros(3), r"\(3,\).*\[4\]"),
    "too_long": (np.zeros((2, 5)), r"\(2, 5\).*\[B, 4\]"),
    "number": (np.float32(0), r"\(\)"),
    "three_axes": (np.zeros((1, 1, 4)), r"\(1, 1, 4\)"),
    "empty": (np.zeros((0, 4)), r"\(0, 4\)"),
    "strings": (np.array(["0", "0", "0", "0"]), "<U1"),
    "objects": (np.array([0.0, None, 0, 0], dtype=object), "object"),
    "bools": (np.zeros(4, bool), "bool"),
    "complex": (np.zeros(4, complex), "complex"),
    "ragged": ([[0, 0, 0, 0], [0, 0]], ""),
}


@pytest.mark.parametrize("name", BAD_OBSERVATIONS)
def test_a_bad_observation_is_refused_with_what_is_wrong_with_it(policy, name):
    obs, culprit = BAD_OBSERVATIONS[name]
    for ask in (
        lambda: policy.decide(obs, gemrl.Knobs(n=0)),
        lambda: policy.actor(obs),
        lambda: policy.behavior(obs),
    ):
        with pytest.raises(ValueError, match=f"observation.*{culprit}") as caught:
            ask()
        assert isinstance(caught.value, ObservationError)


def test_lists_and_whole_numbers_are_observations(policy):
    expected = policy.decide(np.float32([1, 2, 0, 0]), gemrl.Knobs(n=0)).action
    for obs in ([1, 2, 0, 0], [1.0, 2.0, 0.0, 0.0], np.array([1, 2, 0, 0], np.int64)):
        np.testing.assert_array_equal(policy.decide(obs, gemrl.Knobs(n=0)).action, expected)


@pytest.mark.parametrize("size", [1e4, 1e30, 3e38])
@pytest.mark.parametrize("n", [0, 16])
def test_a_finite_observation_is_refused_or_gets_a_finite_record_within_bounds(policy, size, n):
    try:
        record = policy.decide(np.full(OBS_DIM, size), gemrl.Knobs(n=n))
    except ObservationError:
        return
    assert (np.abs(record.action) <= 1).all()
    assert np.isfinite(record.score).all()


@pytest.mark.parametrize("name", ["lam", "wp"])
def test_a_weight_beyond_float32_is_refused_or_gives_finite_scores(policy, observations, name):
    try:
        record = policy.decide(observations, gemrl.Knobs(n=16, **{name: 1e39}))
    except KnobError:
        return
    assert np.isfinite(record.score).all()


@pytest.mark.parametrize(
    "actions",
    [np.zeros(2), np.zeros((5, 3)), np.zeros((1, 5, 2)), np.full((5, 2), np.nan)],
    ids=str,
)
def test_bad_actions_are_refused_by_q_values(policy, observations, actions):
    with pytest.raises(ValueError, match="actions"):
        policy.q_values(observations[0], actions)


def test_a_batch_of_actions_of_another_length_is_refused_by_q_values(policy, observations):
    with pytest.raises(ValueError, match=r"actions.*\[3, C, 2\]"):
        policy.q_values(observations[:3], np.zeros((2, 5, 2)))


BAD_WHOLE = [
    -1,
    1.0,
    0.5,
    np.nan,
    "1",
    True,
    None,
    2**64,
    [0, 1],
    np.zeros(5),
    np.array([0, 1, -1]),
]


@pytest.mark.parametrize("seed", BAD_WHOLE, ids=str)
def test_a_bad_seed_is_refused_by_name(policy, observations, seed):
    with pytest.raises(ValueError, match=r"^seed = ") as caught:
        policy.decide(observations[:3], gemrl.Knobs(n=0), seed=seed)
    assert isinstance(caught.value, KnobError)


def test_a_seed_of_more_than_32_bits_is_refused(policy, observations):
    with pytest.raises(ValueError, match="seed = 4294967296"):
        policy.decide(observations[0], gemrl.Knobs(n=0), seed=2**32)


@pytest.mark.parametrize("t", [t for t in BAD_WHOLE if t is not None], ids=str)
def test_a_bad_step_is_refused_by_name(policy, observations, t):
    knobs = gemrl.Knobs(n=0, wp=gemrl.Cosine(0.4, 300))
    with pytest.raises(ValueError, match=r"^t = ") as caught:
        policy.decide(observations[:3], knobs, t=t)
    assert isinstance(caught.value, KnobError)


def test_a_policy_without_critics_refuses_candidates_and_executes_its_anchor(
    bc_policy, observations
):
    with pytest.raises(ValueError, match=r"n = 16.*'bc' has no critics.*n must be 0"):
        bc_policy.decide(observations, gemrl.Knobs(n=16, wp=0.0))
    record = bc_policy.decide(observations)
    np.testing.assert_allclose(record.action, bc_policy.actor(observations).means[:, 0], atol=1e-6)
    assert record.q.shape == (len(observations), 0, 1)
    for name in ("lcb", "score", "log_support", "support_z", "collapse_dist"):
        assert np.isnan(getattr(record, name)).all(), name
    assert not record.violation.any()


@pytest.mark.parametrize("method", ["bc", "iql"])
def test_a_policy_without_a_density_refuses_a_support_weight(
    bc_policy, iql_policy, observations, method
):
    policy = bc_policy if method == "bc" else iql_policy
    with pytest.raises(ValueError, match=rf"wp = 0\.4.*'{method}' has no behaviour density"):
        policy.decide(observations, gemrl.Knobs(n=0))
    with pytest.raises(ValueError, match=r"wp = Cosine.*no behaviour density"):
        policy.decide(observations, gemrl.Knobs(n=0, wp=gemrl.Cosine(0.4, 300)), t=0)
    with pytest.raises(ValueError, match="no behaviour density"):
        policy.behavior(observations)


def test_a_policy_without_a_density_refuses_candidates_from_it(iql_policy, observations):
    with pytest.raises(ValueError, match=r"source = 'behavior'.*no behaviour density"):
        iql_policy.decide(observations, gemrl.Knobs(n=16, wp=0.0, source="behavior"))


def test_a_policy_without_a_density_ranks_by_value_alone(iql_policy, observations):
    record = iql_policy.decide(observations, gemrl.Knobs(n=16, wp=0.0))
    np.testing.assert_array_equal(record.score, record.lcb)
    np.testing.assert_array_equal(record.chosen, record.lcb.argmax(axis=1))
    assert np.isfinite(record.score).all()
    assert np.isnan(record.log_support).all()
    assert not record.violation.any()


@pytest.mark.parametrize("method", ["bc", "iql"])
def test_an_audited_policy_executes_what_it_did_and_carries_the_auditors_audits(
    bc_policy, iql_policy, policy, observations, method
):
    own = bc_policy if method == "bc" else iql_policy
    audited = own.audited_by(policy)
    before = own.decide(observations, gemrl.Knobs(n=0, wp=0.0))
    after = audited.decide(observations, gemrl.Knobs(n=0))
    np.testing.assert_array_equal(after.action, before.action)
    np.testing.assert_allclose(
        after.log_support[:, 0],
        mixture_log_prob(policy.behavior(observations), after.action),
        rtol=1e-5,
        atol=1e-4,
    )
    expected = policy.q_values(observations, after.candidates)
    np.testing.assert_allclose(after.q, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["obs_mean", "obs_std", "action_low", "action_high"])
def test_an_auditor_that_scales_differently_is_refused(bc_policy, policy, name):
    other = with_spec(policy, **{name: getattr(policy.spec, name) * np.float32(1.5)})
    with pytest.raises(KnobError, match="differently"):
        bc_policy.audited_by(other)


def test_critics_of_other_rewards_are_brought_to_the_units_of_the_density_or_the_auditor(
    iql_policy, policy, observations
):
    """Some methods train on rewards as they are; states and actions are what networks share."""
    ours = policy.spec.reward_scale
    raw = with_spec(iql_policy, reward_scale=4 * ours)
    own = raw.with_density(policy)
    actions = np.zeros((len(observations), 3, policy.spec.action_dim), np.float32)
    np.testing.assert_allclose(
        own.q_values(observations, actions), raw.q_values(observations, actions) / 4, rtol=1e-5
    )
    assert own.spec.reward_scale == ours
    assert raw.audited_by(policy).spec.reward_scale == ours
