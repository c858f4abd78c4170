"""Frames over a pipe or socket between a process and its helper: a length of four bytes, then the
payload. The helper's side, which blocks."""

from __future__ import annotations

import os
import struct

HEADER = struct.Struct("<I")


def read_frame(fd: int, most: int) -> bytearray | None:
    """The next payload; None where the other side has left, or announces more than `most` bytes."""
    head = _read_exactly(fd, HEADER.size)
    if head is None:
        return None
    (size,) = HEADER.unpack(head)
    return _read_exactly(fd, size) if size <= most else None


def write_frame(fd: int, payload: bytes) -> None:
    """Raises OSError where the other side has left."""
    rest = memoryview(HEADER.pack(len(payload)) + payload)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read_exactly(fd: int, size: int) -> bytearray | None:
    buffer = bytearray(size)
    view, at = memoryview(buffer), 0
    while at < size:
        got = os.readv(fd, [view[at:]])
        if not got:
            return None
        at += got
    view.release()
    return buffer
