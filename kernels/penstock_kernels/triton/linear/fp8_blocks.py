"""Products in FP8 e4m3 whose scales are those of 128 neighbouring inputs, of weights and of
activations (DeepSeek-AI, "DeepSeek-V3 technical report", 2024).

A row's scales depend on that row alone. Each group's sum leaves the tensor core, which adds in
about 14 bits, and is multiplied by both scales in float32. Groups are added in order.
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
from penstock_kernels.triton.tiles import QUANTISED_GROUPS

GROUP = 128
"""Inputs that share a scale."""


@triton.jit
def _quantise_groups(
    x, levels, scales, size, groups, x_row, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    await_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = column < size
    wide = tl.load(x + row * x_row + column, mask=inside, other=0.0).to(tl.float32)
    # Rounded as in fp8_linear.
    scale = tl.maximum(tl.div_rn(tl.max(tl.abs(wide), 1), 448.0), 1e-30)
    tl.store(scales + row * groups + group, scale, mask=group < groups)
    found = round_to(tl.div_rn(wide, scale[:, None]), tl.float8e4nv)
    tl.store(levels + row * size + column, found, mask=inside)


def quantise_fp8_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises GROUP numbers of a row at a time, with their largest magnitude / 448 as scale.

    `x` is [rows, size], of any float dtype; rows may be strided. Returns (levels [rows, size]
    float8_e4m3fn, scales [rows, groups] float32).
    """
    rows, size = x.shape
    groups = triton.cdiv(size, GROUP)
    levels = torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, groups, dtype=torch.float32, device=x.device)
    if rows:
        _quantise_groups[(rows, triton.cdiv(groups, QUANTISED_GROUPS))](
            x=x,
            levels=levels,
            scales=scales,
            size=size,
            groups=groups,
            x_row=x.stride(0),
            GROUP=GROUP,
            BLOCK=QUANTISED_GROUPS,
            num_warps=1,
            **launched_early(x.device),
        )
    return levels, scales


@triton.jit(do_not_specialize=["rows"])
def _fp8_blocks(
    x,
    x_scales,
    weight,
    weight_scales,
    bias,
    out,
    rows,
    outputs,
    inputs,
    groups,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    EARLY: tl.constexpr,
):
    row, column, in_rows, in_columns = own_tile(rows, outputs, ROWS, COLUMNS)
    if EARLY and rows <= ROWS:
        fetch_ahead(weight, inputs, column, in_columns, outputs, inputs)
    await_earlier(EARLY)
    inner = tl.arange(0, GROUP)
    x_place = x + row.to(tl.int64)[:, None] * inputs + inner[None, :]
    weight_place = weight + column.to(tl.int64)[:, None] * inputs + inner[None, :]
    x_scale_place = x_scales + row.to(tl.int64) * groups
    scale_place = weight_scales + column.to(tl.int64) * groups
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for group in range(groups):
        base = group * GROUP
        left = inner < inputs - base
        some = tl.load(x_place + base, mask=in_rows[:, None] & left[None, :], other=0.0)
        part = tl.load(weight_place + base, mask=in_columns[:, None] & left[None, :], other=0.0)
        if INTERPRETED:
            found = tl.dot(some.to(tl.float32), tl.trans(part.to(tl.float32)))
        else:
            found = tl.dot(some, tl.trans(part))
        x_scale = tl.load(x_scale_place + group, mask=in_rows, other=0.0)
        scale = tl.load(scale_place + group, mask=in_columns, other=0.0)
        acc += found * x_scale[:, None] * scale[None, :]
    store_tile(acc, bias, out, row, column, in_rows, in_columns, outputs, BIAS)


def fp8_block_linear(
    x: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    tiles: MatmulTiles = FP8,
) -> Tensor:
    """x @ (weight * scales).T + bias, each row independently; x is quantised by
    quantise_fp8_groups.

    `x`: [rows, inputs], any float dtype.
    `weight`: [outputs, inputs] float8_e4m3fn, contiguous.
    `weight_scales`: [outputs, groups] float32, contiguous.
    `bias`: [outputs] or None.
    `dtype`: that of the result; by default x's.
    `tiles`: only rows, columns, warps and stages are used; another choice may give other bits.

    Returns [rows, outputs]. FP8 products need a device of compute capability 8.9 or higher.
    """
    outputs, groups = weight_scales.shape
    out = torch.empty(x.shape[0], outputs, dtype=dtype or x.dtype, device=x.device)
    levels, scales = quantise_fp8_groups(x)
    launch(
        _fp8_blocks,
        out,
        bias,
        tiles=tiles,
        x=levels,
        x_scales=scales,
        weight=weight,
        weight_scales=weight_scales,
        inputs=x.shape[1],
        groups=groups,
        GROUP=GROUP,
    )
    return out
