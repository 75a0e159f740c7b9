"""Who may come in: the token on every route, hosts and origins, the number of connections."""

import collections
import contextlib
import socket

import pytest
from asking import ask, patient, talking
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import gemrl
from gemrl.deploy.serve import ServeConfig, Server, app, connections
from gemrl.deploy.serve.app import application
from gemrl.errors import ConfigError

TOKEN = "correct-horse-battery"
KNOBS = gemrl.Knobs(n=4)


@pytest.fixture(scope="module")
def server(fast_policy, maze_data):
    config = patient(token=TOKEN)
    with Server(fast_policy, config, knobs=KNOBS, states=maze_data) as running:
        yield running


@pytest.fixture(scope="module")
def open_server(fast_policy):
    config = patient(connections=3)
    with Server(fast_policy, config, knobs=KNOBS) as running:
        yield running


def paths(server):
    """Every HTTP route of the application with its method; the static one by a file of it."""
    routes = application(server.service).app.routes
    return [
        (route.path.replace("{name}", "page.js"), method)
        for route in routes
        if hasattr(route, "methods")
        for method in route.methods - {"HEAD"}
    ]


WRONG = [
    {},
    {"authorization": "Bearer wrong"},
    {"authorization": f"Bearer {TOKEN}x"},
    {"authorization": f"Bearer {TOKEN[:-1]}"},
    {"authorization": f"Basic {TOKEN}"},
    {"authorization": TOKEN},
    {"authorization": "Bearer "},
    {"cookie": "gemrl_token=wrong"},
    {"cookie": 'gemrl_token="'},
]


@pytest.mark.parametrize("headers", WRONG)
def test_no_route_answers_without_the_token(server, headers):
    found = paths(server)
    assert len(found) == 11
    for path, method in found:
        status, answer_headers, answer = ask(
            server, path, headers, method, b"{}" if method == "POST" else None
        )
        assert status == 401, path
        if path != "/login":
            assert answer["error"]["type"] == "TokenError"
            assert answer_headers["www-authenticate"] == "Bearer"
    with pytest.raises(InvalidStatus) as refused:
        connect(server.url.replace("http", "ws"), additional_headers=headers).__enter__()
    assert refused.value.response.status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {TOKEN}"},
        {"authorization": f"Api-Key {TOKEN}"},
        {"cookie": f"gemrl_token={TOKEN}"},
    ],
)
def test_with_the_token_every_route_answers(server, headers):
    for path, method in paths(server):
        if path not in ("/v1/act", "/login"):
            assert ask(server, path, headers, method)[0] == 200, path
    assert ask(server, headers=headers, observation=[0] * 4)[0] == 200
    with talking(server, additional_headers=headers) as say:
        assert len(say(observation=[0] * 4)["action"]) == 2


def test_a_browser_without_the_token_is_asked_for_it_and_signs_in(server):
    status, headers, page = ask(server, "/", {"accept": "text/html"})
    assert status == 401
    assert "<form" in page
    assert "content-security-policy" in {name.lower() for name in headers}
    form = {"content-type": "application/x-www-form-urlencoded"}
    status, headers, page = ask(server, "/login", form, body=b"token=wrong")
    assert status == 401
    assert "not this server" in page
    assert "set-cookie" not in {name.lower() for name in headers}


def test_a_wrong_token_of_any_bytes_is_just_wrong(server):
    form = {"content-type": "application/x-www-form-urlencoded"}
    for body in (b"", b"token", b"token=%ff%00", b"token=" + b"x" * 5000, b"\xff\xfe", b"=&=&="):
        assert ask(server, "/login", form, body=body)[0] == 401


def test_a_page_of_another_site_cannot_ask(server, open_server):
    right = {"authorization": f"Bearer {TOKEN}"}
    for one, headers in ((server, right), (open_server, {})):
        evil = headers | {"origin": "http://evil.example"}
        status, _, answer = ask(one, headers=evil, observation=[0] * 4)
        assert status == 403
        assert answer["error"]["type"] == "OriginError"
        with pytest.raises(InvalidStatus) as refused:
            connect(one.url.replace("http", "ws"), additional_headers=evil).__enter__()
        assert refused.value.response.status_code == 403
        own = headers | {"origin": one.url}
        assert ask(one, headers=own, observation=[0] * 4)[0] == 200


def test_without_a_token_a_name_that_is_not_this_machine_is_refused(open_server):
    for name in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]:80"):
        status, _, answer = ask(open_server, "/v1/metadata", {"host": name})
        assert status == 403
        assert answer["error"]["type"] == "HostError"
    for name in ("localhost", "localhost:1234", "127.0.0.1:80", "[::1]:80", "[::1]"):
        assert ask(open_server, "/v1/metadata", {"host": name})[0] == 200


def test_more_connections_than_allowed_are_turned_away_and_come_back_later(open_server):
    held = [talking(open_server) for _ in range(3)]
    for one in held:
        one.__enter__()
    status, headers, _ = ask(open_server, "/healthz")
    assert status == 503
    assert headers["retry-after"] == "1"
    for one in held:
        one.__exit__(None, None, None)
    for _ in range(100):
        if ask(open_server, "/healthz")[0] == 200:
            break
    assert ask(open_server, "/healthz")[0] == 200


def test_connections_that_say_nothing_are_bounded_and_closed(fast_policy, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(app, "BODY_SECONDS", 1.0)
    config = patient(connections=4)
    with Server(fast_policy, config, knobs=KNOBS) as server, contextlib.ExitStack() as held:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
        for one in silent:
            held.enter_context(one)
            one.settimeout(60)
        said = [b"".join(iter(lambda one=one: one.recv(4096), b"")) for one in silent]
        kinds = collections.Counter(text.split(b"\r\n")[0] for text in said)
        # As many as may be open are waited for, and the others are turned away at once.
        assert kinds[b"HTTP/1.1 408 Request Timeout"] == 24
        assert kinds[b"HTTP/1.1 503 Service Unavailable"] == 16
        assert all(b'{"error":{"type":' in text for text in said)
        head = held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        head.settimeout(60)
        head.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
        assert head.recv(4096).startswith(b"HTTP/1.1 408")
        half = held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        half.settimeout(60)
        sent = b"POST /v1/act HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
        half.sendall(sent)
        assert half.recv(4096).startswith(b"HTTP/1.1 408")
        assert ask(server, "/healthz")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "robot.example"])
def test_other_machines_need_a_token(fast_policy, host):
    with pytest.raises(ConfigError, match="token"):
        Server(fast_policy, ServeConfig(host=host, port=0))


@pytest.mark.parametrize("token", ["", "short", "with\nnewline", "ünïcödé-token", "ends-in-space "])
def test_a_weak_or_odd_token_is_refused(token):
    with pytest.raises(ConfigError, match="token"):
        ServeConfig(token=token)


def test_pages_may_load_nothing_from_elsewhere(open_server):
    _, headers, _ = ask(open_server, "/")
    policy = {name.lower(): value for name, value in headers.items()}["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
