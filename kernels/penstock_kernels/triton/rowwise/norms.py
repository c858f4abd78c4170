"""Normalisations of rows, with or without the residual addition before them.

One program has a whole row, in one block whose size depends only on that of the row.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.rounding import round_to, rounded
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
    if ADD:
        tl.store(residual + row + column, round_to(wide, residual.dtype.element_ty), mask=inside)
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


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    """Adds x to residual in place, rounded to its dtype, and returns the sum's layer_norm. Shapes
    and dtypes as for layer_norm."""
    has_bias = bias is not None
    return launch_rows(_layer_norm, x, residual, eps, weight=weight, bias=bias, BIAS=has_bias)
