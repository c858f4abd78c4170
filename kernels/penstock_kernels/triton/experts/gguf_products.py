"""Products of rows with the matrices of their experts, which stay in GGUF's quantised types.

The experts' matrices lie one below the other as one matrix. Groups of 32 inputs are added in order,
as `linear.gguf_linear` does it: no weight is rounded.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.experts.placing import ExpertTiles
from penstock_kernels.triton.experts.products import own_pairs, store_pairs
from penstock_kernels.triton.linear.gguf_groups import add_group, group_factors
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights
from penstock_kernels.triton.linear.group_sums import group_sums, sum_rows
from penstock_kernels.triton.matmul_tiles import EXPERTS, MatmulTiles


@triton.jit(do_not_specialize=["rows"])
def _expert_gguf(
    x,
    sums,
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
    x_row,
    rows,
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
    """`all_outputs` is the number of outputs of all experts. `sums`: of group_sums, if MINIMA."""
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
        half = tl.arange(0, 16)
        x_place = x + (pair // PAIRS)[:, None] * x_row + half[None, :]
        sum_stride = sum_rows(rows, ROWS)
        sum_place = pair
        if MINIMA:
            sum_place = sums + pair // PAIRS
        acc = tl.zeros([COLUMNS, ROWS], tl.float32)
        end = inputs // 32
        for group in tl.range(0, end, num_stages=STAGES):
            scale, second, least, other = group_factors(
                scales, units, minima, unit_minima, group, group, end, existing, all_outputs,
                GROUP, MINIMA, UNIT, E2M1,
            )  # fmt: skip
            acc = add_group(
                acc, x_place, levels, high, scale, second, least, other, sum_place, sum_stride,
                group, end, held, own, in_columns, all_outputs, BITS, OFFSET, GROUP, MINIMA, E2M1,
            )  # fmt: skip
        store_pairs(acc, bias, out, pair, held, column, in_columns, expert, outputs, HAS_BIAS)


def expert_gguf(
    x: Tensor,
    weights: GGUFWeights,
    experts: int,
    placed: ExpertTiles,
    bias: Tensor | None = None,
    *,
    tiles: MatmulTiles = EXPERTS,
) -> Tensor:
    """What `expert_linear` computes, with packed weights, whose rows are those of all experts.

    `x`: bfloat16 or float16 (float32 is multiplied in full precision, without tensor cores).
    `tiles`: only rows, columns, warps and stages are used.
    """
    layout, outputs = weights.layout, weights.outputs // experts
    out = torch.empty(placed.pairs, outputs, dtype=x.dtype, device=x.device)
    if placed.pairs:
        grid = (placed.counts.shape[0], triton.cdiv(outputs, tiles.columns))
        _expert_gguf[grid](
            x=x,
            sums=group_sums(x, layout.group, tiles) if layout.minima else None,
            **weights.operands,
            bias=bias,
            out=out,
            outputs=outputs,
            all_outputs=weights.outputs,
            inputs=weights.inputs,
            x_row=x.stride(0),
            rows=x.shape[0],
            HAS_BIAS=bias is not None,
            PAIRS=placed.pairs // x.shape[0],
            **layout.constants,
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            STAGES=tiles.stages,
            num_warps=tiles.warps,
            **placed.lists,
            **launched_early(x.device),
        )
    return out
