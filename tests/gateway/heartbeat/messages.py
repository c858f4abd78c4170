"""Messages of protobuf in which one field is as large as can be, made from their descriptors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tests.gateway.heartbeat.bodies import FILLS as JSON_FILLS

DEEPEST = 4
"""Messages within messages whose fields are filled."""
UNKNOWN = 1999
"""A field that no message has."""
_VARINT, _BYTES = 0, 2

Fill = Callable[[int], bytes]
"""Fields on the wire, of about so many bytes."""


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(number: int, content: bytes) -> bytes:
    """A field on the wire: of bytes, a text, a message or a packed list."""
    return varint(number << 3 | _BYTES) + varint(len(content)) + content


def _of(number: int, unit: bytes) -> Fill:
    return lambda size: delimited(number, unit * max(1, (size - 8) // len(unit)))


def _again(unit: bytes) -> Fill:
    return lambda size: unit * max(1, size // len(unit))


def _json(number: int, fill: str) -> Fill:
    def made(size: int) -> bytes:
        value = JSON_FILLS[fill][1](max(1, size - 64))
        return delimited(number, b'{"model":"m","prompt":' + value + b"}")

    return made


@dataclass(frozen=True)
class Case:
    """One field of a message, filled in one way. base: what comes before it."""

    field: str
    fill: str
    base: bytes
    wrap: Callable[[bytes], bytes]
    make: Fill

    def body(self, size: int) -> bytes:
        """So many bytes, nearly, and no more."""
        return self.base + self.wrap(self.make(max(1, size - len(self.base) - 64)))


def cases_of(about: Descriptor, example: Message, seeds: dict[str, Message]) -> Iterator[Case]:
    """Every field of the message, and of those in it, with every fill that suits it.

    example: a message that is answered.  seeds: by a message's full name, what one within another
    has beside the field that is filled.
    """
    base = example.SerializeToString()
    for name, make in _unknown():
        yield Case("an unknown one", name, base, lambda filled: filled, make)
    for place, wrap, field in _places(about, seeds, 0):
        for name, make in fills(field):
            yield Case(place, name, base, wrap, make)


def _places(
    about: Descriptor, seeds: dict[str, Message], depth: int
) -> Iterator[tuple[str, Callable[[bytes], bytes], FieldDescriptor]]:
    """The path of each field, and what puts its bytes into a message."""
    for field in about.fields:
        yield field.name, lambda filled: filled, field
        kind = field.message_type
        if kind is None or depth == DEEPEST:
            continue
        seed = seeds[kind.full_name].SerializeToString() if kind.full_name in seeds else b""
        for path, inner, leaf in _places(kind, seeds, depth + 1):

            def wrap(
                filled: bytes, number: int = field.number, seed: bytes = seed, inner: Any = inner
            ) -> bytes:
                return delimited(number, seed + inner(filled))

            yield f"{field.name}.{path}", wrap, leaf


def fills(field: FieldDescriptor) -> Iterator[tuple[str, Fill]]:
    """What is made of a field."""
    number = field.number
    yield "empty ones", _again(delimited(number, b""))
    yield "short ones", _again(delimited(number, b"a\0"))
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            for text in ("a", "<", "中", "a😀", "[[[[],{},[{}]],[],", '{"a":[', " "):
                yield f"{text!r}", _of(number, text.encode())
            yield "halves of characters", _of(number, b"a\xf0\x9f")
        case FieldDescriptor.TYPE_BYTES:
            yield "zeros", _of(number, b"\0")
            for name in ("letters", "lists in lists", "escapes", "texts", "numbers"):
                yield f"JSON with {name}", _json(number, name)
        case FieldDescriptor.TYPE_MESSAGE:
            yield "unknown fields", _of(number, varint(UNKNOWN << 3 | _VARINT) + b"\0")
            yield "noise", _of(number, bytes(range(256)))
        case _:
            yield "packed zeros", _of(number, b"\0")
            yield "packed long ones", _of(number, b"\xff" * 9 + b"\x01")
            yield "single ones", _again(varint(number << 3 | _VARINT) + b"\x01")


def _unknown() -> Iterator[tuple[str, Fill]]:
    yield "zeros", _of(UNKNOWN, b"\0")
    yield "numbers", _again(varint(UNKNOWN << 3 | _VARINT) + b"\0")
    yield "groups", _again(varint(UNKNOWN << 3 | 3) + varint(UNKNOWN << 3 | 4))
    yield "groups in groups", _again(varint(UNKNOWN << 3 | 3) * 90 + varint(UNKNOWN << 3 | 4) * 90)
    yield "noise", _again(bytes(range(256)))
