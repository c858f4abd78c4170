"""Products with, and rows of, weights that stay as GGUF's quantised types have them.

Levels are whole numbers that bfloat16 and float16 hold exactly, so a group's product is that of the
levels, and its float32 scale multiplies the float32 sum: no weight is ever rounded.  A minimum
multiplies the sum of the group's inputs, which the tensor cores add up as a product with ones.

Weights are the left operand, so that their 64 outputs fill a tensor core whatever the rows.  Groups
are added in order; where a matrix has too few outputs to keep a GPU busy, in fixed parts whose sums
are added in order.  How many parts follows from the matrix alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import GGUFWeights
from penstock_kernels.triton.linear.product_tiles import own_tile
from penstock_kernels.triton.rounding import INTERPRETED, round_to, tile_dot
from penstock_kernels.triton.tiles import (
    GGUF_FEW,
    GGUF_MANY,
    PART_BLOCK,
    PART_WARPS,
    UNPACK_TILE,
    UNPACK_WARPS,
    MatmulTiles,
    gguf_parts,
)


@triton.jit
def _whole(level, dtype: tl.constexpr):
    """Whole numbers of int8 in a float type that holds them."""
    if INTERPRETED:
        return round_to(level.to(tl.float32), dtype)
    else:
        return level.to(dtype)


@triton.jit
def _halves(
    levels, high, group, column, in_columns, outputs, BITS: tl.constexpr, OFFSET: tl.constexpr
):
    """The two halves of a group's levels, each [COLUMNS, 16] int8."""
    half = tl.arange(0, 16)
    place = column.to(tl.int64) + group * outputs
    mask = in_columns[:, None]
    if BITS == 8:
        at = levels + place[:, None] * 32 + half[None, :]
        first = tl.load(at, mask=mask, other=0)
        second = tl.load(at + 16, mask=mask, other=0)
    else:
        raw = tl.load(levels + place[:, None] * 16 + half[None, :], mask=mask, other=0)
        first = raw & 15
        second = raw >> 4
        if BITS > 4:
            PLANES: tl.constexpr = BITS - 4
            for plane in tl.static_range(PLANES):
                bits = tl.load(high + place * PLANES + plane, mask=in_columns, other=0)[:, None]
                first |= (((bits >> half[None, :]) & 1) << (4 + plane)).to(tl.uint8)
                second |= (((bits >> (half + 16)[None, :]) & 1) << (4 + plane)).to(tl.uint8)
        first = first.to(tl.int8, bitcast=True) - OFFSET
        second = second.to(tl.int8, bitcast=True) - OFFSET
    return first.to(tl.int8), second.to(tl.int8)


