"""Products of rows with the matrices of their experts, with the bits of the `cpu` kernels.

Rows are rounded to bytes (`rowwise/row_levels.py`), and weights are the levels of their files: the
product of 32 inputs is a whole number, exact on tensor cores as on a CPU, whatever the tile. What
floats follow, and in which order, is in docs/design/two-places.md.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.experts.placing import ExpertTiles
from penstock_kernels.triton.experts.products import own_pairs, store_pairs
from penstock_kernels.triton.linear.gguf_groups import group_factors, level_halves
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights
from penstock_kernels.triton.matmul_tiles import EXPERTS, MatmulTiles
from penstock_kernels.triton.rounding import fused
from penstock_kernels.triton.rowwise.cpu_activations import FUSED
from penstock_kernels.triton.rowwise.row_levels import RowLevels

LEVEL_TYPES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4"),
)
"""Types of GGUF files whose products have a CPU's bits here."""


@triton.jit
def _group_levels(
    levels,
    high,
    group,
    column,
    in_columns,
    outputs,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    E2M1: tl.constexpr,
):
    """Returns a group's levels, [COLUMNS, 32] int8."""
    if BITS == 8:
        place = levels + (column.to(tl.int64) + group * outputs)[:, None] * 32
        return tl.load(place + tl.arange(0, 32)[None, :], mask=in_columns[:, None], other=0)
    else:
        low, upper = level_halves(
            levels, high, group, column, in_columns, outputs, BITS, OFFSET, E2M1
        )
        both = tl.permute(tl.join(low, upper), (0, 2, 1))
        return tl.reshape(both, (low.shape[0], 32))


@triton.jit
def _add_whole(acc, weight, some, scale, by):
    """Returns acc + the product of whole numbers * (scale * by), each rounded once."""
    none = tl.zeros(acc.shape, tl.int32)
    product = tl.dot(weight, some, none, out_dtype=tl.int32).to(tl.float32)
    return fused(product, scale[:, None] * by[None, :], acc)


@triton.jit
def _add_scaled(acc, least, total):
    """Returns acc + a minimum times a scaled sum."""
    size: tl.constexpr = acc.shape
    return fused(tl.broadcast_to(least[:, None], size), tl.broadcast_to(total[None, :], size), acc)


@triton.jit
def _expert_levels(
    x,
    x_scales,
    x_sums,
    levels,
    high,
    scales,
    minima,
    units,
    unit_minima,
    bias,
    out,
    order,
    experts,
    firsts,
    counts,
    outputs,
    all_outputs,
    inputs,
    HAS_BIAS: tl.constexpr,
    PAIRS: tl.constexpr,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    E2M1: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """`all_outputs` is the number of outputs of all experts."""
    await_earlier(EARLY)
    tile = tl.program_id(0)
    count = tl.load(counts + tile)
    if count > 0:
        expert = tl.load(experts + tile)
        pair, held = own_pairs(order, firsts, tile, count, ROWS)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        in_columns = column < outputs
        own = expert * outputs + column
        existing = expert * outputs + tl.minimum(column, outputs - 1)
        end = inputs // 32
        input = tl.arange(0, 32)
        row = pair // PAIRS
        x_place = x + row[:, None] * inputs + input[None, :]
        latter = (input >= 16)[None, :]
        acc = tl.zeros([COLUMNS, ROWS], tl.float32)
        for group in tl.range(0, end, num_stages=STAGES):
            scale, second, least, other = group_factors(
                scales, units, minima, unit_minima, group, group, end, existing, all_outputs,
                GROUP, MINIMA, UNIT, E2M1,
            )  # fmt: skip
            weight = _group_levels(
                levels, high, group, own, in_columns, all_outputs, BITS, OFFSET, E2M1
            )
            some = tl.trans(tl.load(x_place + group * 32, mask=held[:, None], other=0))
            at = row * end + group
            by = tl.load(x_scales + at, mask=held, other=0.0)
            if GROUP == 32:
                acc = _add_whole(acc, weight, some, scale, by)
                if MINIMA:
                    total = tl.load(x_sums + at * 3 + 2, mask=held, other=0.0)
                    acc = _add_scaled(acc, least, total)
            else:
                acc = _add_whole(acc, tl.where(latter, 0, weight).to(tl.int8), some, scale, by)
                acc = _add_whole(acc, tl.where(latter, weight, 0).to(tl.int8), some, second, by)
                if MINIMA:
                    total = tl.load(x_sums + at * 3, mask=held, other=0.0)
                    acc = _add_scaled(acc, least, total)
                    total = tl.load(x_sums + at * 3 + 1, mask=held, other=0.0)
                    acc = _add_scaled(acc, other, total)
        store_pairs(acc, bias, out, pair, held, column, in_columns, expert, outputs, HAS_BIAS)


def expert_levels(
    x: RowLevels,
    weights: GGUFWeights,
    experts: int,
    placed: ExpertTiles,
    bias: Tensor | None = None,
    *,
    tiles: MatmulTiles = EXPERTS,
) -> Tensor:
    """What the `cpu` kernels' `product` returns for each pair's row and the matrix of its expert,
    bit for bit, for weights of one of LEVEL_TYPES.

    `x`: a row that is read by each of its pairs, or a row for each pair.
    `weights`: the rows of all experts.
    `bias`: [experts, outputs] float32, contiguous, or None.
    `placed`: made for tiles of `tiles.rows` rows.
    `tiles`: only rows, columns, warps and stages are used; no choice changes a bit.

    Returns [pairs, outputs] float32.
    """
    outputs = weights.outputs // experts
    out = torch.empty(placed.pairs, outputs, dtype=torch.float32, device=x.levels.device)
    if placed.pairs:
        grid = (placed.counts.shape[0], triton.cdiv(outputs, tiles.columns))
        _expert_levels[grid](
            x=x.levels,
            x_scales=x.scales,
            x_sums=x.sums,
            **weights.operands,
            bias=bias,
            out=out,
            outputs=outputs,
            all_outputs=weights.outputs,
            inputs=weights.inputs,
            HAS_BIAS=bias is not None,
            PAIRS=placed.pairs // x.rows,
            **weights.layout.constants,
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            STAGES=tiles.stages,
            num_warps=tiles.warps,
            enable_fp_fusion=FUSED,
            **placed.lists,
            **launched_early(out.device),
        )
    return out
