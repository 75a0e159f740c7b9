"""Whatever a client sends, the server answers with a decision or a typed error, and goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schemathesis
from asking import patient
from clients import Reply, WireClient, act, ask, raw, resident_mb, unpacked
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from strange_inputs import Sent, frames, http_requests, torn_connections
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import gemrl
from gemrl.deploy.serve import Server
from gemrl.deploy.serve.app import application

KNOBS = gemrl.Knobs(n=16)
TOKEN = "a-token-for-tests"
# So small that the worst that can be asked for takes milliseconds.
LIMITS: dict[str, Any] = {"max_candidates": 128, "max_rows": 8, "max_request_bytes": 65_536}
# The WebSocket's own code for a message that is too large.
TOO_BIG = 1009
# How often a right request is put between the odd ones.
EVERY = 50


@pytest.fixture(scope="module")
def server(fast_policy):
    with Server(fast_policy, patient(**LIMITS), knobs=KNOBS) as running:
        yield running


class Trial:
    """Sends odd inputs, checks each answer, and counts them by what came back."""

    def __init__(self, url: str, policy: gemrl.Policy) -> None:
        self.url = url
        self.policy = policy
        self.counts: Counter[str] = Counter()
        self.client = WireClient(url)
        self.observation = policy.spec.obs_mean
        self.right = policy.decide(self.observation, KNOBS, seed=3).action

    def frame(self, frame: bytes | str) -> None:
        """A frame gets one answer, unless it is so large that the connection is closed."""
        self.between()
        try:
            answer = self.client.send(frame)
        except ConnectionClosed as closed:
            if closed.rcvd is None or closed.rcvd.code != TOO_BIG:
                raise
            assert len(frame) > LIMITS["max_request_bytes"]
            self.counts["frame too large"] += 1
            self.client = WireClient(self.url)
            return
        if isinstance(answer, str):
            kind = require_typed(json.loads(answer))
            assert kind != "InternalError", answer
            self.counts[f"frame {kind}"] += 1
            return
        actions = unpacked(answer)["actions"]
        low, high = self.policy.spec.action_low, self.policy.spec.action_high
        assert actions.dtype == np.float32
        assert actions.ndim == 2
        assert ((actions >= low) & (actions <= high)).all()
        self.counts["frame answered"] += 1

    def http(self, sent: Sent) -> None:
        """A request gets an answer.

        One that is not all there may get none, and one so large that the server answers and closes
        before it has read it may lose the answer on the way.
        """
        self.between()
        reply = raw(self.url, sent.request, sent.method, sent.whole)
        if reply is None:
            assert not sent.whole or len(sent.request) > LIMITS["max_request_bytes"], sent
            self.counts["HTTP closed"] += 1
            return
        require_promised(reply, sent.method)
        self.counts[f"HTTP {reply.status}"] += 1

    def torn(self, sent: bytes) -> None:
        """What breaks the WebSocket's rules is closed."""
        self.between()
        reply = raw(self.url, sent, whole=False)
        if reply is not None:
            assert reply.status < 500, reply
        self.counts["torn"] += 1

    def between(self) -> None:
        """Now and then a right request between the odd ones."""
        if self.counts.total() % EVERY == 0:
            self.require_right()

    def require_right(self) -> None:
        """The right action still comes, both ways."""
        answer = self.client.ask(observation=self.observation, seed=3)
        assert answer["actions"].tobytes() == self.right.tobytes()
        reply = act(self.url, observation=self.observation.tolist(), seed=3)
        assert np.float32(json.loads(reply.body)["action"]).tobytes() == self.right.tobytes()


def require_typed(said: Any) -> str:
    """A typed error that shows nothing of the server's inside; its type."""
    assert set(said) == {"error"}
    assert set(said["error"]) == {"type", "message"}
    assert said["error"]["type"].isidentifier()
    text = said["error"]["message"]
    assert text
    assert "Traceback" not in text
    assert ".py" not in text
    return said["error"]["type"]


def require_promised(reply: Reply, method: str) -> None:
    """No 5xx but 503, and errors typed."""
    assert reply.status < 500 or reply.status == 503, reply
    if reply.status == 503:
        assert int(reply.headers["retry-after"]) > 0
    if reply.status >= 400 and method != "HEAD" and reply.headers["content-type"] != "text/html":
        assert reply.headers["content-type"] == "application/json", reply
        require_typed(json.loads(reply.body))


