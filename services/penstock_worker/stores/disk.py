"""The segments of one model in a folder that several workers may share, and an index of them.

    DIR/lock                       held while room is made
    DIR/LAYOUT/*.kv                segments; their names are random

Each worker writes segments of its own and reads everybody's. A segment's time of modification says
when it was used last; the oldest one of all models is deleted where DIR would hold too much.
Workers that still have it open can read it, and close it soon.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import os
import secrets
import stat
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import StartupError
from penstock.process import logs
from penstock_worker.stores.contents import CHECKSUM_BYTES, Contents, WritePace, checksum, keep
from penstock_worker.stores.interface import StoredLayout

log = logs.get(__name__)

SEGMENT_BYTES = 256 * 2**20
"""Bytes of a segment, about, where that is no more than a sixteenth of what the folder may hold."""

MAX_SEGMENTS = 256
"""Segments, about, if all were of one folder: each takes an open file."""

REFRESH_SECONDS = 1.0
"""Seconds between two looks at what others have written."""

RETRY_SECONDS = 30.0
"""Seconds until writing is tried again after an error."""


class SegmentFolder:
    """A KVStore."""

    def __init__(
        self, root: Path, layout: StoredLayout, limit_bytes: int, pace: WritePace | None = None
    ) -> None:
        """Makes the folders. limit_bytes: that all of `root` may hold; pace: who writes may change
        it. Raises StartupError."""
        self._pace = pace or WritePace()
        self._root, self._folder = root, root / layout.name
        self._layout, self._limit = layout, limit_bytes
        each = HEADER_BYTES + layout.payload_bytes
        wanted = max(min(SEGMENT_BYTES, limit_bytes // 16), limit_bytes // MAX_SEGMENTS)
        self._places = max(1, wanted // each)
        self._segment_bytes = self._places * each
        if self._segment_bytes > limit_bytes:
            raise StartupError(
                f"disk_kv_gib lets {root} hold {limit_bytes:,} bytes; a KV block takes {each:,}"
            )
        self.num_damaged = 0
        self._lock = threading.Lock()
        self._segments: dict[str, SegmentFile] = {}
        self._index: dict[bytes, tuple[SegmentFile, int]] = {}
        self._own: SegmentFile | None = None
        self._refreshed = 0.0
        self._not_before = 0.0
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._lock:
                self._look(time.monotonic())
        except OSError as error:
            raise StartupError(f"disk_kv_dir {root} can't be used: {error}") from error

    def __len__(self) -> int:
        return len(self._index)

    @property
    def payload_bytes(self) -> int:
        return self._layout.payload_bytes

    def has(self, key: bytes) -> bool:
        """Whether the key was there at the last look."""
        return key in self._index

    def leading(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first one on, are there."""
        now = time.monotonic()
        with self._lock:
            if now >= self._refreshed + REFRESH_SECONDS:
                try:
                    self._look(now)
                except OSError as error:
                    log.warning("the KV on disk can't be inspected", reason=str(error))
            found = next((n for n, key in enumerate(keys) if key not in self._index), len(keys))
            segments = {id(s): s for s, _ in map(self._index.__getitem__, keys[:found])}
            for segment in segments.values():
                segment.used_now()
        return found

    def read(self, key: bytes) -> bytes | None:
        """The contents; None where they aren't there, or are damaged, and then forgotten."""
        with self._lock:
            segment, place = self._index.get(key, (None, 0))
            if segment is None:
                return None
            try:
                payload = segment.read(key, place)
            except OSError as error:
                log.warning(
                    "KV can't be read from disk", folder=str(self._folder), reason=str(error)
                )
                payload = None
            if payload is None:
                self.num_damaged += 1
                del self._index[key]
            return payload

    def write(self, key: bytes, payload: Contents) -> bool:
        """Appends the contents; whether they are there now. After an error nothing is written for
        RETRY_SECONDS."""
        if self.has(key):
            return True
        now = time.monotonic()
        if now < self._not_before or len(payload) != self.payload_bytes:
            return False
        try:
            own = self._writable()
            place = own.append(key, payload, self._pace)
        except OSError as error:
            log.warning("KV can't be written to disk", folder=str(self._folder), reason=str(error))
            self._not_before = now + RETRY_SECONDS
            self._retire()
            return False
        with self._lock:
            if own.path.name in self._segments:
                self._index[key] = (own, place)
        return True

    def close(self) -> None:
        with self._lock:
            self._index.clear()
        self._retire()
        with self._lock:
            for segment in self._segments.values():
                segment.close()
            self._segments.clear()

    def _writable(self) -> SegmentFile:
        """Returns the segment that this worker writes. Where that is full, or was deleted, one
        whose writer has ended; else a new one. Raises OSError."""
        own = self._own
        if own is not None and not own.full and own.path.exists():
            return own
        self._retire()
        with self._lock:
            for segment in self._segments.values():
                if not segment.full and self._takes_over(segment):
                    self._scan(segment)
                    self._own = segment
                    if not segment.full:
                        return segment
        with self._room_made():
            path = self._folder / f"{secrets.token_hex(8)}.kv"
            segment = SegmentFile.create(path, self._layout, self._places)
        with self._lock:
            self._segments[path.name] = self._own = segment
            self._look(time.monotonic())
        return segment

    @staticmethod
    def _takes_over(segment: SegmentFile) -> bool:
        with suppress(OSError):  # Deleted since the last look, or not ours to write.
            return segment.take_over()
        return False

    def _retire(self) -> None:
        """Stops writing to its segment, which can be read for as long as the file is there. In the
        thread that writes: only that closes the file."""
        with self._lock:
            own, self._own = self._own, None
            if own is not None and own.path.name not in self._segments:
                own.close()

    @contextmanager
    def _room_made(self) -> Iterator[None]:
        """Has the oldest segments deleted, so that there is room for one more. No other worker
        makes room, or takes it, meanwhile. Raises OSError."""
        fd = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            for path, _ in _files(self._root, UNFINISHED):
                _deleted(path)  # Its writer has died.
            files = sorted(_files(self._root, ".kv"), key=lambda each: each[1].st_mtime)
            held = sum(status.st_size for _, status in files)
            for path, status in files:
                if held + self._segment_bytes <= self._limit:
                    break
                held -= status.st_size if _deleted(path) else 0
            if held + self._segment_bytes > self._limit:
                raise OSError(errno.EDQUOT, "what fills it can't be deleted", str(self._root))
            self._folder.mkdir(mode=0o700, exist_ok=True)  # Somebody may have deleted all of it.
            yield
        finally:
            os.close(fd)

    def _look(self, now: float) -> None:
        """Learns of what others have written and deleted. The lock is held. Raises OSError."""
        self._refreshed = now
        there = {path.name: path for path in self._folder.glob("*.kv")}
        for name in [name for name in self._segments if name not in there]:
            self._drop(self._segments.pop(name))
        for name, path in there.items():
            with suppress(OSError):  # Deleted meanwhile, not ours to read, or damaged.
                self._learn(name, path)

    def _learn(self, name: str, path: Path) -> None:
        segment = self._segments.get(name)
        if segment is None:
            segment = self._segments[name] = SegmentFile.open(path, self._layout)
        if segment is not self._own:
            self._scan(segment)

    def _scan(self, segment: SegmentFile) -> None:
        for key, place in segment.scan():
            self._index.setdefault(key, (segment, place))

    def _drop(self, segment: SegmentFile) -> None:
        """A file that was deleted."""
        gone = [key for key, (where, _) in self._index.items() if where is segment]
        for key in gone:
            del self._index[key]
        if segment is not self._own:
            segment.close()


