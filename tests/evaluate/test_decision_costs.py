"""`gemrl bench decisions`: every method under one harness, and the shape of what it costs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from gemrl.bench_command import document
from gemrl.cli import main
from gemrl.evaluate import decision_costs
from gemrl.evaluate.decision_costs import NS, TS, Cost, growth, policy_of, settings
from gemrl.methods import METHODS

COST = Cost("ifql", "N", 1, True, 1.0, 2.0, 100.0, 1.0, 10, 200)


@pytest.fixture
def few(monkeypatch):
    """Two sizes of each knob, small."""
    monkeypatch.setattr(decision_costs, "NS", (1, 8))
    monkeypatch.setattr(decision_costs, "TS", (2, 4))
    monkeypatch.setattr(decision_costs, "BATCH", 3)


def test_every_method_takes_every_n_and_those_with_steps_every_t():
    found = settings(tuple(METHODS))
    for name in METHODS:
        mine = [one for one in found if one.method == name and one.backend == "jax"]
        assert [one.value for one in mine if one.knob == "N"] == list(NS)
        has_steps = name in ("idql", "diffusionql", "fql", "ifql")
        assert [one.value for one in mine if one.knob == "T"] == (list(TS) if has_steps else [])


def test_a_setting_changes_what_the_method_decides_with_and_nothing_where_it_has_no_such_knob():
    for name, n, scales in (("gem", 64, True), ("ifql", 64, True), ("td3bc", 0, False)):
        policy, knobs, found = policy_of(decision_costs.Setting(name, "N", 64))
        assert (policy.method, knobs.n, found) == (name, n, scales)
    policy, _, scales = policy_of(decision_costs.Setting("idql", "T", 20))
    assert (policy.models.actor.steps, scales) == (20, True)
    # FQL executes what it distilled from its flow: one step, however many the flow has.
    assert policy_of(decision_costs.Setting("fql", "T", 20))[2] is False


def test_growth_is_the_least_squares_slope_and_the_ratio_of_the_ends():
    values = [1, 64, 1024, 2048]
    costs = [replace(COST, value=n, median_ms=0.5 + 0.002 * n) for n in values]
    flat = [replace(COST, method="td3bc", value=n, scales=False) for n in values]
    linear, constant = growth([*costs, *flat])
    assert linear.microseconds == pytest.approx(2.0)
    assert linear.ratio == pytest.approx((0.5 + 0.002 * 2048) / 0.502)
    assert constant.microseconds == pytest.approx(0.0, abs=1e-9)
    assert (constant.ratio, constant.scales) == (1.0, False)


def test_the_command_tells_costs_and_growth_as_json(few, capsys):
    words = ["bench", "decisions", "--methods", "td3bc", "ifql", "--rounds", "2", "--calls", "3"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "cpu" in found["machine"]
    costs = {(c["method"], c["knob"], c["value"]): c for c in found["costs"]}
    assert len(costs) == 6
    for cost in costs.values():
        assert 0 < cost["median_ms"] <= cost["p99_ms"]
        assert cost["decisions"] == 6
        assert cost["decisions_per_second"] > 0
        assert cost["memory_mb"] > 0
    # Two critics and an actor or a flow, of 256 x 256 each.
    assert costs["td3bc", "N", 1]["parameters"] == _weights("td3bc")
    assert costs["ifql", "N", 8]["memory_mb"] > costs["ifql", "N", 1]["memory_mb"]
    assert costs["td3bc", "N", 8]["memory_mb"] == costs["td3bc", "N", 1]["memory_mb"]
    assert {(g["method"], g["knob"], g["scales"]) for g in found["growth"]} == {
        ("td3bc", "N", False),
        ("ifql", "N", True),
        ("ifql", "T", True),
    }


def test_the_document_says_how_many_decisions_a_percentile_is_of():
    words = [
        document([replace(COST, value=n, decisions=count) for n in (1, 8)], plots=False).parts[0]
        for count in (30, 100)
    ]
    assert "of 30 single decisions each, of so few about the slowest." in words[0]
    assert "of 100 single decisions each. " in words[1]


def _weights(name):
    policy, _, _ = policy_of(decision_costs.Setting(name, "N", 1))
    sizes = policy.models
    return sum(np.size(x) for x in decision_costs.jax.tree.leaves((sizes.actor, sizes.critics)))


def test_the_document_has_tables_plots_and_the_papers_columns(few, tmp_path, capsys):
    words = ["bench", "decisions", "--methods", "td3bc", "ifql", "--rounds", "1", "--calls", "1"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    text = (tmp_path / "decisions.md").read_text()
    assert "| TD3+BC | N = 8 (not its knob) |" in text
    assert "paper, ms (GPU)" in text
    assert text.count(".png)") == 3
    lines = (tmp_path / "decisions.jsonl").read_text().splitlines()
    costs = [Cost(**json.loads(line)) for line in lines]
    assert {cost.method for cost in costs} == {"td3bc", "ifql"}
    text = (tmp_path / "decisions.md").read_text()
    assert all(f"{cost.median_ms:.3f}" in text for cost in costs)
    assert str(tmp_path / "decisions.html") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["speed"], "must be decisions"),
        (["decisions", "--methods", "ppo"], "ppo"),
        (["decisions", "--rounds", "0"], "rounds = 0"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(words, named, capsys):
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
