"""A process of clients in a soak: `python -m serving_load.visitors KIND PORT RUN SECONDS SEED`.

`checking` clients come and go, ask in every way, and decide each answer again: one that differs in
a bit is wrong. `crowd` clients ask and never say goodbye: their process is killed. `rude` ones
break off in the middle of a frame or of a request, send more than they read, or nothing at all. The
last line is a JSON object of counts; `crowd` has none.
"""

import asyncio
import contextlib
import http.client
import json
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from serving_load.lines import Line, framed, message, opened, packed, read

THREADS = 4
CROWD = 12
PAUSE = 0.02
BUDGETS = (0, 1, 64, 64, 256, 1024)


class Checker:
    """Asks one server from some threads, and decides again what it answers."""

    def __init__(self, port: int, run: Path) -> None:
        import gemrl

        self.port = port
        self.policy = gemrl.load(run)
        self.low, self.high = self.policy.spec.obs_mean, self.policy.spec.obs_std
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        # A policy decides for one thread at a time here; the server is what is asked together.
        self._turn = threading.Lock()

    def visits(self, end: float, seed: int) -> None:
        """One connection after another."""
        chance = random.Random(seed)
        while time.monotonic() < end and not self.wrong:
            kind = chance.choice(("ws", "ws", "http"))
            try:
                if kind == "ws":
                    self._over_the_wire(chance, end)
                else:
                    self._over_http(chance, end)
            except OSError as error:
                self._count(f"connection {type(error).__name__}")
                time.sleep(0.05)

    def _over_the_wire(self, chance: random.Random, end: float) -> None:
        from websockets.sync.client import connect

        with connect(f"ws://127.0.0.1:{self.port}", compression=None, max_size=None) as line:
            line.recv()
            for _ in range(chance.randrange(1, 120)):
                rows, fields = self._request(chance)
                line.send(packed(rows, fields))
                answer = line.recv(60)
                if isinstance(answer, str):
                    self._count(f"refused {json.loads(answer)['error']['type']}")
                else:
                    values = msgpack.unpackb(answer)
                    actions = values["actions"]
                    self._check(rows, fields, values, actions[b"data"])
                if time.monotonic() > end:
                    break
            if chance.random() < 0.3:
                # With what is on the way thrown away, as a machine does that loses its power.
                linger = struct.pack("ii", 1, 0)
                line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                line.socket.close()

    def _over_http(self, chance: random.Random, end: float) -> None:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            for _ in range(chance.randrange(1, 40)):
                rows, fields = self._request(chance)
                body = json.dumps({"observation": rows.tolist(), **fields})
                line.request("POST", "/v1/act", body, {"Content-Type": "application/json"})
                answer = line.getresponse()
                values = json.loads(answer.read())
                if answer.status != 200:
                    self._count(f"refused {values['error']['type']}")
                else:
                    self._check(rows, fields, values, np.float32(values["action"]).tobytes())
                if time.monotonic() > end:
                    break
        finally:
            line.close()

    def _request(self, chance: random.Random) -> tuple[np.ndarray, dict[str, Any]]:
        """A request of some kind; the seed is always said."""
        noise = np.random.default_rng(chance.getrandbits(32))
        single = chance.random() < 0.85
        shape = (len(self.low),) if single else (chance.randrange(1, 6), len(self.low))
        rows = (self.low + self.high * noise.normal(size=shape)).astype(np.float32)
        fields: dict[str, Any] = {"seed": chance.getrandbits(32)}
        fields["knobs"] = {
            "n": chance.choice(BUDGETS),
            "wp": round(chance.uniform(0, 2), 3),
            "k_smooth": chance.choice((1, 1, 4)),
            "support": chance.choice(("zscore", "zscore", "raw")),
        }
        if chance.random() < 0.3:
            fields["knobs"]["wp"] = {"end": 0.2, "horizon": 100, "start": 1.0}
            fields["t"] = chance.randrange(200)
        if chance.random() < 0.3:
            fields["deadline_ms"] = chance.choice((2.0, 5.0, 20.0, 200.0))
        if single and chance.random() < 0.2:
            fields |= {"episode": f"robot-{chance.randrange(50)}", "t": chance.randrange(200)}
        return rows, fields

    def _check(
        self, rows: np.ndarray, fields: dict[str, Any], answer: dict[str, Any], actions: bytes
    ) -> None:
        """Decide again as it says that it did, and without a deadline as anybody would."""
        import gemrl

        knobs = gemrl.Knobs.from_json(answer["knobs"])
        call: dict[str, Any] = {"seed": fields["seed"], "t": fields.get("t")}
        ways = {name: np.array(answer[name]) for name in ("block", "n_scored")}
        with self._turn:
            again = self.policy.decide_again(rows, knobs, **call, **ways)
            right = again.action.tobytes() == actions
            if right and "deadline_ms" not in fields:
                right = self.policy.decide(rows, knobs, **call).action.tobytes() == actions
        asked = gemrl.Knobs.from_json(vars(knobs) | fields["knobs"])
        right = right and knobs == asked and answer["seed"] == fields["seed"]
        right = right and np.array_equal(answer["chosen"], again.chosen)
        self._count("right" if right else "wrong")
        if not right:
            self.wrong.append(json.dumps({"observation": rows.tolist(), **fields}))

    def _count(self, what: str) -> None:
        with self._turn:
            self.counts[what] += 1


