"""Products with weights of 8 or 4 bits, with a scale per group of inputs.

Levels are integers that bfloat16 and float16 represent exactly. So a group's product is that of the
levels, and its scale multiplies the sum. Groups are added in order, without splitting the inputs.
With `batch_invariant`, tiles don't depend on the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, fetch_ahead
from penstock_kernels.triton.linear.nibbles import nibble_levels
from penstock_kernels.triton.linear.product_tiles import launch, own_tile, store_tile
from penstock_kernels.triton.matmul_tiles import WEIGHT_ONLY, WEIGHT_ONLY_MANY, MatmulTiles
from penstock_kernels.triton.rounding import round_to, tile_dot

GROUPS = (32, 64, 128)
"""Supported numbers of inputs per group."""


@dataclass(frozen=True)
class PackedWeights:
    """weight[o, i] = (level - zero) * scale, of i's group."""

    levels: Tensor
    """8 bits: int8 [outputs, inputs]. 4 bits: uint8 [outputs, inputs / 2]; the bytes of a group
    have its first half in the low nibbles and its second half in the high ones, 0 to 15."""
    scales: Tensor
    """[outputs, inputs / group] float32 or float16."""
    zeros: Tensor | None
    """[outputs, inputs / group] of the scales' dtype; None for 0 (8 bits) or 8 (4 bits)."""
    bits: int
    """8 or 4."""
    group: int
    """Inputs that share a scale: one of GROUPS, which divides the inputs."""


def pack(weight: Tensor, *, bits: int, group: int) -> PackedWeights:
    """Quantises symmetrically to the nearest levels: scale = the group's largest magnitude / 127
    (or 7).

    `weight` is [outputs, inputs], on any device. Raises ValueError for bits other than 4 and 8, and
    for a group that isn't in GROUPS or doesn't divide the inputs.
    """
    if bits not in (4, 8):
        raise ValueError(f"bits is {bits}; it must be 4 or 8")
    if group not in GROUPS or weight.shape[1] % group:
        raise ValueError(
            f"group is {group}; it must be one of {GROUPS} and divide {weight.shape[1]}"
        )
    most = 127 if bits == 8 else 7
    groups = weight.float().unflatten(1, (-1, group))
    scales = (groups.abs().amax(-1) / most).clamp(min=torch.finfo(torch.float32).tiny)
    levels = (groups / scales[..., None]).round().clamp(-most, most)
    if bits == 8:
        return PackedWeights(levels.flatten(1).to(torch.int8), scales, None, 8, group)
    return PackedWeights(pack_nibbles(levels.flatten(1) + 8, group), scales, None, 4, group)


def pack_nibbles(levels: Tensor, group: int) -> Tensor:
    """Returns PackedWeights.levels of [outputs, inputs] integers from 0 to 15."""
    low, high = levels.to(torch.uint8).unflatten(1, (-1, 2, group // 2)).unbind(2)
    return (low | (high << 4)).flatten(1).contiguous()


@triton.jit(do_not_specialize=["rows"])
def _weight_only(
    x,
    levels,
    scales,
    zeros,
    bias,
    out,
    rows,
    outputs,
    inputs,
    x_row,
    BIAS: tl.constexpr,
    ZEROS: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    row, column, in_rows, in_columns = own_tile(rows, outputs, ROWS, COLUMNS)
    if EARLY and rows <= ROWS:
        row_bytes = inputs * BITS // 8
        fetch_ahead(levels, row_bytes, column, in_columns, outputs, row_bytes)
    await_earlier(EARLY)
    groups = inputs // GROUP
    HALF: tl.constexpr = GROUP // 2
    half = tl.arange(0, HALF)
    whole = tl.arange(0, GROUP)
    x_place = x + row.to(tl.int64)[:, None] * x_row
    scale_place = column.to(tl.int64) * groups
    dtype: tl.constexpr = x.dtype.element_ty
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    none = tl.zeros([ROWS, COLUMNS], tl.float32)
    for group in range(groups):
        scale = tl.load(scales + scale_place + group, mask=in_columns, other=0.0).to(tl.float32)
        zero = tl.full([COLUMNS], 8.0 if BITS == 4 else 0.0, tl.float32)
        if ZEROS:
            zero = tl.load(zeros + scale_place + group, mask=in_columns, other=0.0).to(tl.float32)
        if BITS == 4:
            byte_place = column.to(tl.int64)[:, None] * (inputs // 2) + group * HALF + half[None, :]
            raw = tl.load(levels + byte_place, mask=in_columns[:, None], other=0)
            low, high = nibble_levels(raw, zero, dtype)
            first = tl.load(
                x_place + group * GROUP + half[None, :], mask=in_rows[:, None], other=0.0
            )
            second = tl.load(
                x_place + group * GROUP + HALF + half[None, :], mask=in_rows[:, None], other=0.0
            )
            part = tile_dot(second, tl.trans(high), tile_dot(first, tl.trans(low), none))
        else:
            level_place = column.to(tl.int64)[:, None] * inputs + group * GROUP + whole[None, :]
            raw = tl.load(levels + level_place, mask=in_columns[:, None], other=0)
            level = round_to(raw.to(tl.float32) - zero[:, None], dtype)
            some = tl.load(
                x_place + group * GROUP + whole[None, :], mask=in_rows[:, None], other=0.0
            )
            part = tile_dot(some, tl.trans(level), none)
        acc = tl.fma(part, tl.broadcast_to(scale[None, :], part.shape), acc)
    store_tile(acc, bias, out, row, column, in_rows, in_columns, outputs, BIAS)


def weight_only_linear(
    x: Tensor,
    weights: PackedWeights,
    bias: Tensor | None = None,
    *,
    batch_invariant: bool = False,
    tiles: MatmulTiles | None = None,
) -> Tensor:
    """x @ weight.T + bias with packed weights, each row independently.

    `x`: [rows, inputs], float32, bfloat16 or float16; rows may be strided.
    `bias`: [outputs] or None.
    `batch_invariant`: whether to use one tile shape whatever the number of rows.
    `tiles`: replace the default choice, for measurements. Only rows, columns, warps and stages are
    used; another choice may give other bits.

    Zeros must be whole numbers, of 4 bits in [-112, 128], for the levels to stay exact. Returns
    [rows, outputs] in x's dtype.
    """
    rows, inputs = x.shape
    outputs = weights.levels.shape[0]
    if tiles is None:
        few = batch_invariant or rows <= WEIGHT_ONLY.rows
        tiles = WEIGHT_ONLY if few else WEIGHT_ONLY_MANY
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    launch(
        _weight_only,
        out,
        bias,
        tiles=tiles,
        x=x,
        levels=weights.levels,
        scales=weights.scales,
        zeros=weights.zeros,
        inputs=inputs,
        x_row=x.stride(0),
        ZEROS=weights.zeros is not None,
        BITS=weights.bits,
        GROUP=weights.group,
    )
    return out
