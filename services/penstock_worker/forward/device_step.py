"""The inputs of a step, on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from penstock_kernels.triton.linear.low_rank import AdapterTiles
from penstock_worker.adapters.row_tiles import HostAdapterTiles
from penstock_worker.attention.encoded import NOTHING_ENCODED, EncodedAttention
from penstock_worker.attention.interface import StepAttention
from penstock_worker.attention.triton import HostLayout, TritonAttention
from penstock_worker.layers.recurrent.interface import NO_STATES, StepStates
from penstock_worker.layers.step import RowMedia
from penstock_worker.media.interface import BatchMedia
from penstock_worker.states.device_moves import HostMoves
from penstock_worker.states.device_states import DeviceStates


@dataclass(frozen=True)
class DeviceStep:
    """A step's inputs on the device."""

    tokens: Tensor
    """Token id of each row, [rows] int32."""
    positions: Tensor
    """Position of each row in its sequence, [rows] int32."""
    wanted: Tensor
    """Rows whose logits are wanted, int32."""
    attention: StepAttention
    states: StepStates = NO_STATES
    media: RowMedia | None = None
    adapters: AdapterTiles | None = None
    encoded: EncodedAttention = NOTHING_ENCODED


@dataclass(frozen=True)
class HostMedia:
    """What stands in the place of a step's placeholders, as far as the host has it."""

    rows: np.ndarray
    """The step's rows that have embeddings of media, [n] int64."""
    embeddings: Tensor | None
    """[n, hidden], on the device."""
    positions: np.ndarray | None
    """Positions of each row along time, height and width, [3, rows] int64; None for models without
    such."""

    @staticmethod
    def of(media: BatchMedia | None) -> HostMedia | None:
        if media is None:
            return None
        return HostMedia(media.rows, media.embeddings, media.positions)

    @property
    def arrays(self) -> list[np.ndarray]:
        return [self.rows] if self.positions is None else [self.rows, self.positions]

    def on_device(self, tensors: list[Tensor]) -> RowMedia:
        """`tensors` are `self.arrays`, copied there."""
        rows, *positions = (each.long() for each in tensors)
        return RowMedia(rows, self.embeddings, positions[0] if positions else None)


@dataclass(frozen=True)
class HostStep:
    """A step's inputs on the host."""

    tokens: np.ndarray
    positions: np.ndarray
    wanted: np.ndarray
    attention: HostLayout
    moves: HostMoves | None = None
    """The step's changes of recurrent layers' states; None for models without."""
    media: HostMedia | None = None
    adapters: HostAdapterTiles | None = None
    """Tiles of the rows with adapters; None if no row has one."""

    @property
    def arrays(self) -> list[np.ndarray]:
        media = [] if self.media is None else self.media.arrays
        adapters = [] if self.adapters is None else self.adapters.arrays
        moves = [] if self.moves is None else self.moves.arrays
        attention = self.attention.arrays
        first = [self.tokens, self.positions, self.wanted]
        return [*first, *media, *adapters, *attention, *moves]

    def on_device(
        self, attention: TritonAttention, tensors: list[Tensor], states: DeviceStates | None = None
    ) -> DeviceStep:
        """Returns the step on the device. `tensors` are `self.arrays`, copied there. `states`: of a
        model with recurrent layers."""
        tokens, positions, wanted, *rest = tensors
        media = None
        if self.media is not None:
            count = len(self.media.arrays)
            media, rest = self.media.on_device(rest[:count]), rest[count:]
        adapters = None
        if self.adapters is not None:
            count = len(self.adapters.arrays)
            adapters, rest = self.adapters.on_device(rest[:count]), rest[count:]
        end = len(self.attention.arrays)
        own = attention.step(self.attention, rest[:end])
        return DeviceStep(
            tokens,
            positions,
            wanted,
            own,
            NO_STATES if states is None else states.step(rest[end:]),
            media,
            adapters,
            own.encoded,
        )
