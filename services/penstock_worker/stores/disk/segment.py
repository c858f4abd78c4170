"""A file of KV blocks, which is written once, from its beginning to its end.

    place 0: header | payload    place 1: header | payload    ...    zeros

All payloads of a folder are equally long. The file has its full size from the beginning, so that a
disk without room for it is met before anything is written. A payload is written before its header,
which has a checksum of its own and ends with that of the payload: what is torn, damaged or not yet
written has no header that holds, or a payload that its checksum doesn't fit. The layout's name
counts in the header's checksum, so that a file that was moved to another model's folder holds
nothing there.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from penstock_worker.stores.contents import CHECKSUM_BYTES, Contents, WritePace, checksum, keep
from penstock_worker.stores.interface import StoredLayout

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
        """A new file with room for so many payloads, readable for nobody else, to be written here.
        Raises OSError; then there is no file."""
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
        """Goes on writing what nobody else writes any more. Returns whether that is so; then the
        rest has to be scanned before anything is appended. Raises OSError."""
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
        """None for a header that doesn't hold."""
        magic, key, length = _FIELDS.unpack_from(header)
        (own,) = _OWN_CHECKSUM.unpack_from(header, _FIELDS.size)
        whole = own == zlib.crc32(header[: _FIELDS.size], self._layout)
        fits = magic == MAGIC and length == self._payload_bytes
        return key if whole and fits else None


def _opened(path: Path, flags: int) -> int:
    """A descriptor of a file. Raises OSError for anything else that has its name, at once: of a
    FIFO without the flag here, open waits for whoever writes to it."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return fd
