"""The states that recurrent layers move on, and what a step does with them.

Promise: a token's results and the state after it are the same bits however the tokens are divided
into steps. Each kernel is the recurrence itself, token by token, in prefills as in decodes; sums go
over tiles whose sizes are those of the layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class DeviceStateMemory:
    """The states of all slots."""

    live: Tensor
    """[slots, numbers] float32: the states of all layers, one after another."""
    last: Tensor
    """[slots, results] float32: what all layers' scans have given for a sequence's last token."""
    pool: Tensor
    """[parts, blocks, numbers] float32: a view of the KV cache, for checkpoints. Block b is
    [:, b]."""


@dataclass(frozen=True)
class DeviceStateMoves:
    """What a step does with the states. All are int32 on the device."""

    sequences: Tensor
    """[rows]: each row's sequence."""
    firsts: Tensor
    """[sequences]: each one's first row."""
    counts: Tensor
    """[sequences]: its rows."""
    slots: Tensor
    """[sequences]: its slot; -1 for padding, of any number of rows, whose results are zeros."""
    done: Tensor
    """[sequences]: in so many of the first layers its state stands for its one token already."""
    behind: Tensor
    """[rows]: which checkpoint is written after the row; -1: none."""
    blocks: Tensor
    """[checkpoints, pieces]: the blocks of each."""


@dataclass(frozen=True)
class LayerStates:
    """A layer's part of the states in a step."""

    memory: DeviceStateMemory
    moves: DeviceStateMoves
    number: int
    """Number of the layer, as `DeviceStateMoves.done` counts them."""
    state: int
    """Index at which the layer's numbers begin in a slot's states."""
    last: int
    """Index at which the layer's results begin in those of a slot's last token."""

    @property
    def num_sequences(self) -> int:
        return len(self.moves.slots)

    @property
    def arguments(self) -> dict[str, Tensor | int]:
        """What every kernel takes of the states, by the names of its parameters."""
        memory, moves = self.memory, self.moves
        parts, blocks, numbers = memory.pool.shape
        return {
            "live": memory.live,
            "last": memory.last,
            "pool": memory.pool,
            "firsts": moves.firsts,
            "counts": moves.counts,
            "slots": moves.slots,
            "done": moves.done,
            "behind": moves.behind,
            "blocks": moves.blocks,
            "live_numbers": memory.live.shape[1],
            "last_numbers": memory.last.shape[1],
            "state_first": self.state,
            "last_first": self.last,
            "number": self.number,
            "part_stride": blocks * numbers,
            "part_numbers": numbers,
            "block_numbers": parts * numbers,
            "pieces": moves.blocks.shape[1],
        }


@triton.jit
def keep(
    pool,
    part_stride,
    part_numbers,
    block_numbers,
    blocks,
    pieces,
    checkpoint,
    place,
    values,
    inside,
):
    """Writes a tile of a checkpoint. `place`: of its numbers in a slot's states, int32."""
    piece = place // block_numbers
    rest = place - piece * block_numbers
    part = rest // part_numbers
    block = tl.load(blocks + checkpoint * pieces + piece, mask=inside, other=0).to(tl.int64)
    within = rest - part * part_numbers
    at = part.to(tl.int64) * part_stride + block * part_numbers + within
    tl.store(pool + at, values, mask=inside)


@triton.jit
def softplus(x):
    """ln(1 + exp(x)), also where exp(x) is far below 1: an error in `whole` is divided out again
    (Kahan, "Pracniques", 1965, as HP's calculators had it)."""
    rest = tl.exp(-tl.abs(x))
    whole = 1.0 + rest
    there = whole - 1.0
    log = tl.where(there == 0.0, rest, tl.log(whole) * (rest / tl.where(there == 0.0, 1.0, there)))
    return tl.where(x > 0.0, x, 0.0) + log


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))
