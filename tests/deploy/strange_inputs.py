"""What clients may send by mistake or on purpose: frames of the wire, and requests over HTTP."""

import json
import math
from typing import Any, NamedTuple

import msgpack
import numpy as np
from clients import packed
from hypothesis import strategies as st

SIZE = 4
WRONG_TYPES = (
    "|O", "O", "V8", "|V16", "M8[s]", "<m8[ns]", "<U4", "|S3", "c16", "?", "f16", "f4,i4",
    "[('a','<f4')]", "object", "pickle", "", "<f4\x00", "é", "<f3", ">>f4",
)  # fmt: skip
TYPES = ("<f4", "<f8", ">f4", "<f2", "<i8", "|u1", "<u4", "=f8", "|i1")
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.sampled_from([0, -1, 2**31, 2**32, 1e38, -1e38, 3.5e38, float("nan"), float("inf")]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=20), st.binary(max_size=40))
FIELD_NAMES = ["observation", "knobs", "profile", "seed", "episode", "t", "deadline_ms", "detail"]
KEYS = st.one_of(
    st.sampled_from(
        [*FIELD_NAMES, "actions", "n", "wp", "__ndarray__", "__npgeneric__", "data", "dtype"]
    ),
    st.text(max_size=8),
    st.sampled_from([b"observation", b"__ndarray__", b"__npgeneric__", b"data", b"\xff"]),
)
STRUCTURES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


@st.composite
def arrays(draw: st.DrawFn) -> dict[bytes, Any]:
    """Maps that claim to be arrays: types, shapes and lengths right and wrong."""
    dtype = draw(st.sampled_from(TYPES + WRONG_TYPES))
    shape: Any = draw(
        st.sampled_from([[SIZE], [1, SIZE], [3, SIZE], [], [0], [0, SIZE], [SIZE - 1]])
        | st.lists(st.integers(-(2**63), 2**64 - 1), max_size=6)
        | st.lists(st.integers(-2, 9), max_size=6)
        | SCALARS
    )
    item = int(dtype[-1]) if dtype in TYPES else 4
    right = math.prod(shape) * item if _small_shape(shape) else 16
    length = draw(st.sampled_from([right, right, right, right - 1, right + 1, 0, 3, 4096]))
    data = draw(st.sampled_from([bytes(max(0, length)), b"\x7f" * max(0, length)]) | SCALARS)
    whole = {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}
    for key in draw(st.sets(st.sampled_from([b"data", b"dtype", b"shape"]), max_size=1)):
        del whole[key]
    return whole


FIELDS = {
    "observation": arrays()
    | st.lists(NUMBERS, min_size=SIZE, max_size=SIZE)
    | st.lists(st.lists(st.floats(-2, 2), min_size=SIZE, max_size=SIZE), max_size=5)
    | st.lists(SCALARS, min_size=SIZE, max_size=SIZE)
    | STRUCTURES,
    "knobs": st.dictionaries(
        st.sampled_from(
            [
                *("n", "lam", "wp", "k_smooth", "source", "anchor", "support", "value"),
                *("temperature", "x", b"n"),
            ]
        ),
        st.integers(0, 8) | st.sampled_from(["none", "mode", "actor", "raw", "zscore", "behavior"])
        | SCALARS
        | arrays()
        | st.fixed_dictionaries({"end": SCALARS, "horizon": SCALARS | st.integers(0, 9)}),
        max_size=3,
    )
    | STRUCTURES,
    "seed": st.integers(-1, 2**32) | st.lists(st.integers(-1, 9), max_size=4) | arrays() | SCALARS,
    "t": st.integers(-1, 2**31) | st.lists(st.integers(-1, 9), max_size=4) | arrays() | SCALARS,
    "episode": st.text(max_size=4) | st.binary(max_size=4) | st.just("e" * 200) | SCALARS,
    "deadline_ms": st.sampled_from([1e-9, 1, 20, 1e4, 1e9, -1, float("nan")]) | SCALARS,
    "detail": st.booleans() | SCALARS,
    "profile": st.sampled_from(["careful", "", "wild"]) | SCALARS,
}  # fmt: skip


def right_request(draw: st.DrawFn) -> dict[str, Any]:
    """A request that the server takes."""
    observation = draw(st.lists(st.floats(-2, 2, width=32), min_size=SIZE, max_size=SIZE))
    return {
        "observation": np.array(observation, np.float32),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "knobs": {"n": draw(st.integers(0, 40)), "wp": draw(st.floats(0, 3))},
        "t": draw(st.integers(0, 500)),
    }


