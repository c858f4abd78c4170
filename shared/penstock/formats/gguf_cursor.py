"""Values of a GGUF file's metadata, read through a cursor that checks every bound."""

from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np

from penstock.errors import UnsupportedModel

BOOL, STRING, ARRAY = 7, 8, 9
MAX_ARRAY_DEPTH = 4
MAX_ELEMENTS = 1 << 22
"""Most elements of all arrays together. A vocabulary of 262,144 tokens has 514,906 merges, scores
and types."""
MAX_HEADER_BYTES = 256 << 20
"""Most bytes of all that comes before the tensors' data."""
SCALARS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""Code of a value type -> the numpy type that it is stored as."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """A read position in a mapped file. Reading past the end raises UnsupportedModel."""

    def __init__(self, mapping: mmap.mmap, name: str, *, vocabulary: bool = True) -> None:
        self.mapping = mapping
        self.vocabulary = vocabulary
        """Whether arrays of strings are read; else they are passed over, and empty."""
        self.size = len(mapping)
        self.position = 0
        self._name = name
        self._elements = 0

    def broken(self, why: str) -> UnsupportedModel:
        """The error to raise for this file."""
        return UnsupportedModel(
            f"{self._name} is not a readable GGUF file: {why}; download it again"
        )

    def expect_room(self, count: int, each: int, what: str) -> None:
        """Refuse a count that the rest of the file can't hold, before anything is allocated."""
        if count * each > self.size - self.position:
            raise self.broken(
                f"it claims {count} {what} at byte {self.position} of {self.size} (cut short?)"
            )
        if self.position + count * each > MAX_HEADER_BYTES:
            raise self.broken(f"its header is longer than {MAX_HEADER_BYTES} bytes")

    def count_elements(self, count: int, key: str) -> None:
        """Refuse more elements of arrays than a model can need."""
        self._elements += count
        if self._elements > MAX_ELEMENTS:
            raise self.broken(
                f"its arrays up to {key!r} have {self._elements} elements; at most {MAX_ELEMENTS} "
                "are allowed"
            )

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        self.expect_room(count, 1, "bytes")
        begin = self.position
        self.position = begin + count
        return self.mapping[begin : self.position]

    def unsigned32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def unsigned64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])


def read_string(cursor: Cursor) -> str:
    """A length-prefixed UTF-8 string."""
    raw = cursor.take(cursor.unsigned64())
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise cursor.broken(f"a string before byte {cursor.position} is not UTF-8") from error


def read_value(cursor: Cursor, kind: int, key: str, depth: int = 0) -> Any:
    """A value of the given type code: a Python scalar, a str, or a list."""
    if kind == STRING:
        return read_string(cursor)
    if kind == ARRAY:
        return _read_array(cursor, key, depth)
    return _read_scalars(cursor, kind, 1, key)[0]


def _read_array(cursor: Cursor, key: str, depth: int) -> list[Any]:
    if depth >= MAX_ARRAY_DEPTH:
        raise cursor.broken(f"{key!r} nests arrays deeper than {MAX_ARRAY_DEPTH}")
    kind = cursor.unsigned32()
    count = cursor.unsigned64()
    if kind == STRING:
        return _read_strings(cursor, count, key)
    if kind == ARRAY:
        cursor.expect_room(count, 12, f"arrays in {key!r}")
        cursor.count_elements(count, key)
        return [_read_array(cursor, key, depth + 1) for _ in range(count)]
    return _read_scalars(cursor, kind, count, key)


def _read_scalars(cursor: Cursor, kind: int, count: int, key: str) -> list[Any]:
    if kind not in SCALARS:
        raise cursor.broken(f"{key!r} has the unknown value type {kind}")
    dtype = np.dtype(SCALARS[kind])
    cursor.expect_room(count, dtype.itemsize, f"elements in {key!r}")
    cursor.count_elements(count, key)
    values = np.frombuffer(cursor.take(count * dtype.itemsize), dtype)
    return [value != 0 for value in values.tolist()] if kind == BOOL else values.tolist()


def _read_strings(cursor: Cursor, count: int, key: str) -> list[str]:
    """A vocabulary has 50,000 to 250,000 of these, hence the tight loop without method calls."""
    cursor.expect_room(count, 8, f"strings in {key!r}")
    cursor.count_elements(count, key)
    mapping, size, position = cursor.mapping, cursor.size, cursor.position
    length_at = _U64.unpack_from
    if not cursor.vocabulary:
        _pass_strings(cursor, count, key)
        return []
    strings: list[str] = []
    try:
        for _ in range(count):
            begin = position + 8
            position = begin + length_at(mapping, position)[0]
            if position > size:
                raise cursor.broken(f"a string in {key!r} ends after the file does (cut short?)")
            if position > MAX_HEADER_BYTES:
                raise cursor.broken(f"its header is longer than {MAX_HEADER_BYTES} bytes")
            strings.append(mapping[begin:position].decode())
    except struct.error as error:
        raise cursor.broken(f"the strings of {key!r} are cut short") from error
    except UnicodeDecodeError as error:
        raise cursor.broken(f"a string in {key!r} is not UTF-8") from error
    cursor.position = position
    return strings


def _pass_strings(cursor: Cursor, count: int, key: str) -> None:
    """Passes over strings: only their lengths are read, and where the last one ends is checked, as
    none begins after it."""
    mapping, position, length_at = cursor.mapping, cursor.position, _U64.unpack_from
    try:
        for _ in range(count):
            position += 8 + length_at(mapping, position)[0]
    except (struct.error, OverflowError) as error:
        raise cursor.broken(f"the strings of {key!r} are cut short") from error
    if position > cursor.size:
        raise cursor.broken(f"a string in {key!r} ends after the file does (cut short?)")
    if position > MAX_HEADER_BYTES:
        raise cursor.broken(f"its header is longer than {MAX_HEADER_BYTES} bytes")
    cursor.position = position
