"""A padded step's inputs in one piece of memory, where its CUDA graph reads them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock_kernels.triton.matmul_tiles import LOW_RANK
from penstock_worker.adapters.row_tiles import HostAdapterTiles, tiles_shapes, write_tiles
from penstock_worker.attention.interface import BatchLayout
from penstock_worker.attention.layouts import (
    ChunkTiles,
    MixedShape,
    decode_shapes,
    write_decode,
    write_mixed,
)
from penstock_worker.attention.triton import HostLayout, TritonAttention
from penstock_worker.forward.device_step import HostStep
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.uploads import places
from penstock_worker.states.device_moves import (
    HostMoves,
    decode_moves_shapes,
    mixed_moves_shapes,
    write_decode_moves,
    write_mixed_moves,
)

Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class InputSizes:
    """What the sizes of inputs depend on, in addition to the step's shape."""

    block_size: int
    tiles: ChunkTiles
    groups: int = 1
    """KV groups."""
    pieces: int = 0
    """Blocks of a checkpoint; 0: the model has no recurrent layers."""
    adapters: int = 0
    """Most that the rows may have."""


class PaddedInputs(ABC):
    """The inputs of the steps of one bucket. The arrays are those of HostStep, in its order:
    tokens, positions, wanted rows, those of adapters, then the attention's, then those of
    states."""

    def __init__(
        self, rows: int, sizes: InputSizes, attention: Shapes, moves: Shapes, *, adapted: bool
    ) -> None:
        """`rows`: of the padded step. `attention`, `moves`: shapes of the attention's arrays and of
        those of states. `adapted`: whether rows may have adapters."""
        added = tiles_shapes(rows, sizes.adapters, LOW_RANK.rows) if adapted else []
        first = 3 + len(added)
        self._adapters = slice(3, first)
        self._attention = slice(first, first + len(attention))
        self._shapes = [(rows,)] * 3 + [*added, *attention, *moves]
        counts = [math.prod(shape) for shape in self._shapes]
        starts, self.size = places(counts)  # In int32 elements.
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        self._parts = [slice(*ends_of) for ends_of in zip(starts, ends, strict=True)]

    @abstractmethod
    def _positions(self, batch: Batch) -> np.ndarray:
        """Positions by which the rows are rotated, [rows] int64."""

    @abstractmethod
    def _rows_of(self, batch: Batch, each: np.ndarray) -> np.ndarray:
        """Returns each row's number of those that each sequence has."""

    @abstractmethod
    def _write_attention(self, arrays: list[np.ndarray], layout: BatchLayout) -> None: ...

    @abstractmethod
    def _write_moves(self, arrays: list[np.ndarray], moves: HostMoves) -> None: ...

    @abstractmethod
    def _laid_out(self, arrays: list[np.ndarray], attention: TritonAttention) -> HostLayout:
        """Returns the attention's arrays as it takes them."""

    def write(
        self,
        memory: np.ndarray,
        batch: Batch,
        wanted: np.ndarray,
        moves: HostMoves | None = None,
        places: np.ndarray | None = None,
    ) -> None:
        """Writes a step and the rows whose logits are wanted into [size] int32, padded to the
        bucket. `moves`: what it does with states. `places`: where each sequence's adapter lies, -1
        for none."""
        arrays = self._arrays(memory)
        rows = batch.tokens, self._positions(batch), wanted
        for array, own in zip(arrays[:3], rows, strict=True):
            array[: len(own)] = own
            array[len(own) :] = 0
        if places is not None:
            write_tiles(arrays[self._adapters], self._rows_of(batch, places), LOW_RANK.rows)
        self._write_attention(arrays[self._attention], _layout(batch))
        if moves is not None:
            self._write_moves(arrays[self._attention.stop :], moves)

    def step(self, memory: np.ndarray, attention: TritonAttention) -> HostStep:
        """Returns the step that was written to `memory`, whose arrays are views of it."""
        arrays = self._arrays(memory)
        tokens, positions, rows = arrays[:3]
        adapters, states = arrays[self._adapters], arrays[self._attention.stop :]
        return HostStep(
            tokens,
            positions,
            rows,
            self._laid_out(arrays[self._attention], attention),
            HostMoves(*states) if states else None,
            adapters=HostAdapterTiles(LOW_RANK, *adapters) if adapters else None,
        )

    def _arrays(self, memory: np.ndarray) -> list[np.ndarray]:
        """Returns the arrays as views of the memory, [size] int32."""
        return [
            memory[part].reshape(shape)
            for part, shape in zip(self._parts, self._shapes, strict=True)
        ]


