"""Arguments and results of worker extensions' methods, there and back."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.protocol.call_values import decode_value, encode_value, json_value
from tests.met import met

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
DTYPES = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(),
    arrays.unsigned_integer_dtypes(),
    arrays.floating_dtypes(sizes=(16, 32, 64)),
)


@given(PLAIN)
def test_plain_values(value: Any) -> None:
    assert decode_value(encode_value(value)) == value
    met("some value", value)


@given(arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, min_side=0, max_side=4)))
def test_arrays(array: np.ndarray) -> None:
    found = decode_value(encode_value({"of": [array]}))["of"][0]
    met("some numbers", array.size > 1)
    met("none", not array.size)
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.shape == array.shape
    assert np.array_equal(found, array, equal_nan=array.dtype.kind == "f")
    assert found.flags.writeable
    shown = json_value(encode_value(array))
    assert (shown["dtype"], shown["shape"]) == (array.dtype.name, list(array.shape))
    numbers = base64.b64decode(shown["base64"])
    assert numbers == array.astype(array.dtype.newbyteorder("<")).tobytes()


def test_tensors_and_numbers() -> None:
    tensor = torch.arange(6, dtype=torch.float16).reshape(2, 3)[:, 1:]
    assert np.array_equal(decode_value(encode_value(tensor)), tensor.numpy())
    assert decode_value(encode_value(np.float32(1.5))).item() == 1.5


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "a value of type object can't be sent"),
        (lambda: None, "a value of type function can't be sent"),
        (torch.zeros(2, dtype=torch.bfloat16), r"a tensor of torch\.bfloat16 can't be sent"),
        (np.array(["a"]), "an array of str32 can't be sent; allowed: int8"),
        (np.array([object()]), "an array of object can't be sent"),
        (np.zeros(2, "complex64"), "an array of complex64 can't be sent"),
        (2**64, "a value can't be sent"),
        ("\ud800", "a value can't be sent"),
    ],
)
def test_what_has_no_form(value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        encode_value([value])


def ext(code: int, content: Any) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(content)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 5000,
        ext(2, ["int8", [1], b"\0"]),
        ext(1, ["int8", [2], b"\0"]),
        ext(1, ["int8", [-1], b""]),
        ext(1, ["object", [1], bytes(8)]),
        ext(1, ["int8", [1]]),
        ext(1, ["int8", [2**62, 0], b""]),
    ],
)
def test_what_is_no_value(data: bytes) -> None:
    for read in (decode_value, json_value):
        with pytest.raises(ValueError, match=r"\w"):
            read(data)
