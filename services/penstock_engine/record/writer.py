"""Writes recordings from a thread of its own, so that a slow disk never holds up the core.

Files rotate: the oldest in the folder go when there are more than may be kept, whichever engine's
life they are of.  What can't be written (a full disk, a backlog) stops the recording with one
warning, and nothing else.
"""

from __future__ import annotations

import os
import threading
import zlib
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

from penstock.process import logs
from penstock_engine.record.framing import MAGIC, SUFFIX, framed

log = logs.get(__name__)

MAX_BACKLOG = 256 * 2**20
"""Bytes that may wait for the disk; a snapshot of a large core is one piece."""

CLOSE_TIMEOUT = 5.0
"""Seconds that the last bytes get at the end."""


class _File:
    """A file to begin: its name, its header's payload, its snapshot before compression."""

    def __init__(self, name: str, header: bytes, snapshot: bytes) -> None:
        self.name = name
        self.header = header
        self.snapshot = snapshot


class Writer:
    """One producer (`begin`, `append`, `close`) and one thread that writes.

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
        """Writes what is left, for CLOSE_TIMEOUT at most."""
        self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT)

    # ---- the thread

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
