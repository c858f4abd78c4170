"""The inputs of a decode bucket in one piece of memory, where its CUDA graph reads them."""

from __future__ import annotations

import math

import numpy as np

from penstock_kernels.triton.matmul_tiles import LOW_RANK
from penstock_worker.adapters.row_tiles import HostAdapterTiles, tiles_shapes, write_tiles
from penstock_worker.attention.decode_layout import decode_shapes, write_decode
from penstock_worker.attention.interface import BatchLayout
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.uploads import places
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
    """By which the rows of a decode step turn, [sequences] int64."""
    media = batch.media
    return batch.starts if media is None or media.positions is None else media.positions[0]


class DecodeInputs:
    """The layout of that memory. The arrays are those of HostStep, in its order: tokens, positions,
    wanted rows, those of adapters, then the attention's, then those of states.

    `size` is the number of int32 elements.
    """

    def __init__(
        self,
        sequences: int,
        context: int,
        block_size: int,
        groups: int = 1,
        pieces: int = 0,
        adapters: int = 0,
    ) -> None:
        """`sequences` is the number of rows of the padded step, `context` the most tokens that a
        sequence may have, `groups` the number of KV groups, `pieces` that of a checkpoint's blocks;
        0: the model has no recurrent layers; `adapters` the most that the rows may have."""
        self._block_size = block_size
        row = (sequences,)
        attention = decode_shapes(sequences, context // block_size, groups)
        added = tiles_shapes(sequences, adapters, LOW_RANK.rows) if adapters else []
        first = 3 + len(added)
        self._adapters = slice(3, first)
        self._attention = slice(first, first + len(attention))
        moves = decode_moves_shapes(sequences, pieces) if pieces else []
        self._shapes = [row, row, row, *added, *attention, *moves]
        sizes = [math.prod(shape) for shape in self._shapes]
        starts, self.size = places(sizes)
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        self._parts = [slice(*ends_of) for ends_of in zip(starts, ends, strict=True)]

    def arrays(self, memory: np.ndarray) -> list[np.ndarray]:
        """Returns the arrays as views of the memory, [size] int32."""
        return [
            memory[part].reshape(shape)
            for part, shape in zip(self._parts, self._shapes, strict=True)
        ]

    def attention(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Of `arrays`, those of the attention."""
        return arrays[self._attention]

    def adapters(self, arrays: list[np.ndarray]) -> HostAdapterTiles | None:
        """Of `arrays`, those of adapters."""
        own = arrays[self._adapters]
        return HostAdapterTiles(LOW_RANK, *own) if own else None

    def moves(self, arrays: list[np.ndarray]) -> HostMoves | None:
        """Of `arrays`, those of states."""
        rest = arrays[self._attention.stop :]
        return HostMoves(*rest) if rest else None

    def write(
        self,
        memory: np.ndarray,
        batch: Batch,
        wanted: np.ndarray,
        moves: HostMoves | None = None,
        places: np.ndarray | None = None,
    ) -> None:
        """Writes a decode step and the rows whose logits are wanted, padded to the bucket.
        `moves`: what it does with states. `places`: where each row's adapter lies, -1 for none."""
        arrays = self.arrays(memory)
        tokens, positions, rows = arrays[:3]
        at = rotary_positions(batch)
        for array, values in ((tokens, batch.tokens), (positions, at), (rows, wanted)):
            array[: len(values)] = values
            array[len(values) :] = 0
        if places is not None:
            write_tiles(arrays[self._adapters], places, LOW_RANK.rows)
        layout = BatchLayout(batch.tables, batch.starts, batch.counts, batch.more_tables)
        write_decode(self.attention(arrays), layout, self._block_size)
        if moves is not None:
            write_decode_moves(arrays[self._attention.stop :], moves)
