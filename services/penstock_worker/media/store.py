"""Prepared items that have come and wait to be encoded.

An item is a file in shared memory, or comes in chunks. It is read, verified and checked by a thread
of its own, while steps go on. A file is read and not mapped: truncating a mapped file would kill
this process.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from penstock.media.prepared import BrokenItem, read
from penstock.process import logs
from penstock.protocol.from_worker import MediaFailed, MediaReady, MediaTaken
from penstock.protocol.media import MAX_MEDIA_CHUNK, MediaFailure
from penstock.protocol.worker_resources import LoadMedia, LoadMediaChunk
from penstock_worker.media.interface import Tell
from penstock_worker.media.unfit import UnfitItem

log = logs.get(__name__)

Tensors = Mapping[str, np.ndarray]
Check = Callable[[Tensors, int, tuple[int, ...]], int]
"""Returns MediaReady.work for an item's tensors, rows and grid. Raises UnfitItem for one that can't
be encoded."""


class BadItem(Exception):
    """An item that can't be loaded. The message is for the client who sent it."""

    def __init__(self, code: MediaFailure, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class StoreBounds:
    """The most that is kept at a time. The engine core stays below by its books of rows; whatever
    goes beyond is refused."""

    rows: int
    """Rows of one item."""
    size: int
    """Bytes of all prepared items."""


@dataclass
class _Item:
    message: LoadMedia
    tell: Tell
    come: bytearray = field(default_factory=bytearray)
    tensors: Tensors | None = None
    """The item's tensors, once it is here in full, and sound."""


class MediaStore:
    """Prepared items by name, until they are taken or dropped."""

    def __init__(self, check: Check, bounds: StoreBounds) -> None:
        self._check = check
        self._bounds = bounds
        self._items: dict[str, _Item] = {}
        self._lock = threading.Lock()
        self._reader = ThreadPoolExecutor(1, "media-reader")

    def load(self, message: LoadMedia, tell: Tell) -> None:
        """Begins an item. One of that name that was there is replaced."""
        item = _Item(message, tell)
        try:
            with self._lock:
                self._refuse_unbounded(message)
                self._items[message.name] = item
        except BadItem as error:
            tell(MediaFailed(message.name, str(error), error.code))
            return
        if message.path:
            self._reader.submit(self._finish, item, message.path)

    def add(self, message: LoadMediaChunk, frame: bytes) -> None:
        """Appends bytes to an item. Those of an unknown one are left."""
        with self._lock:
            item = self._items.get(message.name)
            if item is None:
                return
            sound = self._append(item, message.offset, frame)
            if not sound:
                del self._items[message.name]
            come = len(item.come)
        if not sound:
            item.tell(MediaFailed(message.name, "its bytes came out of order", "damaged"))
        elif come == item.message.size:
            self._reader.submit(self._finish, item, "")
        else:
            item.tell(MediaTaken(message.name, come))

    @staticmethod
    def _append(item: _Item, offset: int, frame: bytes) -> bool:
        """Returns whether these are the item's next bytes."""
        left = item.message.size - len(item.come)
        if item.message.path or offset != len(item.come):
            return False
        if not 0 < len(frame) <= min(left, MAX_MEDIA_CHUNK):
            return False
        item.come += frame
        return True

    def take(self, name: str) -> tuple[Tensors, Tell] | None:
        """Returns an item, which is forgotten here; None if there is none."""
        with self._lock:
            item = self._items.pop(name, None)
        if item is None or item.tensors is None:
            return None
        return item.tensors, item.tell

    def drop(self, name: str) -> None:
        with self._lock:
            self._items.pop(name, None)

    def clear(self) -> None:
        with self._lock:
            self._items.clear()

    def close(self) -> None:
        """Ends the thread, without waiting for what it reads."""
        self.clear()
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _refuse_unbounded(self, message: LoadMedia) -> None:
        if not 1 <= message.rows <= self._bounds.rows:
            raise BadItem(
                "unfit", f"it has {message.rows} rows; 1 to {self._bounds.rows} are allowed here"
            )
        held = sum(each.message.size for each in self._items.values())
        if message.size < 1 or held + message.size > self._bounds.size:
            raise BadItem(
                "unfit",
                f"it has {message.size} bytes; {self._bounds.size} are allowed for all items that "
                "wait to be encoded",
            )

    def _finish(self, item: _Item, path: str) -> None:
        """Reads an item that has come, in the reader's thread, and says whether it can be
        encoded."""
        name, tensors = item.message.name, None
        try:
            content = _file(path, item.message.size) if path else bytes(item.come)
            tensors, work = self._read(item.message, content)
        except BadItem as error:
            answer: MediaReady | MediaFailed = MediaFailed(name, str(error), error.code)
        except Exception:
            log.error("an item can't be read", exception=True, item=name)
            answer = MediaFailed(name, "it can't be read", "damaged")
        else:
            answer = MediaReady(name, work)
        with self._lock:
            if self._items.get(name) is not item:
                return  # Dropped meanwhile; the engine core asks for nothing any more.
            item.tensors, item.come = tensors, bytearray()
            if tensors is None:
                del self._items[name]
        item.tell(answer)

    def _read(self, message: LoadMedia, content: bytes) -> tuple[Tensors, int]:
        if len(content) != message.size or hashlib.sha256(content).hexdigest() != message.digest:
            raise BadItem("damaged", "its bytes are not those that were announced")
        try:
            tensors = read(content)
            work = self._check(tensors, message.rows, message.grid)
        except BrokenItem as error:
            raise BadItem("damaged", f"it isn't a prepared item: {error}") from None
        except UnfitItem as error:
            raise BadItem("unfit", str(error)) from None
        return tensors, work


def _file(path: str, size: int) -> bytes:
    """Reads a whole file of that size, and no other. Raises BadItem."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise BadItem("unreachable", "its file can't be opened") from None
    with open(file, "rb") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            raise BadItem("damaged", "its file has another size than was announced")
        return opened.read(size)
