"""A lone client's connection is read by the deciding thread, to the same answers."""

import socket as sockets
import time

import numpy as np
import pytest
from asking import ask, talking
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

import gemrl
from gemrl.deploy.serve import ServeConfig, Server, lent, wire
from gemrl.deploy.serve import socket as serve_socket

KNOBS = gemrl.Knobs(n=8, wp=0.5)


@pytest.fixture
def received(monkeypatch):
    """Counts the times that the deciding thread has read something."""
    counts = []
    read = lent.Lent.receive
    monkeypatch.setattr(lent.Lent, "receive", lambda self: (counts.append(1), read(self))[1])
    return counts


@pytest.fixture
def server(fast_policy):
    with Server(fast_policy, ServeConfig(port=0), knobs=KNOBS) as running:
        yield running
        until(lambda: not running.service.connections)
        assert not running.service.in_progress
        assert not running.service.engine.has_lent


def until(true, seconds=20.0):
    """Wait for something that happens soon."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def lend(server, say, obs):
    """Ask until the connection is lent: the first message is the event loop's."""

    def is_lent():
        say(observation=obs, seed=0)
        time.sleep(0.002)
        return server.service.engine.has_lent

    until(is_lent)


def action(policy, obs, seed):
    return policy.decide(obs, KNOBS, seed=seed).action.tolist()


def test_answers_are_the_policys_decisions_and_each_is_counted_once(
    server, received, fast_policy, observations
):
    with talking(server) as say:
        for seed in range(200):
            obs = observations[seed % 8]
            assert say(observation=obs, seed=seed)["action"] == action(fast_policy, obs, seed)
        _, _, text = ask(server, "/metrics")
    assert len(received) > 100
    assert "gemrl_decisions_total 200.0" in text
    assert 'gemrl_requests_total{status="200",way="websocket"} 200.0' in text
    assert ask(server, "/v1/recent?after=0")[2]["counts"]["decisions"] == 200


def test_an_episodes_steps_are_counted_by_both_threads(server, received, observations):
    with talking(server) as say:
        for t in range(0, 80, 4):
            for more in range(3):
                assert say(observation=observations[0], episode="one")["t"] == t + more
                time.sleep(0.002)
            values = {"observation": observations[0].tolist(), "episode": "one"}
            assert ask(server, **values)[2]["t"] == t + 3
    assert received


def test_a_second_client_gets_its_answers_and_the_first_goes_on(server, fast_policy, observations):
    obs = observations[0]
    with talking(server) as first:
        lend(server, first, obs)
        with talking(server) as second:
            until(lambda: not server.service.engine.has_lent)
            for seed in range(20):
                for say in (first, second):
                    assert say(observation=obs, seed=seed)["action"] == action(
                        fast_policy, obs, seed
                    )
            assert not server.service.engine.has_lent
        until(lambda: server.service.connections == 1)
        lend(server, first, obs)


def test_http_is_answered_while_a_connection_is_lent(server, fast_policy, observations):
    obs = observations[1]
    with talking(server) as say:
        for seed in range(20):
            lend(server, say, obs)
            status, _, answer = ask(server, observation=obs.tolist(), seed=seed)
            assert status == 200
            assert answer["action"] == action(fast_policy, obs, seed)


def test_mistakes_are_answered_as_ever_and_the_next_message_too(server, observations):
    obs = observations[0]
    with talking(server) as say:
        for wrong, word in (
            ({"observation": obs[:1]}, "shape"),
            ({"observation": obs, "knobs": {"n": -1}}, "n"),
            ({"nothing": 1}, "unknown field"),
        ):
            lend(server, say, obs)
            assert word in say(**wrong)["error"]["message"]
        lend(server, say, obs)
        say.socket.send("text")
        assert "text" in say.socket.recv()
        lend(server, say, obs)
        say.socket.send(b"\xc1")
        assert "msgpack" in say.socket.recv()
        assert say(observation=obs, seed=0)["n_scored"] == 9


