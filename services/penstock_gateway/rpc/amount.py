"""How long a message takes to parse, estimated before it is parsed.

protobuf parses a message in one call that holds the interpreter's lock, and what it made is read
under it, too: 16 MiB of one text take 6 ms, and of empty messages within one 0.7 s. So the values
are counted first, along the message's descriptor, in turns between which others are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from penstock.errors import InvalidRequest

MAX_UNITS = 524_288
"""What a message may hold, in units of about 50 ns: so it is parsed and read in some 30 ms."""
SMALL = 32_768
"""Bytes of a message that can't hold much."""
FIELD, MESSAGE = 4, 8
"""Units of a field, and of a message within the message."""
DEAR_BYTES = 16
"""Bytes of a text beyond ASCII that are a unit."""
_A_TURN = 4096
"""Fields."""
_LONGEST_VARINT = 10
"""Bytes."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_ENDS = bytes(range(128))
"""Bytes that end a varint."""
_SIZES = {
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_DOUBLE: 8,
}
"""Bytes of a number that is no varint."""


async def check_message(about: Descriptor, data: bytes) -> None:
    """Raises InvalidRequest for a message that isn't parsed in a turn. What is no message passes:
    the parser stops at the same place."""
    if len(data) <= SMALL:
        return
    for _ in _Count().of(about, data):
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # Parsing is a turn by itself.


class _Count:
    def __init__(self) -> None:
        self._units = 0.0
        self._fields = 0

    def of(self, about: Descriptor, data: bytes) -> Iterator[None]:
        """Yields after as many fields as are a turn. Raises InvalidRequest."""
        open_: list[tuple[Descriptor | None, int, int]] = [(about, 0, len(data))]
        while open_:
            kind, at, end = open_.pop()
            while at < end:
                self._fields += 1
                if self._fields % _A_TURN == 0:
                    yield
                tag, at = _varint(data, at, end)
                field = None if kind is None else kind.fields_by_number.get(tag >> 3)
                self._add(FIELD)
                match tag & 7:
                    case 0:
                        _, at = _varint(data, at, end)
                    case 1:
                        at += 8
                    case 5:
                        at += 4
                    case 2:
                        length, at = _varint(data, at, end)
                        if at + length > end:
                            return
                        if field is not None and field.message_type is not None:
                            self._add(MESSAGE)
                            open_.append((kind, at + length, end))
                            kind, end = field.message_type, at + length
                        else:
                            self._add(_units(field, data, at, length))
                            at += length

    def _add(self, units: float) -> None:
        self._units += units
        if self._units > MAX_UNITS:
            raise InvalidRequest(
                "the message holds too many values, messages or characters beyond ASCII: what was "
                f"read of it counts as {self._units:.0f} (a number in a packed list 1, a field "
                f"{FIELD}, a message within it {MESSAGE} more, {DEAR_BYTES} bytes beyond ASCII 1), "
                f"and at most {MAX_UNITS} are allowed",
                code="request_too_large",
            )


def _units(field: FieldDescriptor | None, data: bytes, at: int, length: int) -> float:
    """Units of what is in a text, in bytes, or in a packed list."""
    if field is None or field.type == FieldDescriptor.TYPE_BYTES:
        return 0
    if field.type == FieldDescriptor.TYPE_STRING:
        return 0 if data[at : at + length].isascii() else length / DEAR_BYTES
    size = _SIZES.get(field.type)
    if size is not None:
        return length / size
    if length > _LONGEST_VARINT * MAX_UNITS:
        return length / _LONGEST_VARINT
    return length - len(data[at : at + length].translate(None, _ENDS))


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number there, and where it ends. What is none ends with the data."""
    if at >= end:
        return 0, end
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value = 0
    for place in range(min(_LONGEST_VARINT, end - at)):
        byte = data[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    return 0, end