def checking(port: int, run: Path, seconds: float, seed: int) -> None:
    """Clients that check."""
    checker = Checker(port, run)
    end = time.monotonic() + seconds
    threads = [
        threading.Thread(target=checker.visits, args=(end, seed * THREADS + number))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"counts": checker.counts, "wrong": checker.wrong[:5]}))


async def crowd(port: int, observation: np.ndarray, seed: int) -> None:
    """Clients that ask for ever."""
    chance = random.Random(seed)
    loop = asyncio.get_running_loop()

    def ask(line: Line, kind: str) -> None:
        fields = {"knobs": {"n": chance.choice(BUDGETS)}, "seed": chance.getrandbits(32)}
        line.ask(message(kind, observation, fields))

    for number in range(CROWD):
        kind = ("ws", "ws", "http")[number % 3]

        def answered(line: Line, answer: bytes, no: bool, came: float, kind: str = kind) -> None:
            if not no:
                read(kind, answer)
            loop.call_later(PAUSE * chance.random(), ask, line, kind)

        for line in await opened(kind, port, 1, answered):
            ask(line, kind)
    await asyncio.Event().wait()


def rude(port: int, observation: np.ndarray, seconds: float, seed: int) -> None:
    """One misdeed after another."""
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    held: list[tuple[float, socket.socket]] = []
    end = time.monotonic() + seconds
    deeds = {
        "half a frame": half_a_frame,
        "half a request": half_a_request,
        "many unread": many_unread,
        "silence": silence,
        "noise": noise,
    }
    while time.monotonic() < end:
        name = chance.choice(list(deeds))
        with contextlib.suppress(OSError):
            line = socket.create_connection(("127.0.0.1", port), timeout=1)
            line.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                deeds[name](line, observation, chance)
            held.append((time.monotonic() + chance.expovariate(2), line))
            counts[name] += 1
        for until, line in held:
            if until < time.monotonic():
                line.close()
        held = [one for one in held if one[1].fileno() >= 0]
        time.sleep(0.02 * chance.random())
    for _, line in held:
        line.close()
    print(json.dumps({"counts": counts}))


def half_a_frame(line: socket.socket, observation: np.ndarray, chance: random.Random) -> None:
    """Go in the middle of a frame."""
    shake_hands(line)
    whole = message("ws", observation, {})
    line.sendall(whole[: chance.randrange(1, len(whole))])


def half_a_request(line: socket.socket, observation: np.ndarray, chance: random.Random) -> None:
    """Go in the middle of a request."""
    whole = message("http", observation, {})
    line.sendall(whole[: chance.randrange(1, len(whole))])


def many_unread(line: socket.socket, observation: np.ndarray, chance: random.Random) -> None:
    """Ask for large answers and read none of them."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    shake_hands(line)
    large = message("ws", observation, {"knobs": {"n": 256}, "detail": True})
    for _ in range(chance.randrange(2, 50)):
        line.sendall(large)


def silence(line: socket.socket, observation: np.ndarray, chance: random.Random) -> None:
    """Come and say nothing, or shake hands and say nothing."""
    if chance.random() < 0.5:
        shake_hands(line)


def noise(line: socket.socket, observation: np.ndarray, chance: random.Random) -> None:
    """Bytes of any kind, with or without a frame around them."""
    shake_hands(line)
    text = chance.randbytes(chance.randrange(1, 300))
    line.sendall(framed(text) if chance.random() < 0.7 else text)


def shake_hands(line: socket.socket) -> None:
    """Open a WebSocket and read its metadata, or some of it."""
    line.sendall(
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    line.recv(4096)


def main() -> None:
    """Be clients of a kind."""
    kind, port, run, seconds, seed = sys.argv[1:]
    if kind == "checking":
        return checking(int(port), Path(run), float(seconds), int(seed))
    spec = json.loads((Path(run) / "manifest.json").read_text())["spec"]
    observation = np.array(spec["obs_mean"], np.float32)
    if kind == "crowd":
        return asyncio.run(crowd(int(port), observation, int(seed)))
    return rude(int(port), observation, float(seconds), int(seed))


if __name__ == "__main__":
    main()
