"""The OpenPI wire: msgpack in which an array is a map of its bytes, type and shape.

What comes from a client is checked before an array is made of it: types by an allow-list, and the
length of the bytes against the shape.
"""

import math
from typing import Any

import msgpack
import numpy as np

from gemrl.errors import RequestError

# Numbers only: an array of objects made of a client's bytes would crash the process.
DTYPES = {
    order + kind: np.dtype(order + kind)
    for order in "<>|="
    for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
}
MAX_AXES = 4
# Some clients pack their strings as bytes.
ARRAY, NUMBER = {"__ndarray__", b"__ndarray__"}, {"__npgeneric__", b"__npgeneric__"}


def pack(value: Any) -> bytes:
    """A message of plain values and arrays."""
    packed = msgpack.packb(value, default=_encoded)
    assert packed is not None  # Only a packer that keeps its buffer gives nothing.
    return packed


def unpack(message: bytes) -> Any:
    """The plain values and arrays of a message."""
    try:
        return msgpack.unpackb(message, object_hook=_decoded, ext_hook=_refused_extension)
    except RequestError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise RequestError(f"the message is not readable as msgpack: {_short(error)}") from error


def text(value: Any) -> Any:
    """A map's keys, or a word, as text: some clients pack their strings as bytes."""
    if isinstance(value, dict):
        return {text(key): item for key, item in value.items()}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise RequestError("a key of the message is not UTF-8") from error
    return value


def _encoded(value: Any) -> Any:
    # Keys are bytes, as the OpenPI client looks for them.
    if isinstance(value, np.ndarray):
        return {
            b"__ndarray__": True,
            b"data": value.tobytes(),
            b"dtype": value.dtype.str,
            b"shape": list(value.shape),
        }
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _decoded(given: dict[Any, Any]) -> Any:
    if ARRAY.isdisjoint(given):
        return given if NUMBER.isdisjoint(given) else _number(text(given))
    fields = text(given)
    dtype = _dtype(fields.get("dtype"))
    shape, data = fields.get("shape"), fields.get("data")
    sizes = isinstance(shape, list | tuple) and len(shape) <= MAX_AXES
    if not sizes or not all(type(size) is int and 0 <= size < 2**31 for size in shape):
        raise RequestError(f"an array's shape must be a list of at most {MAX_AXES} whole numbers")
    if not isinstance(data, bytes):
        raise RequestError("an array's data must be bytes")
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise RequestError(
            f"an array of shape {list(shape)} and type {dtype.name} has {wanted} bytes, and "
            f"{len(data)} were sent"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _number(fields: dict[Any, Any]) -> Any:
    dtype, value = _dtype(fields.get("dtype")), fields.get("data")
    whole = dtype.kind in "iu"
    if type(value) is not int and (whole or type(value) is not float):
        raise RequestError(f"a number of type {dtype.name} was sent as {type(value).__name__}")
    try:
        return dtype.type(value).item()
    except OverflowError as error:
        raise RequestError(f"{value} does not fit the type {dtype.name}") from error


def _dtype(name: Any) -> np.dtype:
    name = text(name)
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise RequestError("an array's dtype must be a number's, such as '<f4'")
    return dtype


def _refused_extension(code: int, data: bytes) -> Any:
    raise RequestError(f"msgpack extension {code} is not accepted")


def _short(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__
