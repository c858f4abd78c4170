"""The inputs of one bucket of steps that have prompts' chunks, or drafted tokens, among decodes."""

from __future__ import annotations

import numpy as np

from penstock_kernels.triton.matmul_tiles import LOW_RANK
from penstock_worker.adapters.row_tiles import tiles_shapes, write_tiles
from penstock_worker.attention.interface import BatchLayout
from penstock_worker.attention.mixed_layout import MixedShape, write_mixed
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
