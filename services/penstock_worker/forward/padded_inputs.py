"""A padded step's inputs in one piece of memory, where its CUDA graph reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock_kernels.triton.matmul_tiles import LOW_RANK
from penstock_worker.adapters.row_tiles import HostAdapterTiles
from penstock_worker.attention.layouts import ChunkTiles
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.forward.device_step import HostStep
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.uploads import places
from penstock_worker.states.device_moves import HostMoves


@dataclass(frozen=True)
class InputSizes:
    """What the sizes of inputs depend on, beside the step's shape."""

    block_size: int
    tiles: ChunkTiles
    groups: int = 1
    """KV groups."""
    pieces: int = 0
    """Blocks of a checkpoint; 0: the model has no recurrent layers."""
    adapters: int = 0
    """Most that the rows may have."""


class PaddedInputs(Protocol):
    """The inputs of the steps of one bucket."""

    @property
    def size(self) -> int:
        """Number of int32 elements."""

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

    def step(self, memory: np.ndarray, attention: TritonAttention) -> HostStep:
        """Returns the step that was written to `memory`, whose arrays are views of it."""


class InputLayout:
    """The places of arrays of fixed shapes in one piece of memory, which has `size` int32
    elements."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self._shapes = shapes
        sizes = [math.prod(shape) for shape in shapes]
        starts, self.size = places(sizes)
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        self._parts = [slice(*ends_of) for ends_of in zip(starts, ends, strict=True)]

    def arrays(self, memory: np.ndarray) -> list[np.ndarray]:
        """Returns the arrays as views of the memory, [size] int32."""
        return [
            memory[part].reshape(shape)
            for part, shape in zip(self._parts, self._shapes, strict=True)
        ]


def adapters_in(arrays: list[np.ndarray]) -> HostAdapterTiles | None:
    """`arrays`: of HostAdapterTiles, or none."""
    return HostAdapterTiles(LOW_RANK, *arrays) if arrays else None


def write_rows(arrays: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> None:
    """Writes tokens, positions and wanted rows, and 0 after them."""
    for array, own in zip(arrays, values, strict=True):
        array[: len(own)] = own
        array[len(own) :] = 0
