"""Memory maps of weight files."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.formats.small_file import open_regular


def map_file(path: Path, least: int, too_short: UnsupportedModel) -> mmap.mmap:
    """The whole file, read-only.

    Raises ModelNotFound if there is none, too_short if it has fewer than `least` bytes (at least
    1), UnsupportedModel if it can't be read.
    """
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size < least:
                raise too_short
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFound(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"{path} can't be read: {error}") from None


def release(data: np.ndarray) -> None:
    """Lets go of the pages that a mapped array was read into: they stay in the system's cache, and
    are there again when the array is read again. An array that is in no mapping stays as it is.

    data: contiguous bytes.  What is read of a file once would else count as this process's memory
    until the file is closed.
    """
    mapping = _mapping_of(data)
    if mapping is None or data.nbytes == 0 or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = data.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (start + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if size > 0:
        mapping.madvise(mmap.MADV_DONTNEED, first, size)


def _mapping_of(data: np.ndarray) -> mmap.mmap | None:
    """The mapping of `map_file` that an array looks into."""
    base: object = data
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None
