"""A lone client's connection is read by the deciding thread, to the same answers."""

import contextlib
import socket as sockets
import threading
import time

import numpy as np
import pytest
from asking import ask, patient, talking
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

import gemrl
from gemrl.deploy.serve import Server, lent, wire
from gemrl.deploy.serve import socket as serve_socket
from gemrl.deploy.serve.answers import LARGE
from gemrl.deploy.serve.decider import Decider
from gemrl.deploy.serve.log import LogConfig, read_log

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
    with Server(fast_policy, patient(), knobs=KNOBS) as running:
        yield running
        until(lambda: not running.service.connections)
        assert not running.service.in_progress
        assert not running.service.lent


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
        return server.service.lent

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
            until(lambda: not server.service.lent)
            for seed in range(20):
                for say in (first, second):
                    assert say(observation=obs, seed=seed)["action"] == action(
                        fast_policy, obs, seed
                    )
            assert not server.service.lent
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

    def fill_up():
        """Send without reading until the connection is given back, then read all answers."""
        with (
            talking(server, max_queue=1, ping_interval=None) as say,
            monkeypatch.context() as noting,
        ):
            lend(server, say, observations[0])
            # As little room as a system gives, on both sides.
            server.service.engine._lent.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, 1)
            say.socket.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 1)
            unsent.clear()
            noting.setattr(lent.Lent, "give_back", noted)
            sent = 0
            while not unsent and sent < 400:
                say.socket.send(wire.pack({"observation": obs, "seed": sent}))
                sent += 1
                time.sleep(0.02)
            for seed in range(sent):
                answer = wire.unpack(say.socket.recv())
                assert (answer["seed"], answer["action"]) == (seed, action(fast_policy, obs, seed))
            return any(unsent)

    # On a busy machine a loan may end before the answers have filled up what there is.
    assert any(fill_up() for _ in range(10))


def test_a_silent_client_is_asked_whether_it_is_there(server, observations, monkeypatch):
    monkeypatch.setattr(serve_socket, "PING_SECONDS", 0.1)
    with talking(server) as say:
        lend(server, say, observations[0])
        until(lambda: not server.service.lent)
        # It answers pings, so it is kept, and is lent again once it asks.
        time.sleep(1.0)
        lend(server, say, observations[0])


def test_a_server_that_stops_tells_the_client_of_a_lent_connection(fast_policy, observations):
    config = patient()
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


@pytest.fixture
def slowly(monkeypatch):
    """Lets a test do something between a message and its decision."""
    decide, before = Decider.decide, []

    def slow(self, jobs, deadlines):
        while before:
            before.pop()()
        return decide(self, jobs, deadlines)

    monkeypatch.setattr(Decider, "decide", slow)
    return before


def test_a_client_is_asked_for_a_sign_before_it_is_given_up(server, observations, monkeypatch):
    monkeypatch.setattr(serve_socket, "PING_SECONDS", 0.5)
    with talking(server, ping_interval=0.5) as say:
        lend(server, say, observations[0])
        # Its own pings give its connection back; it says nothing else.
        time.sleep(2.5)
        assert say(observation=observations[0], seed=0)["n_scored"] == 9


@pytest.mark.parametrize("way", ["long answer", "wanted back"])
def test_no_action_is_answered_after_its_deadline(server, slowly, observations, monkeypatch, way):
    obs, receive = observations[0], lent.Lent.receive

    def hold_up_the_loop():
        server._loop.call_soon_threadsafe(time.sleep, 1.0)
        time.sleep(0.05)

    def wanted_at_once(self):
        receive(self)
        self.wanted = True

    with talking(server) as say:
        lend(server, say, obs)
        time.sleep(0.3)
        if way == "wanted back":
            monkeypatch.setattr(lent.Lent, "receive", wanted_at_once)
        slowly.append(hold_up_the_loop)
        said = say(observation=obs, seed=1, deadline_ms=500, detail=way == "long answer")
        assert said["error"]["type"] == "OverloadError"


@pytest.mark.parametrize("how", ["close", "end", "reset"])
def test_a_step_whose_client_has_gone_is_not_counted(server, slowly, observations, how):
    obs = observations[0]
    with contextlib.suppress(OSError, ConnectionClosed), talking(server) as say:
        lend(server, say, obs)
        slowly.append(lambda: time.sleep(0.5))
        say.socket.send(wire.pack({"observation": obs, "episode": "left"}))
        time.sleep(0.1)
        if how == "reset":
            linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            say.socket.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, linger)
            say.socket.socket.close()
        elif how == "end":
            say.socket.socket.shutdown(sockets.SHUT_RDWR)
        else:
            say.socket.close()
    until(lambda: not (server.service.connections or server.service.in_progress))
    with talking(server) as say:
        assert say(observation=obs, episode="left")["t"] == 0


def test_counts_have_what_the_client_has_seen(server, observations):
    with talking(server) as say:
        for number in range(1, 60):
            say(observation=observations[0], seed=0)
            text = ask(server, "/metrics")[2]
            assert f"gemrl_decisions_total {number}.0" in text
            assert f'gemrl_requests_total{{status="200",way="websocket"}} {number}.0' in text


