"""The inputs of a step, on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from penstock_worker.attention.interface import StepAttention
from penstock_worker.attention.triton import HostLayout, TritonAttention
from penstock_worker.layers.recurrent.interface import NO_STATES, StepStates
from penstock_worker.states.device_moves import HostMoves
from penstock_worker.states.device_states import DeviceStates


@dataclass(frozen=True)
class DeviceStep:
    """A step's inputs on the device."""

    tokens: Tensor
    """[rows] int32."""
    positions: Tensor
    """[rows] int32."""
    wanted: Tensor
    """Rows whose logits are wanted, int32."""
    attention: StepAttention
    states: StepStates = NO_STATES


@dataclass(frozen=True)
class HostStep:
    """A step's inputs on the host."""

    tokens: np.ndarray
    positions: np.ndarray
    wanted: np.ndarray
    attention: HostLayout
    moves: HostMoves | None = None
    """What it does with the states of recurrent layers."""

    @property
    def arrays(self) -> list[np.ndarray]:
        moves = [] if self.moves is None else self.moves.arrays
        return [self.tokens, self.positions, self.wanted, *self.attention.arrays, *moves]

    def on_device(
        self, attention: TritonAttention, tensors: list[Tensor], states: DeviceStates | None = None
    ) -> DeviceStep:
        """Returns the step on the device. `tensors` are `self.arrays`, copied there. `states`: of a
        model with recurrent layers."""
        tokens, positions, wanted, *rest = tensors
        behind = len(self.attention.arrays)
        return DeviceStep(
            tokens,
            positions,
            wanted,
            attention.step(self.attention, rest[:behind]),
            NO_STATES if states is None else states.step(rest[behind:]),
        )
