"""Requests for files: what a server answers, redirects judged, and its failures in words."""

import base64
import errno
import http.client
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

BLOCK = 1 << 18
HOPS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ECONNREFUSED)


class Failure(Exception):
    """Why an attempt at one place failed. `again` if another may do; `offline` if none got out."""

    def __init__(self, reason: str, *, again: bool = False, offline: bool = False) -> None:
        super().__init__(reason)
        self.again = again
        self.offline = offline


@dataclass(frozen=True)
class Part:
    """What a server said of the file whose first bytes are at hand."""

    url: str
    validator: str | None
    total: int | None
    digests: dict[str, str] = field(default_factory=dict)


class _NoRedirects(HTTPRedirectHandler):
    """Redirects end as errors: they are judged here, not followed blindly."""

    def http_error_302(self, *args: object, **kwargs: object) -> None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


@dataclass
class Answer:
    """A server's answer, its body unread."""

    body: http.client.HTTPResponse | HTTPError
    status: int
    headers: Message
    linked: dict[str, str]
    """What a redirect on the way said of the file."""

    @property
    def linked_size(self) -> int | None:
        """The size that a redirect told."""
        return _number(self.linked.get("size", ""))

    @property
    def validator(self) -> str | None:
        """What tells one version of the file from another; a weak ETag does not."""
        etag = self.headers.get("ETag", "")
        return etag if etag.startswith('"') else self.headers.get("Last-Modified")

    @property
    def total(self) -> int | None:
        """The whole file's size."""
        length = self.headers.get("Content-Length")
        return self.linked_size if length is None else _number(length)

    @property
    def digests(self) -> dict[str, str]:
        """Checksums of the whole file that the server names, in hexadecimal."""
        told = []
        if value := self.headers.get("Content-MD5"):
            told.append(("md5", value))
        for name in ("Repr-Digest", "Digest", "x-goog-hash"):
            for item in ",".join(self.headers.get_all(name, [])).split(","):
                algorithm, _, value = item.strip().partition("=")
                told.append((algorithm.lower().replace("-", ""), value))
        found = {name: _hexadecimal(value) for name, value in reversed(told)}
        if "sha256" in self.linked:
            found["sha256"] = self.linked["sha256"]
        lengths = {"sha256": 64, "md5": 32}
        return {name: found[name] for name in lengths if len(found.get(name, "")) == lengths[name]}

    def continues(self, part: Part, have: int) -> bool:
        """Whether the body is the rest of the very file whose first bytes are at hand."""
        span = f"bytes {have}-{(part.total or 0) - 1}/{part.total}"
        same = self.validator in (None, part.validator)
        return self.status == 206 and self.headers.get("Content-Range") == span and same

    def blocks(self, timeout: float) -> Iterator[bytes]:
        """The body as it arrives."""
        while True:
            try:
                # Not read(): what it holds back for a full block would be lost in a stall.
                block = self.body.read1(BLOCK)
            except (OSError, http.client.HTTPException) as error:
                raise _failure(error, self.body.url, timeout) from error
            if not block:
                return
            yield block


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _hexadecimal(value: str) -> str:
    try:
        return base64.b64decode(value.strip().strip(":"), validate=True).hex()
    except ValueError:
        return ""


def _failure(error: Exception, url: str, timeout: float) -> Failure:
    """An error of the network in words."""
    if isinstance(error, URLError) and isinstance(error.reason, Exception):
        error = error.reason
    if isinstance(error, ValueError | http.client.InvalidURL) and not isinstance(error, OSError):
        return Failure(f"not a valid URL ({error})")
    host = urlsplit(url).hostname
    if isinstance(error, socket.gaierror):
        return Failure(f"no address is known for {host}", offline=True)
    if isinstance(error, TimeoutError):
        return Failure(f"nothing came for {timeout:g} s", again=True)
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure(f"the certificate of {host} is not trusted: {error.verify_message}")
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return Failure(f"{host}: {(error.strerror or str(error)).lower()}", offline=True)
    return Failure(f"the connection broke off ({error or type(error).__name__})", again=True)


def ask(url: str, timeout: float, asked: dict[str, str], sha256_known: bool) -> Answer:
    """Request a file, following redirects."""
    headers = {"User-Agent": "gemrl", "Accept-Encoding": "identity", **asked}
    linked: dict[str, str] = {}
    place, seen = url, {url}
    while True:
        try:
            body = build_opener(_NoRedirects).open(Request(place, headers=headers), timeout=timeout)
            return Answer(body, body.status, body.headers, linked)
        except HTTPError as error:
            if error.code == 416:
                return Answer(error, error.code, error.headers, linked)
            error.close()
            if error.code not in _REDIRECTS:
                reason = f"HTTP {error.code} {error.reason}"
                raise Failure(reason, again=error.code in _PASSING) from error
            # Hugging Face names a large file's SHA-256 and size where it redirects to its store.
            etag = error.headers.get("X-Linked-Etag", "").strip('"').lower()
            if re.fullmatch("[0-9a-f]{64}", etag):
                linked["sha256"] = etag
                linked["size"] = error.headers.get("X-Linked-Size", "")
            location = error.headers.get("Location", "")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _failure(error, place, timeout) from error
        try:
            target = urljoin(place, location)
            scheme = urlsplit(target).scheme
        except ValueError as error:
            raise Failure(f"redirects to {location!r}, which is not a valid URL") from error
        if target in seen or len(seen) > HOPS:
            raise Failure(f"redirects in a loop or more than {HOPS} times, last to {target}")
        if scheme not in ("http", "https"):
            raise Failure(f"redirects to {target}, which is not on the web")
        downgrade = urlsplit(place).scheme == "https" and scheme == "http"
        if downgrade and not (sha256_known or "sha256" in linked):
            raise Failure(
                f"redirects from https to {target}, which anyone on the way could change; "
                "give the file's SHA-256 to allow that"
            )
        seen.add(target)
        place = target
