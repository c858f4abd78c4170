"""The sum over the ranks of a group, in rank order."""

from __future__ import annotations

import torch
from torch import Tensor


def rank_sum(parts: Tensor) -> Tensor:
    """parts[0] + parts[1] + …, added one after another in float32 and rounded once.

    `parts` is [ranks, *shape], of any float dtype. Returns [*shape] in the same dtype.
    """
    total = parts[0].to(torch.float32, copy=True)
    for part in parts[1:]:
        total += part
    return total.to(parts.dtype)
