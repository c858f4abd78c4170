"""The inputs of decode steps of one bucket."""

from __future__ import annotations

import numpy as np

from penstock_kernels.triton.matmul_tiles import LOW_RANK
from penstock_worker.adapters.row_tiles import tiles_shapes, write_tiles
from penstock_worker.attention.interface import BatchLayout
from penstock_worker.attention.layouts import decode_shapes, write_decode
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.forward.device_step import HostStep
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.padded_inputs import InputLayout, InputSizes, adapters_in, write_rows
from penstock_worker.states.device_moves import (
    HostMoves,
    decode_moves_shapes,
    write_decode_moves,
)


def decodes_text(batch: Batch) -> bool:
    """Whether no row of the batch is a part of an item: such rows have three equal positions."""
    media = batch.media
    if media is None:
        return True
    at = media.positions
    return not len(media.rows) and (at is None or bool((at == at[0]).all()))


def rotary_positions(batch: Batch) -> np.ndarray:
    """Positions by which the rows of a decode step are rotated, [sequences] int64."""
    media = batch.media
    return batch.starts if media is None or media.positions is None else media.positions[0]


class DecodeInputs:
    """A PaddedInputs. The arrays are those of HostStep, in its order: tokens, positions, wanted
    rows, those of adapters, then the attention's, then those of states."""

    def __init__(self, sequences: int, context: int, sizes: InputSizes, *, adapted: bool) -> None:
        """`sequences` is the number of rows of the padded step, `context` the most tokens that a
        sequence may have. `adapted`: whether rows may have adapters."""
        self._sizes, self._context = sizes, context
        row = (sequences,)
        attention = decode_shapes(sequences, context // sizes.block_size, sizes.groups)
        added = tiles_shapes(sequences, sizes.adapters, LOW_RANK.rows) if adapted else []
        first = 3 + len(added)
        self._adapters = slice(3, first)
        self._attention = slice(first, first + len(attention))
        moves = decode_moves_shapes(sequences, sizes.pieces) if sizes.pieces else []
        self._layout = InputLayout([row, row, row, *added, *attention, *moves])
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
        arrays = self._layout.arrays(memory)
        write_rows(arrays[:3], (batch.tokens, rotary_positions(batch), wanted))
        if places is not None:
            write_tiles(arrays[self._adapters], places, LOW_RANK.rows)
        layout = BatchLayout(batch.tables, batch.starts, batch.counts, batch.more_tables)
        write_decode(arrays[self._attention], layout, self._sizes.block_size)
        if moves is not None:
            write_decode_moves(arrays[self._attention.stop :], moves)

    def step(self, memory: np.ndarray, attention: TritonAttention) -> HostStep:
        """Returns the step that was written to `memory`, whose arrays are views of it."""
        arrays = self._layout.arrays(memory)
        tokens, positions, rows = arrays[:3]
        laid_out = attention.decode_layout(arrays[self._attention], self._context)
        states = arrays[self._attention.stop :]
        return HostStep(
            tokens,
            positions,
            rows,
            laid_out,
            HostMoves(*states) if states else None,
            adapters=adapters_in(arrays[self._adapters]),
        )
