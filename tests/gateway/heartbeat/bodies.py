"""Bodies in which one field is as large as can be, made from the structs that decode them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec import inspect

from penstock.config.settings import GatewayConfig

LONG = GatewayConfig().max_body_bytes
"""Bytes of a body."""
DEEPEST = 3
"""Structs within structs whose fields are filled."""
_MARK = "@@filled@@"
_TEXT, _LIST, _KEYS, _NUMBER = "text", "list", "keys", "number"

Fill = Callable[[int], bytes]
"""JSON of about so many bytes; it may be broken."""


def _within(begin: bytes, unit: bytes, end: bytes, size: int) -> bytes:
    return begin + unit * max(1, (size - len(begin) - len(end)) // len(unit)) + end


def _text(unit: str, end: str = '"') -> Fill:
    return partial(_within, b'"', unit.encode(), end.encode())


def _list(unit: str, last: str = "") -> Fill:
    return partial(_within, b"[", unit.encode() + b",", (last or unit).encode() + b"]")


def _keys(size: int) -> bytes:
    return b"{" + b",".join(b'"%d":1' % number for number in range(max(1, size // 11))) + b"}"


def _nested(begin: str, end: str) -> Fill:
    return _list(begin * 300 + "1" + end * 300)


FILLS: dict[str, tuple[str, Fill]] = {
    "letters": (_TEXT, _text("a")),
    "brackets": (_TEXT, _text("<")),
    "spaces": (_TEXT, _text(" ")),
    "escapes": (_TEXT, _text("\\u0041")),
    "lines": (_TEXT, _text("\\n")),
    "quotes": (_TEXT, _text('\\"')),
    "characters of three bytes": (_TEXT, _text("中")),
    "letters and pictographs": (_TEXT, _text("a😀")),
    "JSON": (_TEXT, _text("[[[[],{},[{}]],[],")),
    "unended escapes": (_TEXT, _text("\\ud83d\\ude00", "")),
    "an escape without its half": (_TEXT, _text("a\\u0041", '\\ud83d"')),
    "digits": (_NUMBER, partial(_within, b"1", b"9", b"")),
    "decimals": (_NUMBER, partial(_within, b"0.", b"9", b"")),
    "numbers": (_LIST, _list("1")),
    "long numbers": (_LIST, _list("100000")),
    "texts": (_LIST, _list('"ab"')),
    "long texts": (_LIST, _list(json.dumps("a" * 10_000))),
    "lists of one": (_LIST, _list("[1]")),
    "empty objects": (_LIST, _list("{}")),
    "lists in lists": (_LIST, _nested("[", "]")),
    "objects in objects": (_KEYS, lambda size: b'{"a":' + _nested('{"a":', "}")(size - 6) + b"}"),
    "keys": (_KEYS, _keys),
    "a long key": (_KEYS, partial(_within, b'{"', b"k", b'":1}')),
    "a long value": (_KEYS, partial(_within, b'{"x":"', b"<", b'"}')),
    "many values": (_KEYS, lambda size: b'{"x":' + _list("1")(size - 6) + b"}"),
}
"""Kinds of values and how each is made, by name."""
ANYWHERE = ("letters", "lists in lists")
"""Tried in each field, whatever it takes."""


@dataclass(frozen=True)
class Case:
    """One field of a body, filled in one way."""

    field: str
    fill: str
    base: str
    """The body as JSON, with a mark in the field's place."""
    make: Fill

    def body(self, size: int) -> bytes:
        """So many bytes, nearly."""
        before, after = self.base.encode().split(json.dumps(_MARK).encode())
        return before + self.make(max(1, size - len(before) - len(after))) + after


def cases_of(kind: Any, example: dict[str, Any]) -> Iterator[Case]:
    """Every field of the struct, and of those in it, with every fill that suits it.  example: a
    body that is answered."""
    yield from _unknown(example)
    for place, about in _places(inspect.type_info(kind), example, 0):
        base = json.dumps(_with(example, place.split("."), _MARK))
        for name, make in _fills(about):
            yield Case(place, name, base, make)


