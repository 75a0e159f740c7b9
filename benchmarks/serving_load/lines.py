"""Lean connections to a policy server, so that a client's own work is small beside the server's.

Both send a request and call back with the answer's bytes and the moment they came.
"""

import asyncio
import json
import os
import struct
import time
from collections.abc import Callable
from typing import Any, cast

import msgpack
import numpy as np

BINARY, TEXT, CLOSE, PING, PONG = 2, 1, 8, 9, 10
Answered = Callable[["Line", bytes, bool, float], None]
"""Called with the connection, the answer, whether it was refused, and when it came."""


class Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, answered: Answered) -> None:
        self.answered = answered
        self.ready = asyncio.get_running_loop().create_future()
        self.sent = 0.0
        """When the last request was sent."""
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to send."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        self._seen = self._seen + data if self._seen else data
        self.read(time.perf_counter())

    def read(self, now: float) -> None:
        """Take whole answers from what was seen."""
        raise NotImplementedError

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has gone."""
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("the server closed the connection"))

    def ask(self, message: bytes) -> None:
        """Send a packed request."""
        self.sent = time.perf_counter()
        self.transport.write(message)


class WireLine(Line):
    """The OpenPI wire over WebSocket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Shake hands."""
        super().connection_made(transport)
        host, port = transport.get_extra_info("peername")[:2]
        self.transport.write(
            f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        self._shaken = False

    def read(self, now: float) -> None:
        """Frames of a server are not masked, and one holds a whole message."""
        if not self._shaken:
            head, end, self._seen = self._seen.partition(b"\r\n\r\n")
            if not end:
                self._seen = head
                return
            if b" 101 " not in head:
                raise ConnectionError(head.decode("latin-1"))
            self._shaken = True
        while (frame := _frame(self._seen)) is not None:
            kind, body, self._seen = frame
            if kind == PING:
                self.transport.write(framed(body, PONG))
            elif not self.ready.done():
                self.ready.set_result(None)  # The metadata.
            elif kind in (BINARY, TEXT):
                self.answered(self, body, kind == TEXT, now)


class HttpLine(Line):
    """JSON over HTTP, the connection kept open."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Nothing is said before the first request."""
        super().connection_made(transport)
        self.ready.set_result(None)

    def read(self, now: float) -> None:
        """An answer is its head, and as many bytes as that says."""
        head, end, rest = self._seen.partition(b"\r\n\r\n")
        if not end:
            return
        _, _, length = head.lower().partition(b"content-length: ")
        size = int(length.partition(b"\r\n")[0])
        if len(rest) >= size:
            self._seen = rest[size:]
            self.answered(self, rest[:size], b" 200 " not in head[:16], now)


KINDS: dict[str, type[Line]] = {"ws": WireLine, "http": HttpLine}


async def opened(kind: str, port: int, count: int, answered: Answered) -> list[Line]:
    """So many connections that are ready."""
    loop = asyncio.get_running_loop()
    lines: list[Line] = []
    for _ in range(count):
        line = KINDS[kind](answered)
        await loop.create_connection(lambda line=line: line, "127.0.0.1", port)
        await line.ready
        lines.append(line)
    return lines


def message(kind: str, observation: np.ndarray, fields: dict[str, Any]) -> bytes:
    """A request with all that goes over the line."""
    if kind == "ws":
        return framed(packed(observation, fields))
    body = json.dumps({"observation": observation.tolist(), **fields}).encode()
    head = (
        "POST /v1/act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def packed(observation: np.ndarray, fields: dict[str, Any]) -> bytes:
    """A request in the wire's msgpack."""
    array = {
        b"__ndarray__": True,
        b"data": observation.tobytes(),
        b"dtype": observation.dtype.str,
        b"shape": observation.shape,
    }
    whole = msgpack.packb({"observation": array, **fields})
    assert whole is not None
    return whole


def read(kind: str, answer: bytes) -> dict[str, Any]:
    """The plain values of an answer."""
    return msgpack.unpackb(answer) if kind == "ws" else json.loads(answer)


def framed(body: bytes, kind: int = BINARY) -> bytes:
    """A client's frame, masked as the rules want it."""
    size, head = len(body), bytes([0x80 | kind])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65_536:
        head += b"\xfe" + struct.pack(">H", size)
    else:
        head += b"\xff" + struct.pack(">Q", size)
    mask = os.urandom(4)
    repeated = (mask * (size // 4 + 1))[:size]
    mixed = int.from_bytes(body, "big") ^ int.from_bytes(repeated, "big")
    return head + mask + mixed.to_bytes(size, "big")


def _frame(seen: bytes) -> tuple[int, bytes, bytes] | None:
    """The kind and body of the first frame, and what follows; None where it is not all there."""
    if len(seen) < 2:
        return None
    size, start = seen[1] & 0x7F, 2
    if size == 126:
        size, start = int.from_bytes(seen[2:4], "big"), 4
    elif size == 127:
        size, start = int.from_bytes(seen[2:10], "big"), 10
    if len(seen) < start + size:
        return None
    return seen[0] & 0x0F, seen[start : start + size], seen[start + size :]