def sent_to(examples: int, number: int = 0) -> Any:
    """Settings of a run of so many inputs; nothing is kept, and none is tried twice."""
    return lambda test: seed(number)(
        settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(test)
    )


def fuzz_frames(trial: Trial, examples: int, number: int) -> None:
    @sent_to(examples, number)
    @given(frames())
    def send(frame: bytes | str) -> None:
        trial.frame(frame)

    send()


def fuzz_http(trial: Trial, examples: int, number: int) -> None:
    @sent_to(examples, number)
    @given(http_requests(trial.url.removeprefix("http://")))
    def send(sent: Sent) -> None:
        trial.http(sent)

    send()


def fuzz_torn(trial: Trial, examples: int, number: int) -> None:
    @sent_to(examples, number)
    @given(torn_connections(trial.url.removeprefix("http://")))
    def send(sent: bytes) -> None:
        trial.torn(sent)

    send()


def fuzz_described(trial: Trial, examples: int, number: int) -> None:
    """Inputs that fit the OpenAPI description, and ones that do not."""
    schema = schemathesis.openapi.from_url(f"{trial.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 7
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            body = operation.method == "post"
            if mode is GenerationMode.NEGATIVE and not (body or operation.query):
                continue

            @sent_to(examples if body else max(1, examples // 10), number)
            @given(operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                trial.between()
                reply = case.call()
                # A description cannot say all: that there is one seed for each row, for example.
                excluded = [positive_data_acceptance]
                if reply.status_code == 503:  # A deadline that nobody can keep, as described.
                    excluded.append(not_a_server_error)
                case.validate_response(reply, excluded_checks=excluded)
                trial.counts[f"described {reply.status_code}"] += 1

            send()


def test_odd_frames_get_typed_errors_and_the_server_goes_on(server, fast_policy):
    trial = Trial(server.url, fast_policy)
    fuzz_frames(trial, 250, 0)
    trial.require_right()
    assert trial.counts["frame answered"] >= 1
    assert trial.counts["frame RequestError"] >= 50
    print(dict(trial.counts))
    trial.client.close()
    require_idle(server)


def test_odd_requests_get_typed_errors_and_the_server_goes_on(server, fast_policy):
    trial = Trial(server.url, fast_policy)
    fuzz_http(trial, 150, 0)
    fuzz_torn(trial, 50, 0)
    trial.require_right()
    assert trial.counts["HTTP 400"] >= 5
    assert trial.counts["HTTP 404"] >= 3
    print(dict(trial.counts))
    trial.client.close()
    require_idle(server)


def test_the_openapi_description_holds(server, fast_policy):
    trial = Trial(server.url, fast_policy)
    fuzz_described(trial, 30, 0)
    trial.require_right()
    assert trial.counts["described 200"] >= 5
    assert trial.counts["described 400"] >= 5
    print(dict(trial.counts))
    trial.client.close()


def require_idle(server: Server) -> None:
    """Nothing is left over in the server."""
    service = server.service
    for _ in range(200):
        if not (service.connections or service.in_progress or service.engine.waiting):
            return
        time.sleep(0.02)
    raise AssertionError((service.connections, service.in_progress, service.engine.waiting))


def test_without_the_token_every_route_answers_401(fast_policy):
    with Server(fast_policy, patient(token=TOKEN), knobs=KNOBS) as server:
        routes: Any = application(server.service).app.routes  # type: ignore[attr-defined]
        paths = {(route.path.format(name="page.js"), method) for route in routes
                 for method in getattr(route, "methods", ())}  # fmt: skip
        assert len(paths) >= 11
        wrong = [{}, {"Authorization": "Bearer no-such-token"}, {"Authorization": f"Basic {TOKEN}"}]
        wrong += [{"Cookie": "gemrl_token=no-such-token"}, {"Authorization": "Bearer"}]
        for path, method in sorted(paths | {("/nothing", "GET"), ("/v1/act", "PUT")}):
            for headers in wrong:
                reply = ask(server.url, method, path, None, headers)
                assert reply.status == 401, (path, method, headers)
        for headers in wrong:
            with (
                pytest.raises(InvalidStatus) as refused,
                connect(server.url.replace("http", "ws"), additional_headers=headers),
            ):
                pass
            assert refused.value.response.status_code == 401
        for kind in ("Bearer", "Api-Key"):
            with WireClient(server.url, {"Authorization": f"{kind} {TOKEN}"}) as client:
                assert client.metadata["digest"] == fast_policy.digest


def test_odd_requests_without_the_token_learn_nothing(fast_policy):
    seen: Counter[int] = Counter()
    with Server(fast_policy, patient(token=TOKEN), knobs=KNOBS) as server:

        @sent_to(100)
        @given(http_requests(server.url.removeprefix("http://")))
        def send(sent: Sent) -> None:
            reply = raw(server.url, sent.request, sent.method, sent.whole)
            if reply is not None:
                require_promised(reply, sent.method)
                seen[reply.status] += 1

        send()
        require_idle(server)
    # 400 is for bytes that are no HTTP, 403 for a page of another site.
    assert set(seen) <= {400, 401, 403}, seen
    assert seen[401] >= 20


def test_another_host_or_origin_is_turned_away(server):
    url, request = server.url, {"observation": [0.0] * 4}
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        assert ask(url, "GET", "/v1/metadata", None, {"Host": host}).status == 403
        assert act(url, {"Host": host}, **request).status == 403
    for origin in ("http://evil.example", "null", "https://127.0.0.1:1"):
        assert act(url, {"Origin": origin}, **request).status == 403
        with (
            pytest.raises(InvalidStatus) as refused,
            connect(url.replace("http", "ws"), additional_headers={"Origin": origin}),
        ):
            pass
        assert refused.value.response.status_code == 403
    assert act(url, {"Origin": url}, **request).status == 200


@contextmanager
def serving(run: Path, log: Path) -> Iterator[tuple[str, int]]:
    """A server as a user starts one, which says what it has to say in a file.

    Gives its address and its process.
    """
    limits = [
        word
        for name, value in (LIMITS | {"wait_ms": 60_000.0}).items()
        for word in (f"--{name}", str(value))
    ]
    words = ["serve", str(run), "--port", "0", "--n", str(KNOBS.n), *limits]
    with log.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "gemrl", *words],
            env=os.environ | {"GEMRL_BACKEND": "fast"},
            stderr=said,
        )
    try:
        while "ready: " not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        url = log.read_text().partition("ready: ")[2].split()[0]
        yield url, process.pid
        assert process.poll() is None, "the server is gone"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()
        print(log.read_text()[-5000:])


@pytest.mark.long
def test_a_hundred_thousand_odd_inputs_leave_a_server_as_it_was(run_folder, fast_policy, tmp_path):
    """Counts by answer and the memory on the way are printed."""
    with serving(run_folder, tmp_path / "said.txt") as (url, process):
        trial = Trial(url, fast_policy)
        memory = []
        # In parts: hypothesis remembers the inputs of a part.
        for part in range(20):
            fuzz_frames(trial, 3200, part)
            fuzz_http(trial, 1600, part)
            fuzz_torn(trial, 400, part)
            memory.append(round(resident_mb(process), 1))
            answers = json.dumps(dict(sorted(trial.counts.items())))
            print(f"{trial.counts.total():,} inputs, {memory[-1]} MB: {answers}", flush=True)
        trial.require_right()
        trial.client.close()
    assert trial.counts.total() >= 100_000
    # Caches fill in the first quarter; after it nothing may grow with the number of inputs.
    assert memory[-1] < memory[4] + 20


@pytest.mark.long
def test_ten_thousand_inputs_made_from_the_description_are_answered_as_it_says(
    run_folder, fast_policy, tmp_path
):
    with serving(run_folder, tmp_path / "said.txt") as (url, _):
        trial = Trial(url, fast_policy)
        for part in range(10):
            fuzz_described(trial, 500, part)
            print(f"{trial.counts.total():,} inputs", flush=True)
        trial.require_right()
        trial.client.close()
    print(json.dumps(dict(sorted(trial.counts.items()))))
    assert trial.counts.total() >= 10_000
