"""KV blocks on their way to where they are kept outside of the cache."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from penstock_kernels.cpu.library import load
from penstock_kernels.cpu.structs import PkKept

Contents = bytes | memoryview
"""Contents of a block. A view is of bytes."""


class BlockGatherer:
    """Copies a row of each of several arrays, one after another, at the speed of the memory."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        """parts: [rows, bytes] uint8, each with its rows one after another."""
        for part in parts:
            if not part.flags.c_contiguous or part.dtype != np.uint8:
                raise ValueError("the arrays aren't rows of bytes, one behind another")
        self._parts = tuple(parts)
        self._at = np.array([part.ctypes.data for part in parts], dtype=np.uint64)
        self._widths = np.array([part.shape[1] for part in parts], dtype=np.uint64)
        self._call = load().pk_gather

    def gather(self, row: int, target: np.ndarray) -> None:
        """target: [bytes of all] uint8."""
        if not 0 <= row < len(self._parts[0]) or target.nbytes != self._widths.sum():
            raise ValueError(f"row {row} into {target.nbytes} bytes")
        at, widths = self._at.ctypes.data, self._widths.ctypes.data
        self._call(at, widths, len(self._parts), row, target.ctypes.data)


def checksum(key: bytes, payload: Contents) -> bytes:
    """Checksum of a block's contents and key, 16 bytes, as in reference/checksum.py."""
    out = (ctypes.c_uint64 * 2)()
    load().pk_checksum(key, len(key), _address(payload), len(payload), out)
    return bytes(out)


def keep(fd: int, offset: int, key: bytes, header: bytes, payload: Contents, *, idle: bool) -> None:
    """Writes header, checksum and payload there, the header last. Raises OSError. idle: at idle
    priority; the caller waits, without the interpreter's lock."""
    kept = PkKept(
        fd,
        len(key),
        _address(key),
        _address(header),
        _address(payload),
        len(header),
        len(payload),
        offset,
    )
    failed = load().pk_keep(ctypes.byref(kept), idle)
    if failed:
        raise OSError(failed, "a KV block could not be written")


def _address(contents: Contents) -> int | None:
    if isinstance(contents, bytes):
        return ctypes.cast(ctypes.c_char_p(contents), ctypes.c_void_p).value
    return int(np.frombuffer(contents, dtype=np.uint8).ctypes.data)
