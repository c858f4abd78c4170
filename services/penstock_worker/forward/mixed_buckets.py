"""The shapes to which steps are padded that have prompts' chunks, or drafted tokens, among decodes.

A graph's shape is a number of rows. What such a step has of each kind doesn't matter: its tiles of
queries are in lists that have room for any division of the rows into sequences, and those that
aren't needed end at once. Only where partial results of attention don't fit one launch, a longer
context has graphs of its own, as decodes have.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.model.config import ModelConfig
from penstock.protocol.to_worker import Setup
from penstock_kernels.triton.matmul_tiles import LOW_RANK
from penstock_worker.adapters.row_tiles import tiles_shapes, write_tiles
from penstock_worker.attention.interface import BatchLayout
from penstock_worker.attention.layouts import MixedShape, write_mixed
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.forward.decode_inputs import decodes_text
from penstock_worker.forward.device_step import HostStep
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.padded_inputs import InputLayout, InputSizes, adapters_in, write_rows
from penstock_worker.states.device_moves import (
    HostMoves,
    mixed_moves_shapes,
    write_mixed_moves,
)

MIXED_ROWS = (16, 32, 64, 128, 256, 384, 512)
"""Up to 256 rows a step mostly reads weights, and padding costs little; beyond, it multiplies. More
than 512 keep a device busy for longer than the host takes to launch them one by one."""
MIXED_GRAPHS = 32
"""Graphs that are captured at most, beside those of decodes. Where shapes are more, those of the
shortest contexts share the graphs of longer ones."""


@dataclass(frozen=True)
class MixedBucket:
    """The shape to which such a step is padded."""

    rows: int
    sequences: int
    """Most sequences of the step."""
    context: int
    """Tokens that the longest sequence may have."""
    adapted: bool = False
    """Whether rows may have adapters."""

    def inputs(self, sizes: InputSizes) -> MixedInputs:
        return MixedInputs(self.rows, self.sequences, self.context, sizes, adapted=self.adapted)


@dataclass(frozen=True)
class MixedBuckets:
    """The buckets for steps of up to `sequences` sequences."""

    rows: tuple[int, ...]
    """Rows of each bucket, ascending; none: such steps have no bucket."""
    sequences: int
    contexts: tuple[int, ...]
    """Contexts of decodes' buckets, ascending."""
    kinds: tuple[bool, ...]
    """Whether rows may have adapters."""

    def of(self, batch: Batch) -> MixedBucket | None:
        """Returns the batch's bucket, if it has one."""
        rows, longest = len(batch.tokens), int((batch.starts + batch.counts).max())
        if not self.rows or rows > self.rows[-1] or len(batch.counts) > self.sequences:
            return None
        if longest > self.contexts[-1] or not is_text(batch):
            return None
        context = self._kept[bisect_left(self._kept, longest)]
        adapted = batch.adapters is not None
        return self._bucket(self.rows[bisect_left(self.rows, rows)], context, adapted=adapted)

    @property
    def all(self) -> list[MixedBucket]:
        return [
            self._bucket(rows, context, adapted=adapted)
            for rows in self.rows
            for context in self._kept
            for adapted in self.kinds
        ]

    def _bucket(self, rows: int, context: int, *, adapted: bool) -> MixedBucket:
        return MixedBucket(rows, min(rows, self.sequences), context, adapted)

    @cached_property
    def _kept(self) -> tuple[int, ...]:
        """Contexts."""
        most = MIXED_GRAPHS // max(1, len(self.rows) * len(self.kinds))
        return self.contexts[-max(1, most) :]


def mixed_rows(setup: Setup, config: ModelConfig) -> tuple[int, ...]:
    """Rows of a worker's buckets, ascending. None for a model with an encoder, whose rows don't go
    through the layers."""
    if config.encoder_rows:
        return ()
    most = min(MIXED_ROWS[-1], setup.max_num_batched_tokens)
    return (*(rows for rows in MIXED_ROWS if rows < most), most)


# The inputs of one bucket of steps that have prompts' chunks, or drafted tokens, among decodes.


def is_text(batch: Batch) -> bool:
    """Whether no row of the batch is a part of an item, and none sees further than itself."""
    if not decodes_text(batch):
        return False
    seen = None if batch.media is None else batch.media.last_seen
    return seen is None or bool((seen == _layout(batch).positions).all())


class MixedInputs:
    """A PaddedInputs. The arrays are those of HostStep, in its order: tokens, positions, wanted
    rows, those of adapters, then the attention's, then those of states."""

    def __init__(
        self, rows: int, sequences: int, context: int, sizes: InputSizes, *, adapted: bool
    ) -> None:
        """`rows`, `sequences`: of a step, at most. `context`: the most tokens that a sequence may
        have. `adapted`: whether rows may have adapters."""
        self._context, self._block_size = context, sizes.block_size
        columns = context // sizes.block_size
        self._shape = MixedShape(rows, sequences, columns, sizes.tiles, sizes.groups)
        row = (rows,)
        added = tiles_shapes(rows, sizes.adapters, LOW_RANK.rows) if adapted else []
        first = 3 + len(added)
        behind = first + len(self._shape.arrays)
        self._adapters, self._attention = slice(3, first), slice(first, behind)
        self._moves = slice(behind, None)
        moves = mixed_moves_shapes(rows, sequences, sizes.pieces) if sizes.pieces else []
        self._layout = InputLayout([row, row, row, *added, *self._shape.arrays, *moves])
        self.size = self._layout.size

    def write(
        self,
        memory: np.ndarray,
        batch: Batch,
        wanted: np.ndarray,
        moves: HostMoves | None = None,
        places: np.ndarray | None = None,
    ) -> None:
        """Writes a step and the rows whose logits are wanted into [size] int32 (see
        PaddedInputs)."""
        arrays, layout = self._layout.arrays(memory), _layout(batch)
        turned = None if batch.media is None else batch.media.positions
        positions = layout.positions if turned is None else turned[0]
        write_rows(arrays[:3], (batch.tokens, positions, wanted))
        if places is not None:
            own = np.repeat(places, batch.counts)
            write_tiles(arrays[self._adapters], own, LOW_RANK.rows)
        write_mixed(arrays[self._attention], layout, self._shape, self._block_size)
        if moves is not None:
            write_mixed_moves(arrays[self._moves], moves)

    def step(self, memory: np.ndarray, attention: TritonAttention) -> HostStep:
        """Returns the step that was written to `memory`, whose arrays are views of it."""
        arrays = self._layout.arrays(memory)
        tokens, positions, rows = arrays[:3]
        laid_out = attention.mixed_layout(arrays[self._attention], self._context)
        states = arrays[self._moves]
        return HostStep(
            tokens,
            positions,
            rows,
            laid_out,
            HostMoves(*states) if states else None,
            adapters=adapters_in(arrays[self._adapters]),
        )


def _layout(batch: Batch) -> BatchLayout:
    return BatchLayout(batch.tables, batch.starts, batch.counts, batch.more_tables)
