"""Layer normalisation, with or without the residual addition before it.

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
def _layer_norm(x, residual, weight, bias, out, eps, size, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * size
    column = tl.arange(0, BLOCK)
    inside = column < size
    wide = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        wide += tl.load(residual + row + column, mask=inside, other=0.0).to(tl.float32)
        wide = rounded(wide, out.dtype.element_ty)
    mean = tl.sum(wide, 0) / size
    apart = tl.where(inside, wide - mean, 0.0)
    variance = tl.sum(apart * apart, 0) / size
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    scaled = tl.fma(apart / tl.sqrt_rn(variance + eps), gain, shift)
    tl.store(out + row + column, round_to(scaled, out.dtype.element_ty), mask=inside)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension (Ba et al., 2016).

    x: [rows, size], contiguous, any float dtype.  weight, bias: [size].  Computed in float32 and
    rounded once, to x's dtype.  Returns x's shape.
    """
    return _launch(x, None, weight, bias, eps)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """layer_norm(x + residual, weight, bias, eps), the sum rounded to its dtype before it is
    normalised.  Shapes and dtypes as for layer_norm."""
    return _launch(x, residual, weight, bias, eps)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    out = torch.empty_like(x)
    rows, size = x.shape
    if rows:
        block = row_block(size)
        _layer_norm[(rows,)](
            x,
            x if residual is None else residual,
            weight,
            bias,
            out,
            eps,
            size,
            ADD=residual is not None,
            BLOCK=block,
            num_warps=row_warps(block),
        )
    return out
