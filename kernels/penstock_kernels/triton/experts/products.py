"""Products of rows with the matrices of their experts.

A program computes COLUMNS outputs of at most ROWS rows that have the same expert. A row's sum goes
through the inputs in tiles of `inner`, from first to last, so its bits depend neither on the other
rows nor on its place among them. Weights are the left operand: their outputs fill a tensor core
whatever the number of rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.experts.placing import ExpertTiles
from penstock_kernels.triton.matmul_tiles import EXPERTS, MatmulTiles
from penstock_kernels.triton.rounding import round_to, tile_dot
from penstock_kernels.triton.shared_memory import stages_that_fit


@triton.jit
def own_pairs(order, firsts, tile, count, ROWS: tl.constexpr):
    """Returns the pairs of a tile, [ROWS] int64, and which of them exist."""
    slot = tl.arange(0, ROWS)
    held = slot < count
    first = tl.load(firsts + tile)
    return tl.load(order + first + slot, mask=held, other=0).to(tl.int64), held


@triton.jit
def store_pairs(
    acc, bias, out, pair, held, column, in_columns, expert, outputs, BIAS: tl.constexpr
):  # fmt: skip
    """out[pair, column] = acc + the expert's bias, rounded once. `acc` is [COLUMNS, ROWS]
    float32."""
    if BIAS:
        own = bias + expert.to(tl.int64) * outputs + column
        acc += tl.load(own, mask=in_columns, other=0.0).to(tl.float32)[:, None]
    place = out + pair[None, :] * outputs + column[:, None]
    mask = held[None, :] & in_columns[:, None]
    tl.store(place, round_to(acc, out.dtype.element_ty), mask=mask)


@triton.jit
def _expert_linear(
    x,
    weight,
    bias,
    out,
    order,
    experts,
    firsts,
    counts,
    outputs,
    inputs,
    x_row,
    BIAS: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    EARLY: tl.constexpr,
):
    """PAIRS is how many pairs read the same row of x."""
    await_earlier(EARLY)
    tile = tl.program_id(0)
    count = tl.load(counts + tile)
    if count > 0:
        expert = tl.load(experts + tile)
        pair, held = own_pairs(order, firsts, tile, count, ROWS)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        in_columns = column < outputs
        inner = tl.arange(0, INNER)
        x_place = x + (pair // PAIRS)[:, None] * x_row + inner[None, :]
        matrix = weight + expert.to(tl.int64) * outputs * inputs
        weight_place = matrix + column.to(tl.int64)[:, None] * inputs + inner[None, :]
        acc = tl.zeros([COLUMNS, ROWS], tl.float32)
        for base in range(0, inputs, INNER):
            left = inner < inputs - base
            part = tl.load(weight_place + base, mask=in_columns[:, None] & left[None, :], other=0.0)
            some = tl.load(x_place + base, mask=held[:, None] & left[None, :], other=0.0)
            acc = tile_dot(part, tl.trans(some), acc)
        store_pairs(acc, bias, out, pair, held, column, in_columns, expert, outputs, BIAS)


def expert_linear(
    x: Tensor,
    weight: Tensor,
    placed: ExpertTiles,
    bias: Tensor | None = None,
    *,
    tiles: MatmulTiles = EXPERTS,
) -> Tensor:
    """x @ weight[expert].T + bias[expert] for each pair, accumulated in float32 and rounded once.

    `x`: [rows, inputs], read by each of a row's pairs; or [pairs, inputs], a row for each pair.
    `weight`: [experts, outputs, inputs], contiguous.
    `bias`: [experts, outputs], contiguous, or None.
    `placed`: made for tiles of `tiles.rows` rows.

    All are of one dtype: float32 (multiplied in full precision), bfloat16 or float16. Returns
    [pairs, outputs].
    """
    _, outputs, inputs = weight.shape
    out = torch.empty(placed.pairs, outputs, dtype=x.dtype, device=x.device)
    if placed.pairs:
        grid = (placed.counts.shape[0], triton.cdiv(outputs, tiles.columns))
        _expert_linear[grid](
            x=x,
            weight=weight,
            bias=bias,
            out=out,
            outputs=outputs,
            inputs=inputs,
            x_row=x.stride(0),
            BIAS=bias is not None,
            PAIRS=placed.pairs // x.shape[0],
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            INNER=tiles.inner,
            num_warps=tiles.warps,
            num_stages=stages_that_fit(tiles, x.dtype, x.device),
            **placed.lists,
            **launched_early(x.device),
        )
    return out
