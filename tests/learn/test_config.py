"""Training settings: their ranges, their defaults and their way through JSON."""

import dataclasses
import json
import math

import pytest

from gemrl import BcConfig, GemConfig, IqlConfig
from gemrl.errors import ConfigError, GemrlError
from gemrl.learn.bundle import config_from_json, config_to_json

BAD = {
    "steps": (-1,),
    "seed": (-1, 2**32),
    "batch_size": (0, -3),
    "learning_rate": (0.0, -1e-3, math.nan, math.inf),
    "hidden": ((), (0,), (16, -1)),
    "log_std_min": (0.5, math.nan, -math.inf),
    "log_std_max": (-4.0, math.nan, math.inf),
    "holdout": (-0.1, 1.0, math.nan),
    "checkpoint_every": (0, -1),
}
BAD_IQL = BAD | {
    "critics": (0, -1),
    "discount": (-0.1, 1.0, math.nan),
    "expectile": (0.0, 1.0, -0.5, math.nan),
    "beta": (-1.0, math.nan, math.inf),
    "weight_cap": (0.0, -1.0, math.nan),
    "polyak": (0.0, 1.5, math.nan),
}
BAD_GEM = BAD_IQL | {
    "components": (0, -2),
    "gate_entropy": (-0.01, math.nan),
    "pretrain_steps": (-1,),
}
KINDS = {
    BcConfig: BAD | {"components": (0, -2)},
    IqlConfig: BAD_IQL,
    GemConfig: BAD_GEM,
}
SWITCHES = {"detach_responsibilities", "freeze_behavior"}
WHOLE = (
    "steps",
    "seed",
    "batch_size",
    "checkpoint_every",
    "critics",
    "components",
    "pretrain_steps",
)


def test_the_table_of_bad_values_speaks_of_every_field():
    for kind, table in KINDS.items():
        assert set(table) == {field.name for field in dataclasses.fields(kind)} - SWITCHES


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, n, value) for kind, table in KINDS.items() for n in table for value in table[n]],
)
def test_a_value_out_of_range_is_refused_by_field_and_value(kind, name, value):
    with pytest.raises(ConfigError) as caught:
        kind(**{name: value})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, GemrlError)
    message = str(caught.value)
    assert "must be" in message
    if name == "log_std_max" and math.isfinite(value):
        # Floor and ceiling contradict each other: either may be named.
        assert "log_std_m" in message
    else:
        assert message.startswith(f"{name} = {value!r}")


@pytest.mark.parametrize("name", WHOLE)
def test_a_fraction_where_a_whole_number_belongs_is_refused_by_field_and_value(name):
    with pytest.raises(ConfigError, match=rf"{name} = 10\.5"):
        GemConfig(**{name: 10.5})


@pytest.mark.parametrize(
    "values",
    [
        {"steps": 0},
        {"pretrain_steps": 0},
        {"holdout": 0.0},
        {"discount": 0.0},
        {"beta": 0.0},
        {"polyak": 1.0},
        {"gate_entropy": 0.0},
        {"log_std_min": 0.0},
        {"hidden": (8,)},
        {"seed": 2**32 - 1},
    ],
)
def test_values_at_the_edge_of_their_range_are_accepted(values):
    config = GemConfig(**values)
    for name, value in values.items():
        assert getattr(config, name) == value


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("gem", GemConfig()),
        ("gem", GemConfig(steps=7, hidden=(8, 4, 2), pretrain_steps=3, freeze_behavior=False)),
        ("iql", IqlConfig(critics=2, expectile=0.9, learning_rate=1e-4)),
        ("bc", BcConfig(components=5, holdout=0.0, seed=2**32 - 1)),
    ],
)
def test_a_config_survives_the_way_through_json(method, config):
    text = json.dumps(config_to_json(config))
    assert config_from_json(method, json.loads(text)) == config


def test_json_with_a_missing_or_unknown_field_is_refused_by_its_name():
    values = config_to_json(IqlConfig())
    with pytest.raises(ConfigError, match="colour"):
        config_from_json("iql", values | {"colour": "red"})
    del values["beta"]
    with pytest.raises(ConfigError, match="beta"):
        config_from_json("iql", values)
    with pytest.raises(ConfigError, match="no-such-method"):
        config_from_json("no-such-method", values)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(0, 10_000), (50_000, 10_000), (100_000, 10_000), (250_000, 25_000), (1_000_000, 100_000)],
)
def test_the_behaviour_density_trains_for_a_tenth_of_the_steps_and_at_least_10_000(steps, expected):
    assert GemConfig(steps=steps).behavior_steps == expected


@pytest.mark.parametrize("given", [0, 1, 77])
def test_pretrain_steps_that_are_given_are_taken_as_they_are(given):
    assert GemConfig(steps=1_000_000, pretrain_steps=given).behavior_steps == given


def test_defaults_are_the_documented_ones():
    config = GemConfig()
    assert (config.hidden, config.batch_size, config.learning_rate) == ((256, 256), 256, 3e-4)
    assert (config.discount, config.polyak, config.expectile) == (0.99, 0.005, 0.7)
    assert (config.components, config.critics, config.beta) == (8, 4, 3.0)
    assert (config.weight_cap, config.gate_entropy) == (100.0, 0.01)
    assert (config.log_std_min, config.log_std_max) == (-3.0, 0.0)
    assert config.detach_responsibilities
    assert config.freeze_behavior


def test_settings_cannot_be_changed_after_they_were_checked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GemConfig().steps = -1
