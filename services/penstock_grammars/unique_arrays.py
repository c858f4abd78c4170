"""Arrays of a JSON schema no two items of which may be the same: no grammar can say that, so the
output is followed.

Their items are no arrays or objects.  Each text has one way to be written: the grammar leaves out
escapes of letters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock_grammars.schemas.keywords import UNIQUE
from penstock_grammars.schemas.values import identity

_SPACE, _QUOTE, _BACKSLASH = frozenset(b" \t\n\r"), b'"'[0], b"\\"[0]
_COMMA, _COLON = b",:"
_OPENING, _CLOSING = frozenset(b"{["), frozenset(b"}]")
MAX_KNOWN = 4096
"""Places of one schema's documents whose schemas are remembered."""
LITERALS = {b"t": b"true", b"f": b"false", b"n": b"null"}


class UniqueArrays:
    """The arrays of a schema whose items must differ, and their places in its documents as
    llguidance is given it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._definitions = schema.get("$defs", {})
        self._schema = schema
        self._inside: dict[tuple[tuple[int, ...], str | int], tuple[Any, ...]] = {}

    @classmethod
    def of_source(cls, source: str) -> UniqueArrays | None:
        """Returns the arrays of llguidance's text for a schema; None where it has none of this
        kind."""
        if UNIQUE not in source:
            return None
        return cls(json.loads(source)["grammars"][0]["json_schema"])

    def begin(self) -> Follower:
        """Returns a follower at the beginning of an output."""
        return Follower(self, self._spread([self._schema]))

    def inside(self, schemas: tuple[Any, ...], place: str | int) -> tuple[Any, ...]:
        """The schemas that may be meant for a property or an item of a value that these may be
        meant for."""
        key = (tuple(map(id, schemas)), place)
        found = self._inside.get(key)
        if found is None:
            found = self._spread([each for schema in schemas for each in _inner(schema, place)])
            if len(self._inside) >= MAX_KNOWN:
                self._inside.clear()
            self._inside[key] = found
        return found

    def _spread(self, schemas: list[Any]) -> tuple[Any, ...]:
        found: dict[int, Any] = {}
        stack = list(reversed(schemas))
        while stack:
            node = stack.pop()
            if isinstance(node, dict) and id(node) not in found:
                found[id(node)] = node
                for name in ("allOf", "anyOf", "oneOf"):
                    stack += node.get(name, ())
                if "$ref" in node:
                    stack.append(self._definitions.get(node["$ref"].rpartition("/")[2]))
        return tuple(found.values())


def _inner(schema: dict[str, Any], place: str | int) -> Iterator[Any]:
    if isinstance(place, int):
        first = schema.get("prefixItems", ())
        yield first[place] if place < len(first) else schema.get("items")
        return
    if place in schema.get("properties", {}):
        yield schema["properties"][place]
    else:
        yield schema.get("additionalProperties")
    for pattern, each in schema.get("patternProperties", {}).items():
        if _may_match(pattern, place):
            yield each


def _may_match(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except (re.error, RecursionError, OverflowError):
        return True


class Container(NamedTuple):
    """An array or object that is open.

    schemas: that may be meant for it.  place: of the item or property that is being written.
    unique: whether its items may not be the same.  left: of items that can be listed, those that
    haven't come yet.  seen: what has come, as identity has it.
    """

    is_array: bool
    schemas: tuple[Any, ...]
    place: str | int = 0
    unique: bool = False
    left: frozenset[bytes] | None = None
    seen: frozenset[Any] = frozenset()


class Follower:
    """Where an output is.

    written: the item of a unique array, or name, that is being written, so far.
    """

    __slots__ = ("_arrays", "_awaits_name", "_escaped", "_root", "_stack", "in_string", "written")

    def __init__(self, arrays: UniqueArrays, root: tuple[Any, ...]) -> None:
        self._arrays = arrays
        self._root = root
        self._stack: tuple[Container, ...] = ()
        self.in_string = self._escaped = self._awaits_name = False
        self.written = b""

    def copy(self) -> Follower:
        made = Follower(self._arrays, self._root)
        made._stack, made.written = self._stack, self.written
        made.in_string, made._escaped = self.in_string, self._escaped
        made._awaits_name = self._awaits_name
        return made

    @property
    def array(self) -> Container | None:
        """The unique array whose items are being written, if it is one."""
        return self._stack[-1] if self._stack and self._stack[-1].unique else None

    def push(self, piece: bytes) -> bool:
        """Takes the next bytes of the output. Returns False if two items would be the same, or if
        no different item would be left."""
        return all(self._one(byte) for byte in piece)

    def _one(self, byte: int) -> bool:
        if self.in_string:
            self._in_string(byte)
            return self._is_possible()
        if byte == _QUOTE:
            self.in_string = True
            self.written = b'"'
            return self._is_possible()
        if byte in _SPACE:
            return self._ended()
        if byte == _COMMA:
            return self._ended() and self._next()
        if byte == _COLON:
            self._awaits_name = False
        elif byte in _OPENING:
            self._open(is_array=byte == b"["[0])
        elif byte in _CLOSING:
            if not self._ended():
                return False
            self._stack = self._stack[:-1]
            self._awaits_name = False
        else:
            self.written += bytes((byte,))
            return self._is_possible()
        return True

    def _in_string(self, byte: int) -> None:
        if self._awaits_name or self.array is not None:
            self.written += bytes((byte,))
        if self._escaped:
            self._escaped = False
        elif byte == _BACKSLASH:
            self._escaped = True
        elif byte == _QUOTE:
            self.in_string = False
            if self._awaits_name:
                name = json.loads(self.written)
                self._stack = (*self._stack[:-1], self._stack[-1]._replace(place=name))
                self.written = b""

    def _open(self, *, is_array: bool) -> None:
        if self._stack:
            schemas = self._arrays.inside(self._stack[-1].schemas, self._stack[-1].place)
        else:
            schemas = self._root
        marks = [each[UNIQUE] for each in schemas if UNIQUE in each] if is_array else []
        left = None
        if marks and None not in marks:
            left = frozenset(text.encode() for texts in marks for text in texts)
        self._stack = (*self._stack, Container(is_array, schemas, 0, bool(marks), left))
        self._awaits_name = not is_array
        self.written = b""

    def _next(self) -> bool:
        top = self._stack[-1]
        if not top.is_array:
            self._awaits_name = True
            return True
        self._stack = (*self._stack[:-1], top._replace(place=int(top.place) + 1))
        return top.left is None or bool(top.left)

    def _ended(self) -> bool:
        """Takes the end of the item that is being written, if one is. Returns False if the array
        has an equal item already."""
        written, self.written = self.written, b""
        top = self.array
        if top is None or not written:
            return True
        key = identity(json.loads(written))
        if key in top.seen:
            return False
        left = None if top.left is None else top.left - {written}
        self._stack = (*self._stack[:-1], top._replace(seen=top.seen | {key}, left=left))
        return True

    def _is_possible(self) -> bool:
        """Whether an item may begin with what is written."""
        top = self.array
        if top is None:
            if not self.in_string and not self._awaits_name:
                self.written = b""
            return True
        if top.left is not None:
            return any(each.startswith(self.written) for each in top.left)
        literal = LITERALS.get(self.written[:1])
        if literal is not None:
            return identity(json.loads(literal)) not in top.seen
        if self.in_string or not self.written.startswith(b'"'):
            return True
        return identity(json.loads(self.written)) not in top.seen
