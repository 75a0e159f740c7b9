"""What is watched while training runs: numbers against NumPy, and words where it goes wrong."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

import gemrl
from gemrl.learn.health import CALM_LOOKS, Watch, held_out_metrics, mixture_health, warnings
from gemrl.learn.spec import scale
from gemrl.methods import METHODS
from gemrl.methods.networks import MixtureNet
from gemrl.methods.protocol import Batch, Models

SMALL = {"hidden": (8,)}
GEM = gemrl.GemConfig(components=4, critics=3, discount=0.9, expectile=0.8, **SMALL)
ROWS, OBS, ACTIONS = 50, 3, 2

# A run with nothing wrong, as `gemrl train` writes it.
HEALTHY = {
    "critic/loss": 0.01,
    "actor/nll": 1.1,
    "actor/weight": 1.3,
    "actor/weight_clipped": 0.01,
    "training/actor_nll": 1.0,
    "held_out/actor_nll": 1.2,
    "held_out/actor_gate_entropy": 1.4,
    "held_out/actor_heaviest": 0.4,
    "held_out/actor_dead": 0.25,
    "held_out/actor_log_std_at_floor": 0.3,
    "held_out/actor_log_std_at_ceiling": 0.0,
    "held_out/critic_std": 0.1,
    "held_out/critic_spread": 2.0,
}


def gated(weights, log_std=0.0, slope=0.0):
    """A linear mixture with these gates where the first observation is 0; it tilts the first."""
    logits = jnp.log(jnp.asarray(weights))
    net = MixtureNet(OBS, ACTIONS, len(logits), (), jax.random.key(0))
    last = net.net.layers[-1]
    weight = last.weight.at[:, : len(logits)].set(0.0).at[0, 0].set(slope)
    return eqx.tree_at(
        lambda n: (n.net.layers[-1].weight, n.net.layers[-1].bias, n.log_std),
        net,
        (
            weight,
            last.bias.at[: len(logits)].set(logits),
            jnp.broadcast_to(log_std, net.log_std.shape),
        ),
    )


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    return Batch(
        obs=rng.normal(size=(ROWS, OBS)).astype(np.float32),
        action=rng.uniform(-1, 1, size=(ROWS, ACTIONS)).astype(np.float32),
        reward=rng.normal(size=ROWS).astype(np.float32),
        next_obs=rng.normal(size=(ROWS, OBS)).astype(np.float32),
        mask=(rng.random(ROWS) < 0.8).astype(np.float32),
    )


def models_of(method, config):
    made = METHODS[method]
    return made.models(made.init(config, OBS, ACTIONS, jax.random.key(1)))


# Mixtures


def test_health_of_a_mixture_with_known_weights():
    weights = np.array([0.7, 0.25, 0.048, 0.002])
    log_std = np.array([[-3.0, -3.0], [-3.0, -1.0], [-1.0, 0.0], [-2.0, -0.5]])
    found = mixture_health(gated(weights, log_std), jnp.ones((5, OBS)), GEM)
    # Of an even weight, a quarter, 1 % is 0.0025.
    expected = {
        "gate_entropy": -(weights * np.log(weights)).sum(),
        "heaviest": 0.7,
        "dead": 1 / 4,
        "log_std_at_floor": 3 / 8,
        "log_std_at_ceiling": 1 / 8,
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, abs=1e-5), name


def test_components_that_serve_some_states_alone_are_not_dead():
    obs = np.zeros((100, OBS), np.float32)
    obs[:, 0] = np.where(np.arange(100) < 30, 1, -1)
    found = mixture_health(gated([0.5, 0.5], slope=1000.0), obs, GEM)
    assert float(found["gate_entropy"]) == pytest.approx(0, abs=1e-5)
    assert float(found["heaviest"]) == pytest.approx(0.7)
    assert float(found["dead"]) == 0


def test_one_component_is_in_good_health():
    found = mixture_health(gated([1.0]), jnp.ones((5, OBS)), GEM)
    assert float(found["dead"]) == 0
    assert float(found["heaviest"]) == 1
    assert float(found["gate_entropy"]) == pytest.approx(0, abs=1e-5)


# Rows that are watched


def test_metrics_of_rows_are_what_numpy_gives(batch):
    models = models_of("gem", GEM)
    found = {k: float(v) for k, v in held_out_metrics(models, batch, GEM).items()}

    def nll(net):
        mixture = jax.tree.map(lambda x: np.asarray(x, np.float64), net(batch.obs))
        joint = mixture.log_weights + norm.logpdf(
            batch.action[:, None], mixture.means, mixture.stds
        ).sum(axis=-1)
        return -logsumexp(joint, axis=1).mean()

    q = np.array([np.asarray(c(batch.obs, batch.action), np.float64) for c in models.critics])
    value, after = (np.asarray(models.value(x), np.float64) for x in (batch.obs, batch.next_obs))
    delta = q.min(axis=0) - value
    expected = {
        "actor_nll": nll(models.actor),
        "behavior_nll": nll(models.behavior),
        "critic_mean": q.mean(),
        "critic_std": np.sqrt(((q - q.mean(axis=0)) ** 2).mean(axis=0)).mean(),
        "critic_spread": q.mean(axis=0).std(),
        "critic_td": ((q - (batch.reward + 0.9 * batch.mask * after)) ** 2).mean(),
        "value_mean": value.mean(),
        "value_loss": (np.where(delta < 0, 0.2, 0.8) * delta**2).mean(),
    }
    for name, number in expected.items():
        assert found[f"held_out/{name}"] == pytest.approx(number, rel=1e-4, abs=1e-6), name
    for net in ("actor", "behavior"):
        for name, number in mixture_health(getattr(models, net), batch.obs, GEM).items():
            assert found[f"held_out/{net}_{name}"] == pytest.approx(float(number), rel=1e-5)
    assert len(found) == len(expected) + 2 * 5


@pytest.mark.parametrize(
    ("method", "config", "absent"),
    [
        ("bc", gemrl.BcConfig(components=2, **SMALL), ("behavior", "critic", "value")),
        ("iql", gemrl.IqlConfig(critics=2, **SMALL), ("behavior",)),
        ("gem", GEM, ()),
    ],
)
def test_every_method_has_metrics_for_what_it_has(batch, method, config, absent):
    models = models_of(method, config)
    found = held_out_metrics(models, batch, config, "training")
    parts = {name.removeprefix("training/").split("_")[0] for name in found}
    assert parts == {"actor", "behavior", "critic", "value"} - set(absent)
    compiled = jax.jit(partial(held_out_metrics, config=config, prefix="training"))(models, batch)
    for name, value in compiled.items():
        assert float(value) == pytest.approx(float(found[name]), rel=1e-5, abs=1e-6)


def test_critics_without_a_value_have_metrics_too(batch):
    whole = models_of("gem", GEM)
    models = Models(whole.actor, None, whole.critics, None)
    found = held_out_metrics(models, batch, GEM)
    assert "held_out/critic_std" in found
    assert "held_out/critic_td" not in found
    assert "held_out/value_mean" not in found


# Words


def topics(metrics, components=4):
    return [topic for topic, _ in warnings(metrics, components)]


def test_a_healthy_run_is_not_bothered():
    assert warnings(HEALTHY, 4) == []
    assert warnings({}, 4) == []


def test_a_collapsed_mixture_is_told_and_a_healthy_one_is_not(batch):
    def told(weights):
        net = gated(weights, log_std=-1.0)
        models = Models(net, net, (), None)
        metrics = {k: float(v) for k, v in held_out_metrics(models, batch, GEM).items()}
        return topics(metrics, len(weights))

    assert told([0.997, 0.001, 0.001, 0.001]) == ["actor/collapsed", "behavior/collapsed"]
    assert told([0.5, 0.496] + [0.004 / 6] * 6) == ["actor/dead", "behavior/dead"]
    assert told([0.97, 0.01, 0.01, 0.01]) == []
    assert told([0.5, 0.49, 0.005, 0.005]) == []


@pytest.mark.parametrize(
    ("changed", "topic", "advice"),
    [
        ({"held_out/actor_heaviest": 0.995}, "actor/collapsed", "--gate-entropy"),
        ({"held_out/actor_dead": 0.75}, "actor/dead", "3 of its 4 components"),
        ({"held_out/actor_log_std_at_floor": 0.6}, "actor/floor", "--log-std-min"),
        ({"held_out/actor_log_std_at_ceiling": 0.6}, "actor/ceiling", "--log-std-max"),
        ({"actor/weight_clipped": 0.12}, "actor/weights", "lower --beta"),
        ({"held_out/actor_nll": 2.1}, "actor/overfit", "1.1 nats"),
        ({"held_out/critic_std": 2.1}, "critic/disagreement", "--learning-rate"),
    ],
)
def test_each_trouble_has_its_own_words(changed, topic, advice):
    ((found, sentence),) = warnings(HEALTHY | changed, 4)
    assert found == topic
    assert advice in sentence
    assert not sentence.endswith(".")


@pytest.mark.parametrize(
    "changed",
    [
        {"held_out/actor_heaviest": 0.98},
        {"held_out/actor_dead": 0.5},
        {"held_out/actor_log_std_at_floor": 0.5},
        {"held_out/actor_log_std_at_ceiling": 0.5},
        {"actor/weight_clipped": 0.1},
        {"held_out/actor_nll": 1.9},
        {"held_out/actor_nll": -5.0},
        {"held_out/critic_std": 1.9},
        {"held_out/actor_heaviest": float("nan")},
    ],
)
def test_short_of_its_limit_nothing_is_told(changed):
    assert warnings(HEALTHY | changed, 4) == []


def test_one_component_can_neither_collapse_nor_be_dead():
    trouble = {"held_out/actor_heaviest": 1.0, "held_out/actor_dead": 1.0}
    assert topics(HEALTHY | trouble, 1) == []
    assert topics(HEALTHY | trouble, 2) == ["actor/collapsed"]


def test_without_advantage_weights_no_advice_is_about_them():
    metrics = {"actor/nll": 1.0, "held_out/actor_heaviest": 1.0}
    ((_, sentence),) = warnings(metrics, 4)
    assert "--gate-entropy" not in sentence
    assert "--seed" in sentence


def test_without_held_out_rows_those_of_training_are_judged():
    metrics = {name.replace("held_out", "training"): value for name, value in HEALTHY.items()}
    assert topics(metrics) == []
    assert topics(metrics | {"training/actor_dead": 0.75}) == ["actor/dead"]
    assert topics({"actor/log_std_at_floor": 0.9}) == ["actor/floor"]


def test_networks_that_are_not_in_training_are_not_judged():
    untouched = {
        "training/actor_heaviest": 1.0,
        "held_out/critic_std": 3.0,
        "held_out/critic_spread": 1.0,
        "held_out/behavior_dead": 0.75,
    }
    assert topics({"behavior/nll": 1.0, **untouched}) == ["behavior/dead"]
    assert topics(untouched) == ["actor/collapsed", "behavior/dead", "critic/disagreement"]


def test_a_finding_is_told_once_until_it_was_gone_for_a_while():
    watch = Watch()
    dead, floor = ("actor/dead", "2 are dead"), ("actor/floor", "at the floor")
    assert watch.new([dead]) == ["2 are dead"]
    assert watch.new([("actor/dead", "3 are dead")]) == []
    assert watch.new([dead, floor]) == ["at the floor"]
    for _ in range(CALM_LOOKS - 1):
        assert watch.new([]) == []
    assert watch.new([dead]) == []
    for _ in range(CALM_LOOKS):
        assert watch.new([]) == []
    assert watch.new([dead, floor]) == ["2 are dead", "at the floor"]


def test_a_short_real_run_is_in_good_health(policy, maze_data):
    batch = scale(maze_data.select(np.arange(0, len(maze_data), 40)), policy.spec)
    metrics = held_out_metrics(policy.models, batch, replace(GEM, hidden=(32, 32)))
    assert warnings({name: float(value) for name, value in metrics.items()}, 4) == []
