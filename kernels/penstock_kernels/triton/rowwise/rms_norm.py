"""Root-mean-square normalisation, with or without the residual addition before it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier
from penstock_kernels.triton.rounding import round_to
from penstock_kernels.triton.rowwise.norm_rows import add_residual, launch_rows


@triton.jit
def _rms_norm(
    x,
    residual,
    weight,
    out,
    eps,
    size,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    await_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64) * size
    column = tl.arange(0, BLOCK)
    inside = column < size
    # The few programs of a decode mostly wait for memory, so the gain is loaded together with the
    # row. Without the barrier, the compiler would delay its load until the row has arrived.
    gain = tl.load(weight + column, mask=inside, other=0.0)
    tl.debug_barrier()
    wide = add_residual(x, residual, row, column, inside, ADD)
    if ADD:
        tl.store(residual + row + column, round_to(wide, residual.dtype.element_ty), mask=inside)
    mean = tl.sum(wide * wide, 0) / size
    scaled = wide / tl.sqrt_rn(mean + eps) * gain.to(tl.float32)
    tl.store(out + row + column, round_to(scaled, out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, warps: int | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, 2019).

    `x` is [rows, size] or [rows, heads, size], contiguous, of any float dtype; `weight` is [size].
    Computed in float32 and rounded once, to x's dtype. `warps` replaces row_warps; another number
    may give other bits. Returns x's shape.
    """
    return launch_rows(_rms_norm, x, None, eps, warps, weight=weight)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, warps: int | None = None
) -> Tensor:
    """rms_norm(residual + x, weight, eps). `residual` becomes residual + x, rounded to its dtype
    before it is normalised. Shapes and dtypes as for rms_norm."""
    return launch_rows(_rms_norm, x, residual, eps, warps, weight=weight)