def as_json(value: Any) -> bytes:
    """A request as JSON; bytes become text, and arrays lists."""
    return json.dumps(_plain(value)).encode()


@st.composite
def requests(draw: st.DrawFn) -> dict[Any, Any]:
    """A right request in which some fields are replaced by something odd."""
    fields = draw(st.sets(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3))
    strange = {name: draw(FIELDS[name]) for name in fields}
    request = right_request(draw) | strange
    if draw(st.booleans()):
        request |= draw(st.dictionaries(KEYS, SCALARS, max_size=2))
    return request


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes cut off somewhere, or some of them changed."""
    if draw(st.booleans()):
        return whole[: draw(st.integers(0, len(whole)))]
    message = bytearray(whole)
    places = st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255))
    for place, value in draw(st.lists(places, min_size=1, max_size=6)):
        message[place] = value
    return bytes(message)


@st.composite
def frames(draw: st.DrawFn) -> bytes | str:
    """A frame of the wire, text or binary."""
    kind = draw(st.sampled_from(["bytes", "damaged", "any", "odd", "odd", "deep", "ext", "text"]))
    if kind == "bytes":
        return draw(st.binary(max_size=300))
    if kind == "damaged":
        return draw(damaged(packed(right_request(draw))))
    if kind == "any":
        return packed(draw(STRUCTURES))
    if kind == "odd":
        return packed(draw(requests()))
    if kind == "deep":
        depth = draw(st.sampled_from([10, 500, 1100, 20_000]))
        inner = draw(st.sampled_from([b"\x91", b"\x81\xa1a", b"\x81\xabobservation"]))
        return inner * depth + b"\xc0"
    if kind == "ext":
        value = msgpack.ExtType(draw(st.integers(0, 127)), draw(st.binary(max_size=20)))
        return packed(draw(st.sampled_from([value, {"observation": value}, [value]])))
    return draw(st.text(max_size=60) | st.just('{"observation": [0, 0, 0, 0]}'))


HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@st.composite
def torn_connections(draw: st.DrawFn, host: str) -> bytes:
    """A handshake and then bytes that break the WebSocket's own rules, or the handshake broken."""
    handshake = HANDSHAKE % host.encode()
    if not draw(st.integers(0, 3)):
        return draw(damaged(handshake))
    head = draw(st.sampled_from([b"\x82", b"\x81", b"\x02", b"\x00", b"\x80", b"\x88", b"\x89",
                                 b"\xf2", b"\x8b", b"\xc2"]))  # fmt: skip
    size = draw(st.sampled_from([b"\x84", b"\x04", b"\xfe\xff\xff", b"\xff" + b"\x7f" * 8,
                                 b"\xff" + b"\xff" * 8, b"\xfe\x00\x01", b"\x80"]))  # fmt: skip
    return handshake + head + size + bytes(4) + draw(st.binary(max_size=60))


class Sent(NamedTuple):
    """A request over HTTP as it goes over the line."""

    request: bytes
    method: str
    whole: bool
    """Whether the server can know that nothing more is to come."""


METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "FOO", "get"]
ROUTES = [b"/", b"/v1/act", b"/v1/act", b"/v1/act", b"/v1/metadata", b"/v1/state", b"/v1/recent",
          b"/healthz", b"/readyz", b"/metrics", b"/openapi.json", b"/login", b"/static/page.js",
          b"/static/../serve/app.py", b"/static/%2e%2e/config.py", b"/static/", b"//", b"/v1/act/",
          b"/%00", b"/%ff%fe", b"/v1%2fact", b"*", b"http://127.0.0.1/v1/metadata",
          b"/static/login.html"]  # fmt: skip
QUERIES = st.sampled_from(
    b"?row=1 ?row=-1 ?row=%00 ?after=1e9 ?after=99999999999999999999999999 ?row=&row=2 ?after=0 "
    b"?token=x ?\xff ?row=%F0%9F%98%80 ? ?&&= ?row".split()
)
WORD = st.from_regex(r"X-[A-Za-z0-9!#$%&'*+.^_`|~-]{1,12}", fullmatch=True) | st.sampled_from(
    ["Accept", "X-Forwarded-For", "Forwarded", "Accept-Encoding", "Range", "If-None-Match", "a b"]
)
VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"),
                max_size=30)  # fmt: skip
