"""A client's side: JSON over HTTP and msgpack over a WebSocket."""

import contextlib
import json
import urllib.error
import urllib.request

from websockets.sync.client import connect

from gemrl.deploy.serve import ServeConfig, wire


def patient(**settings):
    """A server's settings for a machine that does other work too: nothing waits too long."""
    return ServeConfig(**{"port": 0, "wait_ms": 60_000.0} | settings)


def ask(server, path="/v1/act", headers=None, method=None, body=None, **request):
    """Status, headers and plain values (or text) of an answer."""
    sent = {"content-type": "application/json", **(headers or {})}
    data = body if body is not None else json.dumps(request).encode() if request else None
    made = urllib.request.Request(f"{server.url}{path}", data, sent, method=method)
    try:
        with urllib.request.urlopen(made, timeout=60) as answer:
            return answer.status, dict(answer.headers), _values(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), _values(error)


def _values(answer):
    text = answer.read()
    is_json = answer.headers["content-type"] == "application/json"
    return json.loads(text) if is_json else text.decode()


@contextlib.contextmanager
def talking(server, **options):
    """A function that sends a message and gives the answer; metadata is read already."""
    url = server.url.replace("http", "ws", 1)
    with connect(url, compression=None, **options) as socket:
        metadata = wire.text(wire.unpack(socket.recv()))

        def say(**request):
            socket.send(wire.pack(request))
            reply = socket.recv()
            return json.loads(reply) if isinstance(reply, str) else wire.text(wire.unpack(reply))

        say.metadata = metadata
        say.socket = socket
        yield say
