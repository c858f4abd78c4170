"""The inputs of a step, on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from penstock_worker.attention.interface import StepAttention
from penstock_worker.attention.triton import HostLayout, TritonAttention


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


@dataclass(frozen=True)
class HostStep:
    """A step's inputs on the host."""

    tokens: np.ndarray
    positions: np.ndarray
    wanted: np.ndarray
    attention: HostLayout

    @property
    def arrays(self) -> list[np.ndarray]:
        return [self.tokens, self.positions, self.wanted, *self.attention.arrays]

    def on_device(self, attention: TritonAttention, tensors: list[Tensor]) -> DeviceStep:
        """Returns the step on the device. `tensors` are `self.arrays`, copied there."""
        tokens, positions, wanted, *rest = tensors
        return DeviceStep(tokens, positions, wanted, attention.step(self.attention, rest))
