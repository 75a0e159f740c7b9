"""A server in this thread until a signal comes, or in a thread of its own."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from gemrl.decide.policy import Policy
from gemrl.deploy.serve.app import application
from gemrl.deploy.serve.config import ServeConfig
from gemrl.deploy.serve.connections import protocol_for
from gemrl.deploy.serve.service import Service
from gemrl.deploy.serve.socket import socket_for
from gemrl.errors import ConfigError

# How long a thread may hold the interpreter while another waits for it: the deciding thread and the
# event loop hand over to one another several times in a request.
SWITCH_SECONDS = 2e-4
# Connections that have sent no request yet are not counted as such, but they take room too.
SPARE_CONNECTIONS = 16


class Server:
    """Serves a policy. As a context manager it runs in a thread, from when it is ready."""

    def __init__(self, policy: Policy, config: ServeConfig | None = None, **parts: Any) -> None:
        """For the `parts` see `Service`. The port is bound now, so that a taken one fails here."""
        self.config = ServeConfig() if config is None else config
        self.config.require_token()
        self.socket = _bound(self.config.host, self.config.port)
        try:
            self.service = Service(policy, self.config, **parts)
        except BaseException:
            self.socket.close()
            raise
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return self.socket.getsockname()[1]

    @property
    def url(self) -> str:
        """The address for browsers and HTTP."""
        host = self.config.host
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host and '[' not in host else host}:{self.port}"

    def run(self, on_start: Callable[[], None], on_ready: Callable[[], None]) -> None:
        """Serve until SIGTERM or SIGINT, then finish what was taken."""
        self._run(on_ready, on_start)
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> "Server":
        def work() -> None:
            try:
                self._run(self._started.set, None)
            except BaseException as error:
                self._failure = error
            finally:
                self._started.set()

        self._thread = threading.Thread(target=work, name="serving", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def stop(self) -> None:
        """Drain and end the thread."""
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin_to_stop)
        if self._thread is not None:
            self._thread.join()

    def _run(self, on_ready: Callable[[], None], on_start: Callable[[], None] | None) -> None:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve(on_ready, on_start))

    async def _serve(
        self, on_ready: Callable[[], None], on_start: Callable[[], None] | None
    ) -> None:
        """`on_start` is called once signals are listened to; without it they are not."""
        sys.setswitchinterval(SWITCH_SECONDS)
        self._loop = asyncio.get_running_loop()
        config = self.config
        door = application(self.service)
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                door,
                log_level="warning",
                access_log=False,
                lifespan="off",
                server_header=False,
                http=protocol_for(2 * config.connections + SPARE_CONNECTIONS),
                ws=socket_for(self.service, door),
                timeout_keep_alive=30,
                timeout_graceful_shutdown=2,
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        if on_start is not None:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._begin_to_stop)
            on_start()
        self.service.engine.start()
        # A daemon, so that a server which is told to stop need not wait for the compiler.
        threading.Thread(
            target=self._get_ready, args=(on_ready,), name="compiling", daemon=True
        ).start()
        try:
            await self._uvicorn.serve(sockets=[self.socket])
        finally:
            await asyncio.to_thread(self.service.close)
            self.socket.close()

    def _get_ready(self, on_ready: Callable[[], None]) -> None:
        """Compile while the port answers already: alive, and not ready."""
        try:
            self.service.warm_up()
        except Exception as error:
            self._failure = error
            self._uvicorn.should_exit = True
            return
        # What was compiled stays for good: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        self.service.ready = True
        on_ready()

    def _begin_to_stop(self) -> None:
        if not self.service.draining:
            self.service.draining = True
            self._stopping = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        """Take nothing new, wait for what was taken, then end."""
        assert self._loop is not None
        end = self._loop.time() + self.config.drain_seconds
        service = self.service
        service.engine.take_back()
        while (service.in_progress or service.lent) and self._loop.time() < end:
            await asyncio.sleep(0.01)
        # Answers that were just made are still on their way out.
        await asyncio.sleep(0.05)
        self._uvicorn.should_exit = True


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of Uvicorn's belongs on the screen: anybody can cause this one, as often as
    they like, and the counts of /metrics have them.
    """
    return record.getMessage() != "Invalid HTTP request received."


class _Uvicorn(uvicorn.Server):
    """Uvicorn that leaves signals to us: it would cut off requests that wait for a decision."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop, on the systems that have it."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {error.strerror}") from error
    listening.setblocking(False)
    return listening