KINDS = ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "text/plain",
         "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
         "application/msgpack", ""]  # fmt: skip


@st.composite
def json_bodies(draw: st.DrawFn) -> bytes:
    """Bodies for /v1/act, few of them right."""
    kind = draw(st.sampled_from(["odd", "odd", "damaged", "bytes", "deep", "numbers", "large"]))
    if kind == "odd":
        return as_json(draw(requests()))
    if kind == "damaged":
        return draw(damaged(as_json(right_request(draw))))
    if kind == "bytes":
        return draw(st.binary(max_size=200))
    if kind == "deep":
        return draw(st.sampled_from([b"[", b'{"observation":'])) * 50_000
    if kind == "numbers":
        number = draw(st.sampled_from(["1e999", "-0", "NaN", "-Infinity", "9" * 5000, "1" * 400]))
        place = draw(st.sampled_from(['"observation":[%s,0,0,0]', '"seed":%s', '"deadline_ms":%s']))
        return ('{"observation":[0,0,0,0],' + place % number + "}").encode()
    return b'{"observation":[' + b"0," * 40_000 + b"0]}"


@st.composite
def http_requests(draw: st.DrawFn, host: str) -> Sent:
    """A request over HTTP, odd in its line, its headers, its body or its framing."""
    method = draw(st.sampled_from([*METHODS, "GET", "POST", "POST", "POST"]))
    path = draw(st.sampled_from(ROUTES) if draw(st.integers(0, 9)) else st.binary(max_size=20))
    path = _as_path(path) + draw(QUERIES if not draw(st.integers(0, 3)) else st.just(b""))
    lines = [f"{method} ".encode() + path + b" HTTP/1.1"]
    if draw(st.integers(0, 9)):
        lines.append(f"Host: {host}".encode())
    else:
        lines.append(b"Host: " + draw(VALUE).encode("latin-1"))
    lines.append(b"Connection: close")
    for name, value in draw(st.lists(st.tuples(WORD, VALUE), max_size=3)):
        lines.append(name.encode("latin-1") + b": " + value.encode("latin-1"))
    extra = draw(
        st.sampled_from(["", "", "cookie", "origin", "authorization", "upgrade", "expect"])
    )
    if extra == "cookie":
        lines.append(b"Cookie: " + draw(VALUE).encode("latin-1"))
    elif extra == "origin":
        lines.append(b"Origin: " + draw(VALUE).encode("latin-1"))
    elif extra == "authorization":
        lines.append(b"Authorization: " + draw(VALUE).encode("latin-1"))
    elif extra == "upgrade":
        lines += [b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"]
    elif extra == "expect":
        lines.append(b"Expect: 100-continue")
    if method == "POST" or not draw(st.integers(0, 4)):
        lines.append(b"Content-Type: " + draw(st.sampled_from(KINDS)).encode())
        return _with_body(draw, lines, method)
    return Sent(b"\r\n".join([*lines, b"", b""]), method, True)


def _with_body(draw: st.DrawFn, lines: list[bytes], method: str) -> Sent:
    body = draw(json_bodies())
    framing = draw(st.sampled_from(["length"] * 5 + ["chunks", "chunks", "bad chunks", "short"]
                                   + ["long", "word", "both"]))  # fmt: skip
    length = {"short": len(body) + 7, "long": max(0, len(body) - 3)}.get(framing, len(body))
    if framing in ("length", "short", "long", "both"):
        lines.append(f"Content-Length: {length}".encode())
    if framing == "word":
        lines.append(b"Content-Length: " + draw(st.sampled_from([b"-1", b"x", b"1e3", b"9" * 30])))
    if framing in ("chunks", "bad chunks", "both"):
        lines.append(b"Transfer-Encoding: chunked")
        size = draw(st.integers(1, 5000))
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    if framing == "bad chunks":
        body = draw(damaged(body))
    whole = framing in ("length", "chunks", "long")
    return Sent(b"\r\n".join([*lines, b"", body]), method, whole)


def _small_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(
        isinstance(size, int) and 0 <= size < 10 for size in shape
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _as_path(tail: bytes) -> bytes:
    """Without what would end the request's first line."""
    line = tail.replace(b"\r", b"").replace(b"\n", b"").replace(b" ", b"")
    return line if line.startswith((b"/", b"*", b"http:")) else b"/" + line
