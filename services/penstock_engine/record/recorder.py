"""A core that records all its inputs, and a digest of its decisions.

It has the core's methods, and the core doesn't know of it.  Each file begins with a snapshot, so
that any file can be replayed by itself.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, cast

import msgspec

from penstock import protocol
from penstock.config.settings import RecordSettings
from penstock.process import logs
from penstock.protocol.from_frontend import ExpectPrompt, MediaChunk, Submit
from penstock.version import __version__
from penstock_engine.core import EngineCore
from penstock_engine.record.decisions import PARTS, decision_of
from penstock_engine.record.events import event_methods
from penstock_engine.record.framing import MAGIC, SUFFIX, Header, framed
from penstock_engine.record.known import know_plugins
from penstock_engine.record.snapshot import snapshot
from penstock_engine.sessions.effects import Effects

log = logs.get(__name__)

MAX_BACKLOG = 256 * 2**20
"""Bytes that may wait for the disk; a snapshot of a large core is one piece."""

CLOSE_TIMEOUT, CLOSE_LOOKS = 5.0, 20
"""Seconds that the last bytes get at the end, and how often it is looked meanwhile whether they
are written."""


class _File:
    """A file to begin: its name, its header's payload, its snapshot before compression."""

    def __init__(self, name: str, header: bytes, snapshot: bytes) -> None:
        self.name = name
        self.header = header
        self.snapshot = snapshot


class Writer:
    """Writes files from a thread of its own, so that a slow disk never holds up the core. Another
    thread calls `begin`, `append` and `close`.

    Files rotate: the oldest in the folder go when there are more than may be kept, whichever
    engine's life they are of.  What can't be written (a full disk, a backlog) stops the recording
    with one warning, and nothing else.

    failed: why nothing is written any more; None while all is well.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.failed: str | None = None
        self._folder = folder
        self._keep = keep
        self._queue: SimpleQueue[_File | bytes | None] = SimpleQueue()
        self._given = 0
        self._taken = 0
        self._file: BinaryIO | None = None
        self._thread = threading.Thread(target=self._run, name="record", daemon=True)
        self._thread.start()

    def begin(self, name: str, header: bytes, snapshot: bytes) -> None:
        """What follows goes to a new file."""
        self._put(_File(name, header, snapshot), len(header) + len(snapshot))

    def append(self, data: bytes) -> None:
        """Whole records, framed."""
        self._put(data, len(data))

    def _put(self, item: _File | bytes, size: int) -> None:
        if self.failed is not None:
            return
        # Each of the two counts has one writer: no lock.
        if self._given - self._taken + size > MAX_BACKLOG:
            self.stop(f"{MAX_BACKLOG} bytes are waiting to be written")
            return
        self._given += size
        self._queue.put(item)

    def stop(self, reason: str) -> None:
        """Ends the recording, with its one warning."""
        if self.failed is None:
            self.failed = reason
            log.warning("recording stopped", reason=reason, folder=str(self._folder))
            self._queue.put(None)

    def close(self) -> None:
        """Writes what is left, for CLOSE_TIMEOUT at most, and says if that isn't enough."""
        self._queue.put(None)
        for _ in range(CLOSE_LOOKS):  # A process that is stopped meanwhile loses one of them.
            self._thread.join(CLOSE_TIMEOUT / CLOSE_LOOKS)
            if not self._thread.is_alive():
                return
        self.stop(f"{self._given - self._taken} bytes could not be written before the end")

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, _File):
                    self._begin(item)
                    self._taken += len(item.header) + len(item.snapshot)
                else:
                    self._write(item)
                    self._taken += len(item)
        except OSError as error:
            self.stop(f"{error.strerror or error}")
        except Exception as error:
            self.stop(f"{type(error).__name__}: {error}")
        finally:
            if self._file is not None:
                self._file.close()

    def _begin(self, item: _File) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._prune()
        path = self._folder / (item.name + SUFFIX)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = open(descriptor, "wb", buffering=0)  # noqa: SIM115 - closed in _run
        self._write(MAGIC + framed(item.header) + framed(zlib.compress(item.snapshot, 1)))

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def _prune(self) -> None:
        """Makes room for one more file."""
        files = sorted(self._folder.glob(f"*{SUFFIX}"))
        for path in files[: max(0, len(files) - self._keep + 1)]:
            path.unlink(missing_ok=True)


REDACTED = tuple(name for name in Submit.__struct_fields__ if "salt" in name)
"""Fields of Submit that are replaced where they are not empty; ExpectPrompt has them, too."""


def without_media(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns an event's arguments as they are recorded: without the content of media. No decision
    depends on it, nor on its size, which the MediaChunk has."""
    if not any(isinstance(argument, MediaChunk) for argument in arguments):
        return arguments
    session, message, _, now = arguments
    return session, message, b"", now


class Redaction:
    """Replaces what must not be written: a cache salt is a secret, and a session's name may be a
    person's. Each becomes a digest under a key that is drawn here, and is never written.

    They are replaced before the core sees them, not when they are written.  So its state, the keys
    of its prefix index included, never holds the originals, and a replay decides alike; equal ones
    stay equal, different ones different, which is all that the core wants of them.  A tenant's name
    stays: it is a digest of an API key already, and settings name tenants by it.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def apply(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """An event's arguments, with any Submit or ExpectPrompt among them redacted."""
        if any(isinstance(argument, Submit | ExpectPrompt) for argument in arguments):
            return tuple(map(self._redacted, arguments))
        return arguments

    def _redacted(self, argument: Any) -> Any:
        if isinstance(argument, Submit):
            return self._submit(argument)
        if isinstance(argument, ExpectPrompt):
            return msgspec.structs.replace(argument, **self._without_salts(argument))
        return argument

    def _without_salts(self, message: Submit | ExpectPrompt) -> dict[str, Any]:
        secret = {name: getattr(message, name) for name in REDACTED}
        return {name: self.digest(value) for name, value in secret.items() if value}

    def _submit(self, submit: Submit) -> Submit:
        changed = self._without_salts(submit)
        if submit.session is not None:
            anonymous = self.digest(submit.session.id)
            changed["session"] = msgspec.structs.replace(submit.session, id=anonymous)
        return msgspec.structs.replace(submit, **changed) if changed else submit

    def digest(self, value: str | bytes) -> str | bytes:
        """A keyed digest of the value's own type: 32 hexadecimal digits, or 16 bytes."""
        data = value.encode() if isinstance(value, str) else value
        keyed = hashlib.blake2b(data, digest_size=16, key=self._key)
        return keyed.hexdigest() if isinstance(value, str) else keyed.digest()


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
