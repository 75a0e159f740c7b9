"""Small clients of the server, written from the wire's description, without the server's code."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgpack
import numpy as np
from websockets.sync.client import connect

PATIENCE = 30.0


class Reply(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes


def packed(value: Any) -> bytes:
    """A message as the OpenPI client packs it: an array is a map with keys of bytes."""
    return msgpack.packb(value, default=_array_as_map)  # type: ignore[return-value]


def unpacked(message: bytes) -> Any:
    """A message as the OpenPI client reads it."""
    return msgpack.unpackb(message, object_hook=_map_as_array)


class WireClient:
    """The OpenPI wire. A context manager; `metadata` is what the server said first."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self._connection = connect(
            url.replace("http://", "ws://"),
            compression=None,
            max_size=None,
            additional_headers=headers,
            open_timeout=PATIENCE,
        )
        self._socket = self._connection.__enter__()
        self.metadata = unpacked(self._received())

    def __enter__(self) -> "WireClient":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye."""
        self._connection.__exit__(None, None, None)

    def send(self, message: bytes | str) -> bytes | str:
        """The answer to a frame: text where it is a mistake."""
        self._socket.send(message)
        return self._received()

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request that the server takes."""
        answer = self.send(packed(request))
        assert isinstance(answer, bytes), answer
        return unpacked(answer)

    def _received(self) -> Any:
        return self._socket.recv(timeout=PATIENCE)


def ask(
    url: str,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """One request over HTTP."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return Reply(answer.status, _lowered(answer), answer.read())
    finally:
        connection.close()


def act(url: str, headers: dict[str, str] | None = None, **request: Any) -> Reply:
    """POST /v1/act."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    return ask(url, "POST", "/v1/act", json.dumps(request).encode(), sent)


def raw(url: str, request: bytes, method: str = "GET", whole: bool = True) -> Reply | None:
    """The answer to these very bytes; None where the server closes without one.

    Where they are not the whole of a request, the server is told that no more come.
    """
    place = urlsplit(url)
    assert place.hostname is not None
    with socket.create_connection((place.hostname, place.port or 80), timeout=PATIENCE) as line:
        try:
            line.sendall(request)
            if not whole:
                line.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # It answered and closed before it had read all of it.
        answer = http.client.HTTPResponse(line, method=method)
        try:
            answer.begin()
            return Reply(answer.status, _lowered(answer), answer.read())
        except (http.client.BadStatusLine, ConnectionResetError):
            return None


def resident_mb(process: int) -> float:
    """Memory of a process that is really there."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def _lowered(answer: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.getheaders()}


def _array_as_map(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {
            b"__ndarray__": True,
            b"data": value.tobytes(),
            b"dtype": value.dtype.str,
            b"shape": value.shape,
        }
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"{type(value).__name__} has no form on this wire")


def _map_as_array(found: dict[Any, Any]) -> Any:
    if b"__ndarray__" in found:
        return np.ndarray(found[b"shape"], np.dtype(found[b"dtype"]), found[b"data"])
    return found