def _files(root: Path, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields the files of all models whose names end so; nothing else that is called like that."""
    for path in root.glob(f"*/*{suffix}"):
        with suppress(OSError):  # Deleted meanwhile, or not ours to look at.
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                yield path, status


def _deleted(path: Path) -> bool:
    with suppress(OSError):
        path.unlink(missing_ok=True)
        return True
    return False


# A file of KV blocks, which is written once, from its beginning to its end.
#
# place 0: header | payload place 1: header | payload ... zeros
#
# All payloads of a folder are equally long. The file has its full size from the beginning, so that
# a disk without room for it is met before anything is written. A payload is written before its
# header, which has a checksum of its own and ends with that of the payload: what is torn, damaged
# or not yet written has no header that holds, or a payload that its checksum doesn't fit. The
# layout's name counts in the header's checksum, so that a file that was moved to another model's
# folder holds nothing there.

MAGIC = b"PSTKKV04"
_FIELDS = struct.Struct("<8s32sQ")
"""Magic, the contents' key, bytes of the payload."""
_OWN_CHECKSUM = struct.Struct("<I")
_HEAD_BYTES = _FIELDS.size + _OWN_CHECKSUM.size
_NOTHING = bytes(_HEAD_BYTES)
HEADER_BYTES = _HEAD_BYTES + CHECKSUM_BYTES
"""Bytes of the header, with the checksum of key and payload."""
UNFINISHED = ".new"
"""What stands in place of a segment's suffix, until the file has its size."""


class SegmentFile:
    """places: how many payloads the file has room for.  scanned: places that `scan` has looked at,
    or that were written here."""

    def __init__(self, path: Path, layout: StoredLayout, fd: int) -> None:
        """Takes over `fd`."""
        self.path = path
        self.scanned = 0
        self._payload_bytes = layout.payload_bytes
        self._layout = zlib.crc32(layout.name.encode())
        self._stride = HEADER_BYTES + layout.payload_bytes
        self._fd = fd
        self.places = os.fstat(fd).st_size // self._stride

    @classmethod
    def open(cls, path: Path, layout: StoredLayout) -> SegmentFile:
        """Opens a segment that another life or process has written. Raises OSError."""
        return cls(path, layout, _opened(path, os.O_RDONLY))

    @classmethod
    def create(cls, path: Path, layout: StoredLayout, places: int) -> SegmentFile:
        """Creates a file with room for so many payloads, readable only for this user, to be written
        here. Raises OSError; then there is no file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        unfinished = path.with_suffix(UNFINISHED)
        fd = os.open(unfinished, flags, 0o600)
        try:
            os.posix_fallocate(fd, 0, places * (HEADER_BYTES + layout.payload_bytes))
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unfinished.rename(path)
            return cls(path, layout, fd)
        except OSError:
            os.close(fd)
            unfinished.unlink(missing_ok=True)
            raise

    def take_over(self) -> bool:
        """Continues a segment whose writer has ended. Returns whether that worked; then the rest
        has to be scanned before anything is appended. Raises OSError."""
        fd = _opened(self.path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        os.close(self._fd)
        self._fd = fd
        return True

    @property
    def full(self) -> bool:
        return self.scanned >= self.places

    def scan(self) -> Iterator[tuple[bytes, int]]:
        """Yields (key, place) of what was written since the last scan. Raises OSError."""
        while not self.full:
            header = os.pread(self._fd, _HEAD_BYTES, self.scanned * self._stride)
            if header == _NOTHING or len(header) < _HEAD_BYTES:
                return
            place, self.scanned = self.scanned, self.scanned + 1
            key = self._key_of(header)
            if key is not None:
                yield key, place

    def read(self, key: bytes, place: int) -> bytes | None:
        """The payload; None if it is damaged, or another one's. Raises OSError."""
        at = place * self._stride
        header = os.pread(self._fd, HEADER_BYTES, at)
        if len(header) < HEADER_BYTES or self._key_of(header) != key:
            return None
        payload = os.pread(self._fd, self._payload_bytes, at + HEADER_BYTES)  # Without a copy.
        whole = hmac.compare_digest(header[_HEAD_BYTES:], checksum(key, payload))
        return payload if whole else None

    def append(self, key: bytes, payload: Contents, pace: WritePace) -> int:
        """Writes into the next place, and returns its number. Raises OSError."""
        fields = _FIELDS.pack(MAGIC, key, len(payload))
        header = fields + _OWN_CHECKSUM.pack(zlib.crc32(fields, self._layout))
        place = self.scanned
        keep(self._fd, place * self._stride, key, header, payload, pace)
        self.scanned += 1
        return place

    def used_now(self) -> None:
        """Notes in the file system that its contents were asked for, where it may."""
        with suppress(OSError):  # Another user's file, or a disk that became read-only.
            os.utime(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _key_of(self, header: bytes) -> bytes | None:
        """Returns the key in a block's header; None for a header that isn't valid."""
        magic, key, length = _FIELDS.unpack_from(header)
        (own,) = _OWN_CHECKSUM.unpack_from(header, _FIELDS.size)
        whole = own == zlib.crc32(header[: _FIELDS.size], self._layout)
        fits = magic == MAGIC and length == self._payload_bytes
        return key if whole and fits else None


def _opened(path: Path, flags: int) -> int:
    """Returns a descriptor of a file. Raises OSError at once for anything else of that name:
    without the flag here, opening a FIFO waits for its writer."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return fd
