"""The OpenPI wire of one client: metadata on connecting, then an answer to each message.

A message is asked as soon as it is read, and its answer is written as soon as it is decided, in the
same calls of the event loop: no task stands between, which would have to wait for its turn twice.
The package `websockets` speaks the protocol; this class moves bytes. The connection of a client
that is alone is lent to the deciding thread between messages: see `lent`.
"""

import asyncio
import json
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from gemrl.deploy.serve import wire
from gemrl.deploy.serve.answers import LARGE, status_of, typed_error
from gemrl.deploy.serve.connections import raw_error
from gemrl.deploy.serve.decider import Outcome
from gemrl.deploy.serve.door import Door
from gemrl.deploy.serve.lent import Lent
from gemrl.deploy.serve.requests import with_array
from gemrl.deploy.serve.service import Service
from gemrl.deploy.serve.waiting import Waiting
from gemrl.errors import GemrlError, RequestError

# A client is asked now and then whether it is there, and must have said something by the next time.
PING_SECONDS = 20.0
# A connection that is lent, and silent, is back by then.
RETURN_SECONDS = 0.1
INVALID_DATA, GOING_AWAY, NOT_THERE = 1007, 1012, 1011

# Anybody can cause its lines, as often as they like; the counts of /metrics have what happened.
_silent = logging.getLogger("gemrl.serve.websocket")
_silent.setLevel(logging.CRITICAL + 1)


def socket_for(service: Service, door: Door) -> type[asyncio.Protocol]:
    """The class of a server's WebSocket connections, as Uvicorn wants it."""
    hello = wire.pack(service.metadata())

    class Connection(Socket):
        def __init__(self, config: Any, server_state: Any, app_state: Any) -> None:
            super().__init__(service, door, hello, server_state.connections)

    return Connection


