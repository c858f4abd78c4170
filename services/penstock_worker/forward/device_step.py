"""The inputs of a step, on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from penstock_worker.attention.interface import StepAttention
from penstock_worker.attention.triton import HostLayout, TritonAttention
from penstock_worker.layers.step import RowMedia
from penstock_worker.media.interface import BatchMedia


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
    media: RowMedia | None = None


@dataclass(frozen=True)
class HostMedia:
    """What stands in the place of a step's placeholders, as far as the host has it."""

    rows: np.ndarray
    """[n] int64."""
    embeddings: Tensor | None
    """[n, hidden], on the device."""
    positions: np.ndarray | None
    """[3, rows] int64."""

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
    media: HostMedia | None = None

    @property
    def arrays(self) -> list[np.ndarray]:
        media = [] if self.media is None else self.media.arrays
        return [self.tokens, self.positions, self.wanted, *media, *self.attention.arrays]

    def on_device(self, attention: TritonAttention, tensors: list[Tensor]) -> DeviceStep:
        """Returns the step on the device. `tensors` are `self.arrays`, copied there."""
        tokens, positions, wanted, *rest = tensors
        media = None
        if self.media is not None:
            count = len(self.media.arrays)
            media, rest = self.media.on_device(rest[:count]), rest[count:]
        return DeviceStep(tokens, positions, wanted, attention.step(self.attention, rest), media)
