"""A real server with other methods' policies: samplers, no density, no critics."""

import dataclasses
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from asking import ask, patient, talking
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import LOOKING_BACK, quickly_compiled, random_method, random_states, saved
from strange_inputs import SCALARS

import gemrl
from gemrl.decide.search import Deadlines
from gemrl.deploy.serve import Server
from gemrl.deploy.serve.decider import Job
from gemrl.deploy.serve.histories import Histories
from gemrl.deploy.serve.log import LogConfig
from gemrl.deploy.serve.replay import replay
from gemrl.deploy.serve.requests import Reader
from gemrl.errors import ConfigError, GemrlError, KnobError, RequestError

# A size that no other test has, so that none meets a program that was compiled in a hurry.
OBS_DIM = 7
# Knobs that ask for what a policy lacks, or for a shape that was not compiled, and what is said.
LACKS = {
    "td3bc": [
        ({"wp": 0.5}, "no behaviour density"),
        ({"source": "behavior"}, "no behaviour density"),
        ({"source": "unimodal"}, "no mixture"),
        ({"anchor": "barycenter"}, "no mixture"),
        ({"n": 8}, "compiled"),
    ],
    "bc": [({"n": 4}, "no critics"), ({"wp": 0.5}, "no behaviour density")],
    "ifql": [
        ({"wp": 0.5}, "no behaviour density"),
        ({"anchor": "mode"}, "compiled"),
        ({"temperature": 0.5}, "temperature where a profile has one"),
    ],
}


@pytest.fixture(scope="module", autouse=True)
def _in_a_hurry():
    with quickly_compiled():
        yield


@pytest.fixture(scope="module", params=list(LACKS))
def policy(request):
    return random_method(request.param, obs_dim=OBS_DIM)


@pytest.fixture(scope="module")
def server(policy):
    with Server(policy, patient()) as running:
        yield running


@pytest.fixture(scope="module")
def states():
    return random_states(random_method("bc", obs_dim=OBS_DIM), 12, 1).astype(np.float32)


@pytest.fixture
def compiled(caplog):
    """What is compiled while the test runs."""
    jax.config.update("jax_log_compiles", True)
    caplog.set_level(logging.WARNING, logger="jax")

    def found():
        return [one for one in caplog.messages if "XLA compilation" in one]

    jax.jit(lambda x: x + 1)(0)
    assert len(found()) == 1  # It would be seen.
    caplog.clear()
    yield found
    jax.config.update("jax_log_compiles", False)


def same(answer, decision):
    """Whether an answer is this decision, bit for bit."""
    score = decision.score[int(decision.chosen)]
    return (
        answer["action"] == decision.action.tolist()
        and answer["chosen"] == int(decision.chosen)
        and answer["score"] == (float(score) if np.isfinite(score) else None)
    )


def test_an_answer_does_not_depend_on_who_else_asks(server, policy, states, compiled):
    def client(number):
        with talking(server) as say:
            one = say(observation=states[number], seed=number)
            batch = say(observation=states[: number + 1], seed=number, deadline_ms=9000)
        return one, batch

    with ThreadPoolExecutor(len(states)) as pool:
        answers = list(pool.map(client, range(len(states))))
    for number, (one, batch) in enumerate(answers):
        assert same(one, policy.decide(states[number], seed=number))
        for row in range(number + 1):
            alone = policy.decide(states[row], seed=np.array([[number, row]]))
            assert batch["action"][row] == alone.action.tolist()
            assert batch["chosen"][row] == int(alone.chosen)
    assert compiled() == []


def test_a_server_whose_policy_draws_takes_any_temperature(states, compiled):
    policy = random_method("diffusionql", obs_dim=OBS_DIM)
    with Server(policy, patient()) as server, talking(server) as say:
        before = len(compiled())
        for temperature in (0.0, 0.1, 2.0):
            answer = say(observation=states[0], seed=3, knobs={"temperature": temperature})
            knobs = dataclasses.replace(policy.default_knobs, temperature=temperature)
            assert same(answer, policy.decide(states[0], knobs, seed=3))
        assert len(compiled()) == before > 0


