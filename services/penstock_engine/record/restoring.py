"""A snapshot's objects, built again without calling a constructor of ours.

Shells of whatever can change are made first, then the values that can't (tuples, structs), each
after what it holds, and last the shells are filled: tables that hash their keys at the very end.
"""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict, deque
from types import FunctionType
from typing import Any

import msgspec

from penstock_engine.record.known import is_enum, is_struct, known_classes, slots_of
from penstock_engine.record.snapshot import FORMAT, Graph, Node, SnapshotError

_EMPTY: dict[str, Any] = {"l": list, "d": dict, "O": OrderedDict, "s": set}
_FILLED_IN_ORDER = ("o", "l", "q", "s", "d", "O")
_UNSET = object()


def restore(data: bytes) -> Any:
    """The root of a snapshot. Raises SnapshotError where it doesn't fit this program."""
    try:
        graph = msgspec.msgpack.decode(data, type=Graph)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotError(f"not a snapshot: {error}") from None
    if graph.format != FORMAT or graph.byteorder != sys.byteorder:
        raise SnapshotError(
            f"a snapshot of format {graph.format}, {graph.byteorder}-endian; "
            f"this program reads format {FORMAT}, {sys.byteorder}-endian"
        )
    try:
        return _Restorer(graph).root()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SnapshotError(f"the snapshot is damaged: {error!r}") from error


class _Restorer:
    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self._shapes = [_shape(name, names) for name, names in graph.shapes]
        self._made: list[Any] = [self._shell(node) for node in graph.nodes]

    def root(self) -> Any:
        for number in range(len(self._nodes)):
            self._settle(number)
        for kind in _FILLED_IN_ORDER:
            for node, made in zip(self._nodes, self._made, strict=True):
                if node[0] == kind:
                    self._fill(node, made)
        return self._made[0]

    def _shell(self, node: Node) -> Any:
        """What can be made before anything else is; _UNSET for what has to wait."""
        kind = node[0]
        if kind == "o":
            cls = self._shapes[node[1]][0]
            return object.__new__(cls)
        if kind in _EMPTY:
            return _EMPTY[kind]()
        if kind == "q":
            return deque(maxlen=node[1])
        if kind == "a":
            return array(node[1], node[2])
        if kind == "b":
            return bytearray(node[1])
        if kind == "e":
            return _member(node[1], node[2])
        if kind in ("t", "f", "r", "m", "n"):
            return _UNSET
        raise SnapshotError(f"unknown kind of node {kind!r}")

    def _settle(self, number: int) -> None:
        """Makes a value that can't change, after those that it holds."""
        stack = [number]
        waiting = {number}
        while stack:
            top = stack[-1]
            if self._made[top] is _UNSET:
                missing = [at for at in self._held(top) if self._made[at] is _UNSET]
                if not waiting.isdisjoint(missing):
                    raise SnapshotError(f"node {top} holds itself, and can't change")
                if missing:
                    stack += missing
                    waiting.update(missing)
                    continue
                self._made[top] = self._whole(self._nodes[top])
            stack.pop()
            waiting.discard(top)

    def _held(self, number: int) -> list[int]:
        node = self._nodes[number]
        values = [node[1]] if node[0] == "m" else node[-1]
        return list(
            dict.fromkeys(value[0] for value in values if type(value) is list and len(value) == 1)
        )

    def _whole(self, node: Node) -> Any:
        kind = node[0]
        if kind == "m":
            return _method(self._value(node[1]), node[2])
        values = self._values(node[-1])
        if kind == "t":
            return tuple(values)
        if kind == "f":
            return frozenset(values)
        if kind == "n":
            return tuple.__new__(_named_tuple(node[1]), values)
        cls, names = self._shapes[node[1]]
        # A struct is a value, and has no other way to be made than from its fields.
        return cls(**dict(zip(names, values, strict=True)))

    def _fill(self, node: Node, made: Any) -> None:
        kind, values = node[0], self._values(node[-1])
        if kind == "o":
            cls, names = self._shapes[node[1]]
            slots = slots_of(cls)
            for name, value in zip(names, values, strict=True):
                if name in slots:
                    object.__setattr__(made, name, value)
                else:
                    made.__dict__[name] = value
        elif kind in ("l", "q"):
            made.extend(values)
        elif kind == "s":
            made.update(values)
        else:
            made.update(zip(self._values(node[1]), values, strict=True))

    def _values(self, values: list[Any]) -> list[Any]:
        return [self._value(value) if type(value) is list else value for value in values]

    def _value(self, value: Any) -> Any:
        if type(value) is not list:
            return value
        if len(value) == 1:
            return self._made[value[0]]
        return int(value[1])


def _shape(name: str, names: list[str]) -> tuple[type, list[str]]:
    cls = known_classes().get(name)
    if cls is None:
        raise SnapshotError(f"the class {name} is not known to snapshots")
    slots = slots_of(cls)
    rest = [one for one in names if one not in slots]
    has_dict = not is_struct(cls) and bool(getattr(cls, "__dictoffset__", 0))
    if (rest and not has_dict) or any(one.startswith("__") for one in rest):
        raise SnapshotError(
            f"{name} has no attribute {rest[0]!r}: it was written by another version"
        )
    missing = [one for one in slots if one not in names]
    if missing and is_struct(cls):
        raise SnapshotError(f"{name} lacks {missing[0]!r}: it was written by another version")
    return cls, names


def _named_tuple(name: str) -> type[tuple[Any, ...]]:
    cls = known_classes().get(name)
    if cls is None or not issubclass(cls, tuple):
        raise SnapshotError(f"{name} is not a named tuple known to snapshots")
    return cls


def _member(name: str, member: str) -> Any:
    cls = known_classes().get(name)
    if cls is None or not is_enum(cls):
        raise SnapshotError(f"{name} is not an enumeration known to snapshots")
    return cls[member]  # type: ignore[index]


def _method(owner: object, name: str) -> Any:
    for cls in type(owner).__mro__:
        if (
            isinstance(cls.__dict__.get(name), FunctionType)
            and type(owner) in known_classes().values()
        ):
            return getattr(owner, name)
    raise SnapshotError(f"{type(owner).__name__} has no method {name!r}")
