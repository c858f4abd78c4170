"""What a step does with states, on the host and on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from penstock_kernels.triton.recurrent.states import (
    DeviceStateMemory,
    DeviceStateMoves,
    LayerStates,
)
from penstock_worker.layers.recurrent.interface import Scan


@dataclass(frozen=True)
class HostMoves:
    """What DeviceStateMoves has, as int32 arrays on the host."""

    sequences: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray
    slots: np.ndarray
    done: np.ndarray
    behind: np.ndarray
    blocks: np.ndarray

    @property
    def arrays(self) -> list[np.ndarray]:
        rows = (self.sequences, self.firsts, self.counts, self.slots, self.done, self.behind)
        return [*rows, self.blocks]


def no_moves(pieces: int) -> HostMoves:
    """Returns the moves of a step without sequences. `pieces`: a checkpoint's blocks."""
    none = np.zeros(0, np.int32)
    return HostMoves(none, none, none, none, none, none, none.reshape(0, pieces))


def decode_moves_shapes(sequences: int, pieces: int) -> list[tuple[int, ...]]:
    """Shapes of HostMoves.arrays of a decode step that is padded to so many sequences."""
    return [(sequences,)] * 6 + [(sequences, pieces)]


def write_decode_moves(arrays: Sequence[np.ndarray], moves: HostMoves) -> None:
    """Writes a decode step's moves into arrays of decode_moves_shapes."""
    sequences, firsts, counts, slots, done, behind, blocks = arrays
    number = len(moves.slots)
    sequences[:] = firsts[:] = np.arange(len(sequences))
    counts[:] = 1
    for array, values, padding in (
        (slots, moves.slots, -1),
        (done, moves.done, 0),
        (behind, moves.behind, -1),
    ):
        array[:number] = values
        array[number:] = padding
    blocks[: len(moves.blocks)] = moves.blocks


def mixed_moves_shapes(rows: int, sequences: int, pieces: int) -> list[tuple[int, ...]]:
    """Shapes of HostMoves.arrays of a step with chunks that is padded to so many rows, of at most
    so many sequences. One more sequence than there may be has the padding rows. A step has at most
    a checkpoint after each row."""
    row, each = (rows,), (sequences + 1,)
    return [row, each, each, each, each, row, (rows, pieces)]


def write_mixed_moves(arrays: Sequence[np.ndarray], moves: HostMoves) -> None:
    """Writes a step's moves into arrays of mixed_moves_shapes."""
    sequences, firsts, counts, slots, done, behind, blocks = arrays
    number, rows = len(moves.slots), len(moves.sequences)
    for array, values, padding in (
        (sequences, moves.sequences, number),
        (firsts, moves.firsts, rows),
        (counts, moves.counts, 0),
        (slots, moves.slots, -1),
        (done, moves.done, 0),
        (behind, moves.behind, -1),
    ):
        array[: len(values)] = values
        array[len(values) :] = padding
    counts[number] = len(sequences) - rows
    blocks[: len(moves.blocks)] = moves.blocks


class DeviceStatesStep:
    """A StepStates: those of one step's sequences, whose layers move on by kernels."""

    def __init__(
        self,
        memory: DeviceStateMemory,
        moves: DeviceStateMoves,
        places: Sequence[tuple[int, int]],
        moving: Callable[[int, int], None],
    ) -> None:
        """`places`: for each of this rank's layers where its numbers begin in a slot's states, and
        its results in those of a last token. `moving`: called before and after a layer queues its
        kernels with how many layers have done so, and how many have begun."""
        self._memory = memory
        self._moves = moves
        self._places = places
        self._moving = moving

    def scan(self, layer: int, features: Tensor, scan: Scan) -> Tensor:
        raise TypeError(f"layer {layer} scans on the host, and its states are on the device")

    @contextmanager
    def moved_on(self, layer: int) -> Iterator[LayerStates]:
        """While the context is open, the kernels of that layer, counted from this rank's first, are
        queued."""
        state, last = self._places[layer]
        self._moving(layer, layer + 1)
        yield LayerStates(self._memory, self._moves, layer, state, last)
        self._moving(layer + 1, layer + 1)
