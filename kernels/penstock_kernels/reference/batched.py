"""Batched products of many small matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

BATCH_TILE = 16
"""Matrices per call. BLAS may compute a batch of 1 in another order than a batch of 2 (MKL on 2
threads does), so every call has exactly this many. 8 and 32 were a little slower."""

MKL_ROWS = 6
"""Rows that MKL processes together on AVX2. If two rows are left over, it sums them in another
order than the others (not so for 1, 3, 4 or 5), so two rows of zeros are added."""


def batched_product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right for each item, float32; items are independent of each other.

    `left` is [items, rows, inner], `right` [items, inner, columns] with any strides. Returns
    [items, rows, columns].
    """
    rows = left.shape[1]
    if rows % MKL_ROWS == 2:
        return batched_product(torch.nn.functional.pad(left, (0, 0, 0, 2)), right)[:, :rows]
    items = left.shape[0]
    out = left.new_empty(items, left.shape[1], right.shape[2])
    whole = items - items % BATCH_TILE
    for start in range(0, whole, BATCH_TILE):
        tile = slice(start, start + BATCH_TILE)
        torch.bmm(left[tile], right[tile], out=out[tile])
    if whole < items:
        padded = torch.bmm(_padded(left[whole:]), _padded(right[whole:]))
        out[whole:] = padded[: items - whole]
    return out


def _padded(tail: Tensor) -> Tensor:
    """Returns `tail` with its last item repeated up to BATCH_TILE items, with strides like its
    own."""
    missing = BATCH_TILE - tail.shape[0]
    if tail.is_contiguous():
        return torch.cat((tail, tail[-1:].expand(missing, -1, -1)))
    turned = tail.transpose(1, 2)
    return torch.cat((turned, turned[-1:].expand(missing, -1, -1))).transpose(1, 2)
