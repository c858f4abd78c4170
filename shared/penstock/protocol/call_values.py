"""Arguments and results of worker extensions' methods, as msgpack: plain values and arrays, never
code."""

from __future__ import annotations

import base64
import math
from typing import Any

import msgspec

_ARRAY = 1
"""Code of the extension type that holds an array: msgpack of [dtype, shape, its bytes]."""

MOST_DIMENSIONS, LONGEST = 32, 2**40
"""Most dimensions of an array, and the most that one of them may be."""

_KINDS = {
    **{f"int{bits}": bits // 8 for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": bits // 8 for bits in (8, 16, 32, 64)},
    **{f"float{bits}": bits // 8 for bits in (16, 32, 64)},
    "bool": 1,
}
"""Bytes of a number, by dtype."""


def encode_value(value: Any) -> bytes:
    """NumPy's arrays and numbers, and torch's tensors, become arrays.

    Raises TypeError for what msgpack has no form for, naming its type."""
    try:
        return msgspec.msgpack.encode(value, enc_hook=_array)
    except (OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise TypeError(f"a value can't be sent: {error}") from None


def decode_value(data: bytes) -> Any:
    """Arrays become NumPy's. Raises ValueError for what `encode_value` doesn't make."""
    return _decoded(data, _as_numpy)


def json_value(data: bytes) -> Any:
    """The value for JSON: an array becomes {"dtype", "shape", "base64"}, and bytes are in base64,
    too."""
    return _decoded(data, _as_json)


def _decoded(data: bytes, found: Any) -> Any:
    def hook(code: int, content: memoryview) -> Any:
        if code != _ARRAY:
            raise ValueError(f"there is no extension type {code}")
        dtype, shape, numbers = msgspec.msgpack.decode(content, type=tuple[str, list[int], bytes])
        fits = len(shape) <= MOST_DIMENSIONS and all(0 <= size <= LONGEST for size in shape)
        if dtype not in _KINDS or not fits:
            raise ValueError(f"an array of {dtype[:40]} and shape {shape[:8]} can't be read")
        if math.prod(shape) * _KINDS[dtype] != len(numbers):
            raise ValueError(f"{len(numbers)} bytes are no {dtype} of shape {shape[:8]}")
        return found(dtype, shape, numbers)

    try:
        return msgspec.msgpack.decode(data, ext_hook=hook)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"no value: {error}") from None


def _as_numpy(dtype: str, shape: list[int], numbers: bytes) -> Any:
    import numpy as np  # Gateways do without it.

    return np.frombuffer(bytearray(numbers), dtype).reshape(shape)


def _as_json(dtype: str, shape: list[int], numbers: bytes) -> Any:
    return {"dtype": dtype, "shape": shape, "base64": base64.b64encode(numbers).decode()}


def _array(value: Any) -> msgspec.msgpack.Ext:
    array = value
    if hasattr(value, "detach"):  # A tensor of torch.
        try:
            array = value.detach().cpu().numpy()
        except TypeError as error:
            raise TypeError(f"a tensor of {value.dtype} can't be sent: {error}") from None
    if not (hasattr(array, "dtype") and hasattr(array, "tobytes")):
        raise TypeError(f"a value of type {type(value).__name__} can't be sent")
    dtype = array.dtype.newbyteorder("<")
    if dtype.name not in _KINDS:
        allowed = ", ".join(_KINDS)
        raise TypeError(f"an array of {dtype.name} can't be sent; allowed: {allowed}")
    content = (dtype.name, list(array.shape), array.astype(dtype, copy=False).tobytes())
    return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(content))
