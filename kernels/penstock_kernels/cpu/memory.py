"""Memory for weights, caches and scratch: aligned to cache lines, and on huge pages if it is large.

A step reads all weights once. With pages of 4 KiB, reads would cross into a new page every few
tiles, and hardware prefetchers stop at page boundaries; with huge pages the same reads took about a
sixth less time.
"""

from __future__ import annotations

import mmap
import sys

import numpy as np

LINE = 64
"""Bytes of a cache line."""
HUGE_PAGE = 2 << 20
"""Bytes of a huge page."""
CHUNK = 64 << 20
"""Bytes that an arena allocates at a time. Memory that isn't touched costs nothing."""
LARGE = 16 << 20
"""Bytes of an array that the C library's allocator gives back to the system when it is freed, or
may: the next one's pages would be zeroed again."""


def in_lines(size: int) -> int:
    """Returns so many bytes, rounded up to whole cache lines."""
    return -(-size // LINE) * LINE


def zeroed(size: int, offset: int = 0, *, begins_small: bool = False) -> np.ndarray:
    """Returns `size` zero bytes, [size] uint8, that begin `offset` bytes after the beginning of a
    huge page. The system allocates pages when they are first touched. begins_small: in the place of
    the first huge page there are small ones, so that an area of which little is used takes little.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    area = mmap.mmap(-1, max(size, 1) + offset + HUGE_PAGE, flags=flags)
    memory = np.frombuffer(area, dtype=np.uint8)
    first = -memory.ctypes.data % HUGE_PAGE
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        small = first + HUGE_PAGE if begins_small else 0
        try:
            area.madvise(mmap.MADV_HUGEPAGE, small)
            if small:  # Where the system gives huge pages unasked, too.
                area.madvise(mmap.MADV_NOHUGEPAGE, 0, small)
        except OSError:
            pass  # The system has no huge pages: slower, but correct.
    return memory[first + offset : first + offset + size]


def spread(index: int, count: int) -> int:
    """Returns the offset in a huge page at which one of `count` areas begins that are filled at the
    same pace, so that they need their next huge pages one after the other. The system zeroes one in
    about 3 ms; the 60 areas of a model with 30 layers once took 170 ms of a step together."""
    return index * HUGE_PAGE // count // LINE * LINE


class Arena:
    """Allocates from large areas, so that small matrices are on huge pages too.

    An area is freed when the last of its pieces is.
    """

    def __init__(self) -> None:
        self._area = zeroed(0)
        self._used = 0

    def take(self, size: int) -> np.ndarray:
        """Returns `size` zero bytes, aligned to a cache line."""
        if self._area.size - self._used < size:
            self._area = zeroed(max(size, CHUNK))
            self._used = 0
        piece = self._area[self._used : self._used + size]
        self._used += -(-size // LINE) * LINE
        return piece


class Scratch:
    """Memory that grows to the largest size ever requested, and is reused."""

    def __init__(self) -> None:
        self._memory = zeroed(0)

    def at_least(self, size: int) -> int:
        """Returns the address of `size` bytes, whose contents are undefined."""
        if self._memory.size < size:
            self._memory = zeroed(size)
        return int(self._memory.ctypes.data)


class LargeArrays:
    """Arrays one after the other; large ones reuse the memory of the earlier one once that has no
    references. What is kept is as large as the largest one was."""

    def __init__(self) -> None:
        self._kept = np.empty(0, np.float32)

    def floats(self, rows: int, columns: int) -> np.ndarray:
        """Returns [rows, columns] float32, whose contents are undefined."""
        size = rows * columns
        if 4 * size < LARGE:
            return np.empty((rows, columns), np.float32)
        # Whoever has an array, or a tensor or another view of it, refers to what is kept, as that
        # owns its memory.
        ours = sys.getrefcount(self._kept) == 2  # By the attribute, and by the call.
        if not ours or self._kept.size < size:
            self._kept = np.empty(0, np.float32)  # Freed before there is another.
            self._kept = np.empty(size, np.float32)
        return self._kept[:size].reshape(rows, columns)
