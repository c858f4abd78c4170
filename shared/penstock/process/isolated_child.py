"""A helper process's own side: how it begins, what bounds it, and its frames, which block."""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
from collections.abc import Callable

from penstock.process.children import die_with_parent, set_title

SOCKET = 0
"""File descriptor of the socket for frames in both directions."""


def begin(parent: int, title: str) -> None:
    """parent: the front end's pid, with which the process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started us.
    die_with_parent(parent)
    set_title(title)


def confine(memory: int) -> None:
    """Limits the address space to so many bytes from now on, and has no core of it written."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(main: Callable[[int, bytes], None]) -> None:
    """Entry: in a process started by `penstock.process.isolated`."""
    try:
        main(int(sys.argv[1]), sys.argv[2].encode())
    except (BrokenPipeError, ConnectionResetError):
        pass  # The front end is gone.


# Frames over a pipe or socket between a process and its helper: a length of four bytes, then the
# payload. The helper's side, which blocks.

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
