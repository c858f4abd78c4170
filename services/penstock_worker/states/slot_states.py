"""Live states of recurrent layers, in the memory of a host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock_worker.forward.interface import Batch
from penstock_worker.layers.recurrent.interface import Scan
from penstock_worker.states.checkpoint_blocks import CheckpointBlocks
from penstock_worker.states.live_states import LOST, Held, LiveStates


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
