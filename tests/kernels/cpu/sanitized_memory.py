"""Memory that AddressSanitizer watches: from its own allocator, to the byte."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np
import pytest

from penstock_kernels.cpu import decoder, matrix, memory


def sanitized() -> bool:
    """Whether this process runs under AddressSanitizer."""
    return hasattr(ctypes.CDLL(None), "__asan_init")


def watch(patch: pytest.MonkeyPatch) -> None:
    """The kernels' memory comes from malloc, where it is mapped otherwise: what lies beyond its end
    may not be touched."""
    for module in (memory, matrix, decoder):
        patch.setattr(module, "zeroed", watched)


def watched(size: int, offset: int = 0, *, begins_small: bool = False) -> np.ndarray:
    """Stands in for `zeroed`; where it begins is the allocator's choice."""
    libc = ctypes.CDLL(None)
    address = ctypes.c_void_p()
    if libc.posix_memalign(ctypes.byref(address), ctypes.c_size_t(64), ctypes.c_size_t(size)):
        raise MemoryError(f"no {size} bytes")
    block = (ctypes.c_uint8 * size).from_address(address.value or 0)
    weakref.finalize(block, libc.free, address)
    array = np.frombuffer(block, dtype=np.uint8)
    array[:] = 0
    return array
