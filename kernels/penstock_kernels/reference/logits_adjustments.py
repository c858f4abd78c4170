"""Biases and penalties of a row of logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class RowAdjustments:
    """The biases and penalties of a row. For what the penalties do see
    penstock_kernels.cpu.adjustments."""

    biases: Mapping[int, float] = field(default_factory=dict)
    """Numbers that are added to logits, by token id."""
    counts: Mapping[int, int] = field(default_factory=dict)
    """How often the output contains each id that is in the prompt or the output."""
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0


def adjust_row(logits: Tensor, adjustments: RowAdjustments) -> Tensor:
    """Returns a copy of the row with biases and then penalties applied.

    `logits` is [vocab] float32. -inf stays as it is, and no other value becomes infinite.
    """
    result = logits.clone()
    if adjustments.biases:
        ids = torch.tensor(list(adjustments.biases))
        biases = torch.tensor(list(adjustments.biases.values()), dtype=torch.float64)
        result[ids] = _rounded(result[ids].double() + biases)
    if adjustments.counts:
        ids = torch.tensor(list(adjustments.counts))
        counts = torch.tensor(list(adjustments.counts.values()), dtype=torch.float64)
        x = result[ids].double()
        x = torch.where(x > 0, x / adjustments.repetition, x * adjustments.repetition)
        emitted = (x - adjustments.frequency * counts) - adjustments.presence
        result[ids] = _rounded(torch.where(counts > 0, emitted, x))
    return result


def _rounded(x: Tensor) -> Tensor:
    kept = x.clamp(-_LARGEST, _LARGEST).float()
    return torch.where(x == float("-inf"), float("-inf"), kept)