def test_pings_parts_and_long_answers_go_by_the_event_loop(server, fast_policy, observations):
    obs = observations[0]
    packed = wire.pack({"observation": obs, "seed": 3})
    with talking(server) as say:
        lend(server, say, obs)
        assert say.socket.ping().wait(10)
        lend(server, say, obs)
        say.socket.send([packed[:10], packed[10:]])
        assert wire.unpack(say.socket.recv())["action"] == action(fast_policy, obs, 3)
        lend(server, say, obs)
        assert len(say(observation=obs, seed=0, detail=True)["detail"]["score"]) == 9
        lend(server, say, obs)
        assert say(observation=np.stack([obs] * 40), seed=0)["actions"].shape == (40, 2)


def test_messages_sent_at_once_are_answered_in_their_order(server, fast_policy, observations):
    obs = observations[0]
    with talking(server) as say:
        lend(server, say, obs)
        for seed in range(30):
            say.socket.send(wire.pack({"observation": obs, "seed": seed}))
        for seed in range(30):
            assert wire.unpack(say.socket.recv())["seed"] == seed


def test_half_a_frame_is_kept_when_the_connection_changes_hands(server, fast_policy, observations):
    obs = observations[0]
    frame = Frame(Opcode.BINARY, wire.pack({"observation": obs, "seed": 5})).serialize(mask=True)
    with talking(server) as say:
        for cut in (1, 2, 5, 30):
            lend(server, say, obs)
            say.socket.socket.sendall(frame + frame[:cut])
            assert wire.unpack(say.socket.recv())["action"] == action(fast_policy, obs, 5)
            say.socket.socket.sendall(frame[cut:])
            assert wire.unpack(say.socket.recv())["action"] == action(fast_policy, obs, 5)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_goes_is_noticed(server, observations, how):
    with talking(server) as say:
        lend(server, say, observations[0])
        if how == "reset":
            linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            say.socket.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, linger)
            say.socket.socket.close()
    until(lambda: not server.service.connections)


def test_a_client_that_does_not_read_gets_all_of_its_answers_later(
    server, received, fast_policy, observations, monkeypatch
):
    obs, unsent = np.stack([observations[0]] * 16), []
    give_back = lent.Lent.give_back

    def noted(self, events=(), unsent_bytes=b"", **more):
        unsent.append(more.get("unsent", unsent_bytes))
        give_back(self, events, **more)

    with talking(server, max_queue=1, ping_interval=None) as say:
        lend(server, say, observations[0])
        # As little room as a system gives, on both sides.
        server.service.engine._lent.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, 1)
        say.socket.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 1)
        monkeypatch.setattr(lent.Lent, "give_back", noted)
        for seed in range(100):
            say.socket.send(wire.pack({"observation": obs, "seed": seed}))
            time.sleep(0.004)
        for seed in range(100):
            answer = wire.unpack(say.socket.recv())
            assert (answer["seed"], answer["action"]) == (seed, action(fast_policy, obs, seed))
    assert any(unsent)


def test_a_silent_client_is_asked_whether_it_is_there(server, observations, monkeypatch):
    monkeypatch.setattr(serve_socket, "PING_SECONDS", 0.1)
    with talking(server) as say:
        lend(server, say, observations[0])
        until(lambda: not server.service.engine.has_lent)
        # It answers pings, so it is kept, and is lent again once it asks.
        time.sleep(1.0)
        lend(server, say, observations[0])


def test_a_server_that_stops_tells_the_client_of_a_lent_connection(fast_policy, observations):
    config = ServeConfig(port=0)
    with Server(fast_policy, config, knobs=KNOBS) as running, talking(running) as say:
        lend(running, say, observations[0])
        running.stop()
        with pytest.raises(ConnectionClosed) as closed:
            say.socket.recv()
    assert closed.value.rcvd.code == serve_socket.GOING_AWAY
    assert not running.service.in_progress


def test_a_deadline_is_kept_and_a_late_request_refused(server, observations):
    obs = observations[0]
    with talking(server) as say:
        lend(server, say, obs)
        answer = say(observation=obs, seed=0, deadline_ms=5000, knobs={"n": 300})
        assert answer["n_scored"] == 301
        lend(server, say, obs)
        said = say(observation=obs, seed=0, deadline_ms=1e-3)
        assert said["error"]["type"] == "OverloadError"
        lend(server, say, obs)
