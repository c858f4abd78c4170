"""Live states of recurrent layers, in the memory of a host."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.model.kv_layout import STATE_BYTES
from penstock_worker.forward.interface import Batch
from penstock_worker.layers.recurrent.interface import Scan
from penstock_worker.states.live_states import LOST, Held, LiveStates

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _Span:
    """Consecutive bytes of a layer's state that lie side by side in a block."""

    piece: int
    """Index of the block among the checkpoint's."""
    part: int
    """Index of the view among the cache's."""
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


class SlotStates(LiveStates):
    """The states of all slots. Slots may be computed by several threads at once, each slot by one
    of them. Memory is taken by `allocate`."""

    _blocks: CheckpointBlocks

    def allocate(self, parts: Sequence[np.ndarray]) -> None:
        """Takes the memory. `parts`: views of the KV cache (see CheckpointBlocks). Raises
        MemoryError or torch's RuntimeError."""
        self._blocks = CheckpointBlocks(parts, self._sizes)
        self._snapshots.place(len(parts[0]) - self.own_blocks)
        # Not filled: the system allocates pages on first use.
        with torch.inference_mode(False):  # Threads that restore states aren't in that mode.
            self._live = torch.empty(self._slots, sum(self._sizes), dtype=torch.float32)

    def step(self, batch: Batch) -> SlotStatesStep:
        """The states of a batch, whose `slots` must be set."""
        return SlotStatesStep(self, batch)

    def advance(self, number: int, layer: int, start: int, features: Tensor, scan: Scan) -> Tensor:
        """Has `scan` compute a slot's tokens from `start` on in a layer, in pieces where
        checkpoints or snapshots lie between them. `features` is [tokens, F]. Returns [tokens,
        V]."""
        held, end = self._held[number], start + len(features)
        reached = held.reached[layer]
        if reached == start:
            mixed = self._scan(held, layer, start, features, scan)
        elif reached == end == start + 1:
            mixed = held.last[layer][None]
        else:
            stands = "lost" if reached == LOST else f"that of {reached} tokens"
            raise RuntimeError(
                f"slot {number}: the state of layer {layer} is {stands}; tokens follow {start}"
            )
        blocks = held.checkpoints.get(end)
        if blocks is not None:
            self._blocks.write(blocks, layer, self._part(held, layer))
        return mixed

    def _scan(self, held: Held, layer: int, start: int, features: Tensor, scan: Scan) -> Tensor:
        state, end = self._part(held, layer), start + len(features)
        held.reached[layer] = LOST
        found, at = [], start
        copies = held.copies
        for stop in sorted(at for at in copies if start < at < end):
            found.append(scan(features[at - start : stop - start], state))
            self._blocks.write(copies[stop], layer, state)
            at = stop
        found.append(scan(features[at - start :], state))
        held.last[layer] = found[-1][-1].clone()
        held.reached[layer] = end
        return torch.cat(found) if len(found) > 1 else found[0]


class SlotStatesStep:
    """A StepStates: those of one step's sequences."""

    def __init__(self, states: SlotStates, batch: Batch) -> None:
        if len(batch.slots) != len(batch.counts):
            raise ValueError("a batch of a model with recurrent layers says its slots")
        self._states = states
        starts, counts = batch.starts.tolist(), batch.counts.tolist()
        self._works = list(zip(batch.slots, starts, counts, strict=True))

    def scan(self, layer: int, features: Tensor, scan: Scan) -> Tensor:
        found, first = [], 0
        for slot, start, count in self._works:
            own = features[first : first + count]
            found.append(self._states.advance(slot, layer, start, own, scan))
            first += count
        padding = features.shape[0] - first
        if padding:
            found.append(found[0].new_zeros(padding, found[0].shape[1]))
        return torch.cat(found) if len(found) > 1 else found[0]
