"""Products in FP8 e4m3, with a scale per output of the weights and per row of activations.

A row's scale depends on that row alone. A Hopper tensor core accumulates FP8 products with about 14
bits, so each tile of `inner` inputs is added to float32 sums, in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, fetch_ahead, launched_early
from penstock_kernels.triton.linear.product_tiles import launch, own_tile, store_tile
from penstock_kernels.triton.matmul_tiles import FP8, MatmulTiles
from penstock_kernels.triton.rounding import INTERPRETED, round_to
from penstock_kernels.triton.tiles import row_block, row_warps


@triton.jit
def _quantise(x, levels, scales, size, x_row, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    await_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    wide = tl.load(x + row * x_row + column, mask=inside, other=0.0).to(tl.float32)
    # Rounded as IEEE 754 has it: a device's usual division is off by a bit now and then, and levels
    # that lie between two would go the other way.
    scale = tl.maximum(tl.div_rn(tl.max(tl.abs(wide), 0), 448.0), 1e-30)
    tl.store(scales + row, scale)
    tl.store(
        levels + row * size + column, round_to(tl.div_rn(wide, scale), tl.float8e4nv), mask=inside
    )


def quantise_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises each row to float8_e4m3fn with its own scale, its largest magnitude / 448. For
    activations, and for weights [outputs, inputs], whose rows are outputs.

    `x` is [rows, size], of any float dtype; rows may be strided. Returns (levels [rows, size],
    scales [rows] float32), where x = levels * scale.
    """
    rows, size = x.shape
    levels = torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        block = row_block(size)
        _quantise[(rows,)](
            x=x,
            levels=levels,
            scales=scales,
            size=size,
            x_row=x.stride(0),
            BLOCK=block,
            num_warps=row_warps(block),
            **launched_early(x.device),
        )
    return levels, scales


@triton.jit(do_not_specialize=["rows"])
def _fp8_linear(
    x,
    x_scales,
    weight,
    weight_scales,
    bias,
    out,
    rows,
    outputs,
    inputs,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    EARLY: tl.constexpr,
):
    row, column, in_rows, in_columns = own_tile(rows, outputs, ROWS, COLUMNS)
    if EARLY and rows <= ROWS:
        fetch_ahead(weight, inputs, column, in_columns, outputs, inputs)
    await_earlier(EARLY)
    inner = tl.arange(0, INNER)
    x_place = x + row.to(tl.int64)[:, None] * inputs + inner[None, :]
    weight_place = weight + column.to(tl.int64)[:, None] * inputs + inner[None, :]
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for base in range(0, inputs, INNER):
        left = inner < inputs - base
        some = tl.load(x_place + base, mask=in_rows[:, None] & left[None, :], other=0.0)
        part = tl.load(weight_place + base, mask=in_columns[:, None] & left[None, :], other=0.0)
        if INTERPRETED:
            acc = tl.dot(some.to(tl.float32), tl.trans(part.to(tl.float32)), acc)
        else:
            acc = tl.dot(some, tl.trans(part), acc, max_num_imprecise_acc=INNER)
    x_scale = tl.load(x_scales + row, mask=in_rows, other=0.0)[:, None]
    acc = acc * x_scale * tl.load(weight_scales + column, mask=in_columns, other=0.0)[None, :]
    store_tile(acc, bias, out, row, column, in_rows, in_columns, outputs, BIAS)


def fp8_linear(
    x: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    bias: Tensor | None = None,
    *,
    tiles: MatmulTiles = FP8,
) -> Tensor:
    """x @ (weight * scale).T + bias, each row independently; x is quantised by quantise_fp8.

    `x`: [rows, inputs], any float dtype.
    `weight`: [outputs, inputs] float8_e4m3fn, contiguous.
    `weight_scales`: [outputs] float32.
    `bias`: [outputs] or None.
    `tiles`: another choice may give other bits.

    Returns [rows, outputs] in x's dtype. FP8 products need a device of compute capability 8.9 or
    higher.
    """
    out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    levels, scales = quantise_fp8(x)
    launch(
        _fp8_linear,
        out,
        bias,
        tiles=tiles,
        x=levels,
        x_scales=scales,
        weight=weight,
        weight_scales=weight_scales,
        inputs=x.shape[1],
        INNER=tiles.inner,
    )
    return out
