"""One file's way from the hub into the cache.

What has come lies in `blobs/ETAG.penstock.incomplete`, under a lock, and goes on from there after
an interruption, whoever caused it. A file gets its place among the blobs when size and hash are
right: nobody ever reads half of one, or a wrong one.  (huggingface_hub's own downloads begin anew.)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from penstock.errors import StartupError
from penstock.hub.connection import Hub, hub_errors
from penstock.hub.repository import RemoteFile, Repository

CHUNK = 1 << 20
READ_TIMEOUT = 30.0
"""Seconds without a byte after which a connection is given up."""
RETRIES = 5
"""Connections in a row that bring nothing."""
RETRY_SECONDS = 1.0
LOCK_SECONDS = 0.2
"""Between looks whether another pull of the same file has ended."""
MOST_BY_HTTP = 50 * 10**9
"""Bytes of the largest file that the hub gives by plain HTTP."""
PARTIAL = ".penstock.incomplete"


class Cancelled(Exception):
    """Another file's download failed, or the user left."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class Transfer(msgspec.Struct, frozen=True):
    """The downloads of one pull. progress: told how many bytes came (negative: were given up).
    cancel: set to end all."""

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
        from huggingface_hub import hf_hub_download

        hf_hub_download(
            self.repository.name.repository,
            file.path,
            revision=self.repository.commit,
            endpoint=self.hub.endpoint,
            cache_dir=self.hub.cache,
        )
        if wrong := mismatch(blob, file):
            blob.unlink(missing_ok=True)
            raise self._wrong(file, wrong)
        self.progress(file.size or 0)

    def _receive(self, file: RemoteFile, size: int, out: BinaryIO) -> bool:
        """Fills `out` up to `size` bytes. Returns whether a part of them was there before."""
        import httpx

        out.seek(0, os.SEEK_END)
        if out.tell() > size:
            out.truncate(0)
            out.seek(0)
        begun = out.tell()
        self.progress(begun)
        failures, furthest = 0, begun
        while out.tell() < size:
            error = httpx.StreamError("it ended too early")
            try:
                self._stream(file, size, out)
            except (httpx.TransportError, httpx.StreamError) as raised:
                error = raised  # type: ignore[assignment]
            if self.cancel.is_set():
                raise Cancelled
            failures = 0 if out.tell() > furthest else failures + 1
            furthest = max(furthest, out.tell())
            if failures >= RETRIES:
                raise error
            self.cancel.wait(RETRY_SECONDS if failures else 0.0)
        out.flush()
        return begun > 0

    def _stream(self, file: RemoteFile, size: int, out: BinaryIO) -> None:
        """One connection."""
        import httpx
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            hf_raise_for_status,
        )

        name, at = self.repository.name, out.tell()
        url = hf_hub_url(
            name.repository, file.path, revision=self.repository.commit, endpoint=self.hub.endpoint
        )
        headers = {**build_hf_headers(library_name="penstock"), "Accept-Encoding": "identity"}
        if at:
            headers["Range"] = f"bytes={at}-"
        session = get_session()  # drops the token where it is sent on to another host
        with session.stream("GET", url, headers=headers, timeout=READ_TIMEOUT) as response:
            if at and (response.status_code == 416 or not _continues(response, at)):
                self._restart(out)
                if response.status_code == 416:
                    return
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            for chunk in response.iter_bytes(CHUNK):
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


def _continues(response: object, at: int) -> bool:
    """Whether the server sends what we lack, and not something else, or all of it."""
    status = getattr(response, "status_code", 0)
    if status != 206:
        return bool(status >= 400)
    said = getattr(response, "headers", {}).get("Content-Range", "")
    return re.match(rf"bytes {at}-", said) is not None


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
