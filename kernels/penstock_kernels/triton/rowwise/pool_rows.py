"""Pools the vectors of an input's tokens into one: their mean, or the maximum of each column.

A program has some columns of one input and goes through its rows in tiles of fixed size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.tiles import POOL_COLUMNS, POOL_ROWS, POOL_WARPS


@triton.jit
def _pool_rows(
    x, starts, lengths, out, size, MEAN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    which = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < size
    start = tl.load(starts + which).to(tl.int64)
    length = tl.load(lengths + which)
    held = tl.full([ROWS, COLUMNS], 0.0 if MEAN else float("-inf"), tl.float32)
    for base in range(0, length, ROWS):
        row = base + tl.arange(0, ROWS)
        mask = (row < length)[:, None] & inside[None, :]
        place = (start + row)[:, None] * size + column[None, :]
        if MEAN:
            held += tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        else:
            wide = tl.load(x + place, mask=mask, other=float("-inf")).to(tl.float32)
            # A maximum would drop NaN, so NaN becomes infinity, which the result keeps.
            held = tl.maximum(held, tl.where(wide == wide, wide, float("inf")))
    pooled = tl.sum(held, 0) / length if MEAN else tl.max(held, 0)
    tl.store(out + which.to(tl.int64) * size + column, pooled, mask=inside)


def mean_rows(x: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Returns the mean of each input's rows, [inputs, size] float32.

    `x` is [rows, size], contiguous, of any float dtype. `starts` and `lengths` are [inputs] int32:
    the first row of each input, and its number of rows, at least 1.
    """
    return _launch(x, starts, lengths, mean=True)


def max_rows(x: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Returns the maximum of each column, which is infinite if the column has a NaN. Otherwise as
    mean_rows."""
    return _launch(x, starts, lengths, mean=False)


def _launch(x: Tensor, starts: Tensor, lengths: Tensor, *, mean: bool) -> Tensor:
    inputs, size = len(starts), x.shape[1]
    out = torch.empty(inputs, size, dtype=torch.float32, device=x.device)
    if inputs:
        _pool_rows[(inputs, triton.cdiv(size, POOL_COLUMNS))](
            x=x,
            starts=starts,
            lengths=lengths,
            out=out,
            size=size,
            MEAN=mean,
            ROWS=POOL_ROWS,
            COLUMNS=POOL_COLUMNS,
            num_warps=POOL_WARPS,
        )
    return out
