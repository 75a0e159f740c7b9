"""Who may come in: the token, the host and origin that were named, and how many at once."""

import hmac
import http.cookies
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gemrl.deploy.serve.config import is_loopback
from gemrl.deploy.serve.service import Service, as_json

COOKIE = "gemrl_token"

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]


class Door:
    """Says who may come in by HTTP or WebSocket; lets HTTP through to an ASGI application."""

    def __init__(self, app: App, service: Service, sign_in: Callable[[str], bytes]) -> None:
        """`sign_in` gives the page that asks for the token, with a message."""
        self.app = app
        self.service = service
        self.sign_in = sign_in

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self.refusal("http", scope["method"], scope["path"], headers)
        if refusal is not None:
            status, kind, message = refusal
            self.service.metrics.answered("http", status)
            wants_page = "text/html" in headers.get(b"accept", "")
            if status == 401 and scope["path"] == "/" and wants_page:
                return await _respond(send, 401, self.sign_in(""), b"text/html")
            body = as_json({"error": {"type": kind, "message": message}})
            return await _respond(send, status, body, b"application/json")
        self.service.connections += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.service.connections -= 1

    def refusal(
        self, way: str, method: str, path: str, headers: dict[bytes, str]
    ) -> tuple[int, str, str] | None:
        """Status, kind and message for whoever may not come in. The way is http or websocket."""
        config, host = self.service.config, headers.get(b"host", "")
        # A page of another site must not reach a server on this machine by a name of its own.
        if config.token is None and not _names_this(host, config.host):
            return 403, "HostError", "the request names another host"
        origin = headers.get(b"origin")
        changes = way == "websocket" or method not in ("GET", "HEAD")
        if changes and origin is not None and origin.split("://", 1)[-1] != host:
            return 403, "OriginError", "the request comes from a page of another site"
        sign_in = path == "/login" and method == "POST"
        if config.token is not None and not sign_in and not self.knows(_shown(headers)):
            return 401, "TokenError", "this server wants its token: Authorization: Bearer TOKEN"
        if self.service.connections >= config.connections:
            return 503, "OverloadError", "too many connections are open: try again later"
        return None

    def knows(self, token: str) -> bool:
        """Is it the token? In a time that does not depend on how much of it is right."""
        right = (self.service.config.token or "").encode()
        return hmac.compare_digest(token.encode("utf-8", "surrogateescape"), right)


def _shown(headers: dict[bytes, str]) -> str:
    """The token that a request shows, in a header or in the page's cookie."""
    kind, _, token = headers.get(b"authorization", "").partition(" ")
    if kind.lower() in ("bearer", "api-key"):
        return token.strip()
    try:
        cookies = http.cookies.SimpleCookie(headers.get(b"cookie", ""))
    except http.cookies.CookieError:
        return ""
    return cookies[COOKIE].value if COOKIE in cookies else ""


def _names_this(host: str, listening: str) -> bool:
    """Whether a Host header names this machine, or the address that the server listens at."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]")
    return is_loopback(name) or name == listening


async def _respond(send: Send, status: int, body: bytes, kind: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    headers += [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
    if kind == b"text/html":
        headers.append((b"content-security-policy", CSP.encode()))
        # The form that it holds must say where it comes from.
        headers.append((b"referrer-policy", b"same-origin"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
