"""One file's way from the hub into the cache.

What has come lies in `blobs/ETAG.penstock.incomplete`, under a lock, and goes on from there after
an interruption. A file gets its place among the blobs when size and hash are right: a partial or
wrong one is never read.  (huggingface_hub's own downloads begin anew.)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from penstock.errors import StartupError
from penstock.hub.connection import Hub, asks_to_wait, hub_errors
from penstock.hub.http import BUSY, PACE_BYTES, HubAnswer, TooSlow, asked
from penstock.hub.repository import RemoteFile, Repository, file_url, is_hash, plain_etag

CHUNK = 1 << 20
RETRIES = 5
"""Connections in a row that bring nothing, or next to nothing."""
RETRY_SECONDS = 1.0
MOST_WAIT = 60.0
"""Seconds that a hub may ask for until the next connection."""
LOCK_SECONDS = 0.2
"""Seconds between looks whether another pull of the same file has ended."""
MOST_BY_HTTP = 50 * 10**9
"""Bytes of the largest file that the hub gives by plain HTTP."""
LIBRARY_SECONDS = 600.0
"""Seconds without anything of a larger file, which the library waits for as long as the hub
likes."""
PARTIAL = ".penstock.incomplete"


class Cancelled(Exception):
    """Another file's download failed, or the user left."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class Transfer(msgspec.Struct, frozen=True):
    """The downloads of one pull. progress: called with the number of bytes that came (negative:
    that were discarded). cancel: set to end all."""

    hub: Hub
    repository: Repository
    blobs: Path
    progress: Callable[[int], None]
    cancel: threading.Event

    def fetch(self, file: RemoteFile) -> Path:
        """The file among the blobs, downloaded if it isn't there. Raises ModelNotFound,
        StartupError (disk, wrong hash) or Cancelled."""
        if file.size is None or file.etag is None:
            raise ValueError(f"{file.path}: its size and hash aren't known")
        blob = self.blobs / file.etag
        with hub_errors(self.hub, self.repository.name):
            while not blob.exists():
                if file.size > MOST_BY_HTTP:
                    self._fetch_by_library(file, blob)
                    continue
                partial = self.blobs / f"{file.etag}{PARTIAL}"
                with open(partial, "a+b") as out:
                    self._lock(out)
                    # Else another pull has had it meanwhile, and moved or dropped it.
                    if os.fstat(out.fileno()).st_nlink:
                        self._fill(file, file.size, out, partial)
                        os.replace(partial, blob)
        return blob

    def _lock(self, out: BinaryIO) -> None:
        while True:
            try:
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self.cancel.wait(LOCK_SECONDS):
                    raise Cancelled from None

    def _fill(self, file: RemoteFile, size: int, out: BinaryIO, partial: Path) -> None:
        """Raises StartupError for the wrong contents."""
        resumed = self._receive(file, size, out)
        wrong = mismatch(partial, file)
        if wrong and resumed:  # the older part may be to blame
            self._restart(out)
            self._receive(file, size, out)
            wrong = mismatch(partial, file)
        if wrong:
            partial.unlink(missing_ok=True)
            raise self._wrong(file, wrong)

    def _wrong(self, file: RemoteFile, wrong: str) -> StartupError:
        return StartupError(
            f"{self.repository.name.repository}/{file.path} came with the wrong contents: {wrong}; "
            "it was thrown away: try again, or another HF_ENDPOINT"
        )

    def _fetch_by_library(self, file: RemoteFile, blob: Path) -> None:
        """The hub gives such large files in parts only, which the library (hf_xet) puts
        together."""
        ended: list[BaseException | None] = []
        threading.Thread(
            target=lambda: ended.append(self._by_library(file)), name="hub library", daemon=True
        ).start()
        size, since = -1, time.monotonic()
        while not ended:
            if self.cancel.wait(LOCK_SECONDS):
                raise Cancelled  # The thread waits as long as it likes, and ends with the process.
            now = sum(part.stat().st_size for part in self.blobs.glob(f"{file.etag}*.incomplete"))
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > LIBRARY_SECONDS:
                raise TooSlow(f"nothing of {file.path} came in {LIBRARY_SECONDS:g} s")
        if ended[0] is not None:
            raise ended[0]
        if wrong := mismatch(blob, file):
            blob.unlink(missing_ok=True)
            raise self._wrong(file, wrong)
        self.progress(file.size or 0)

    def _by_library(self, file: RemoteFile) -> BaseException | None:
        from huggingface_hub import hf_hub_download

        try:
            hf_hub_download(
                self.repository.name.repository,
                file.path,
                revision=self.repository.commit,
                endpoint=self.hub.endpoint,
                cache_dir=self.hub.cache,
            )
        except BaseException as error:  # raised again in the waiting thread
            return error
        return None

    def _receive(self, file: RemoteFile, size: int, out: BinaryIO) -> bool:
        """Fills `out` up to `size` bytes. Returns whether a part of them was there before."""
        import httpx
        from huggingface_hub.errors import HfHubHTTPError

        out.seek(0, os.SEEK_END)
        if out.tell() > size:
            out.truncate(0)
            out.seek(0)
        begun = out.tell()
        self.progress(begun)
        failures, furthest = 0, begun
        while out.tell() < size:
            error: Exception = httpx.StreamError("it ended too early")
            try:
                self._stream(file, size, out)
            except (httpx.TransportError, httpx.StreamError, TooSlow) as raised:
                error = raised
            except HfHubHTTPError as raised:
                if raised.response.status_code not in BUSY:
                    raise
                error = raised
            if self.cancel.is_set():
                raise Cancelled
            brought = out.tell() - furthest
            furthest += max(0, brought)
            failures = 0 if brought >= PACE_BYTES else failures + 1
            wait = max(asks_to_wait(error), RETRY_SECONDS if failures else 0.0)
            if out.tell() < size and (failures >= RETRIES or wait > MOST_WAIT):
                raise error
            self.cancel.wait(wait)
        out.flush()
        return begun > 0

    def _stream(self, file: RemoteFile, size: int, out: BinaryIO) -> None:
        """Downloads the rest of a file over one connection."""
        import httpx

        at = out.tell()
        ranged = {"Range": f"bytes={at}-"} if at else {}
        url = file_url(self.hub, self.repository, file)
        with asked("GET", url, headers=ranged, file=True) as answer:
            if at and (answer.status == 416 or not _continues(answer, at)):
                self._restart(out)
                if answer.status == 416:
                    return
            answer.check_status()
            _check_version(answer, file)
            for chunk in answer.parts():
                if out.tell() + len(chunk) > size:
                    raise httpx.StreamError("more came than the file has")
                out.write(chunk)
                self.progress(len(chunk))
                if self.cancel.is_set():
                    raise Cancelled

    def _restart(self, out: BinaryIO) -> None:
        self.progress(-out.tell())
        out.seek(0)
        out.truncate()


