"""A request's prepared pictures, sounds and videos, which engine cores ask for when they need
them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from penstock.errors import InvalidRequest, StartupError
from penstock.media.item_names import PromptMedia
from penstock.net.runtime_dir import RuntimeDir
from penstock.process import logs
from penstock.protocol.from_frontend import FromFrontend, MediaChunk, MediaFile, MediaLost
from penstock.protocol.media import MAX_MEDIA_CHUNK
from penstock.protocol.to_frontend import NeedMedia

log = logs.get(__name__)
_note_no_file = logs.Seldom(log.warning)

MEDIA_FOLDER = "media"
"""Name of the folder of media next to the engine core's socket, in the private run folder."""
LARGE = 1 << 20
"""Bytes of an item from which on a thread writes it."""


class PreparedMedia:
    """The media of one request, with the prepared items' bytes, kept until the request ends: so it
    can be submitted to another engine core, which then asks for them anew."""

    def __init__(self, prompt: PromptMedia) -> None:
        """Raises InvalidRequest where an item's bytes are missing, or aren't as many as it says."""
        self.media = prompt.media
        self._views: dict[str, memoryview] = {}
        self._given_back: list[Callable[[], None]] = []
        for item in self.media.items:
            if item.name not in prompt.prepared:
                raise InvalidRequest(f"item {item.name} has no prepared bytes", param="media")
            view = memoryview(prompt.prepared[item.name]).cast("B")
            if len(view) != item.size:
                raise InvalidRequest(
                    f"item {item.name} has {len(view)} prepared bytes; it says {item.size}",
                    param="media",
                )
            self._views[item.name] = view

    def answer(
        self, asked: NeedMedia, files: MediaFiles | None
    ) -> tuple[FromFrontend, tuple[memoryview, ...]]:
        """What is to be sent, with its frames. files: of the engine core's host; None: it is
        another one's."""
        request, number = asked.request, asked.item
        if not 0 <= number < len(self.media.items) or not self._views:
            return MediaLost(request, number), ()
        item = self.media.items[number]
        if not 0 <= asked.offset < item.size:
            return MediaLost(request, number), ()
        path = None
        if files is not None and not asked.chunks:
            path = files.hold(item.name, self._views[item.name])
        if files is not None and path is not None:
            self._given_back.append(lambda: files.release(item.name))
            return MediaFile(request, number, path), ()
        chunk = self._views[item.name][asked.offset : asked.offset + MAX_MEDIA_CHUNK]
        return MediaChunk(request, number, asked.offset, len(chunk)), (chunk,)

    def large_file(self, asked: NeedMedia) -> tuple[str, memoryview] | None:
        """(name, bytes) of an item that is asked for as a file, if a thread should write it."""
        if asked.chunks or not 0 <= asked.item < len(self.media.items) or not self._views:
            return None
        item = self.media.items[asked.item]
        return (item.name, self._views[item.name]) if item.size >= LARGE else None

    def close(self) -> None:
        """The request is over. Idempotent."""
        for give_back in self._given_back:
            give_back()
        self._given_back.clear()
        self._views.clear()


class MediaFiles:
    """Prepared items as files for workers on this host: one for each item, however many requests
    have it, in a folder of this process's own. It is made when it is first needed; what a process
    that was killed has left is deleted then.

    `hold` writes a file in the caller's thread: most prepared items are small, and the run folder
    lies in memory as a rule.  For large ones, `written` is entered first.
    """

    def __init__(self, base: Path) -> None:
        """base: the private run folder."""
        self._base = base / MEDIA_FOLDER
        self._folder: RuntimeDir | None = None
        self._failed = False
        self._held: dict[str, int] = {}
        """How many requests have each."""
        self._one_at_a_time = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def written(self, name: str, data: memoryview) -> AsyncIterator[bool]:
        """Has the item's file written by a thread, unless it is there; meanwhile `hold` finds it.
        Yields whether it can be had."""
        async with self._one_at_a_time:
            there = name in self._held or await self._in_thread(name, data)
            if there:
                self._held[name] = self._held.get(name, 0) + 1
        try:
            yield there
        finally:
            if there:
                self.release(name)

    async def _in_thread(self, name: str, data: memoryview) -> bool:
        folder = self._make()
        return folder is not None and await asyncio.to_thread(_made, folder.path / name, data)

    def hold(self, name: str, data: memoryview) -> str | None:
        """The path of a file with these bytes, until `release`; None: there can't be one. name: of
        the item."""
        folder = self._make()
        if folder is None:
            return None
        path = folder.path / name
        if name not in self._held and not _made(path, data):
            return None
        self._held[name] = self._held.get(name, 0) + 1
        return str(path)

    def release(self, name: str) -> None:
        """Notes that a request which had the item has ended. The file is removed with the last of
        them."""
        if name not in self._held:
            return  # The folder is gone.
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]
            if self._folder is not None:
                (self._folder.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Deletes all of them. Idempotent."""
        self._held.clear()
        self._failed = True
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def _make(self) -> RuntimeDir | None:
        if self._folder is None and not self._failed:
            try:
                self._base.mkdir(mode=0o700, exist_ok=True)
                self._folder = RuntimeDir.create(self._base, sockets=False)
            except (OSError, StartupError) as error:
                self._failed = True
                log.warning("items are sent in messages", reason=str(error))
        return self._folder


def files_beside(endpoint: str) -> MediaFiles | None:
    """The files of media for an engine core at a Unix socket; None for one that may be on another
    host."""
    if not endpoint.startswith("ipc:///"):
        return None
    return MediaFiles(Path(endpoint.removeprefix("ipc://")).parent)


def _made(path: Path, data: memoryview) -> bool:
    try:
        _write(path, data)
    except OSError as error:
        _note_no_file("an item can't be a file", reason=error.strerror, size=len(data))
        path.unlink(missing_ok=True)
        return False
    return True


def _write(path: Path, data: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        while data:
            data = data[file.write(data) :]
