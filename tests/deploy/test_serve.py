"""A real server: its answers are the policy's decisions, whoever asks and however many do."""

import dataclasses
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from asking import ask, patient, talking
from random_networks import random_method

import gemrl
from gemrl.decide.gates import Gates
from gemrl.deploy.serve import Server
from gemrl.errors import KnobError

ROOT = Path(__file__).parents[2]
KNOBS = gemrl.Knobs(n=32, wp=0.5)
SCHEDULE = gemrl.Knobs(n=8, wp=gemrl.Cosine(0.2, 10))
PROFILES = {"careful": gemrl.Knobs(n=16, wp=2.0, k_smooth=4), "falling": SCHEDULE}


@pytest.fixture(scope="module")
def server(fast_policy, maze_data):
    config = patient()
    with Server(fast_policy, config, knobs=KNOBS, profiles=PROFILES, states=maze_data) as running:
        yield running


@pytest.fixture(scope="module")
def gates(fast_policy, maze_data):
    return Gates.calibrate(fast_policy, maze_data, KNOBS, states=400)


def same(answer, decision):
    """Whether an answer is this decision, bit for bit."""
    executed = answer["audit"]["executed"]
    chosen = int(decision.chosen)
    return (
        answer["action"] == decision.action.tolist()
        and answer["chosen"] == chosen
        and answer["n_scored"] == int(decision.n_scored)
        and answer["score"] == float(decision.score[chosen])
        and executed["log_support"] == float(decision.executed_log_support)
        and executed["support_z"] == float(decision.executed_support_z)
    )


def test_an_answer_over_http_is_the_policys_decision(server, fast_policy, observations):
    for seed, obs in enumerate(observations[:8]):
        status, _, answer = ask(server, observation=obs.tolist(), seed=seed)
        assert status == 200
        decision = fast_policy.decide(obs, KNOBS, seed=seed)
        assert same(answer, decision)
        assert answer["anchor"] == decision.candidates[0].tolist()
        assert answer["digest"] == fast_policy.digest
        assert answer["knobs"] == KNOBS.to_json()
        assert answer["timings"]["total_ms"] >= answer["timings"]["decide_ms"] > 0


def test_an_answer_over_the_websocket_is_the_policys_decision(server, fast_policy, observations):
    with talking(server) as say:
        assert say.metadata["digest"] == fast_policy.digest
        for seed, obs in enumerate(observations[:8]):
            answer = say(observation=obs, seed=seed, knobs={"n": 64})
            decision = fast_policy.decide(obs, dataclasses.replace(KNOBS, n=64), seed=seed)
            assert same(answer, decision)
            assert answer["actions"].shape == (1, 2)
            assert answer["actions"].dtype == np.float32
            assert answer["actions"][0].tolist() == decision.action.tolist()


def test_a_batch_is_answered_as_the_policy_decides_it(server, fast_policy, observations):
    rows = observations[:5]
    for seed in (7, [7, 7, 1, 2, 3]):
        status, _, answer = ask(server, observation=rows.tolist(), seed=seed)
        assert status == 200
        decision = fast_policy.decide(rows, KNOBS, seed=np.array(seed) if seed != 7 else seed)
        assert answer["action"] == decision.action.tolist()
        assert answer["chosen"] == decision.chosen.tolist()
    with talking(server) as say:
        assert say(observation=rows, seed=7)["actions"].shape == (5, 2)


def test_without_candidates_the_anchor_is_answered(server, fast_policy, observations):
    status, _, answer = ask(server, observation=observations[0].tolist(), knobs={"n": 0})
    assert status == 200
    anchor = fast_policy.decide(observations[0], dataclasses.replace(KNOBS, n=0)).action
    assert answer["action"] == answer["anchor"] == anchor.tolist()
    np.testing.assert_allclose(anchor, fast_policy.actor(observations[0]).mode(), atol=1e-5)
    assert answer["n_scored"] == 1


def test_where_no_seed_is_given_each_request_draws_anew_and_says_how(
    server, fast_policy, observations
):
    obs = observations[3]
    answers = [ask(server, observation=obs.tolist())[2] for _ in range(4)]
    assert len({answer["seed"] for answer in answers}) == 4
    for answer in answers:
        assert same(answer, fast_policy.decide(obs, KNOBS, seed=answer["seed"]))


