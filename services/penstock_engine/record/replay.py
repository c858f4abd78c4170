"""Feeds a recording to the production EngineCore, and compares what both decided."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from penstock_engine.core import EngineCore
from penstock_engine.record.decisions import PARTS, Decision, decision_of, plain
from penstock_engine.record.events import EventMethod, event_methods
from penstock_engine.record.framing import Damaged, Header, Torn, payloads
from penstock_engine.record.known import know_plugins
from penstock_engine.record.recorder import RAISED, STEP, sources_digest
from penstock_engine.record.restoring import restore
from penstock_engine.record.snapshot import SnapshotError
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
