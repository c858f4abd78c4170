"""Root-mean-square normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock_kernels.reference.tiling import ROW_TILE, pad_rows

if TYPE_CHECKING:
    from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, 2019).

    `x` is [rows, size] or [rows, heads, size], float32 or bfloat16. `weight` is [size]. Computed in
    float32 and rounded once, to x's dtype. Returns x's shape.
    """
    rows = x.shape[0]
    wide = pad_rows(x).float()
    scaled = wide / torch.sqrt(_mean(wide * wide) + eps) * weight.float()
    return scaled[:rows].to(x.dtype)


def row_mean(x: Tensor) -> Tensor:
    """The mean of each row of `x`, [rows, size], in float32: [rows, 1]."""
    return _mean(pad_rows(x).float())[: x.shape[0]]


def _mean(wide: Tensor) -> Tensor:
    """Over the last dimension of whole row tiles. All sums have one shape, because torch may reduce
    another shape in another order."""
    sums = torch.cat([tile.sum(-1, keepdim=True) for tile in wide.split(ROW_TILE)])
    return sums / wide.shape[-1]
