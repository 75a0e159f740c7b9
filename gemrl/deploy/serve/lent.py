"""A connection whose messages the deciding thread reads and answers by itself.

A request that passes from the event loop to the deciding thread and back wakes a thread twice, and
each goes on with caches that the other has filled: most of what a lone client waits for beside the
decision. So where one client is connected and nobody else asks, its connection is lent to the
deciding thread. The event loop is free all the while. Whatever is not a plain message goes back to
it, with the connection, and so does the connection once anybody else is there.
"""

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN

from gemrl.deploy.serve import wire
from gemrl.deploy.serve.answers import LARGE
from gemrl.deploy.serve.decider import Outcome
from gemrl.deploy.serve.waiting import Waiting

if TYPE_CHECKING:
    from gemrl.deploy.serve.socket import Socket


# A client in a closed loop asks again at once. To look out for it so long is cheaper than to fall
# asleep, to be woken, and to go on with cold caches. For one that asks 50 times a second it takes
# 2 % of a core.
SPIN_SECONDS = 4e-4


class Lent:
    """The deciding thread's side of such a connection; all but `wanted` is that thread's alone."""

    def __init__(self, owner: "Socket", file: int) -> None:
        """`file` is the connection's own, which `owner` goes on to hold and leaves alone."""
        self.owner = owner
        # Another file of the same: one that is closed under a thread's hands may be anybody's next.
        self.socket = socket.socket(fileno=os.dup(file))
        self.wanted = False
        """Whether the event loop has asked for it."""
        self.here = True
        """Whether the deciding thread has it still."""
        self._ready: select.poll | None = None
        self._waiting: Waiting | None = None

    def wait(self, bell: int) -> tuple[bool, bool]:
        """Until the bell has rung or bytes have come: which of the two."""
        if self._ready is None:
            self._ready = select.poll()
            self._ready.register(bell, select.POLLIN)
            self._ready.register(self.socket, select.POLLIN)
        until = time.perf_counter() + SPIN_SECONDS
        found = self._ready.poll(0)
        while not found and time.perf_counter() < until:
            found = self._ready.poll(0)
        ready = [file for file, _ in found or self._ready.poll()]
        return bell in ready, self.socket.fileno() in ready

    def receive(self) -> None:
        """Ask what has come."""
        arrived = time.perf_counter()
        if (found := self._read()) is None:
            return
        events, gone = found
        message = _message(events) if self.owner.wire.state is OPEN else None
        if message is None:
            return self.give_back(events, gone=gone)
        try:
            self._waiting = self.owner.ask_directly(wire.unpack(message), arrived, self)
        except Exception as error:
            self.decided(error)

    def _read(self) -> tuple[list[Any], bool] | None:
        """What has come, and whether the client has gone; None where nothing has."""
        try:
            data = self.socket.recv(LARGE)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if data:
            self.owner.wire.receive_data(data)
        return (list(self.owner.wire.events_received()) if data else []), not data

    def may_answer(self, outcome: Outcome | Exception) -> bool:
        """Whether the thread answers its message with this. Else the connection is the event loop's
        again, where a client that has said more meanwhile, or has gone, is heard first.
        """
        plain = isinstance(outcome, Outcome) and outcome.refusal is None and not outcome.is_large
        if self.here and not plain:
            self.give_back()
        elif self.here and (found := self._read()) is not None:
            self.give_back(found[0], gone=found[1])
        return self.here

    def decided(self, outcome: Outcome | Exception) -> None:
        """Answer; in the event loop, where the connection is there."""
        if not self.here:
            return self.owner.decided(outcome)
        self._waiting = None
        if isinstance(outcome, Outcome):
            try:
                self.owner.wire.send_binary(self.owner.packed(outcome))
            except Exception as error:
                outcome = error
            else:
                return self._send(b"".join(self.owner.wire.data_to_send()))
        self.give_back(asked=True)
        self._in_loop(self.owner.decided, outcome)

    def _send(self, answer: bytes) -> None:
        # Counted first: the client may ask for the counts as soon as it has the answer.
        self.owner.answered_directly()
        try:
            sent = self.socket.send(answer)
        except BlockingIOError:  # The client does not read.
            sent = 0
        except OSError:  # It has gone, and the next look at it will tell.
            sent = len(answer)
        if sent < len(answer):
            self.give_back(unsent=answer[sent:])

    def give_back(
        self,
        events: Sequence[Any] = (),
        unsent: bytes = b"",
        asked: bool = False,
        gone: bool = False,
    ) -> None:
        """Leave the connection to the event loop, with what came, what was not sent, whether a
        message is asked whose end the loop will hear of, and whether the client has gone.
        """
        if self.here:
            self.here = False
            self.socket.close()
            asked = asked or self._waiting is not None
            self._in_loop(self.owner.returned, events, unsent, asked, self._waiting, gone)

    def _in_loop(self, call: Callable[..., None], *words: Any) -> None:
        if not self.owner.loop.is_closed():
            self.owner.loop.call_soon_threadsafe(call, *words)


def _message(events: Sequence[Any]) -> bytes | None:
    """The one whole message that has come; None where there is anything else, or nothing.

    One that takes long to read counts as something else.
    """
    if len(events) != 1 or not isinstance(events[0], Frame):
        return None
    frame = events[0]
    plain = frame.fin and frame.opcode is Opcode.BINARY and len(frame.data) <= LARGE
    return bytes(frame.data) if plain else None
