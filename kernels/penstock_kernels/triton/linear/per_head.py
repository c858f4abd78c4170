"""Products of each head with a matrix of its own, in one launch.

Each head's is as `dense.linear`: with one tile shape whatever the number of rows, in tiles of
`inner` inputs from first to last.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.linear.product_tiles import own_tile
from penstock_kernels.triton.matmul_tiles import INVARIANT, MatmulTiles
from penstock_kernels.triton.rounding import round_to, tile_dot


@triton.jit(do_not_specialize=["rows"])
def _per_head(
    x,
    weight,
    out,
    rows,
    outputs,
    inputs,
    x_row,
    x_head,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    head, heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    row, column, in_rows, in_columns = own_tile(rows, outputs, ROWS, COLUMNS)
    inner = tl.arange(0, INNER)
    x_place = x + head * x_head + row.to(tl.int64)[:, None] * x_row + inner[None, :]
    matrix = weight + head * outputs * inputs
    weight_place = matrix + column.to(tl.int64)[:, None] * inputs + inner[None, :]
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for base in range(0, inputs, INNER):
        left = inner < inputs - base
        some = tl.load(x_place + base, mask=in_rows[:, None] & left[None, :], other=0.0)
        part = tl.load(weight_place + base, mask=in_columns[:, None] & left[None, :], other=0.0)
        acc = tile_dot(some, tl.trans(part), acc)
    place = out + (row.to(tl.int64)[:, None] * heads + head) * outputs + column[None, :]
    mask = in_rows[:, None] & in_columns[None, :]
    tl.store(place, round_to(acc, out.dtype.element_ty), mask=mask)


def per_head(x: Tensor, weight: Tensor, *, tiles: MatmulTiles = INVARIANT) -> Tensor:
    """x[:, h] @ weight[h].T for each head h, accumulated in float32 and rounded once.

    `x`: [rows, heads, inputs]; rows and heads may be strided, a head's numbers lie together.
    `weight`: [heads, outputs, inputs], contiguous, of x's dtype.
    `tiles`: another choice may give other bits.

    Returns [rows, heads, outputs].
    """
    rows, heads, inputs = x.shape
    outputs = weight.shape[1]
    out = torch.empty(rows, heads, outputs, dtype=x.dtype, device=x.device)
    if rows:
        _per_head[(tiles.programs(rows, outputs), heads)](
            x=x,
            weight=weight,
            out=out,
            rows=rows,
            outputs=outputs,
            inputs=inputs,
            x_row=x.stride(0),
            x_head=x.stride(1),
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            INNER=tiles.inner,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
    return out
