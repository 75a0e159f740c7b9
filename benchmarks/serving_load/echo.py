"""A server that decides nothing: `python -m serving_load.echo CORES HELLO ANSWER`, both as hex.

It says hello and answers every message with the same bytes, as soon as they are read. What a client
waits for it is the price of the wire, of both processes' event loops and of the client's own work.
It prints where it listens, and ends with its input.
"""

import asyncio
import json
import sys
from typing import TextIO, cast

import uvloop
from peers.worker import alone_on
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.server import ServerProtocol


class Echo(asyncio.Protocol):
    """One connection."""

    def __init__(self, hello: bytes, answer: bytes) -> None:
        self.wire = ServerProtocol()
        self.hello = hello
        self.answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer what has come."""
        self.wire.receive_data(data)
        for event in self.wire.events_received():
            if isinstance(event, Request):
                self.wire.send_response(self.wire.accept(event))
                self.wire.send_binary(self.hello)
            elif isinstance(event, Frame):
                self.wire.send_binary(self.answer)
        self.transport.write(b"".join(self.wire.data_to_send()))


async def main(answers: TextIO, hello: bytes, answer: bytes) -> None:
    """Serve until there is no more input."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Echo(hello, answer), "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), file=answers)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(main(alone_on(int(sys.argv[1])), *map(bytes.fromhex, sys.argv[2:])))
