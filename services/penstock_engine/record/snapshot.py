"""An object graph as bytes: the engine core's whole state at one moment.

The format is a table of nodes in msgpack.  A node is a list that begins with its kind; a value in
it is either plain (None, bool, int, float, str, bytes), written as it is, or [number of a node], or
["i", decimal digits] for a whole number beyond 64 bits.  So shared objects stay shared, and cycles
are no difficulty.

    ["o", shape, values]      an object of ours: shape is an index into the table of shapes
    ["r", shape, values]      a msgspec struct
    ["e", class, name]        a member of an enumeration
    ["n", class, values]      a named tuple
    ["m", [owner], name]      a bound method
    ["l" | "t" | "s" | "f", values]     list, tuple, set, frozenset
    ["d" | "O", keys, values]           dict, OrderedDict, in their order
    ["q", maxlen, values]     deque
    ["a", typecode, bytes]    array, in this machine's byte order
    ["b", bytes]              bytearray

Only the classes of `known` are written: no pickle, and no name that is looked up anywhere else. Of
an object, what its class has in UNRECORDED is left out.
"""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from types import MethodType, NoneType
from typing import Any

import msgspec

from penstock_engine.record.known import is_enum, is_struct, known_classes, name_of, slots_of

FORMAT = 2
PLAIN = frozenset({NoneType, bool, int, float, str, bytes})
LEAST, MOST = -(2**63), 2**64 - 1
"""Whole numbers that msgpack holds."""

Node = list[Any]


class SnapshotError(Exception):
    """Something that no snapshot can hold, or a snapshot that doesn't fit this program."""


class Graph(msgspec.Struct, array_like=True):
    """What is written. shapes: (class, attribute names). Node 0 is the root."""

    format: int
    byteorder: str
    shapes: list[tuple[str, list[str]]]
    nodes: list[Node]


def snapshot(root: object) -> bytes:
    """The graph that hangs on `root`. Raises SnapshotError, which names what isn't known."""
    return msgspec.msgpack.encode(_Walk(root).graph())


class _Walk:
    """Numbers objects as they are met, breadth first: no recursion, however long the chains."""

    def __init__(self, root: object) -> None:
        self._met: dict[int, int] = {}
        self._objects: list[Any] = []
        self._shapes: dict[tuple[str, tuple[str, ...]], int] = {}
        self._slots: dict[type, tuple[str, ...]] = {}
        self._kinds: dict[type, Callable[[Any], Node]] = {
            list: lambda value: ["l", self._values(value)],
            tuple: lambda value: ["t", self._values(value)],
            set: lambda value: ["s", self._values(_in_order(value))],
            frozenset: lambda value: ["f", self._values(_in_order(value))],
            dict: lambda value: ["d", self._values(value.keys()), self._values(value.values())],
            OrderedDict: lambda value: [
                "O",
                self._values(value.keys()),
                self._values(value.values()),
            ],
            deque: lambda value: ["q", value.maxlen, self._values(value)],
            array: lambda value: ["a", value.typecode, value.tobytes()],
            bytearray: lambda value: ["b", bytes(value)],
            MethodType: self._method,
        }
        self._value(root)

    def graph(self) -> Graph:
        nodes: list[Node] = []
        while len(nodes) < len(self._objects):
            nodes.append(self._node(self._objects[len(nodes)]))
        shapes = [(name, list(names)) for name, names in self._shapes]
        return Graph(FORMAT, sys.byteorder, shapes, nodes)

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value if kind is not int or LEAST <= value <= MOST else ["i", str(value)]
        number = self._met.get(id(value))
        if number is None:
            number = self._met[id(value)] = len(self._objects)
            # It also keeps alive what was made for the walk alone, and so its id.
            self._objects.append(value)
        return [number]

    def _values(self, values: Collection[Any]) -> list[Any]:
        """Long tables of plain values are taken as they are."""
        kinds = set(map(type, values))
        if kinds <= PLAIN and (int not in kinds or _fit(values, kinds)):
            return list(values)
        return [self._value(value) for value in values]

    def _node(self, value: Any) -> Node:
        kind = type(value)
        write = self._kinds.get(kind)
        if write is None:
            write = self._kinds[kind] = self._writer_for(kind)
        return write(value)

    def _writer_for(self, kind: type) -> Callable[[Any], Node]:
        name = name_of(kind)
        if known_classes().get(name) is not kind:
            raise SnapshotError(f"the class {name} is not known to snapshots")
        if is_enum(kind):
            return lambda value: ["e", name, value.name]
        if issubclass(kind, tuple):
            return lambda value: ["n", name, self._values(value)]
        self._slots[kind] = slots_of(kind)
        return self._struct if is_struct(kind) else self._object

    def _struct(self, value: Any) -> Node:
        names = self._slots[type(value)]
        values = [self._value(getattr(value, name)) for name in names]
        return ["r", self._shape(type(value), names), values]

    def _object(self, value: Any) -> Node:
        hidden = getattr(type(value), "UNRECORDED", ())
        names = tuple(
            name for name in self._slots[type(value)] if hasattr(value, name) and name not in hidden
        )
        values = [self._value(getattr(value, name)) for name in names]
        extra = getattr(value, "__dict__", None)
        if extra:
            names += tuple(extra)
            values += [self._value(one) for one in extra.values()]
        return ["o", self._shape(type(value), names), values]

    def _method(self, value: MethodType) -> Node:
        return ["m", self._value(value.__self__), value.__func__.__name__]

    def _shape(self, kind: type, names: tuple[str, ...]) -> int:
        return self._shapes.setdefault((name_of(kind), names), len(self._shapes))


def _fit(values: Iterable[Any], kinds: set[type]) -> bool:
    numbers: Iterable[int] = (
        values if kinds == {int} else [value for value in values if type(value) is int]
    )
    return min(numbers) >= LEAST and max(numbers) <= MOST


def _in_order(values: Collection[Any]) -> list[Any]:
    """The members of a set, so that equal sets of plain values are written alike."""
    try:
        return sorted(values)
    except TypeError:
        return list(values)
