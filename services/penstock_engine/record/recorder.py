"""A core that writes down all that it is told, and a digest of what it decides.

It has the core's methods, and the core doesn't know of it.  Each file begins with a snapshot, so
that any file can be replayed by itself.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec

from penstock import protocol
from penstock.config.settings import RecordSettings
from penstock.process import logs
from penstock.version import __version__
from penstock_engine.core import EngineCore
from penstock_engine.record.decisions import PARTS, decision_of
from penstock_engine.record.events import event_methods
from penstock_engine.record.framing import Header, framed
from penstock_engine.record.known import know_plugins
from penstock_engine.record.redaction import Redaction, without_media
from penstock_engine.record.snapshot import snapshot
from penstock_engine.record.writer import Writer
from penstock_engine.sessions.effects import Effects

log = logs.get(__name__)

STEP, RAISED = -1, -2
"""Records that are no event: (STEP, now, decision), (RAISED, class of the exception)."""

HAND_OVER_BYTES = 2**16
HAND_OVER_SECONDS = 0.25
"""Records go to the writing thread in pieces of that size or age: it is not woken for each."""


@contextmanager
def recording(core: EngineCore, settings: RecordSettings) -> Iterator[EngineCore]:
    """The core to use: `core` itself where nothing is to be recorded."""
    if settings.record_dir is None:
        yield core
        return
    recorder = CoreRecorder(core, settings)
    try:
        yield cast(EngineCore, recorder)
    finally:
        recorder.close()


class CoreRecorder:
    """Stands in place of a core; whatever is no event is the core's own."""

    def __init__(self, core: EngineCore, settings: RecordSettings) -> None:
        if settings.record_dir is None:
            raise ValueError("there is no folder to record to")
        know_plugins()
        self._core = core
        self._redaction = Redaction()
        self._writer = Writer(Path(settings.record_dir), keep=settings.record_files)
        self._encode = msgspec.msgpack.Encoder().encode
        self._events = list(event_methods())
        self._sources = sources_digest()
        self._most = settings.record_max_mib * 2**20
        self._number = 0
        self._size = self._most
        self._pending = bytearray()
        self._handed_over = 0.0
        for index, name in enumerate(self._events):
            setattr(self, name, self._event(index, getattr(core, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def _event(self, index: int, handle: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            # Also when nothing is written any more: the core's state holds what came before.
            arguments = self._redaction.apply(arguments)
            self._note(index, without_media(arguments))
            try:
                return handle(*arguments)
            except Exception as error:
                self._raised(error)
                raise

        return call

    def step(self, now: float) -> Effects:
        """The core's, written down with what it decides. A file is begun here, between events."""
        if self._size >= self._most and self._writer.failed is None:
            self._begin_file()
        try:
            effects = self._core.step(now)
        except Exception as error:
            self._note(STEP, now, None)
            self._raised(error)
            raise
        if self._writer.failed is None:
            self._note(STEP, now, effects)
            due = now - self._handed_over >= HAND_OVER_SECONDS
            if due or len(self._pending) >= HAND_OVER_BYTES:
                self._handed_over = now
                self._hand_over()
        return effects

    def close(self) -> None:
        """Writes what is left. The core can be used further, unrecorded."""
        self._hand_over()
        self._writer.close()

    def _note(self, kind: int, *values: Any) -> None:
        """Adds a record; what can't be written down ends the recording, never the core."""
        # Nothing comes before the first snapshot: the state that it shows has it already.
        if self._writer.failed is not None or not self._number:
            return
        try:
            written = [decision_of(one) if isinstance(one, Effects) else one for one in values]
            data = framed(self._encode((kind, *written)))
        except Exception as error:
            self._writer.stop(f"a record can't be written: {error!r}")
            return
        self._pending += data
        self._size += len(data)

    def _raised(self, error: Exception) -> None:
        """The end of the process, most likely."""
        self._note(RAISED, type(error).__name__)
        self._hand_over()

    def _hand_over(self) -> None:
        if self._pending:
            self._writer.append(bytes(self._pending))
            self._pending.clear()

    def _begin_file(self) -> None:
        self._hand_over()
        self._number += 1
        try:
            state = snapshot(self._core)
        except Exception as error:
            self._writer.stop(f"no snapshot: {error}")
            return
        started, boot = time.time(), self._core.state.facts.boot
        header = Header(
            version=__version__,
            sources=self._sources,
            boot=boot,
            number=self._number,
            started=started,
            events=self._events,
            parts=list(PARTS),
        )
        name = f"{int(1000 * started):014}-{boot}-{self._number:06}"
        self._writer.begin(name, self._encode(header), state)
        self._size = 0


def sources_digest() -> str:
    """Digest of the programs that decide: the engine's and the messages' sources."""
    digest = hashlib.sha256()
    for package in (Path(__file__).parents[1], Path(protocol.__file__).parent):
        for path in sorted(package.rglob("*.py")):
            digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]