def test_the_page_is_told_what_there_is_and_what_is_not(server, policy, states, compiled):
    _, _, meta = ask(server, "/v1/metadata")
    assert (meta["method"], meta["backend"]) == (policy.method, "jax")
    shape = {name: meta["knobs"][name] for name in ("n", "k_smooth", "source", "anchor")}
    assert any(shape.items() <= one.items() for one in meta["compiled"])
    # As the explorer asks, and as others do.
    request = {"observation": states[0].tolist(), "knobs": meta["knobs"], "seed": 0}
    status, _, answer = ask(server, **request, detail=True)
    assert status == 200
    assert same(answer, policy.decide(states[0], seed=0))
    _, _, before = ask(server, "/v1/recent")
    ask(server, **request)
    cloud = ask(server, f"/v1/recent?after={before['last']}")[2]["cloud"]
    anchored = policy.default_knobs.anchor != "none"
    for shown in (answer["detail"], cloud):
        assert len(shown["candidates"]) == policy.default_knobs.n + anchored
        assert shown["behavior"] is None
        assert (shown["actor"] is None) is not policy.proposes_mixture
        assert set(shown["support_z"]) == {None}
        assert (set(shown["score"]) == {None}) is not bool(policy.models.critics)
    assert (answer["anchor"] is not None) is anchored
    assert (cloud["anchor"] == 0) is anchored
    executed = answer["audit"]["executed"]
    assert executed["support_z"] is executed["log_support"] is executed["collapse_dist"] is None
    assert compiled() == []


def test_a_knob_that_asks_for_what_the_policy_lacks_is_a_typed_error(server, policy, states):
    for knobs, said in LACKS[policy.method]:
        status, _, answer = ask(server, observation=states[0].tolist(), knobs=knobs)
        assert status == 400
        assert answer["error"]["type"] == "KnobError"
        assert said in answer["error"]["message"]


def test_the_anchor_of_an_overloaded_server_is_ready(server, policy, states, compiled):
    asked = server.service.reader.read({"observation": states[0], "seed": 0}, "http")
    job = Job(asked.at_the_anchor(), "overload")
    [found] = server.service.engine.decider.decide([job], Deadlines(np.array([np.inf])))
    assert compiled() == []
    anchor = policy.decide(states[0], gemrl.Knobs(n=0, wp=0.0)).action
    np.testing.assert_array_equal(found.decisions[0].action, anchor)


def test_gems_rule_with_a_borrowed_density_is_served_and_replayed(tmp_path):
    run, density = (saved(tmp_path / name, name, obs_dim=OBS_DIM) for name in ("td3bc", "gem"))
    policy = gemrl.load(run, behavior=density)
    knobs = gemrl.Knobs(n=8, wp=0.5)
    parts = {"run": run, "behavior": density, "log": LogConfig(tmp_path / "log")}
    with Server(policy, patient(), knobs=knobs, **parts) as server:
        assert ask(server, "/v1/metadata")[2]["density"] == gemrl.load(density).digest
        for seed, obs in enumerate(random_states(policy, 3, 1).astype(np.float32)):
            _, _, answer = ask(server, observation=obs.tolist(), seed=seed)
            assert same(answer, policy.decide(obs, knobs, seed=seed))
            assert answer["audit"]["executed"]["support_z"] is not None
    found = replay(tmp_path / "log")
    assert (found.same, found.different) == (3, [])


@pytest.fixture(scope="module", params=LOOKING_BACK)
def looking_back(request, tmp_path_factory):
    """The run folder of a policy that looks back, and a server with a log."""
    folder = tmp_path_factory.mktemp("looking-back")
    run = saved(folder / "run", request.param, obs_dim=OBS_DIM, context=3)
    log = LogConfig(folder / "log")
    policy = gemrl.load(run)
    with Server(policy, patient(), run=run, log=log, shadow=policy) as server:
        yield policy, server


