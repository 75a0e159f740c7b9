"""Uvicorn's HTTP with bounds that it lacks: connections, and the time that a request may take."""

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gemrl.deploy.serve.service import as_json

# How long a client may take to send the head of a request.
HEAD_SECONDS = 10.0


def protocol_for(connections: int) -> type[HttpToolsProtocol]:
    """HTTP that holds so many connections open, and closes those that say nothing."""

    class Http(_BoundedHttp):
        most = connections

    return Http


class _BoundedHttp(HttpToolsProtocol):
    most: int
    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._end(503, "OverloadError", "too many connections are open: try again later")
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP with a typed error, as everything else."""
        self._end(400, "RequestError", "this is not HTTP")

    def _await_head(self) -> None:
        self._head_came()
        said = "the request came too slowly"
        self._head = self.loop.call_later(HEAD_SECONDS, self._end, 408, "RequestError", said)

    def _head_came(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _end(self, status: int, kind: str, message: str) -> None:
        """Answer with a typed error and close."""
        if self.transport.is_closing():
            return
        self.transport.write(raw_error(status, kind, message))
        self.transport.close()


def raw_error(status: int, kind: str, message: str) -> bytes:
    """A typed error as a whole HTTP answer, after which the connection is closed."""
    body = as_json({"error": {"type": kind, "message": message}})
    head = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *(["retry-after: 1"] if status == 503 else []),
        *(["www-authenticate: Bearer"] if status == 401 else []),
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
