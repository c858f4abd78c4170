"""Rows scaled to other rows' size."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.rounding import round_to
from penstock_kernels.triton.tiles import row_block, row_warps


@triton.jit
def _as_large(x, as_what, out, size, least, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * size
    column = tl.arange(0, BLOCK)
    inside = column < size
    own = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(as_what + row + column, mask=inside, other=0.0).to(tl.float32)
    wanted = tl.sqrt_rn(tl.sum(other * other, 0) / size)
    square = tl.sum(own * own, 0) / size
    square = tl.where(square < least, least, square)  # NaN stays NaN.
    scaled = own * wanted / tl.sqrt_rn(square)
    tl.store(out + row + column, round_to(scaled, out.dtype.element_ty), mask=inside)


def as_large(x: Tensor, as_what: Tensor, least: float) -> Tensor:
    """Scales each row of x to the root mean square of a row of the other; of x, a mean square below
    `least` counts as that. Both are [rows, size], contiguous, of any float dtype. Computed in
    float32 and rounded once, to x's dtype."""
    out = torch.empty_like(x)
    rows, size = x.shape
    if rows:
        block = row_block(size)
        _as_large[(rows,)](
            x=x,
            as_what=as_what,
            out=out,
            size=size,
            least=least,
            BLOCK=block,
            num_warps=row_warps(block),
        )
    return out