def _layout(batch: Batch) -> BatchLayout:
    return BatchLayout(batch.tables, batch.starts, batch.counts, batch.more_tables)


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


class DecodeInputs(PaddedInputs):
    """The inputs of decode steps."""

    def __init__(self, sequences: int, context: int, sizes: InputSizes, *, adapted: bool) -> None:
        """`sequences` is the number of rows of the padded step, `context` the most tokens that a
        sequence may have. `adapted`: whether rows may have adapters."""
        self._context, self._block_size = context, sizes.block_size
        attention = decode_shapes(sequences, context // sizes.block_size, sizes.groups)
        moves = decode_moves_shapes(sequences, sizes.pieces) if sizes.pieces else []
        super().__init__(sequences, sizes, attention, moves, adapted=adapted)

    def _positions(self, batch: Batch) -> np.ndarray:
        return rotary_positions(batch)

    def _rows_of(self, batch: Batch, each: np.ndarray) -> np.ndarray:
        return each

    def _write_attention(self, arrays: list[np.ndarray], layout: BatchLayout) -> None:
        write_decode(arrays, layout, self._block_size)

    def _write_moves(self, arrays: list[np.ndarray], moves: HostMoves) -> None:
        write_decode_moves(arrays, moves)

    def _laid_out(self, arrays: list[np.ndarray], attention: TritonAttention) -> HostLayout:
        return attention.decode_layout(arrays, self._context)


def is_text(batch: Batch) -> bool:
    """Whether no row of the batch is a part of an item, and none sees further than itself."""
    if not decodes_text(batch):
        return False
    seen = None if batch.media is None else batch.media.last_seen
    return seen is None or bool((seen == _layout(batch).positions).all())


class MixedInputs(PaddedInputs):
    """The inputs of steps that have prompts' chunks, or drafted tokens, among decodes."""

    def __init__(
        self, rows: int, sequences: int, context: int, sizes: InputSizes, *, adapted: bool
    ) -> None:
        """`rows`, `sequences`: of a step, at most. `context`: the most tokens that a sequence may
        have. `adapted`: whether rows may have adapters."""
        self._context, self._block_size = context, sizes.block_size
        columns = context // sizes.block_size
        self._shape = MixedShape(rows, sequences, columns, sizes.tiles, sizes.groups)
        moves = mixed_moves_shapes(rows, sequences, sizes.pieces) if sizes.pieces else []
        super().__init__(rows, sizes, self._shape.arrays, moves, adapted=adapted)

    def _positions(self, batch: Batch) -> np.ndarray:
        turned = None if batch.media is None else batch.media.positions
        return _layout(batch).positions if turned is None else turned[0]

    def _rows_of(self, batch: Batch, each: np.ndarray) -> np.ndarray:
        return np.repeat(each, batch.counts)

    def _write_attention(self, arrays: list[np.ndarray], layout: BatchLayout) -> None:
        write_mixed(arrays, layout, self._shape, self._block_size)

    def _write_moves(self, arrays: list[np.ndarray], moves: HostMoves) -> None:
        write_mixed_moves(arrays, moves)

    def _laid_out(self, arrays: list[np.ndarray], attention: TritonAttention) -> HostLayout:
        return attention.mixed_layout(arrays, self._context)
