"""Feeds a recording to the production EngineCore, and compares what both decided."""

from __future__ import annotations

import sys
import zlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, BinaryIO

import msgspec

from penstock_engine.core import EngineCore
from penstock_engine.record.decisions import PARTS, Decision, decision_of, plain
from penstock_engine.record.events import EventMethod, event_methods
from penstock_engine.record.framing import Damaged, Header, Torn, payloads
from penstock_engine.record.known import is_enum, is_struct, know_plugins, known_classes, slots_of
from penstock_engine.record.recorder import RAISED, STEP, sources_digest
from penstock_engine.record.snapshot import FORMAT, Graph, Node, SnapshotError
from penstock_engine.sessions.effects import Effects


@dataclass
class Difference:
    """The first decision that differs. record: its number in the file, from 1.
    step: calls of `step` before it in this file.  now: the engine's clock, seconds."""

    record: int
    step: int
    now: float
    parts: list[str]
    recorded: str
    replayed: str


@dataclass
class Replayed:
    """What became of one file. torn: how it ends, where it doesn't end well."""

    path: Path
    header: Header
    records: int = 0
    steps: int = 0
    difference: Difference | None = None
    torn: str | None = None

    @property
    def same_program(self) -> bool:
        return self.header.sources == sources_digest()


@dataclass
class RecordedEvent:
    """One record, decoded: an event (name, arguments), a step, or a raised exception."""

    number: int
    name: str
    arguments: tuple[Any, ...] = ()
    decision: Decision | None = None
    raised: str = ""


class RecordingFile:
    """An open file: its header, its core, and its records."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        know_plugins()
        self.path = path
        self._payloads = payloads(file, str(path))
        self._events: list[EventMethod] = []
        try:
            self.header = msgspec.msgpack.decode(next(self._payloads), type=Header)
            self._events = self._known_events()
            self.core = _core(zlib.decompress(next(self._payloads)))
        except (StopIteration, Torn):
            raise Damaged(f"{path}: the file ends within its snapshot") from None
        except (msgspec.DecodeError, UnicodeDecodeError, zlib.error, SnapshotError) as error:
            raise Damaged(f"{path}: {error}") from error

    def _known_events(self) -> list[EventMethod]:
        ours = event_methods()
        unknown = [name for name in self.header.events if name not in ours]
        if unknown:
            raise Damaged(f"{self.path}: this version has no event {unknown[0]!r}")
        return [ours[name] for name in self.header.events]

    def records(self) -> Iterator[RecordedEvent]:
        """Raises Damaged; Torn at the end of a file that was cut off."""
        number = 2
        for payload in self._payloads:
            number += 1
            try:
                yield self._decode(number, payload)
            except (msgspec.DecodeError, UnicodeDecodeError, LookupError) as error:
                raise Damaged(f"{self.path}: record {number}: {error}") from error

    def _decode(self, number: int, payload: bytes) -> RecordedEvent:
        kind, *rest = _RAW.decode(payload)
        index = msgspec.msgpack.decode(kind, type=int)
        if index == STEP:
            now, decision = rest
            clock = msgspec.msgpack.decode(now, type=float)
            return RecordedEvent(number, "step", (clock,), _DECISION.decode(decision))
        if index == RAISED:
            return RecordedEvent(number, "raised", raised=msgspec.msgpack.decode(rest[0], type=str))
        event = self._events[index]
        return RecordedEvent(number, event.name, event.decoder.decode(rest[0]))


_RAW = msgspec.msgpack.Decoder(list[msgspec.Raw])
_DECISION = msgspec.msgpack.Decoder(Decision | None)


def replay(path: Path) -> Replayed:
    """Up to the first difference, or the end. Raises Damaged (an InvalidRequest), OSError."""
    with open(path, "rb") as file:
        recording = RecordingFile(path, file)
        done = Replayed(path, recording.header)
        player = _Player(recording.core)
        try:
            for record in recording.records():
                done.records = record.number
                done.steps += record.name == "step"
                done.difference = player.play(record, done.steps)
                if done.difference is not None:
                    break
            else:
                done.difference = player.end(done.records, done.steps)
        except Torn as torn:
            done.torn = str(torn)
        return done


class _Player:
    """raised: what the core raised at the last record, which the next one has to say too."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._raised = ""
        self._now = 0.0

    def play(self, record: RecordedEvent, step: int) -> Difference | None:
        """What differs at this record."""
        if record.name == "raised" or self._raised:
            said = record.raised or "nothing"
            ours, self._raised = self._raised or "nothing", ""
            if said == ours:
                return None
            return self._difference(record.number, step, ["exception"], said, ours)
        self._now = record.arguments[-1]
        try:
            result = getattr(self._core, record.name)(*record.arguments)
        except Exception as error:
            self._raised = type(error).__name__
            return None
        if record.name == "step":
            return self._compare(record, result, step)
        return None

    def end(self, record: int, step: int) -> Difference | None:
        """What differs after the last record; None: nothing."""
        if not self._raised:
            return None
        return self._difference(record, step, ["exception"], "nothing", self._raised)

    def _compare(self, record: RecordedEvent, effects: Effects, step: int) -> Difference | None:
        ours, theirs = decision_of(effects), record.decision
        parts = differing(theirs, ours)
        if not parts:
            return None
        return self._difference(record.number, step, parts, shown(theirs), shown(ours, effects))

    def _difference(
        self, record: int, step: int, parts: list[str], recorded: str, replayed: str
    ) -> Difference:
        return Difference(record, step, self._now, parts, recorded, replayed)


def differing(recorded: Decision | None, replayed: Decision | None) -> list[str]:
    """Names of the parts of Effects that are not alike."""
    nothing = [b""] * len(PARTS)
    old = recorded.digests if recorded is not None else nothing
    new = replayed.digests if replayed is not None else nothing
    return [name for name, one, other in zip(PARTS, old, new, strict=False) if one != other] or (
        ["effects"] if len(old) != len(new) else []
    )


def shown(decision: Decision | None, effects: Effects | None = None) -> str:
    """A decision in words; of a replayed one everything, of a recorded one what was kept."""
    if decision is None:
        return "nothing to send"
    lines = [f"plan {plain(plan)}" for plan in decision.plans]
    if effects is not None:
        messages = [(session, message) for session, message, _ in effects.to_frontends]
        lines += [f"to front end {session.hex()}: {message!r}" for session, message in messages]
        ends = [*effects.end_workers, *effects.end_frontends]
        lines += [f"end session {session.hex()}: {reason}" for session, reason in ends]
    else:
        lines += [
            f"to front end {session.hex()}: {kind}" + (f" of {count}" if count else "")
            for session, kind, count in decision.told
        ]
    lines.append(f"digests {[digest.hex()[:8] for digest in decision.digests]}")
    return "\n".join(lines)


def _core(data: bytes) -> EngineCore:
    core = restore(data)
    if not isinstance(core, EngineCore):
        raise SnapshotError(f"the snapshot holds a {type(core).__name__}, not an EngineCore")
    return core


# A snapshot's objects, built again without calling a constructor of ours.
#
# Shells of whatever can change are made first, then the values that can't (tuples, structs), each
# after what it holds, and last the shells are filled: tables that hash their keys at the very end.

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