def test_a_profile_is_used_and_knobs_go_over_it(server, fast_policy, observations):
    obs = observations[1]
    _, _, answer = ask(server, observation=obs.tolist(), seed=1, profile="careful")
    assert same(answer, fast_policy.decide(obs, PROFILES["careful"], seed=1))
    _, _, answer = ask(
        server, observation=obs.tolist(), seed=1, profile="careful", knobs={"lam": 0.0}
    )
    knobs = dataclasses.replace(PROFILES["careful"], lam=0.0)
    assert same(answer, fast_policy.decide(obs, knobs, seed=1))
    assert answer["knobs"] == knobs.to_json()


def test_the_server_counts_an_episodes_steps(server, fast_policy, observations):
    obs = observations[2]

    def at(t, told=()):
        request = {"seed": 0, "profile": "falling", "episode": "one", **dict(told)}
        _, _, answer = ask(server, observation=obs.tolist(), **request)
        assert answer["t"] == t
        assert answer["wp"] == pytest.approx(SCHEDULE.weight_at(t, 1)[0])
        assert same(answer, fast_policy.decide(obs, SCHEDULE, seed=0, t=t))

    at(0)
    at(1)
    at(6, {"t": 6})
    at(7)
    at(0, {"t": 0})
    at(1)


def test_a_refused_request_is_no_step_of_its_episode(observations):
    policy = random_method("iql", obs_dim=4, action_dim=2)
    with Server(policy, patient()) as server:
        steps = []
        for knobs in ({}, {}, {"wp": 0.5}, {"n": -1}, {}):
            request = {"observation": observations[0].tolist(), "episode": "a", "knobs": knobs}
            status, _, answer = ask(server, **request)
            steps.append(answer["t"] if status == 200 else status)
    assert steps == [0, 1, 400, 400, 2]


def test_a_schedule_without_step_or_episode_is_refused(server, observations):
    status, _, answer = ask(server, observation=observations[0].tolist(), profile="falling")
    assert status == 400
    assert answer["error"]["type"] == "KnobError"
    assert "episode" in answer["error"]["message"]


def test_many_clients_together_get_what_each_would_get_alone(server, fast_policy, observations):
    before = server.service.engine.batches
    sizes = (0, 1, 8, 64, 200)

    def client(number):
        found = []
        with talking(server) as say:
            for turn in range(6):
                seed, n = 100 * number + turn, sizes[(number + turn) % len(sizes)]
                obs = observations[seed % len(observations)]
                found.append((obs, n, seed, say(observation=obs, seed=seed, knobs={"n": n})))
        return found

    with ThreadPoolExecutor(16) as pool:
        answers = [one for many in pool.map(client, range(16)) for one in many]
    for obs, n, seed, answer in answers:
        assert same(answer, fast_policy.decide(obs, dataclasses.replace(KNOBS, n=n), seed=seed))
    assert 0 < server.service.engine.batches - before <= len(answers)


def test_detail_has_all_candidates_and_both_mixtures(server, fast_policy, observations):
    obs = observations[4]
    _, _, answer = ask(server, observation=obs.tolist(), seed=5, detail=True)
    decision = fast_policy.decide(obs, KNOBS, seed=5)
    assert answer["detail"]["candidates"] == decision.candidates.tolist()
    assert answer["detail"]["score"] == decision.score.tolist()
    assert answer["detail"]["behavior"]["means"] == fast_policy.behavior(obs).means.tolist()


