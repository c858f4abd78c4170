"""Adjusts one row of logits by biases and penalties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Edits:
    """The biases and penalties of a row. For the penalties see penstock_kernels.cpu.edits.Edit."""

    biases: Mapping[int, float] = field(default_factory=dict)
    """By token id."""
    counts: Mapping[int, int] = field(default_factory=dict)
    """For each id in the prompt or the output, how often the output contains it."""
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0


def edit_row(logits: Tensor, edits: Edits) -> Tensor:
    """Returns a copy of the row with biases and then penalties applied.

    `logits` is [vocab] float32. -inf stays as it is, and no other value becomes infinite.
    """
    result = logits.clone()
    if edits.biases:
        ids = torch.tensor(list(edits.biases))
        biases = torch.tensor(list(edits.biases.values()), dtype=torch.float64)
        result[ids] = _rounded(result[ids].double() + biases)
    if edits.counts:
        ids = torch.tensor(list(edits.counts))
        counts = torch.tensor(list(edits.counts.values()), dtype=torch.float64)
        x = result[ids].double()
        x = torch.where(x > 0, x / edits.repetition, x * edits.repetition)
        emitted = (x - edits.frequency * counts) - edits.presence
        result[ids] = _rounded(torch.where(counts > 0, emitted, x))
    return result


def _rounded(x: Tensor) -> Tensor:
    kept = x.clamp(-_LARGEST, _LARGEST).float()
    return torch.where(x == float("-inf"), float("-inf"), kept)
