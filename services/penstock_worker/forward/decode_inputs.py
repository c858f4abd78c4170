"""A bucket's inputs in one piece of memory, where its graph finds them."""

from __future__ import annotations

import math

import numpy as np

from penstock_worker.attention.decode_layout import decode_shapes, write_decode
from penstock_worker.attention.interface import BatchLayout
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.uploads import places


class DecodeInputs:
    """sequences: rows of the padded step.  context: tokens that the longest may have.

    The arrays are HostStep's, in its order: tokens, positions, wanted rows, then the attention's.
    size: elements of the memory, int32.
    """

    def __init__(self, sequences: int, context: int, block_size: int) -> None:
        self._block_size = block_size
        row = (sequences,)
        self._shapes = [row, row, row, *decode_shapes(sequences, context // block_size)]
        sizes = [math.prod(shape) for shape in self._shapes]
        starts, self.size = places(sizes)
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        self._parts = [slice(*ends_of) for ends_of in zip(starts, ends, strict=True)]

    def arrays(self, memory: np.ndarray) -> list[np.ndarray]:
        """Views of the memory, [size]."""
        return [
            memory[part].reshape(shape)
            for part, shape in zip(self._parts, self._shapes, strict=True)
        ]

    def write(self, memory: np.ndarray, batch: Batch, wanted: np.ndarray) -> None:
        """A decode and the rows whose logits are asked for, padded."""
        tokens, positions, rows, *attention = self.arrays(memory)
        for array, values in ((tokens, batch.tokens), (positions, batch.starts), (rows, wanted)):
            array[: len(values)] = values
            array[len(values) :] = 0
        layout = BatchLayout(batch.tables, batch.starts, batch.counts)
        write_decode(attention, layout, self._block_size)
