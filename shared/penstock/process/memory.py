"""What memory this process has, and errors that say it gets no more."""

from __future__ import annotations

import ctypes
import errno
import gc
import os

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MEMORY_WORDS = ("can't allocate memory", "cannot allocate memory", "bad_alloc")
"""Parts of RuntimeErrors of torch's allocator and of C++ that say that there is no more memory."""


COLLECT_AFTER = 50_000
"""Objects made and not freed before Python's garbage collector looks at them, in processes whose
every token makes some and frees them by their reference counts. At Python's 700 it looks several
times a step, and at all open requests' objects time and again."""


def collect_seldom() -> None:
    """Has the garbage collector leave alone what exists now, which lives as long as the process,
    and look seldom for cycles in what is made from now on (COLLECT_AFTER)."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def resident_bytes() -> int | None:
    """Bytes of memory that this process has now, by Linux's /proc; None elsewhere. Not getrusage's
    peak, which a process inherits from the one it is forked off."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def address_space() -> int | None:
    """Bytes of this process's address space, by Linux's /proc; None elsewhere."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def trim_heap() -> None:
    """Gives freed memory of this process back that the C library keeps for later. Takes up to some
    50 ms, in which other threads that allocate may wait."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Of glibc only.
    if trim is not None:
        trim(0)


def is_memory_shortage(error: BaseException) -> bool:
    """Whether the machine had no memory, so that the same again would end the same."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(w in str(error).lower() for w in _MEMORY_WORDS)