BAD = [
    ({}, "observation"),
    ({"observation": [1, 2, 3]}, "shape"),
    ({"observation": [1, 2, 3, "x"]}, "number"),
    ({"observation": [1, 2, 3, None]}, "number"),
    ({"observation": [1, 2, 3, 1e300]}, "finite"),
    ({"observation": [1, 2, 3, True]}, "number"),
    ({"observation": [[1, 2, 3, 4], [1, 2, 3]]}, "lists"),
    ({"observation": []}, "shape"),
    ({"observation": {"a": 1}}, "list"),
    ({"observation": [0] * 4, "knob": {}}, "knob"),
    ({"observation": [0] * 4, "knobs": {"m": 1}}, "unknown knob"),
    ({"observation": [0] * 4, "knobs": [1]}, "map"),
    ({"observation": [0] * 4, "knobs": {"n": 5000}}, "4096"),
    ({"observation": [0] * 4, "knobs": {"n": 1.5}}, "whole"),
    ({"observation": [0] * 4, "knobs": {"n": [3, 4]}}, "whole"),
    ({"observation": [0] * 4, "knobs": {"n": True}}, "whole"),
    ({"observation": [0] * 4, "knobs": {"source": "x" * 100_000}}, "source"),
    ({"observation": [0] * 4, "knobs": {"wp": "x"}}, "wp"),
    ({"observation": [0] * 4, "knobs": {"wp": {"end": 1}}}, "horizon"),
    ({"observation": [0] * 4, "knobs": {"source": "me"}}, "source"),
    ({"observation": [0] * 4, "profile": "wild"}, "careful"),
    ({"observation": [0] * 4, "seed": -1}, "seed"),
    ({"observation": [0] * 4, "seed": 2**32}, "seed"),
    ({"observation": [0] * 4, "seed": [1]}, "seed"),
    ({"observation": [0] * 4, "seed": True}, "seed"),
    ({"observation": [0] * 4, "t": 0.5}, "t"),
    ({"observation": [0] * 4, "episode": ""}, "episode"),
    ({"observation": [0] * 4, "episode": 4}, "episode"),
    ({"observation": [[0] * 4], "episode": "a"}, "one by one"),
    ({"observation": [[0] * 4], "detail": True}, "single"),
    ({"observation": [0] * 4, "detail": 1}, "detail"),
    ({"observation": [0] * 4, "deadline_ms": 0}, "deadline_ms"),
    ({"observation": [0] * 4, "deadline_ms": 1e9}, "deadline_ms"),
    ({"observation": [0] * 4, "deadline_ms": True}, "deadline_ms"),
    ({"observation": [[0] * 4] * 257}, "256"),
    ({"observation": [[0] * 4] * 100, "knobs": {"n": 4096}}, "262144"),
    ({"observation": [3e38] * 4}, "large"),
]


@pytest.mark.parametrize(("request_", "said"), BAD)
def test_a_bad_request_is_refused_by_name_on_both_ways(server, request_, said):
    status, _, answer = ask(server, body=json.dumps(request_).encode())
    assert status == 400
    assert said in answer["error"]["message"]
    assert "Traceback" not in json.dumps(answer)
    assert len(answer["error"]["message"]) <= 1000
    with talking(server) as say:
        again = say(**request_)
        assert again["error"]["message"] == answer["error"]["message"]
        # The connection goes on.
        assert "action" in say(observation=np.zeros(4, np.float32))


def test_a_knob_that_is_an_array_is_refused(server):
    with talking(server) as say:
        for name in ("n", "wp", "source"):
            answer = say(observation=np.zeros(4, np.float32), knobs={name: np.array([3, 4])})
            assert answer["error"]["type"] == "KnobError"


def test_a_bad_request_does_not_spoil_others_of_its_batch(server, fast_policy, observations):
    answers = {}

    def client(number):
        obs = np.full(4, 3e38) if number % 3 == 0 else observations[number]
        with talking(server) as say:
            for turn in range(4):
                answers[number, turn] = say(observation=obs.astype(np.float32), seed=turn)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (number, turn), answer in answers.items():
        if number % 3 == 0:
            assert answer["error"]["type"] == "ObservationError"
        else:
            assert same(answer, fast_policy.decide(observations[number], KNOBS, seed=turn))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"NaN", 400),
        (b'{"observation": [NaN, 0, 0, 0]}', 400),
        (b"[" * 100_000, 400),
        (b'{"observation": [1' + b"0" * 5000 + b",0,0,0]}", 400),
        (b'{"observation": "' + b"x" * 1_100_000 + b'"}', 413),
    ],
)
def test_a_body_that_is_no_json_or_too_large_is_refused(server, body, status):
    found, _, answer = ask(server, body=body)
    assert found == status
    assert answer["error"]["type"] == "RequestError"


