"""Every method's policies are exported: an ONNX file decides as `policy.decide` does."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from agreement import (
    Agreement,
    count,
    expected,
    feeds_for,
    random_states,
    run,
)
from random_networks import (
    LOOKING_BACK,
    PRESENT,
    quickly_compiled,
    random_method,
    saved,
)

import gemrl
from gemrl.cli import main
from gemrl.decide.history import logged_inputs
from gemrl.deploy.export.contract import Fixed
from gemrl.deploy.export.verify import open_session
from gemrl.deploy.export.write import build, export_policy
from gemrl.errors import BundleError
from gemrl.methods.samplers import Sampler

ROWS = 200
MOST = 16
# A size that no other test has, so that none meets a program that was compiled in a hurry.
OBS_DIM = 7

pytestmark = pytest.mark.usefixtures("in_a_hurry")


@pytest.fixture(scope="module")
def in_a_hurry():
    with quickly_compiled():
        yield


def session_for(policy, knobs, fixed=None):
    return open_session("the model", build(policy, knobs, fixed))


def decided(policy, states, knobs, n):
    """The decision among n candidates beside the anchor, scored one by one: whatever n and the
    method, few programs are compiled."""
    each = np.ones(len(states), int)
    most = dataclasses.replace(knobs, n=MOST)
    ways = {"block": each, "n_scored": each * (n + (knobs.anchor != "none"))}
    return policy.decide_again(states, most, seed=3, **ways)


def require_same(decision, made):
    """All outputs of the graph are those of the record."""
    for name, values in made.items():
        wanted = expected(decision, name)
        if values.dtype.kind == "f":
            np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(values, wanted, err_msg=name)


@pytest.mark.parametrize("name", PRESENT)
def test_every_method_chooses_the_same_candidate(name):
    policy = random_method(name, obs_dim=OBS_DIM)
    weighed = policy.models.behavior is not None
    knobs = gemrl.Knobs(n=0, lam=0.5, wp=0.4 if weighed else 0.0)
    session, states = session_for(policy, knobs), random_states(policy, ROWS, 1)
    if not policy.models.critics:
        made = run(session, {"observation": states.astype(np.float32)})
        assert set(made) == {"action"}
        np.testing.assert_allclose(made["action"], policy.decide(states, knobs).action, atol=1e-5)
        return
    feeds = feeds_for(session, policy, states, dataclasses.replace(knobs, n=MOST), 3)
    for n in (0, 1, MOST):
        # A smaller set of candidates is a prefix of a larger one.
        noise = {name: feeds[name][:, :n] for name in feeds if name.endswith("noise")}
        made, found = run(session, feeds | noise), Agreement()
        count(found, decided(policy, states, knobs, n), made)
        assert found.different == found.rounded == found.moved == 0
        assert found.near_ties <= 2
        assert found.furthest < 1e-5
    assert len(np.unique(made["chosen"])) > 2
    if isinstance(policy.models.actor, Sampler):
        assert "gate_noise" not in feeds
        assert feeds["normal_noise"].shape[2] == policy.models.actor.noise_size


@pytest.mark.parametrize("source", ["actor", "behavior"])
def test_gems_rule_with_a_borrowed_density_is_exported_too(source):
    policy = random_method("fql", obs_dim=OBS_DIM)
    policy = policy.with_density(random_method("gem", obs_dim=OBS_DIM))
    knobs = dataclasses.replace(policy.knobs_for(None, "gem"), n=MOST, source=source)
    session, states = session_for(policy, knobs), random_states(policy, ROWS, 2)
    made = run(session, feeds_for(session, policy, states, knobs, 3))
    require_same(decided(policy, states, knobs, MOST), made)
    assert len(made) == 12


def test_a_density_without_critics_audits_the_anchor():
    policy = random_method("bc", obs_dim=OBS_DIM)
    policy = policy.with_density(random_method("gem", obs_dim=OBS_DIM))
    session = session_for(policy, policy.default_knobs)
    states = random_states(policy, ROWS, 3)
    made = run(session, {"observation": states.astype(np.float32)})
    require_same(policy.decide(states), made)
    assert {"log_support", "executed_collapse_dist"} < set(made)
    assert not {"score", "chosen"} & set(made)


@pytest.mark.long
@pytest.mark.parametrize("name", PRESENT)
def test_every_method_is_written_with_golden_decisions_that_agree(name, tmp_path):
    policy = random_method(name, obs_dim=OBS_DIM)
    found = export_policy(policy, tmp_path / "policy.onnx")
    cases = 1 if not policy.models.critics else 3 + (policy.default_knobs.anchor != "none")
    assert found["decisions"] == 4 * cases


def test_a_fixed_file_of_a_diffusion_has_constant_shapes_and_verifies(tmp_path):
    policy, path = random_method("idql", obs_dim=OBS_DIM), tmp_path / "policy.onnx"
    found = export_policy(policy, path, fixed=Fixed(4, 3))
    assert found["decisions"] == 4
    graph = onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True).graph
    known = [*graph.input, *graph.output, *graph.value_info]
    assert {out for node in graph.node for out in node.output} <= {value.name for value in known}
    for value in known:
        dims = value.type.tensor_type.shape.dim
        assert all(dim.WhichOneof("value") == "dim_value" for dim in dims), value.name
    about = json.loads(path.with_suffix(".json").read_text())
    [noise] = [port for port in about["inputs"] if port["name"] == "normal_noise"]
    assert noise["shape"] == [3, 4, policy.models.actor.noise_size]


def test_a_file_of_diffusion_ql_draws_as_the_policy_does(tmp_path):
    policy = random_method("diffusionql", obs_dim=OBS_DIM)
    knobs = dataclasses.replace(policy.default_knobs, n=MOST)
    assert knobs.temperature > 0
    session, states = session_for(policy, knobs), random_states(policy, ROWS, 4)
    feeds = feeds_for(session, policy, states, knobs, 3)
    drawn = decided(policy, states, knobs, MOST)
    require_same(drawn, run(session, feeds))
    best = decided(policy, states, dataclasses.replace(knobs, temperature=0.0), MOST)
    assert (drawn.chosen != best.chosen).any()
    require_same(best, run(session, feeds | {"temperature": np.zeros(1, np.float32)}))
    # Golden decisions of several temperatures; with constant shapes too.
    assert export_policy(policy, tmp_path / "policy.onnx", knobs)["decisions"] == 12
    path = tmp_path / "fixed.onnx"
    assert export_policy(policy, path, knobs, fixed=Fixed(4, 3))["decisions"] == 4
    about = json.loads(path.with_suffix(".json").read_text())
    shapes = {port["name"]: port["shape"] for port in about["inputs"]}
    assert (shapes["draw_noise"], shapes["temperature"]) == ([3, 5], [3])


def test_more_steps_add_no_weights():
    short, long = (
        build(random_method("idql", obs_dim=OBS_DIM, diffusion_steps=steps), gemrl.Knobs(wp=0.0))
        for steps in (2, 12)
    )
    sizes = [
        sum(np.prod(one.dims) for one in onnx.load_from_string(data).graph.initializer)
        for data in (short, long)
    ]
    # Rows of the table of times, the anchor's noise, and a few numbers for each step.
    assert sizes[1] - sizes[0] <= 10 * (16 + 3 + 12)


def test_the_command_takes_gems_rule_and_another_runs_density(tmp_path, capsys):
    folders = {name: saved(tmp_path / name, name, obs_dim=OBS_DIM) for name in ("gem", "td3bc")}
    out = tmp_path / "policy.onnx"
    words = ["export", str(folders["td3bc"]), str(out), "--fixed-n", "4"]
    assert main([*words, "--decide", "gem"]) == 2
    assert "density" in capsys.readouterr().err
    assert main([*words, "--decide", "gem", "--behavior", str(folders["gem"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decisions"] == 4
    about = json.loads(out.with_suffix(".json").read_text())
    loaded = gemrl.load(folders["td3bc"], behavior=folders["gem"])
    assert about["policy"] == loaded.digest
    assert about["density"] == gemrl.load(folders["gem"]).digest
    assert about["knobs"] == loaded.knobs_for(None, "gem").to_json() | {"n": 4}
    assert about["left_out"] == []


@pytest.mark.parametrize("name", LOOKING_BACK)
def test_a_policy_that_looks_back_is_exported_with_contexts_for_observations(name, tmp_path):
    policy = random_method(name, obs_dim=OBS_DIM, context=4, heads=2, max_steps=6)
    for path, fixed in ((tmp_path / "free.onnx", None), (tmp_path / "fixed.onnx", Fixed(0, 3))):
        assert export_policy(policy, path, fixed=fixed)["decisions"] == 4
    about = json.loads((tmp_path / "free.json").read_text())
    session = open_session("the model", (tmp_path / "free.onnx").read_bytes())
    history = gemrl.History(policy, 3)
    actions = []
    # Beyond the context, and beyond the steps that have an embedding of their own.
    for seed in range(9):
        obs = random_states(policy, 3, seed).astype(np.float32)
        decision = policy.decide(obs, history=history)
        [made] = session.run(["action"], {"observation": history.contexts(obs)})
        np.testing.assert_allclose(made, decision.action, atol=1e-5)
        actions.append(made)
        history.add(obs, decision.action, np.arange(3.0))
    assert np.ptp(actions, axis=0).min() > 1e-3
    golden = np.array(about["golden"]["observation"]).reshape(4, 4, -1)
    assert sorted(golden[:, :, -1].sum(axis=1)) == [1, 2, 3, 4]
    assert len(np.unique(golden[:, :, 0])) > 6
    told = about["history"]
    assert (told["steps"], told["target_return"]) == (4, 1.0)
    assert sum(part["size"] for part in told["step"]) * 4 == about["observation"]["size"]


def test_the_documentations_lines_make_the_contexts_of_a_history(tmp_path, monkeypatch):
    policy = random_method("dt", obs_dim=OBS_DIM, context=4)
    export_policy(policy, tmp_path / "policy.onnx")
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```py\n(.*?)```", page, flags=re.S)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "docs/export.md", "exec"), names)
    history = gemrl.History(policy)
    for obs in random_states(policy, 6, 0).astype(np.float32):
        np.testing.assert_array_equal(names["context"](obs), history.contexts(obs))
        action = policy.decide(obs, history=history).action
        history.add(obs, action, 0.5)
        names["add"](obs, action, 0.5)


@pytest.mark.parametrize("name", LOOKING_BACK)
def test_golden_contexts_of_a_dataset_are_those_of_its_steps(name):
    policy = random_method(name, obs_dim=2, action_dim=2, context=4)
    rng = np.random.default_rng(0)
    low, high = policy.spec.action_low, policy.spec.action_high
    data = gemrl.from_arrays(
        observations=rng.normal(size=(20, 2)).astype(np.float32),
        actions=rng.uniform(low, high, (20, 2)).astype(np.float32),
        rewards=np.arange(20, dtype=np.float32),
        terminals=np.arange(20) == 11,
        timeouts=np.arange(20) == 19,
    )
    history = gemrl.History(policy, target_return=float(data.rewards[12:].sum()))
    for row in range(12, 17):
        wanted = history.contexts(data.observations[row])[0].reshape(4, -1)
        found = logged_inputs(policy, data, np.array([3, row]))[1].reshape(4, -1)
        # The last action is the logged one there, and not known here.
        np.testing.assert_allclose(found[:-1], wanted[:-1], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found[-1, :3], wanted[-1, :3], rtol=1e-5, atol=1e-5)
        history.add(data.observations[row], data.actions[row], data.rewards[row])


def test_a_proposal_that_is_not_known_is_refused():
    class Still(Sampler):
        noise_size = 3

        def __call__(self, obs, noise):
            return 0 * noise

    policy = random_method("td3bc", obs_dim=OBS_DIM)
    models = dataclasses.replace(policy.models, actor=Still())
    still = gemrl.Policy(dataclasses.replace(policy.bundle, models=models), "jax")
    with pytest.raises(BundleError, match="Still"):
        build(still, gemrl.Knobs(wp=0.0))


@pytest.mark.parametrize("name", LOOKING_BACK)
def test_a_context_whose_norms_overflow_gives_nan(name):
    policy = random_method(name, obs_dim=OBS_DIM)
    states = random_states(policy, 3, 10)
    states[1] = 1e25
    contexts = gemrl.History(policy, 3).contexts(states)
    made = run(session_for(policy, policy.default_knobs), {"observation": contexts})
    np.testing.assert_array_equal(np.isnan(made["action"]).all(axis=1), [False, True, False])