def test_the_server_remembers_episodes_for_a_policy_that_looks_back(looking_back, states):
    policy, server = looking_back
    own = {name: gemrl.History(policy, target_return=at) for name, at in (("a", 5), ("b", None))}
    with talking(server) as say:
        assert say.metadata["history"] == {"steps": 3, "target_return": 1.0}
        assert say.metadata["observation_size"] == OBS_DIM
        for step, obs in enumerate(states[:6]):
            for name, history in own.items():
                reward = {} if step == 0 else {"reward": 0.25 * step}
                target = {"target_return": 5} if step == 0 and name == "a" else {}
                # One that is turned away changes nothing, and does not count.
                wrong = say(observation=obs, episode=name, reward="much", **target)
                assert wrong["error"]["type"] == "RequestError"
                answer = say(observation=obs, episode=name, **reward, **target)
                wanted = policy.decide(obs, history=history).action
                assert answer["action"] == wanted.tolist()
                assert answer["t"] == step
                history.add(obs, wanted, 0.25 * (step + 1))
        # Without a name, and in a batch, a state is the first of its episode.
        firsts = [policy.decide(obs).action.tolist() for obs in states[:2]]
        assert say(observation=states[0])["action"] == firsts[0]
        assert say(observation=states[:2])["action"] == firsts
        # The name begins again at step 0.
        assert say(observation=states[0], episode="a", t=0)["action"] == firsts[0]
    assert firsts[1] != policy.decide(states[1], history=own["a"]).action.tolist()


def test_what_a_policy_that_looks_back_cannot_know_is_a_typed_error(looking_back, states):
    _, server = looking_back
    obs = states[0].tolist()
    assert ask(server, observation=obs, episode="c")[0] == 200
    for request, said in [
        ({"observation": obs, "t": 3}, "Name the episode"),
        ({"observation": obs, "episode": "c", "t": 7}, "of this episode 1 steps are known"),
        ({"observation": obs, "episode": "new", "t": 1}, "of this episode 0 steps are known"),
        ({"observation": obs, "episode": "c", "target_return": 3.0}, "first step"),
        ({"observation": obs, "reward": 1.0}, "there was none"),
        ({"observation": [obs], "reward": 1.0}, "there was none"),
        ({"observation": [obs, obs], "t": [0, 2]}, "one by one"),
        ({"observation": obs, "target_return": True}, "finite number"),
        ({"observation": obs, "target_return": 10**400}, "finite number"),
        ({"observation": obs, "target_return": float("1e39")}, "target_return"),
        ({"observation": obs, "episode": "c", "reward": -1e308}, "reward"),
    ]:
        status, _, answer = ask(server, **request)
        assert status == 400, request
        assert answer["error"]["type"] in ("RequestError", "KnobError")
        assert said in answer["error"]["message"]
    # None of it counted, nor does one that came too late.
    assert ask(server, observation=obs, episode="c", t=1, deadline_ms=1e-6)[0] == 503
    assert ask(server, observation=obs, episode="c", reward=1.0)[2]["t"] == 1


def test_a_client_that_has_not_got_its_answer_sends_the_step_again(looking_back, states):
    policy, server = looking_back
    history = gemrl.History(policy)
    with talking(server) as say:
        for step, obs in enumerate(states[:4]):
            reward = {} if step == 0 else {"reward": 2.0}
            wanted = policy.decide(obs, history=history).action.tolist()
            for _ in range(2):
                answer = say(observation=obs, episode="again", t=step, **reward)
                assert answer["action"] == wanted
            history.add(obs, wanted, 2.0)


def test_a_step_sent_again_with_another_reward_or_state_is_refused(looking_back, states):
    _, server = looking_back
    first, second = states[0].tolist(), states[1].tolist()
    assert ask(server, observation=first, episode="other")[0] == 200
    sent = {"observation": second, "episode": "other", "t": 1, "reward": 1.0}
    wanted = ask(server, **sent)[2]
    for change in ({"reward": -500.0}, {"reward": None}, {"observation": first}):
        status, _, answer = ask(server, **(sent | change))
        assert (status, "as it was" in answer["error"]["message"]) == (400, True)
    assert ask(server, **sent)[2]["action"] == wanted["action"]


def test_steps_of_an_episode_are_decided_one_after_another(looking_back, states, monkeypatch):
    policy, server = looking_back
    decider, waits = server.service.engine.decider, threading.Event()
    decide = decider.decide

    def slowly(*args):
        waits.wait(30)
        return decide(*args)

    monkeypatch.setattr(decider, "decide", slowly)
    request = {"observation": states[0].tolist(), "episode": "at once"}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, server, **request, target_return=50)
        while not server.service.reader.histories._asked:
            time.sleep(0.001)
        status, _, answer = ask(server, **request)
        waits.set()
        assert first.result()[0] == 200
    assert (status, "wait for its answer" in answer["error"]["message"]) == (400, True)
    history = gemrl.History(policy, target_return=50)
    history.add(states[0], policy.decide(states[0], history=history).action, 1.0)
    wanted = policy.decide(states[1], history=history).action.tolist()
    again = ask(server, observation=states[1].tolist(), episode="at once", reward=1.0)[2]
    assert (again["t"], again["action"]) == (1, wanted)