@triton.jit
def _factor(
    values,
    units,
    group,
    column,
    mask,
    outputs,
    GROUP: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Scales or minima of a group of GROUP inputs, [COLUMNS] float32, exact."""
    place = column.to(tl.int64) + group * outputs
    value = tl.load(values + place, mask=mask, other=0).to(tl.float32)
    if UNIT > 0:
        place = column.to(tl.int64) + group * GROUP // UNIT * outputs
        value *= tl.load(units + place, mask=mask, other=0).to(tl.float32)
    return value


@triton.jit
def _factors(
    scales,
    units,
    minima,
    unit_minima,
    group,
    end,
    column,
    in_columns,
    outputs,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Of 32 inputs: scale, scale of the latter 16 where GROUP is 16, minimum where there are any.
    0 from group `end` on."""
    mask = in_columns & (group < end)
    if GROUP == 16:
        scale = _factor(scales, units, 2 * group, column, mask, outputs, GROUP, UNIT)
        second = _factor(scales, units, 2 * group + 1, column, mask, outputs, GROUP, UNIT)
    else:
        scale = _factor(scales, units, group, column, mask, outputs, GROUP, UNIT)
        second = scale
    least = scale
    if MINIMA:
        least = _factor(minima, unit_minima, group, column, mask, outputs, GROUP, UNIT)
    return scale, second, least


@triton.jit
def _add_group(
    acc,
    x_place,
    levels,
    high,
    scale,
    second_scale,
    least,
    group,
    end,
    in_rows,
    column,
    in_columns,
    outputs,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
):
    """acc + the product of 32 inputs; from group `end` on, acc."""
    held = group < end
    dtype: tl.constexpr = x_place.dtype.element_ty
    none = tl.zeros(acc.shape, tl.float32)
    low, upper = _halves(levels, high, group, column, in_columns & held, outputs, BITS, OFFSET)
    mask = in_rows[:, None] & held
    some = tl.trans(tl.load(x_place + group * 32, mask=mask, other=0.0))
    more = tl.trans(tl.load(x_place + group * 32 + 16, mask=mask, other=0.0))
    if GROUP == 32:
        product = tile_dot(_whole(low, dtype), some, none)
        product = tile_dot(_whole(upper, dtype), more, product)
        acc = tl.fma(product, tl.broadcast_to(scale[:, None], product.shape), acc)
    else:
        product = tile_dot(_whole(low, dtype), some, none)
        acc = tl.fma(product, tl.broadcast_to(scale[:, None], product.shape), acc)
        product = tile_dot(_whole(upper, dtype), more, none)
        acc = tl.fma(product, tl.broadcast_to(second_scale[:, None], product.shape), acc)
    if MINIMA:
        ones = round_to(tl.full([acc.shape[0], 16], 1.0, tl.float32), dtype)
        total = tile_dot(ones, more, tile_dot(ones, some, none))
        acc = tl.fma(total, tl.broadcast_to(least[:, None], total.shape), acc)
    return acc


@triton.jit(do_not_specialize=["rows"])
def _gguf_product(
    x,
    levels,
    high,
    scales,
    minima,
    units,
    unit_minima,
    bias,
    out,
    rows,
    outputs,
    inputs,
    x_row,
    BIAS: tl.constexpr,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    UNIT: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """UNIT: inputs of a unit, 0: no units.  PARTS: more than 1: out is [PARTS, rows, outputs]."""
    row, column, in_rows, in_columns = own_tile(rows, outputs, ROWS, COLUMNS)
    half = tl.arange(0, 16)
    x_place = x + row.to(tl.int64)[:, None] * x_row + half[None, :]
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    groups = inputs // 32
    part = tl.program_id(1)
    end = (part + 1) * groups // PARTS
    for group in tl.range(part * groups // PARTS, end, 4, num_stages=STAGES):
        # Scales are too narrow to be copied ahead as levels are: those of four groups are on their
        # way at once.
        a, a_second, a_least = _factors(
            scales, units, minima, unit_minima, group, end, column, in_columns, outputs,
            GROUP, MINIMA, UNIT,
        )  # fmt: skip
        b, b_second, b_least = _factors(
            scales, units, minima, unit_minima, group + 1, end, column, in_columns, outputs,
            GROUP, MINIMA, UNIT,
        )  # fmt: skip
        c, c_second, c_least = _factors(
            scales, units, minima, unit_minima, group + 2, end, column, in_columns, outputs,
            GROUP, MINIMA, UNIT,
        )  # fmt: skip
        d, d_second, d_least = _factors(
            scales, units, minima, unit_minima, group + 3, end, column, in_columns, outputs,
            GROUP, MINIMA, UNIT,
        )  # fmt: skip
        acc = _add_group(
            acc, x_place, levels, high, a, a_second, a_least, group, end, in_rows, column,
            in_columns, outputs, BITS, OFFSET, GROUP, MINIMA,
        )  # fmt: skip
        acc = _add_group(
            acc, x_place, levels, high, b, b_second, b_least, group + 1, end, in_rows, column,
            in_columns, outputs, BITS, OFFSET, GROUP, MINIMA,
        )  # fmt: skip
        acc = _add_group(
            acc, x_place, levels, high, c, c_second, c_least, group + 2, end, in_rows, column,
            in_columns, outputs, BITS, OFFSET, GROUP, MINIMA,
        )  # fmt: skip
        acc = _add_group(
            acc, x_place, levels, high, d, d_second, d_least, group + 3, end, in_rows, column,
            in_columns, outputs, BITS, OFFSET, GROUP, MINIMA,
        )  # fmt: skip
    if BIAS:
        acc += tl.load(bias + column, mask=in_columns, other=0.0).to(tl.float32)[:, None]
    place = (part * rows + row).to(tl.int64)[None, :] * outputs + column[:, None]
    mask = in_rows[None, :] & in_columns[:, None]
    tl.store(out + place, round_to(acc, out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["size"])
def _add_parts(
    parts,
    bias,
    out,
    outputs,
    size,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """parts: [PARTS, rows, outputs] float32, added in order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.load(parts + at, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * size + at, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias + at % outputs, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, round_to(total, out.dtype.element_ty), mask=inside)


def gguf_linear(
    x: Tensor,
    weights: GGUFWeights,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    batch_invariant: bool = False,
    tiles: MatmulTiles | None = None,
    parts: int | None = None,
) -> Tensor:
    """x @ weight.T + bias, each row by itself, in float32 sums of exact weights, rounded once.

    x: [rows, inputs], bfloat16 or float16 (float32 is multiplied in full precision, without tensor
    cores); rows may be strided.  bias: [outputs] or None.  dtype: of the result, default x's.
    batch_invariant: one tile shape and one order of sums whatever the number of rows; else both
    follow from whether there are few.  tiles, parts: instead of those that follow, for measuring;
    another choice may give other bits.  Returns [rows, outputs].
    """
    rows, outputs = x.shape[0], weights.outputs
    out = torch.empty(rows, outputs, dtype=dtype or x.dtype, device=x.device)
    if not rows:
        return out
    if tiles is None:
        few = batch_invariant or rows <= GGUF_FEW.rows
        tiles = GGUF_FEW if few else GGUF_MANY
    if parts is None:
        cut = not batch_invariant and rows <= GGUF_MANY.rows
        parts = gguf_parts(outputs, weights.inputs) if cut else 1
    if parts == 1:
        _launch(x, weights, bias, out, 1, tiles)
        return out
    sums = torch.empty(parts, rows, outputs, dtype=torch.float32, device=x.device)
    _launch(x, weights, None, sums, parts, tiles)
    size = rows * outputs
    _add_parts[(triton.cdiv(size, PART_BLOCK),)](
        sums,
        out if bias is None else bias,
        out,
        outputs,
        size,
        PARTS=parts,
        BIAS=bias is not None,
        BLOCK=PART_BLOCK,
        num_warps=PART_WARPS,
    )
    return out


def _launch(
    x: Tensor,
    weights: GGUFWeights,
    bias: Tensor | None,
    out: Tensor,
    parts: int,
    tiles: MatmulTiles,
) -> None:
    rows, outputs = x.shape[0], weights.outputs
    _gguf_product[(tiles.programs(rows, outputs), parts)](
        x,
        *_operands(weights),
        out if bias is None else bias,
        out,
        rows,
        outputs,
        weights.inputs,
        x.stride(0),
        BIAS=bias is not None,
        **_meaning(weights),
        PARTS=parts,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        STAGES=tiles.stages,
        num_warps=tiles.warps,
    )


def _operands(weights: GGUFWeights) -> tuple[Tensor, ...]:
    """As the kernels take them; what isn't there is never read."""
    found, scales = weights.tensors, weights.scales
    names = ("levels", "high", "scales", "minima", "units", "unit_minima")
    return tuple(found.get(name, scales) for name in names)


def _meaning(weights: GGUFWeights) -> dict[str, int | bool]:
    layout = weights.layout
    return {
        "BITS": layout.bits,
        "OFFSET": layout.offset,
        "GROUP": layout.group,
        "MINIMA": layout.minima,
        "UNIT": 0 if layout.factors is None else layout.unit,
    }


@triton.jit
def _gguf_rows(
    ids,
    levels,
    high,
    scales,
    minima,
    units,
    unit_minima,
    out,
    outputs,
    inputs,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    UNIT: tl.constexpr,
    CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Row ids[program], or row `program`, as floats: the arithmetic of ggml, a rounding for each
    operation."""
    row = tl.program_id(0).to(tl.int64)
    source = row
    if CHOSEN:
        source = tl.load(ids + row).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inputs
    group = (column // 32).to(tl.int64) * outputs + source
    within = column % 32
    if BITS == 8:
        level = tl.load(levels + group * 32 + within, mask=inside, other=0).to(tl.int32)
    else:
        raw = tl.load(levels + group * 16 + within % 16, mask=inside, other=0).to(tl.int32)
        level = (raw >> (within // 16 * 4)) & 15
        if BITS > 4:
            PLANES: tl.constexpr = BITS - 4
            for plane in tl.static_range(PLANES):
                bits = tl.load(high + group * PLANES + plane, mask=inside, other=0)
                level |= ((bits >> within) & 1) << (4 + plane)
    place = (column // GROUP).to(tl.int64) * outputs + source
    scale = tl.load(scales + place, mask=inside, other=0).to(tl.float32)
    if UNIT > 0:
        unit = (column // UNIT).to(tl.int64) * outputs + source
        scale *= tl.load(units + unit, mask=inside, other=0).to(tl.float32)
    value = scale * (level - OFFSET).to(tl.float32)
    if MINIMA:
        least = tl.load(minima + place, mask=inside, other=0).to(tl.float32)
        if UNIT > 0:
            least *= tl.load(unit_minima + unit, mask=inside, other=0).to(tl.float32)
        value += least
    tl.store(out + row * inputs + column, round_to(value, out.dtype.element_ty), mask=inside)


def gguf_rows(weights: GGUFWeights, ids: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rows of the matrix, as an embedding has them, each number rounded once to dtype.

    ids: [rows] int64, each below weights.outputs; None: all.  Returns [rows, inputs].
    """
    rows, inputs = weights.outputs if ids is None else len(ids), weights.inputs
    out = torch.empty(rows, inputs, dtype=dtype, device=weights.levels.device)
    if rows:
        _gguf_rows[(rows, triton.cdiv(inputs, UNPACK_TILE))](
            out if ids is None else ids,
            *_operands(weights),
            out,
            weights.outputs,
            inputs,
            **_meaning(weights),
            CHOSEN=ids is not None,
            BLOCK=UNPACK_TILE,
            num_warps=UNPACK_WARPS,
        )
    return out
