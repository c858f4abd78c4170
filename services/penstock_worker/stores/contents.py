"""Blocks' contents: their checksum, and how they get to a file. The CPU kernels, where available,
do both without Python's lock."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from types import ModuleType

from penstock.process import logs
from penstock_kernels.reference import checksum as in_python

log = logs.get(__name__)

CHECKSUM_BYTES = in_python.CHECKSUM_BYTES

Contents = bytes | memoryview
"""A block's contents. A view is of bytes, and is overwritten once the callee has returned."""


@dataclass(slots=True)
class WritePace:
    """The pace of writing. behind: whether writing lags, so that it continues during steps, too,
    and not only between them."""

    behind: bool = False


@dataclass(slots=True)
class Asking:
    """waits: whether a peer may wait a moment for blocks that are about to be there."""

    waits: bool = True


def checksum(key: bytes, payload: Contents) -> bytes:
    """CHECKSUM_BYTES, against accidents."""
    kernels = _kernels()
    made = in_python if kernels is None else kernels
    return bytes(made.checksum(key, payload))


def keep(
    fd: int, offset: int, key: bytes, header: bytes, payload: Contents, pace: WritePace
) -> None:
    """Writes header, checksum and payload at the offset, the header last, so that it is there only
    if all is. Raises OSError."""
    kernels = _kernels()
    if kernels is None:
        _write(fd, checksum(key, payload), offset + len(header))
        _write(fd, payload, offset + len(header) + CHECKSUM_BYTES)
        _write(fd, header, offset)
    else:
        kernels.keep(fd, offset, key, header, payload, idle=not pace.behind)


@functools.cache
def _kernels() -> ModuleType | None:
    from penstock_kernels.cpu import kept, library

    try:
        library.load()
    except ImportError as error:
        log.warning(
            "blocks' checksums are computed in Python, some fifty times as slowly as by the CPU"
            " kernels",
            reason=str(error),
        )
        return None
    return kept


def _write(fd: int, data: Contents, at: int) -> None:
    """All of it. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
