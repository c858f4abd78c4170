"""Biases and penalties of one row of logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Edits:
    """Biases and penalties of a row. See penstock_kernels.cpu.edits.Edit for the penalties."""

    biases: Mapping[int, float] = field(default_factory=dict)
    """By token id."""
    counts: Mapping[int, int] = field(default_factory=dict)
    """How often the output holds each id that the prompt or the output holds."""
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0


def edit_row(logits: Tensor, edits: Edits) -> Tensor:
    """A copy of the row, biased and then penalised.

    logits: [vocab] float32; -inf stays as it is, and nothing else becomes infinite.
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