def test_what_does_not_go_with_a_policy_that_looks_back_is_refused(looking_back, tmp_path):
    policy, _ = looking_back
    wide = random_method("bc", obs_dim=policy.input_spec.obs_dim)
    with pytest.raises(ConfigError, match="its context has 0 steps"):
        Server(policy, patient(), shadow=wide)
    # Even one that sees as many numbers as a context of a single step has.
    short = random_method(LOOKING_BACK[0], obs_dim=OBS_DIM, context=1)
    as_wide = random_method("bc", obs_dim=short.input_spec.obs_dim)
    with pytest.raises(ConfigError, match="its context has 0 steps"):
        Server(short, patient(), shadow=as_wide)
    with pytest.raises(ConfigError, match="redact"):
        Server(policy, patient(), log=LogConfig(tmp_path, redact=("action",)))
    with pytest.raises(KnobError, match="--gates act"):
        Server(policy, patient(gates="act"))


def test_decisions_with_a_history_replay_and_are_shadowed(looking_back, states):
    _, server = looking_back
    with talking(server) as say:
        for step, obs in enumerate(states[:5]):
            say(observation=obs, episode="d", **({} if step == 0 else {"reward": 1.0}))
    service = server.service
    while service.log._queue.unfinished_tasks > service.log.written:
        time.sleep(0.01)
    found = replay(service.log.config.folder)
    assert found.different == []
    assert found.same == found.decisions >= 5
    counts = ask(server, "/v1/recent?after=0")[2]["counts"]
    assert counts["shadow_different"] == 0


def test_a_policy_of_the_present_state_takes_no_reward(server, states):
    status, _, answer = ask(server, observation=states[0].tolist(), reward=1.0)
    assert status == 400
    assert "unknown field 'reward'" in answer["error"]["message"]


def test_the_least_recently_used_episode_is_forgotten_and_says_so(states):
    policy = random_method(LOOKING_BACK[0], obs_dim=OBS_DIM, context=3)
    histories = Histories(policy, most=2)
    for name in "abc":
        history = histories.now(name, None, states[0], None, None)
        histories.ask(name, history, None)
        histories.decided(name, history, states[0], policy.spec.action_middle)
    assert histories.forgotten == 1
    assert histories.now("c", 1, states[0], 0.5, None).steps == [1]
    with pytest.raises(RequestError, match="0 steps are known"):
        histories.now("a", 1, states[0], 0.5, None)


THIS = random_method(LOOKING_BACK[0], obs_dim=OBS_DIM, context=3)
ODD = SCALARS | st.integers(-(10**400), 10**400) | st.lists(SCALARS, max_size=2)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "episode": st.sampled_from("ab") | SCALARS,
                "t": st.integers(0, 3) | SCALARS,
                "reward": st.floats(-2, 2) | ODD,
                "target_return": st.floats(-2, 2) | ODD,
            },
        ),
        max_size=8,
    ),
    st.data(),
)
def test_whatever_an_episode_is_said_to_be_contexts_are_finite_or_the_error_is_typed(sent, data):
    reader = Reader(
        OBS_DIM,
        THIS.default_knobs,
        {},
        patient().limits,
        None,
        None,
        THIS.require_models,
        Histories(THIS),
    )
    for request in sent:
        before = {name: id(step) for name, step in reader.histories._last.items()}
        try:
            found = reader.read({"observation": THIS.spec.obs_mean, **request}, "websocket")
        except GemrlError:
            assert {name: id(step) for name, step in reader.histories._last.items()} == before
            continue
        assert np.isfinite(found.rows).all()
        assert found.rows.shape == (1, THIS.input_spec.obs_dim)
        if data.draw(st.booleans()):
            reader.remember(found, THIS.spec.action_middle)
        else:
            reader.give_back(found)
        assert reader.histories._asked == {}
