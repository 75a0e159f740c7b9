"""Messages: arrays survive the wire, and what is no array of numbers is refused."""

import contextlib

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gemrl.deploy.serve import wire
from gemrl.errors import RequestError

NUMERIC = st.sampled_from(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])


@given(arrays.arrays(NUMERIC, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0)))
def test_an_array_of_numbers_comes_back_bit_for_bit(array):
    found = wire.unpack(wire.pack({"observation": array}))["observation"]
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()


@given(st.sampled_from(["int8", "uint64", "float32", "float64"]), st.integers(0, 100))
def test_a_single_number_comes_back(kind, value):
    found = wire.unpack(wire.pack({"seed": np.dtype(kind).type(value)}))["seed"]
    assert found == value


def array_map(**changes):
    fields = {"__ndarray__": True, "data": b"\0" * 16, "dtype": "<f4", "shape": [4]} | changes
    return msgpack.packb({"observation": {k: v for k, v in fields.items() if v is not None}})


@pytest.mark.parametrize("keys", [str, str.encode])
def test_keys_may_be_text_or_bytes(keys):
    fields = {"__ndarray__": True, "data": b"\0" * 16, "dtype": "<f4", "shape": [4]}
    message = msgpack.packb({"observation": {keys(name): v for name, v in fields.items()}})
    assert wire.unpack(message)["observation"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "dtype",
    ["|O", "O", "object", "<U4", "|S4", "M8[s]", "V8", "f4,f4", "<c8", "?", "", None, 4, []],
)
def test_a_dtype_that_is_no_number_is_refused(dtype):
    with pytest.raises(RequestError, match="dtype"):
        wire.unpack(array_map(dtype=dtype))


@pytest.mark.parametrize(
    "shape", [[3], [5], [-4], [2**40], [2**20, 2**20, 2**20], [4.0], ["4"], 4, None, [1] * 33]
)
def test_a_shape_that_does_not_fit_the_bytes_is_refused(shape):
    with pytest.raises(RequestError, match="shape"):
        wire.unpack(array_map(shape=shape))


@pytest.mark.parametrize("data", ["text", 4, None, [1]])
def test_data_that_is_not_bytes_is_refused(data):
    with pytest.raises(RequestError, match="bytes"):
        wire.unpack(array_map(data=data))


@given(st.binary(max_size=200))
def test_any_bytes_give_values_or_our_own_error(message):
    with contextlib.suppress(RequestError):
        wire.unpack(message)


@pytest.mark.parametrize(
    "message",
    [b"", b"\xc1", b"\x81", msgpack.packb(1) + b"x", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff"],
)
def test_a_cut_or_nested_message_is_refused(message):
    with pytest.raises(RequestError, match="msgpack"):
        wire.unpack(message)


def test_extensions_are_refused():
    with pytest.raises(RequestError, match="extension"):
        wire.unpack(msgpack.packb(msgpack.ExtType(4, b"x")))


def test_a_number_beyond_its_type_is_refused():
    message = msgpack.packb({"seed": {"__npgeneric__": True, "data": 300, "dtype": "|u1"}})
    with pytest.raises(RequestError, match="300"):
        wire.unpack(message)
