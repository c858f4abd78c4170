"""Layer normalisation, with or without the residual addition before it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier
from penstock_kernels.triton.rounding import round_to
from penstock_kernels.triton.rowwise.norm_rows import add_residual, launch_rows


@triton.jit
def _layer_norm(
    x,
    residual,
    weight,
    bias,
    out,
    eps,
    size,
    ADD: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    await_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64) * size
    column = tl.arange(0, BLOCK)
    inside = column < size
    wide = add_residual(x, residual, row, column, inside, ADD)
    mean = tl.sum(wide, 0) / size
    apart = tl.where(inside, wide - mean, 0.0)
    variance = tl.sum(apart * apart, 0) / size
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    scaled = apart / tl.sqrt_rn(variance + eps)
    if BIAS:
        shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        scaled = tl.fma(scaled, gain, shift)
    else:
        scaled *= gain
    tl.store(out + row + column, round_to(scaled, out.dtype.element_ty), mask=inside)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension (Ba et al., 2016).

    `x` is [rows, size], contiguous, of any float dtype; `weight` and `bias` are [size]; `bias` may
    be None. Computed in float32 and rounded once, to x's dtype. Returns x's shape.
    """
    has_bias = bias is not None
    return launch_rows(_layer_norm, x, None, eps, weight=weight, bias=bias, BIAS=has_bias)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """layer_norm(x + residual, weight, bias, eps), where the sum is rounded to its dtype before it
    is normalised. Shapes and dtypes as for layer_norm."""
    return launch_rows(_layer_norm, x, residual, eps, weight=weight, bias=bias, BIAS=True)
