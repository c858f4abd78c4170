"""The sum of what each rank of a group gave, in the ranks' order."""

from __future__ import annotations

import torch
from torch import Tensor


def rank_sum(parts: Tensor) -> Tensor:
    """parts[0] + parts[1] + …, one after the other in float32, rounded once.

    parts: [ranks, *shape], any float dtype.  Returns [*shape] of the same dtype.
    """
    total = parts[0].to(torch.float32, copy=True)
    for part in parts[1:]:
        total += part
    return total.to(parts.dtype)