def _unknown(example: dict[str, Any]) -> Iterator[Case]:
    """Fields that no struct has."""
    base = json.dumps({**example, "zzz": _MARK})
    for name in ("letters", "escapes", "keys", "lists in lists", "digits"):
        yield Case("an unknown one", name, base, FILLS[name][1])
    whole = json.dumps(example)[:-1]
    for name, make in (
        ("name", partial(_within, b'"', b"k", b'":1')),
        ("names", lambda size: _keys(size)[1:-1]),
        ("the same again", partial(_within, b'"zzz":1', b',"zzz":1', b"")),
        ("spaces", partial(_within, b'"zzz":', b" ", b"1")),
    ):
        yield Case("an unknown one", name, f"{whole}, {json.dumps(_MARK)}}}", make)


def _places(
    about: inspect.StructType, value: Any, depth: int
) -> Iterator[tuple[str, inspect.Type]]:
    """The path of each field that may be filled, and its type."""
    for field in about.fields:
        yield field.encode_name, field.type
        if depth == DEEPEST:
            continue
        for path, inner in _structs(field.type):
            for rest, kind in _places(inner, {}, depth + 1):
                yield f"{field.encode_name}{path}.{rest}", kind


def _structs(about: inspect.Type) -> Iterator[tuple[str, inspect.StructType]]:
    """Structs in a field, with the path to them."""
    match about:
        case inspect.StructType():
            yield "", about
        case inspect.UnionType(types=kinds):
            for kind in kinds:
                yield from _structs(kind)
        case inspect.ListType(item_type=kind):
            for path, struct in _structs(kind):
                yield f".0{path}", struct


def _with(value: Any, path: list[str], filled: Any) -> Any:
    """A copy of the value with something else at a path; what it lacks on the way is made."""
    if not path:
        return filled
    head, *rest = path
    if head == "0":
        given = value if isinstance(value, list) and value else [None]
        return [_with(given[0], rest, filled), *given[1:]]
    given = value if isinstance(value, dict) else {}
    return {**given, head: _with(given.get(head), rest, filled)}


def _fills(about: inspect.Type) -> Iterator[tuple[str, Fill]]:
    kinds = set(_kinds(about))
    for name, (kind, make) in FILLS.items():
        if kind in kinds or name in ANYWHERE:
            yield name, make
    for item in _items(about):
        yield "its items", _list(json.dumps(minimal(item)))


def _kinds(about: inspect.Type) -> Iterator[str]:
    match about:
        case inspect.StrType():
            yield _TEXT
        case inspect.IntType() | inspect.FloatType():
            yield _NUMBER
        case inspect.ListType():
            yield _LIST
        case inspect.DictType() | inspect.StructType():
            yield _KEYS
        case inspect.AnyType():
            yield from (_TEXT, _NUMBER, _LIST, _KEYS)
        case inspect.UnionType(types=kinds):
            for kind in kinds:
                yield from _kinds(kind)


def _items(about: inspect.Type) -> Iterator[inspect.StructType]:
    """Structs of which a field is a list."""
    match about:
        case inspect.ListType(item_type=kind):
            yield from (struct for path, struct in _structs(kind) if not path)
        case inspect.UnionType(types=kinds):
            for kind in kinds:
                yield from _items(kind)


def minimal(about: inspect.Type) -> Any:
    """A small value of a type."""
    match about:
        case inspect.StructType(fields=fields, tag_field=tag, tag=name):
            made = {each.encode_name: minimal(each.type) for each in fields if each.required}
            return made if tag is None else {tag: name, **made}
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.UnionType(types=kinds):
            return minimal(kinds[0])
        case inspect.ListType() | inspect.CollectionType():
            return []
        case inspect.DictType():
            return {}
        case inspect.StrType():
            return "user"
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return True
    return None


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
