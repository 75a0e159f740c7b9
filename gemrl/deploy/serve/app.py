"""The routes of HTTP: JSON under /v1, health, metrics and the page."""

import asyncio
import html
import time
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gemrl.deploy.serve.answers import LARGE, TooLargeError, TooSlowError, status_of, typed_error
from gemrl.deploy.serve.door import COOKIE, CSP, Door
from gemrl.deploy.serve.openapi import description
from gemrl.deploy.serve.requests import from_json, from_large_json
from gemrl.deploy.serve.service import Service, as_json
from gemrl.errors import GemrlError, OverloadError, RequestError

PAGE = files("gemrl.deploy").joinpath("page")
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
LONGEST_FORM = 4_096
# How many times the largest body is read from a client that sends more.
READ_AWAY = 8
# How long a client may take to send a body.
BODY_SECONDS = 10.0


def application(service: Service) -> Door:
    """The ASGI application of a service."""
    routes = Routes(service)
    app = Starlette(
        routes=[
            Route("/", routes.page, methods=["GET"]),
            Route("/static/{name}", routes.static, methods=["GET"]),
            Route("/login", routes.login, methods=["POST"]),
            Route("/v1/act", routes.act, methods=["POST"]),
            Route("/v1/metadata", routes.metadata, methods=["GET"]),
            Route("/v1/state", routes.state, methods=["GET"]),
            Route("/v1/recent", routes.recent, methods=["GET"]),
            Route("/healthz", routes.healthz, methods=["GET"]),
            Route("/readyz", routes.readyz, methods=["GET"]),
            Route("/metrics", routes.metrics, methods=["GET"]),
            Route("/openapi.json", routes.openapi, methods=["GET"]),
        ],
        exception_handlers={HTTPException: routes.http_error, Exception: routes.own_error},
    )
    # A path with one slash too many is unknown, not somewhere else.
    app.router.redirect_slashes = False
    routes.door = Door(app, service, routes.sign_in)
    return routes.door


