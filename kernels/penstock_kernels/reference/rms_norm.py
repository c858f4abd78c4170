"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.reference.tiling import ROW_TILE, pad_rows


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, 2019).

    `x` is [rows, size] or [rows, heads, size], float32 or bfloat16. `weight` is [size]. Computed in
    float32 and rounded once, to x's dtype. Returns x's shape.
    """
    rows = x.shape[0]
    wide = pad_rows(x).float()
    squares = wide * wide
    # All sums have one shape, because torch may reduce another shape in another order.
    sums = torch.cat([tile.sum(-1, keepdim=True) for tile in squares.split(ROW_TILE)])
    scaled = wide / torch.sqrt(sums / x.shape[-1] + eps) * weight.float()
    return scaled[:rows].to(x.dtype)