def test_a_body_of_another_kind_is_refused(server):
    status, _, _ = ask(server, headers={"content-type": "text/plain"}, body=b"{}")
    assert status == 415


def test_a_deadline_that_cannot_be_kept_is_turned_away_with_when_to_come_back(server, observations):
    status, headers, answer = ask(
        server, observation=observations[0].tolist(), deadline_ms=1e-3, knobs={"n": 4096}
    )
    assert status == 503
    assert int(headers["retry-after"]) >= 1
    assert answer["error"]["type"] == "OverloadError"


def test_a_search_with_a_deadline_answers_what_it_scored(server, fast_policy, observations):
    knobs = gemrl.Knobs(n=4096, wp=0.5)
    for seed, deadline in enumerate((60, 200, 5000)):
        status, _, answer = ask(
            server,
            observation=observations[seed].tolist(),
            seed=seed,
            deadline_ms=deadline,
            knobs={"n": 4096},
        )
        if status == 503:
            continue  # The machine was too busy for the shorter ones.
        again = fast_policy.decide_again(
            observations[seed],
            knobs,
            seed=seed,
            block=answer["block"],
            n_scored=answer["n_scored"],
        )
        assert same(answer, again)
    assert status == 200


def test_states_of_the_dataset_can_be_asked_for(server, maze_data):
    status, _, state = ask(server, "/v1/state?row=17")
    assert status == 200
    assert state["observation"] == maze_data.observations[17].tolist()
    assert ask(server, "/v1/state")[2]["count"] == len(maze_data)
    for bad in ("-1", "x", str(len(maze_data)), "1.5", "9" * 30):
        assert ask(server, f"/v1/state?row={bad}")[0] == 400


def test_decisions_appear_in_the_stream_but_for_trials(server, observations):
    _, _, before = ask(server, "/v1/recent")
    ask(server, observation=observations[0].tolist(), episode="<b>", knobs={"n": 600})
    ask(server, observation=observations[0].tolist(), detail=True)
    _, _, after = ask(server, f"/v1/recent?after={before['last']}")
    [line] = after["decisions"]
    assert line["episode"] == "<b>"
    assert line["id"] == after["last"] == before["last"] + 1
    cloud = after["cloud"]
    assert len(cloud["candidates"]) == 512
    assert cloud["candidates"][cloud["chosen"]] == cloud["action"] == line["action"]