class Socket(asyncio.Protocol):
    """One connection. Its messages are answered one after another, in the order they came."""

    transport: asyncio.Transport

    def __init__(self, service: Service, door: Door, hello: bytes, every: set[Any]) -> None:
        """`every` is the set of open connections, which this one joins and leaves."""
        self.service = service
        self.door = door
        self.hello = hello
        self.every = every
        self.loop = asyncio.get_running_loop()
        self.wire = ServerProtocol(max_size=service.config.max_request_bytes, logger=_silent)
        self._parts: list[bytes] = []
        self._is_text = False
        self._messages: deque[bytes | None] = deque()
        """Those not yet asked; None stands for one that was text."""
        self._asking = False
        self._waiting: Waiting | None = None
        self._writable = True
        self._reading = True
        self._accepted = False
        self._heard = True
        self._ping: asyncio.TimerHandle | None = None
        self._lent = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass.
        self.every.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone, perhaps while it waits for an answer."""
        self.every.discard(self)
        self._messages.clear()
        if self._ping is not None:
            self._ping.cancel()
        if self._accepted:
            self.service.connections -= 1
        self._take_back()
        self._leave()

    def _leave(self) -> None:
        """What was asked need not be answered."""
        if self._waiting is not None:
            self.service.leave(self._waiting)
        if self._asking:
            self._answered()

    def shutdown(self) -> None:
        """The server ends."""
        if not self._lent:  # Else the time to drain is over, and closing it is all that is left.
            if self.wire.state is OPEN:
                self.wire.send_close(GOING_AWAY)
            self._flush()
        self.transport.close()

    def pause_writing(self) -> None:
        """The client does not read what it is sent: nothing more is asked for it."""
        self._writable = False

    def resume_writing(self) -> None:
        """It reads again."""
        self._writable = True
        self._next()

    def data_received(self, data: bytes) -> None:
        """Some bytes: perhaps a message, perhaps several, perhaps a part of one."""
        self._heard = True
        self.wire.receive_data(data)
        if self.wire.handshake_exc is not None:
            return self._refuse(400, "RequestError", f"no WebSocket: {self.wire.handshake_exc}")
        self._heed(self.wire.events_received())

    def _heed(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Request):
                self._handshake(event)
            elif isinstance(event, Frame):
                self._frame(event)
        self._flush()
        self._next()

    def _lend(self) -> None:
        """Let the deciding thread read this client's next messages, where there is nobody else."""
        service = self.service
        alone = service.connections == 1 and not service.in_progress and not service.draining
        quiet = not (self._asking or self._messages or self._parts or self._lent)
        written = self._writable and not self.transport.get_write_buffer_size()
        if not (alone and quiet and written and service.engine.is_idle):
            return
        if self.wire.state is OPEN and not self.transport.is_closing():
            try:
                lent = Lent(self, self.transport.get_extra_info("socket").fileno())
            except OSError:  # Too many files are open: it goes on as it is.
                return
            self._read_on(False)
            self._lent = True
            service.lent += 1
            service.engine.lend(lent)

    def _take_back(self) -> None:
        """Ask for the connection, where it is lent; `returned` is called when it is here."""
        if self._lent:
            self.service.engine.take_back()

    def ask_directly(self, values: Any, arrived: float, lent: Lent) -> Waiting:
        """In the deciding thread: put a message into the queue."""
        self._heard = True
        return self.service.begin(values, "websocket", arrived, lent.decided, lent)

    def answered_directly(self) -> None:
        """In the deciding thread: count an answer."""
        self.service.metrics.answered("websocket", 200)

    def returned(
        self,
        events: Sequence[Any],
        unsent: bytes,
        asked: bool,
        waiting: Waiting | None,
        gone: bool,
    ) -> None:
        """The connection is here again: see `Lent.give_back`."""
        self._lent = False
        self.service.lent -= 1
        self._heard = True  # Nobody has asked it for a sign.
        if asked:
            self._asking, self._waiting = True, waiting
            self.service.in_progress += 1
        if gone:
            self.transport.close()
        if not self.transport.is_closing():
            if unsent:
                self.transport.write(unsent)
            self._heed(events)
        if self.transport.is_closing():
            self._leave()

    def _handshake(self, request: Request) -> None:
        path = request.path.partition("?")[0]
        headers = {name.lower().encode(): value for name, value in request.headers.raw_items()}
        refusal = self.door.refusal("websocket", "GET", path, headers)
        if refusal is None and path != "/":
            refusal = 404, "PathError", "the WebSocket is at /"
        response = self.wire.accept(request)
        if refusal is None and response.status_code != 101:
            refusal = 400, "RequestError", f"no WebSocket: {self.wire.handshake_exc}"
        if refusal is not None:
            return self._refuse(*refusal)
        self._accepted = True
        self.service.connections += 1
        self.service.engine.take_back()  # Whose it is, that client is not alone any more.
        self.wire.send_response(response)
        self.wire.send_binary(self.hello)
        self._ping = self.loop.call_later(PING_SECONDS, self._ask_if_there)

    def _refuse(self, status: int, kind: str, message: str) -> None:
        self.service.metrics.answered("websocket", status)
        self.transport.write(raw_error(status, kind, message))
        self.transport.close()

    def _frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._is_text = frame.opcode is Opcode.TEXT
            self._parts = []
        elif frame.opcode is not Opcode.CONT:
            return  # The protocol has answered it already.
        if frame.data:
            self._parts.append(bytes(frame.data))
        if not frame.fin:
            return
        message = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        if self._is_text:
            try:
                message.decode()
            except UnicodeDecodeError:
                self.wire.fail(INVALID_DATA, "the text is not UTF-8")
                return
        self._messages.append(None if self._is_text else message)

    def _flush(self) -> None:
        """Write what the protocol has to say; where it is done, close."""
        if self.transport.is_closing():
            return
        output = self.wire.data_to_send()
        if output:
            self.transport.write(b"".join(output))
        if self._accepted and self.wire.close_expected():
            self.transport.close()

    def _ask_if_there(self) -> None:
        """What a client says is not heard while it has a message in progress."""
        if self._lent:
            # One that asks is there. One that is silent gets its connection back, to be asked.
            seconds = PING_SECONDS if self._heard else RETURN_SECONDS
            if not self._heard:
                self._take_back()
            self._heard = not self._heard
            self._ping = self.loop.call_later(seconds, self._ask_if_there)
            return
        if not self._heard and self._reading:
            self.wire.fail(NOT_THERE, "keepalive ping timeout")
            self._flush()
            self.transport.close()
            return
        self._heard = False
        self.wire.send_ping(b"")
        self._flush()
        self._ping = self.loop.call_later(PING_SECONDS, self._ask_if_there)

    def _next(self) -> None:
        """Ask the next message, unless one is in progress; what comes meanwhile must wait."""
        if self._messages and not self._asking and self._writable and self.wire.state is OPEN:
            self._ask(self._messages.popleft())
        self._read_on(not self._messages)

    def _read_on(self, wanted: bool) -> None:
        if wanted is not self._reading and not self.transport.is_closing():
            self._reading = wanted
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _ask(self, message: bytes | None) -> None:
        arrived = time.perf_counter()
        self._asking = True
        self.service.in_progress += 1
        if message is None:
            self._fail(RequestError("the message is text: send msgpack as a binary frame"))
        elif len(message) > LARGE:
            # It takes long to read: not here.
            self._elsewhere(
                lambda: with_array(wire.unpack(message)),
                lambda values: self._begin(values, arrived),
            )
        else:
            self._trying(lambda: self._begin(wire.unpack(message), arrived))

    def _begin(self, values: Any, arrived: float) -> None:
        self._waiting = self.service.begin(values, "websocket", arrived, self.decided)

    def decided(self, outcome: Outcome | Exception) -> None:
        """In the event loop, once the deciding thread is through with it."""
        self._waiting = None
        if not isinstance(outcome, Outcome):
            self._fail(outcome)
        elif outcome.is_large:
            self._elsewhere(lambda: self.packed(outcome), self._reply)
        else:
            self._trying(lambda: self._reply(self.packed(outcome)))

    def packed(self, outcome: Outcome) -> bytes:
        answer = self.service.answer(outcome)
        actions = np.array([decision.action for decision in outcome.decisions])
        infer = {"infer_ms": answer["timings"]["decide_ms"]}
        return wire.pack(answer | {"actions": actions, "server_timing": infer})

    def _elsewhere(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Do something long in another thread, then go on here with what came of it."""

        def done(future: "asyncio.Future[Any]") -> None:
            error = future.exception()
            if error is not None:
                self._fail(error)
            elif self._asking:
                self._trying(lambda: then(future.result()))

        self.loop.run_in_executor(None, work).add_done_callback(done)

    def _trying(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            self._fail(error)

    def _reply(self, packed: bytes) -> None:
        self._send(self.wire.send_binary, packed, 200)

    def _fail(self, error: BaseException) -> None:
        """A mistake becomes text, which the OpenPI client raises."""
        if not isinstance(error, GemrlError):
            traceback.print_exception(error)
        said = json.dumps(typed_error(error)).encode()
        self._send(self.wire.send_text, said, status_of(error))

    def _send(self, send: Callable[[bytes], None], packed: bytes, status: int) -> None:
        """The end of a message, whatever became of it."""
        if not self._asking:
            return  # The client has gone.
        self._answered()
        self.service.metrics.answered("websocket", status)
        if self.wire.state is OPEN:
            send(packed)
            self._flush()
        # Not at once: one client's messages must not keep the others waiting.
        self.loop.call_soon(self._next if self._messages else self._lend)

    def _answered(self) -> None:
        self._asking = False
        self._waiting = None
        self.service.in_progress -= 1
