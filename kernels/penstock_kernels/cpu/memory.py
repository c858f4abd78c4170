"""Memory aligned to cache lines, which the kernels' tiles need."""

from __future__ import annotations

import numpy as np

LINE = 64


def zeroed(size: int) -> np.ndarray:
    """`size` zero bytes, [size] uint8. The system gives memory to pages when they are written."""
    memory = np.zeros(size + LINE, dtype=np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


class Scratch:
    """Memory that grows to the largest size ever asked for, and is used again."""

    def __init__(self) -> None:
        self._memory = zeroed(0)

    def at_least(self, size: int) -> int:
        """The address of `size` bytes; what they hold is anything."""
        if self._memory.size < size:
            self._memory = zeroed(size)
        return int(self._memory.ctypes.data)