def test_counts_are_told_in_prometheus_format(server, observations):
    ask(server, observation=observations[0].tolist())
    ask(server, observation=[1])
    status, headers, text = ask(server, "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["gemrl_decisions_total"]) > 0
    assert float(values['gemrl_requests_total{status="400",way="http"}']) > 0
    assert float(values["gemrl_ready"]) == 1


def test_unknown_paths_and_methods_are_typed_errors(server):
    assert ask(server, "/v2/act")[0] == 404
    assert ask(server, "/v1/act/")[0] == 404
    status, headers, answer = ask(server, "/v1/act", method="GET")
    assert status == 405
    assert headers["allow"] == "POST"
    assert answer["error"]["type"] == "MethodError"


def test_gates_flag_and_leave_the_action_alone_by_default(fast_policy, gates, observations):
    with Server(fast_policy, patient(), knobs=KNOBS, gates=gates) as server:
        _, _, usual = ask(server, observation=observations[0].tolist(), seed=0)
        strange = (observations[0] + 30).astype(np.float32)
        _, _, flagged = ask(server, observation=strange.tolist(), seed=0)
    assert set(usual["gates"]["p"]) == {"support", "novelty", "spread"}
    assert flagged["gates"]["flagged"]
    assert flagged["gates"]["flags"]["novelty"]
    assert flagged["rung"] == "search"
    assert same(flagged, fast_policy.decide(strange, KNOBS, seed=0))


def test_gates_that_may_act_fall_back_down_the_ladder(fast_policy, gates, observations):
    strange = (observations[0] + 30).astype(np.float32)
    config = patient(gates="act", ladder=("anchor",))
    with Server(fast_policy, config, knobs=KNOBS, gates=gates) as server:
        _, _, answer = ask(server, observation=strange.tolist(), seed=0)
        _, _, both = ask(server, observation=[strange.tolist(), observations[0].tolist()], seed=0)
    assert answer["rung"] == "anchor"
    assert answer["action"] == answer["anchor"]
    assert both["rung"][0] == "anchor"
    config = patient(gates="act", ladder=("refuse",))
    with Server(fast_policy, config, knobs=KNOBS, gates=gates) as server:
        status, _, refused = ask(server, observation=strange.tolist(), seed=0)
        batch = [observations[0].tolist(), strange.tolist()]
        batch_status, _, both = ask(server, observation=batch, seed=0)
    assert status == batch_status == 422
    assert refused["error"]["type"] == "RefusedError"
    assert "1 of 2 observations were refused, the first in row 1" in both["error"]["message"]


def test_a_shadow_decides_too_and_never_acts(fast_policy, tmp_path, maze_data, observations):
    config = gemrl.GemConfig(
        steps=20, pretrain_steps=20, components=4, hidden=(32, 32), batch_size=64, critics=3
    )
    gemrl.train(maze_data, config, tmp_path / "other", quiet=True)
    other = gemrl.load(tmp_path / "other", backend="fast")
    for shadow, differ in ((other, True), (fast_policy, False)):
        with Server(fast_policy, patient(), knobs=KNOBS, shadow=shadow) as server:
            for seed, obs in enumerate(observations[:10]):
                request = {"observation": obs.tolist(), "seed": seed, "deadline_ms": 9000}
                _, _, answer = ask(server, **request)
                assert same(answer, fast_policy.decide(obs, KNOBS, seed=seed))
            service = server.service
        assert service.shadow.compared == 10
        assert service.shadow.failed == 0
        assert (service.shadow.different > 0) is differ


def test_a_shadow_that_cannot_decide_as_asked_is_refused_at_the_start(fast_policy):
    shadow = random_method("bc", obs_dim=4, action_dim=2)
    with pytest.raises(KnobError, match="no critics"):
        Server(fast_policy, patient(), knobs=KNOBS, shadow=shadow)


def test_a_shadow_that_fails_is_counted_and_the_server_still_stops(
    fast_policy, run_folder, observations, capfd
):
    class Failing:
        spec = fast_policy.spec
        digest = fast_policy.digest
        context = None

        def require_models(self, knobs):
            pass

        def decide(self, *args, **options):
            pass

        def decide_again(self, *args, **options):
            raise ZeroDivisionError("a defect")

    with Server(fast_policy, patient(), knobs=KNOBS, shadow=Failing()) as server:
        for obs in observations:
            assert ask(server, observation=obs.tolist())[0] == 200
        shadow = server.service.shadow
    assert shadow.failed == len(observations)
    assert capfd.readouterr().err.count("a defect") == 1


def test_with_the_jax_backend_only_compiled_shapes_are_taken(run_folder, observations):
    policy = gemrl.load(run_folder, backend="jax")
    profiles = {"small": gemrl.Knobs(n=8)}
    knobs = gemrl.Knobs(n=16)
    with Server(policy, patient(), knobs=knobs, profiles=profiles) as server:
        for name, expected in ((None, knobs), ("small", profiles["small"])):
            request = {"profile": name} if name else {}
            _, _, answer = ask(server, observation=observations[0].tolist(), seed=1, **request)
            decision = policy.decide(observations[:1], expected, seed=np.array([1])).row(0)
            assert same(answer, decision)
        assert (
            ask(server, observation=observations[0].tolist(), knobs={"lam": 2, "wp": 3})[0] == 200
        )
        status, _, answer = ask(server, observation=observations[0].tolist(), knobs={"n": 9})
        assert status == 400
        assert "0, 8, 16" in answer["error"]["message"]


def test_the_client_in_the_documents_gets_the_policys_action(server, fast_policy, observations):
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    names = {"URL": server.url.replace("http", "ws"), "observation": observations[0]}
    exec(compile(code, "deploy.md", "exec"), names)
    answer = names["answer"]
    decision = fast_policy.decide(observations[0], KNOBS, seed=answer["seed"])
    assert names["action"] == decision.action.tolist()
    assert answer["t"] == 0