def test_the_last_decisions_are_told_in_their_order(server, observations):
    obs = observations[0]
    with talking(server) as say:
        for _ in range(10):
            for _ in range(3):
                say(observation=obs, episode="ordered")
            ask(server, observation=obs.tolist(), episode="ordered")
        time.sleep(0.05)
        told = ask(server, "/v1/recent?after=0")[2]["decisions"]
    assert [line["t"] for line in told] == list(range(40))


def test_where_no_more_files_can_be_opened_messages_are_answered_all_the_same(
    server, observations, monkeypatch
):
    def no_more(file):
        raise OSError(24, "Too many open files")

    with talking(server) as say, monkeypatch.context() as patch:
        patch.setattr(lent.os, "dup", no_more)
        for seed in range(20):
            assert say(observation=observations[0], seed=seed)["seed"] == seed
        assert not server.service.lent


def test_nonsense_after_a_message_is_no_defect_of_ours(server, observations, capfd):
    message = wire.pack({"observation": observations[0], "seed": 5})
    frame = Frame(Opcode.BINARY, message).serialize(mask=True)
    with talking(server) as say:
        lend(server, say, observations[0])
        say.socket.socket.sendall(frame + b"\xff\xff nonsense")
        with contextlib.suppress(ConnectionClosed):
            say.socket.recv(timeout=20)
            say.socket.recv(timeout=20)
            raise AssertionError("it was not closed")
    assert 'status="500"' not in ask(server, "/metrics")[2]
    assert "Traceback" not in capfd.readouterr().err


def test_a_count_that_fails_ends_nothing(server, observations, monkeypatch, capfd):
    with talking(server) as say:
        with monkeypatch.context() as patch:
            patch.setattr(server.service.engine, "done", lambda outcome: 1 / 0)
            lend(server, say, observations[0])
            time.sleep(0.05)
        before = server.service.metrics.counts["decisions"]
        say(observation=observations[0], seed=0)
        until(lambda: server.service.metrics.counts["decisions"] == before + 1)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_decision_that_outlasts_the_time_to_drain_is_in_the_log(
    fast_policy, slowly, observations, tmp_path
):
    config = patient(drain_seconds=0.1)
    log = LogConfig(tmp_path / "log")
    with Server(fast_policy, config, knobs=KNOBS, log=log) as running:
        with contextlib.suppress(ConnectionClosed), talking(running) as say:
            lend(running, say, observations[0])
            slowly.append(lambda: time.sleep(0.7))
            say.socket.send(wire.pack({"observation": observations[0], "seed": 77}))
            time.sleep(0.1)
            stopping = threading.Thread(target=running.stop)
            stopping.start()
            answered = False
            answered = wire.unpack(say.socket.recv(timeout=10))["seed"] == 77
        stopping.join()
    seeds = [line["seed"] for _, _, lines in read_log(tmp_path / "log") for line in lines]
    assert (77 in seeds) == answered


def test_a_connection_is_not_lent_to_a_thread_that_is_busy(server, slowly, observations):
    """Its deadlines would begin when the thread is free, and stale actions would pass for fresh."""
    obs, release = observations[0], threading.Event()
    with talking(server) as say:
        lend(server, say, obs)
        slowly.append(lambda: release.wait(20))
        with talking(server) as other:  # It asks and goes.
            other.socket.send(wire.pack({"observation": obs, "seed": 0}))
            until(lambda: not slowly)
            other.socket.socket.shutdown(sockets.SHUT_RDWR)
            until(lambda: server.service.connections == 1)
        # A mistake, which the event loop answers alone.
        assert say(nothing=1)["error"]["type"] == "RequestError"
        time.sleep(0.05)
        assert not server.service.lent
        say.socket.send(wire.pack({"observation": obs, "seed": 1, "deadline_ms": 50}))
        time.sleep(0.3)
        release.set()
        assert "OverloadError" in say.socket.recv()
        lend(server, say, obs)


def test_a_client_is_heard_while_its_own_long_message_is_decided(server, slowly, observations):
    obs, release = observations[0], threading.Event()
    with talking(server) as say:
        lend(server, say, obs)
        server.service.engine.costs.row = 0.02  # As for a larger policy.
        slowly.append(lambda: release.wait(20))
        say.socket.send(wire.pack({"observation": obs, "seed": 3}))
        until(lambda: not slowly)
        assert say.socket.ping().wait(10)
        release.set()
        assert wire.unpack(say.socket.recv())["seed"] == 3


def test_a_client_that_goes_while_its_long_message_is_decided_is_noticed(
    server, slowly, observations
):
    release = threading.Event()
    with contextlib.suppress(OSError, ConnectionClosed), talking(server) as say:
        lend(server, say, observations[0])
        server.service.engine.costs.row = 0.02
        slowly.append(lambda: release.wait(20))
        say.socket.send(wire.pack({"observation": observations[0], "seed": 3}))
        until(lambda: not slowly)
        say.socket.socket.shutdown(sockets.SHUT_RDWR)
        until(lambda: not server.service.connections, seconds=10)
        release.set()


@pytest.mark.parametrize(("more", "read"), [(0, True), (1, False)])
def test_a_message_that_takes_long_to_read_is_not_read_by_the_deciding_thread(more, read):
    """However little of it is the last part that comes."""
    frame = Frame(Opcode.BINARY, bytes(LARGE + more))
    assert (lent._message([frame]) is not None) == read
