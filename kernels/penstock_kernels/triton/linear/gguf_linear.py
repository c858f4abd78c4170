"""Products with weights that stay in GGUF's quantised types.

Levels are integers that bfloat16 and float16 represent exactly. So a group's product is that of the
levels, and its float32 scale multiplies the float32 sum: no weight is ever rounded. A minimum
multiplies the sum of the group's inputs, which `group_sums` computes beforehand.

Weights are the left operand, so that their 64 outputs fill a tensor core whatever the number of
rows. Groups are added in order. If a matrix has too few outputs to occupy a GPU, the inputs are
divided into fixed parts whose sums are added in order; the number of parts depends on the matrix
alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.linear.gguf_groups import add_group, group_factors
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights
from penstock_kernels.triton.linear.group_sums import group_sums, sum_rows
from penstock_kernels.triton.linear.product_tiles import own_tile
from penstock_kernels.triton.matmul_tiles import GGUF_FEW, GGUF_MANY, MatmulTiles, gguf_parts
from penstock_kernels.triton.rounding import round_to
from penstock_kernels.triton.tiles import PART_BLOCK, PART_WARPS


@triton.jit(do_not_specialize=["rows"])
def _gguf_product(
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
    rows,
    outputs,
    inputs,
    x_row,
    BIAS: tl.constexpr,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    E2M1: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    UNIT: tl.constexpr,
    PARTS: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """UNIT is the number of inputs that share a unit, 0 if there are no units. If PARTS is more
    than 1, `out` is [PARTS, rows, outputs]. SHARED: whether four groups that are multiplied in a
    turn have one unit. `sums`: of group_sums, if MINIMA."""
    await_earlier(EARLY)
    row, column, in_rows, in_columns = own_tile(rows, outputs, ROWS, COLUMNS)
    half = tl.arange(0, 16)
    x_place = x + row.to(tl.int64)[:, None] * x_row + half[None, :]
    existing = tl.minimum(column, outputs - 1)
    sum_stride = sum_rows(rows, ROWS)
    sum_place = row
    if MINIMA:
        sum_place = sums + row
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    groups = inputs // 32
    part = tl.program_id(1)
    end = (part + 1) * groups // PARTS
    for group in tl.range(part * groups // PARTS, end, 4, num_stages=STAGES):
        # Scales are too narrow to be prefetched as levels are, so those of four groups are loaded
        # at a time.
        a, a_second, a_least, a_other = group_factors(
            scales, units, minima, unit_minima, group, group, end,
            existing, outputs, GROUP, MINIMA, UNIT, E2M1,
        )  # fmt: skip
        b, b_second, b_least, b_other = group_factors(
            scales, units, minima, unit_minima, group + 1, group if SHARED else group + 1, end,
            existing, outputs, GROUP, MINIMA, UNIT, E2M1,
        )  # fmt: skip
        c, c_second, c_least, c_other = group_factors(
            scales, units, minima, unit_minima, group + 2, group if SHARED else group + 2, end,
            existing, outputs, GROUP, MINIMA, UNIT, E2M1,
        )  # fmt: skip
        d, d_second, d_least, d_other = group_factors(
            scales, units, minima, unit_minima, group + 3, group if SHARED else group + 3, end,
            existing, outputs, GROUP, MINIMA, UNIT, E2M1,
        )  # fmt: skip
        acc = add_group(
            acc, x_place, levels, high, a, a_second, a_least, a_other, sum_place, sum_stride,
            group, end, in_rows, column, in_columns, outputs, BITS, OFFSET, GROUP, MINIMA, E2M1,
        )  # fmt: skip
        acc = add_group(
            acc, x_place, levels, high, b, b_second, b_least, b_other, sum_place, sum_stride,
            group + 1, end, in_rows, column, in_columns, outputs, BITS, OFFSET, GROUP, MINIMA, E2M1,
        )  # fmt: skip
        acc = add_group(
            acc, x_place, levels, high, c, c_second, c_least, c_other, sum_place, sum_stride,
            group + 2, end, in_rows, column, in_columns, outputs, BITS, OFFSET, GROUP, MINIMA, E2M1,
        )  # fmt: skip
        acc = add_group(
            acc, x_place, levels, high, d, d_second, d_least, d_other, sum_place, sum_stride,
            group + 3, end, in_rows, column, in_columns, outputs, BITS, OFFSET, GROUP, MINIMA, E2M1,
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
    EARLY: tl.constexpr,
):
    """`parts` is [PARTS, rows, outputs] float32, added in order."""
    await_earlier(EARLY)
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
    """x @ weight.T + bias, each row independently, in float32 sums of exact weights, rounded once.

    `x`: [rows, inputs], bfloat16 or float16 (float32 is multiplied in full precision, without
    tensor cores); rows may be strided.
    `bias`: [outputs] or None.
    `dtype`: that of the result; by default x's.
    `batch_invariant`: whether to use one tile shape and one order of sums whatever the number of
    rows; otherwise both depend on whether there are few.
    `tiles`, `parts`: replace the default choice, for measurements; another choice may give other
    bits.

    Returns [rows, outputs].
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
        parts=sums,
        bias=bias,
        out=out,
        outputs=outputs,
        size=size,
        PARTS=parts,
        BIAS=bias is not None,
        BLOCK=PART_BLOCK,
        num_warps=PART_WARPS,
        **launched_early(x.device),
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
    layout = weights.layout
    _gguf_product[(tiles.programs(rows, outputs), parts)](
        x=x,
        sums=group_sums(x, layout.group, tiles) if layout.minima else None,
        **weights.operands,
        bias=bias,
        out=out,
        rows=rows,
        outputs=outputs,
        inputs=weights.inputs,
        x_row=x.stride(0),
        BIAS=bias is not None,
        **layout.constants,
        PARTS=parts,
        SHARED=layout.unit % (4 * 32) == 0 and weights.inputs % (parts * 4 * 32) == 0,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        STAGES=tiles.stages,
        num_warps=tiles.warps,
        **launched_early(x.device),
    )
