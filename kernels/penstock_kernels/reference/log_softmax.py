"""Log-probabilities of one row of logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_softmax_row(logits: Tensor) -> Tensor:
    """logits - log(sum(exp(logits))), float32, [vocab].

    `logits` is [vocab]. Computes one row at a time: the order of the sum depends on the shape,
    which is the same for every row.
    """
    shifted = logits.float() - logits.max().float()
    total = torch.exp(shifted).sum(dtype=torch.float64)
    return shifted - math.log(float(total))
