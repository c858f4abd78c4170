"""Fills memory of the host that a device copies from by itself, as fast as the device copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise

import numpy as np


class PinnedFilling:
    """Copies pieces, one behind another, by some threads at once."""

    def __init__(self, most: int) -> None:
        """`most`: threads, at most."""
        self.most = most
        self.threads = 1
        """The threads that copy now: of `most`, as many as are worth it."""

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max(1, self.most - 1), "experts-fill")

    def fill(self, target: np.ndarray, pieces: Sequence[np.ndarray]) -> int:
        """Copies the pieces, [bytes] uint8 each, to the beginning of `target`, [bytes] uint8.
        Returns the bytes of all."""
        size = sum(map(len, pieces))
        ends = [size * number // self.threads for number in range(self.threads + 1)]
        parts = [range(*each) for each in pairwise(ends)]
        others = [self._pool.submit(_copy, target, pieces, part) for part in parts[1:]]
        _copy(target, pieces, parts[0])
        for each in others:
            each.result()
        return size


def _copy(target: np.ndarray, pieces: Sequence[np.ndarray], part: range) -> None:
    """Copies what of the pieces comes to lie in that part of the target. NumPy lets go of Python's
    lock meanwhile."""
    for at, own in _cut(pieces, part):
        np.copyto(target[at : at + len(own)], own)


def _cut(pieces: Sequence[np.ndarray], part: range) -> Iterator[tuple[int, np.ndarray]]:
    at = 0
    for piece in pieces:
        first, last = max(at, part.start), min(at + len(piece), part.stop)
        if first < last:
            yield first, piece[first - at : last - at]
        at += len(piece)
