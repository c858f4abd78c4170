"""Log-probabilities of one row of logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_softmax_row(logits: Tensor) -> Tensor:
    """logits - log(sum(exp(logits))), float32, [vocab].

    logits: [vocab].  One row at a time: the sum's order depends on the shape, and a row's shape
    is always the same.
    """
    shifted = logits.float() - logits.max().float()
    total = torch.exp(shifted).sum(dtype=torch.float64)
    return shifted - math.log(float(total))
