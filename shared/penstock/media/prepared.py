"""The bytes of a prepared item: named arrays after a header.

Layout: the header's length (4 bytes, little-endian), the header in msgpack
({"tensors": [[name, dtype, shape, offset], …]}), then the arrays, little-endian and row-major, in
the header's order.  They begin at the first multiple of 16 after the header, from which offsets
count, themselves multiples of 16; what lies between is zero.  The same arrays give the same bytes,
so a digest can stand for them, and a mapped file is read without a copy.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping

import msgspec
import numpy as np

DTYPES = {"uint8": 1, "float32": 4, "int32": 4, "int64": 8}
"""Dtypes of arrays -> bytes of an element."""
MAX_TENSORS = 16
MAX_DIMENSIONS = 8
MAX_NAME = 64
"""Characters of an array's name."""
MAX_HEADER = 16_384
MAX_BYTES = 1 << 30
"""Most bytes of a prepared item."""
_ALIGNMENT = 16
_HEAD = 4


class BrokenItem(ValueError):
    """The bytes are no prepared item."""


class _Tensor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tensors: tuple[_Tensor, ...]


def write(tensors: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of the arrays. Raises BrokenItem for what `read` would refuse."""
    entries, parts, end = [], [], 0
    for name, array in tensors.items():
        dtype = array.dtype.name
        if dtype not in DTYPES:
            raise BrokenItem(f"{name} is {dtype}; allowed: {', '.join(DTYPES)}")
        offset = _aligned(end)
        data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
        parts += [bytes(offset - end), data]
        entries.append(_Tensor(name, dtype, array.shape, offset))
        end = offset + len(data)
    _check(entries, end)
    header = msgspec.msgpack.encode(_Header(tuple(entries)))
    gap = bytes(_aligned(_HEAD + len(header)) - _HEAD - len(header))
    return b"".join((len(header).to_bytes(_HEAD, "little"), header, gap, *parts))


def read(buffer: bytes | bytearray | memoryview | mmap.mmap) -> dict[str, np.ndarray]:
    """The arrays, as read-only views on the buffer where it is aligned for them, else copies.
    Raises BrokenItem; never reads outside of the buffer, nor takes memory for what it claims."""
    view = memoryview(buffer).cast("B").toreadonly()
    length = int.from_bytes(view[:_HEAD], "little")
    if len(view) < _HEAD or length > min(MAX_HEADER, len(view) - _HEAD):
        raise BrokenItem(f"its header claims {length} bytes, of {len(view)} in all")
    try:
        header = msgspec.msgpack.decode(view[_HEAD : _HEAD + length], type=_Header)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise BrokenItem("its header is not valid") from None
    data = view[_aligned(_HEAD + length) :]
    _check(header.tensors, len(data))
    return {entry.name: _array(entry, data) for entry in header.tensors}


def _check(entries: list[_Tensor] | tuple[_Tensor, ...], size: int) -> None:
    if len(entries) > MAX_TENSORS or len({entry.name for entry in entries}) != len(entries):
        raise BrokenItem(f"it has {len(entries)} arrays; up to {MAX_TENSORS}, each named once")
    if size > MAX_BYTES:
        raise BrokenItem(f"it has {size} bytes; at most {MAX_BYTES} are allowed")
    end = 0
    for entry in entries:
        if not 0 < len(entry.name) <= MAX_NAME:
            raise BrokenItem(f"an array's name has {len(entry.name)} characters")
        end = _end(entry, end)
    if end != size:
        raise BrokenItem(f"its arrays end at {end}, and its bytes at {size}")


def _end(entry: _Tensor, begin: int) -> int:
    """Index at which the array ends that comes next after `begin`."""
    if entry.dtype not in DTYPES:
        raise BrokenItem(f"an array is of the unknown type {entry.dtype[:20]!r}")
    shape = entry.shape
    if len(shape) > MAX_DIMENSIONS or not all(0 <= length <= MAX_BYTES for length in shape):
        raise BrokenItem("an array's shape is out of bounds")
    size = math.prod(shape) * DTYPES[entry.dtype]
    if size > MAX_BYTES or entry.offset != _aligned(begin):
        raise BrokenItem(f"an array of {size} bytes lies at {entry.offset}")
    return entry.offset + size


def _array(entry: _Tensor, data: memoryview) -> np.ndarray:
    dtype = np.dtype(entry.dtype).newbyteorder("<")
    count = math.prod(entry.shape)
    part = data[entry.offset : entry.offset + count * dtype.itemsize]
    array = np.frombuffer(part, dtype=dtype)
    if not array.flags.aligned:
        array = array.copy()
        array.flags.writeable = False
    return array.reshape(entry.shape)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
