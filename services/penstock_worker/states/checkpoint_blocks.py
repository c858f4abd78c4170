"""Copies between states and the KV blocks in which checkpoints lie."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from torch import Tensor

from penstock.model.kv_layout import STATE_BYTES


@dataclass(frozen=True)
class _Span:
    """Consecutive bytes of a layer's state that lie side by side in a block."""

    piece: int
    """Which of the checkpoint's blocks."""
    part: int
    """Which of the cache's views."""
    place: slice
    """Bytes of a block in that view."""
    own: slice
    """Bytes of the layer's state."""


class CheckpointBlocks:
    """A checkpoint is the states of all layers one after another, float32, in the bytes of several
    blocks one after another."""

    def __init__(self, parts: Sequence[np.ndarray], sizes: Sequence[int]) -> None:
        """`parts`: views of the KV cache, each [blocks, bytes] uint8; row b of all of them together
        is block b. `sizes`: numbers of each layer's state."""
        self._parts = parts
        self._ends = list(accumulate(part.shape[1] for part in parts))
        self._spans: list[list[_Span]] = []
        first = 0
        for size in sizes:
            last = first + STATE_BYTES * size
            self._spans.append(list(self._divided(first, last)))
            first = last

    def _divided(self, first: int, last: int) -> Iterator[_Span]:
        """The spans of bytes [first, last) of a checkpoint, which are a layer's."""
        at = first
        while at < last:
            piece, inside = divmod(at, self._ends[-1])
            part = bisect_right(self._ends, inside)
            width = self._parts[part].shape[1]
            begin = inside - self._ends[part] + width
            count = min(width - begin, last - at)
            own = slice(at - first, at - first + count)
            yield _Span(piece, part, slice(begin, begin + count), own)
            at += count

    def write(self, blocks: Sequence[int], layer: int, state: Tensor) -> None:
        """Copies a layer's state, [numbers] float32, to its place in these blocks."""
        stored = _bytes_of(state)
        for span in self._spans[layer]:
            self._parts[span.part][blocks[span.piece], span.place] = stored[span.own]

    def read(self, blocks: Sequence[int], state: Tensor) -> None:
        """Copies the states of all layers, [numbers] float32, from these blocks. Changes
        `state`."""
        stored, first = _bytes_of(state), 0
        for spans in self._spans:
            for span in spans:
                own = slice(first + span.own.start, first + span.own.stop)
                stored[own] = self._parts[span.part][blocks[span.piece], span.place]
            first += sum(span.own.stop - span.own.start for span in spans)


def _bytes_of(state: Tensor) -> np.ndarray:
    """A view, [bytes] uint8."""
    found: np.ndarray = state.numpy().view(np.uint8)
    return found
