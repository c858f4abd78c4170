"""Memory that goes back to the operating system while its owner lives on, or once it is gone."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import torch

MADV_DONTNEED = 4
"""Linux's advice that takes private anonymous pages back at once: they are zero when next
touched."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def give_back_pages(memory: np.ndarray) -> int:
    """Whole pages of a contiguous array that lies in private anonymous memory: its contents are
    lost. Returns their bytes. Raises OSError, and ValueError for an array that has gaps."""
    if not memory.flags.c_contiguous:
        raise ValueError("what is to be given back has gaps, which belong to others")
    first = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    behind = (memory.ctypes.data + memory.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    size = behind - first
    if size <= 0:
        return 0
    if _libc.madvise(first, size, MADV_DONTNEED) != 0:
        raise OSError(ctypes.get_errno(), "KV memory can't be given back")
    return size


def give_back_freed() -> None:
    """Gives freed memory of this process back that is kept for later: by the C library, and by
    torch of a device's memory."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim = getattr(_libc, "malloc_trim", None)  # Of glibc only.
    if trim is not None:
        trim(0)