class Routes:
    """What each route answers."""

    door: Door

    def __init__(self, service: Service) -> None:
        self.service = service
        self._page = {
            path.name: path.read_bytes()
            for path in PAGE.iterdir()
            if any(path.name.endswith(ending) for ending in KINDS)
        }
        self._metadata = service.metadata()
        self._openapi = as_json(description(self._metadata))

    async def act(self, request: Request) -> Response:
        """POST /v1/act."""
        arrived = time.perf_counter()
        try:
            body = await self._body(request, self.service.config.max_request_bytes)
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return self._error(415, "RequestError", "the body must be application/json")
            large = len(body) > LARGE
            values = await asyncio.to_thread(from_large_json, body) if large else from_json(body)
            outcome, answer = await self.service.act(values, "http", arrived)
        except GemrlError as error:
            return self._gemrl_error(error)
        if outcome.is_large:
            return self._bytes(await asyncio.to_thread(as_json, answer))
        return self._json(answer)

    async def metadata(self, request: Request) -> Response:
        """GET /v1/metadata."""
        return self._json(self._metadata)

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        return self._bytes(self._openapi)

    async def state(self, request: Request) -> Response:
        """GET /v1/state."""
        try:
            return self._json(self.service.state(_query(request, "row")))
        except LookupError as error:
            return self._error(404, "StateError", str(error))
        except GemrlError as error:
            return self._gemrl_error(error)

    async def recent(self, request: Request) -> Response:
        """GET /v1/recent."""
        try:
            after = _query(request, "after") or 0
        except GemrlError as error:
            return self._gemrl_error(error)
        self.service.engine.catch_up()
        return self._json(await asyncio.to_thread(self.service.recent, after))

    async def healthz(self, request: Request) -> Response:
        """GET /healthz: the process lives."""
        return self._bytes(b"OK\n", "text/plain")

    async def readyz(self, request: Request) -> Response:
        """GET /readyz: it decides without compiling."""
        if self.service.ready and not self.service.draining:
            return self._bytes(b"ready\n", "text/plain")
        word = "stopping" if self.service.draining else "starting"
        return self._gemrl_error(OverloadError(f"the server is {word}"))

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        self.service.engine.catch_up()
        return self._bytes(self.service.metrics.text(), "text/plain; version=0.0.4; charset=utf-8")

    async def page(self, request: Request) -> Response:
        """GET /: the page."""
        return self._bytes(self._page["index.html"], KINDS[".html"])

    async def static(self, request: Request) -> Response:
        """GET /static/NAME: a file of the page."""
        name = request.path_params["name"]
        ending = "." + name.rpartition(".")[2]
        if name not in self._page or ending == ".html":
            return self._error(404, "PathError", "there is nothing at this path")
        return self._bytes(self._page[name], KINDS[ending])

    async def login(self, request: Request) -> Response:
        """POST /login: the page's token becomes a cookie."""
        try:
            form = parse_qs((await self._body(request, LONGEST_FORM)).decode("utf-8", "replace"))
        except (GemrlError, ValueError):
            form = {}
        if self.service.config.token is not None:
            token = form.get("token", [""])[0]
            if not self.door.knows(token):
                page = self.sign_in("That is not this server's token.")
                return self._bytes(page, KINDS[".html"], status=401)
        else:
            token = None
        answer = RedirectResponse("/", status_code=303)
        if token is not None:
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/")
        self.service.metrics.answered("http", 303)
        return answer

    def sign_in(self, message: str) -> bytes:
        """The page that asks for the token."""
        return self._page["login.html"].replace(b"<!--message-->", html.escape(message).encode())

    async def http_error(self, request: Request, error: Exception) -> Response:
        """A path or method that is not there."""
        assert isinstance(error, HTTPException)
        kind = {404: "PathError", 405: "MethodError"}.get(error.status_code, "RequestError")
        said = {404: "there is nothing at this path", 405: "this path has another method"}
        message = said.get(error.status_code, str(error.detail))
        return self._error(error.status_code, kind, message, dict(error.headers or {}))

    async def own_error(self, request: Request, error: Exception) -> Response:
        """A defect of ours: the client learns nothing of our inside."""
        return self._error(500, "InternalError", "see the server's log")

    async def _body(self, request: Request, most: int) -> bytes:
        """The body, no more of it than is allowed.

        Some more is read and thrown away: a client that is still sending would not see the answer.
        """
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    if size <= most:
                        parts.append(part)
                    elif size > READ_AWAY * most:
                        break
        except ClientDisconnect as error:
            raise RequestError("the body ends before its length") from error
        except TimeoutError as error:
            raise TooSlowError("the body came too slowly") from error
        if size > most:
            raise TooLargeError(f"the body has more than {most} bytes")
        return b"".join(parts)

    def _gemrl_error(self, error: GemrlError) -> Response:
        headers = {}
        if isinstance(error, OverloadError):
            headers["retry-after"] = str(error.retry_after)
        body = as_json(typed_error(error))
        return self._bytes(body, status=status_of(error), headers=headers)

    def _error(
        self, status: int, kind: str, message: str, headers: dict[str, str] | None = None
    ) -> Response:
        body = as_json({"error": {"type": kind, "message": message}})
        return self._bytes(body, status=status, headers=headers)

    def _json(self, values: Any) -> Response:
        return self._bytes(as_json(values))

    def _bytes(
        self,
        body: bytes,
        kind: str = "application/json",
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> Response:
        self.service.metrics.answered("http", status)
        headers = {
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            "referrer-policy": "same-origin",
            **({"content-security-policy": CSP} if kind == KINDS[".html"] else {}),
            **(headers or {}),
        }
        return Response(body, status, headers, media_type=kind)


def _query(request: Request, name: str) -> int | None:
    """A whole number of the query, where it has one."""
    given = request.query_params.get(name)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= 15):
        raise RequestError(f"{name} = {given[:64]!r}: must be a whole number of at least 0")
    return int(given)
