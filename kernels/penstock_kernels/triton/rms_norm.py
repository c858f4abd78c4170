"""Root-mean-square normalisation, with or without the residual addition before it.

One program has one row whole, in one block of a size that follows from the row's alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.numerics import round_to, rounded
from penstock_kernels.triton.tiles import row_block, row_warps


@triton.jit
def _rms_norm(x, residual, weight, out, eps, size, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * size
    column = tl.arange(0, BLOCK)
    inside = column < size
    wide = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        wide += tl.load(residual + row + column, mask=inside, other=0.0).to(tl.float32)
        wide = rounded(wide, residual.dtype.element_ty)
        tl.store(residual + row + column, round_to(wide, residual.dtype.element_ty), mask=inside)
    mean = tl.sum(wide * wide, 0) / size
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    scaled = wide / tl.sqrt_rn(mean + eps) * gain
    tl.store(out + row + column, round_to(scaled, out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, warps: int | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, 2019).

    x: [rows, size] or [rows, heads, size], contiguous, any float dtype.  weight: [size].
    Computed in float32 and rounded once, to x's dtype.  warps: instead of row_warps; another number
    may give other bits.  Returns x's shape.
    """
    return _launch(x, None, weight, eps, warps)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, warps: int | None = None
) -> Tensor:
    """rms_norm(residual + x, weight, eps), where residual becomes residual + x, rounded to its
    dtype before it is normalised.  Mutates residual.  Shapes and dtypes as for rms_norm."""
    return _launch(x, residual, weight, eps, warps)


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, warps: int | None
) -> Tensor:
    out = torch.empty_like(x)
    size = x.shape[-1]
    rows = x.numel() // size
    if rows:
        block = row_block(size)
        _rms_norm[(rows,)](
            x,
            x if residual is None else residual,
            weight,
            out,
            eps,
            size,
            ADD=residual is not None,
            BLOCK=block,
            num_warps=warps or row_warps(block),
        )
    return out
