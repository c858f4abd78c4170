"""Products of rows with the matrices of their experts, which stay in FP8 e4m3 with their scales.

A tile of weights is widened to the dtype of the rows, which holds every number of FP8 exactly, and
multiplied as unquantised weights are (`experts.products`). Scales are factors of float32 sums: of
the whole sum for a scale per output, and of each 128 inputs' for block scales, whose sums are added
in order. So no weight is rounded, rows are not quantised, and a row's bits depend on it alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.experts.placing import ExpertTiles
from penstock_kernels.triton.experts.products import own_pairs, store_pairs
from penstock_kernels.triton.linear.fp8_blocks import GROUP
from penstock_kernels.triton.matmul_tiles import EXPERTS, EXPERTS_FP8, MatmulTiles
from penstock_kernels.triton.rounding import tile_dot, widened
from penstock_kernels.triton.shared_memory import widening_stages_that_fit


@triton.jit
def _expert_fp8(
    x,
    weight,
    scales,
    bias,
    out,
    order,
    experts,
    firsts,
    counts,
    outputs,
    inputs,
    groups,
    x_row,
    BIAS: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    EARLY: tl.constexpr,
):
    """PAIRS is how many pairs read the same row of x. BLOCKS: whether each INNER inputs have a
    scale of their own, one of `groups`."""
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
        own = expert.to(tl.int64) * outputs + column
        weight_place = weight + own[:, None] * inputs + inner[None, :]
        scale_place = scales + own * groups
        acc = tl.zeros([COLUMNS, ROWS], tl.float32)
        for base in range(0, inputs, INNER):
            left = inner < inputs - base
            part = tl.load(weight_place + base, mask=in_columns[:, None] & left[None, :], other=0.0)
            some = tl.load(x_place + base, mask=held[:, None] & left[None, :], other=0.0)
            part = widened(part, x.dtype.element_ty)
            if BLOCKS:
                scale = tl.load(scale_place + base // INNER, mask=in_columns, other=0.0)
                found = tile_dot(part, tl.trans(some), tl.zeros([COLUMNS, ROWS], tl.float32))
                acc += found * scale[:, None]
            else:
                acc = tile_dot(part, tl.trans(some), acc)
        if not BLOCKS:
            acc *= tl.load(scale_place, mask=in_columns, other=0.0)[:, None]
        store_pairs(acc, bias, out, pair, held, column, in_columns, expert, outputs, BIAS)


def expert_fp8(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    placed: ExpertTiles,
    bias: Tensor | None = None,
    *,
    tiles: MatmulTiles = EXPERTS_FP8[EXPERTS.rows],
) -> Tensor:
    """What `expert_linear` computes, with weights in FP8.

    `x`: bfloat16, float16 or float32 (multiplied in full precision).
    `weight`: [experts, outputs, inputs] float8_e4m3fn, contiguous.
    `scales`: [experts, outputs, groups] float32, contiguous: of all inputs if there is one group,
    otherwise of GROUP inputs each; then `tiles.inner` must be GROUP, or ValueError is raised.

    Needs a device of compute capability 8.9 or higher.
    """
    _, outputs, inputs = weight.shape
    groups = scales.shape[2]
    if groups > 1 and tiles.inner != GROUP:
        raise ValueError(f"tiles have {tiles.inner} inputs; with block scales {GROUP} are needed")
    out = torch.empty(placed.pairs, outputs, dtype=x.dtype, device=x.device)
    if placed.pairs:
        grid = (placed.counts.shape[0], triton.cdiv(outputs, tiles.columns))
        _expert_fp8[grid](
            x=x,
            weight=weight,
            scales=scales,
            bias=bias,
            out=out,
            outputs=outputs,
            inputs=inputs,
            groups=groups,
            x_row=x.stride(0),
            BIAS=bias is not None,
            PAIRS=placed.pairs // x.shape[0],
            BLOCKS=groups > 1,
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            INNER=tiles.inner,
            num_warps=tiles.warps,
            num_stages=widening_stages_that_fit(tiles, x.dtype, x.device),
            **placed.lists,
            **launched_early(x.device),
        )
    return out