def _continues(answer: HubAnswer, at: int) -> bool:
    """Whether the server sends what we lack, and not something else, or all of it."""
    if answer.status != 206:
        return answer.status >= 400
    return re.match(rf"bytes {at}-", answer.header("Content-Range")) is not None


def _check_version(answer: HubAnswer, file: RemoteFile) -> None:
    """Contents without a known hash have nothing but the ETag that says which version they are."""
    etag = plain_etag(answer.header("ETag"))
    if not is_hash(str(file.etag)) and etag and etag != file.etag:
        raise StartupError(
            f"{file.path} changed while it was downloaded: its ETag is {etag[:128]!r} instead of "
            f"{file.etag!r}; try again"
        )


def mismatch(path: Path, file: RemoteFile) -> str:
    """What is wrong with the file's contents; empty if nothing is. Reads all of it.

    sha256 of Git LFS, or git's own hash of a blob: sha1 of `blob SIZE\\0` and the contents.  A file
    that came with another kind of ETag is compared by its size alone.
    """
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"{size} bytes instead of {file.size}"
    etag = str(file.etag)
    if re.fullmatch(r"[0-9a-f]{64}", etag):
        kind, digest = "sha256", hashlib.sha256()
    elif re.fullmatch(r"[0-9a-f]{40}", etag):
        kind, digest = "git hash", hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    else:
        return ""
    found = _hashed(path, digest)
    return "" if found == etag else f"{kind} {found} instead of {etag}"


def _hashed(path: Path, digest: _Hash) -> str:
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
