"""What the normalisations of rows have in common.

One program has a whole row, in one block whose size depends only on that of the row.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import launched_early
from penstock_kernels.triton.rounding import rounded
from penstock_kernels.triton.tiles import row_block, row_warps


@triton.jit
def add_residual(x, residual, row, column, inside, ADD: tl.constexpr):
    """Returns x, or residual + x rounded to residual's dtype, in float32. The row begins `row`
    numbers from both pointers."""
    wide = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        wide += tl.load(residual + row + column, mask=inside, other=0.0).to(tl.float32)
        wide = rounded(wide, residual.dtype.element_ty)
    return wide


def launch_rows(
    kernel: Any,
    x: Tensor,
    residual: Tensor | None,
    eps: float,
    warps: int | None = None,
    **arguments: Tensor | bool | None,
) -> Tensor:
    """Launches one program per row of x's last dimension.

    `kernel`: takes x, residual, out, eps, size, as constants ADD, BLOCK and EARLY, and `arguments`.
    It begins with await_earlier.
    `residual`: like x, or None.
    `warps`: replaces row_warps.

    Returns out, like x.
    """
    out = torch.empty_like(x)
    size = x.shape[-1]
    rows = x.numel() // size
    if rows:
        block = row_block(size)
        kernel[(rows,)](
            x=x,
            residual=residual,
            out=out,
            eps=eps,
            size=size,
            ADD=residual is not None,
            BLOCK=block,
            num_warps=warps or row_warps(block),
            **launched_early(x.device),
            **arguments,
        )
    return out
