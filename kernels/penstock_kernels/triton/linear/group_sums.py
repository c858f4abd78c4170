"""Sums of each group of a row's inputs, which minima of GGUF's types are multiplied by.

All programs of a product need the same sums, so they are computed once before it. A sum is a
product with ones by tensor cores, in tiles of the product's own size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.matmul_tiles import MatmulTiles
from penstock_kernels.triton.rounding import round_to, tile_dot

GROUPS_EACH = 8
"""Groups of 32 inputs that one program goes through."""


@triton.jit
def sum_rows(rows, ROWS: tl.constexpr):
    """Returns how far apart the sums of two groups lie, int64: whole tiles, so that many are copied
    at a time."""
    return (tl.cdiv(rows, ROWS) * ROWS).to(tl.int64)


@triton.jit(do_not_specialize=["rows"])
def _group_sums(
    x,
    sums,
    rows,
    inputs,
    x_row,
    GROUP: tl.constexpr,
    EACH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    await_earlier(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_rows = row < rows
    x_place = x + row.to(tl.int64)[:, None] * x_row + tl.arange(0, 16)[None, :]
    stride = sum_rows(rows, ROWS)
    own = tl.arange(0, COLUMNS)[:, None] * stride + row[None, :]
    # Tensor cores compute a row of sums as often as a tile has outputs.
    mask = tl.broadcast_to((tl.arange(0, COLUMNS) == 0)[:, None], own.shape)
    dtype: tl.constexpr = x.dtype.element_ty
    ones = round_to(tl.full([COLUMNS, 16], 1.0, tl.float32), dtype)
    none = tl.zeros([COLUMNS, ROWS], tl.float32)
    first = tl.program_id(1) * EACH
    for group in tl.range(first, tl.minimum(first + EACH, inputs // 32)):
        some = tl.trans(tl.load(x_place + group * 32, mask=in_rows[:, None], other=0.0))
        more = tl.trans(tl.load(x_place + group * 32 + 16, mask=in_rows[:, None], other=0.0))
        total = tile_dot(ones, some, none)
        place = sums + group * (32 // GROUP) * stride + own
        if GROUP == 32:
            tl.store(place, tile_dot(ones, more, total), mask=mask)
        else:
            tl.store(place, total, mask=mask)
            tl.store(place + stride, tile_dot(ones, more, none), mask=mask)


def group_sums(x: Tensor, group: int, tiles: MatmulTiles) -> Tensor:
    """Returns [inputs / group, rows, up to a multiple of the tiles'] float32 on x's device.

    `x`: [rows, inputs], at least one row; rows may be strided.
    `group`: 16 or 32 inputs; inputs are a multiple of 32.
    `tiles`: those of the product; only rows, columns and warps are used.
    """
    rows, inputs = x.shape
    row_tiles = triton.cdiv(rows, tiles.rows)
    sums = torch.empty(
        inputs // group, row_tiles * tiles.rows, dtype=torch.float32, device=x.device
    )
    _group_sums[(row_tiles, triton.cdiv(inputs // 32, GROUPS_EACH))](
        x=x,
        sums=sums,
        rows=rows,
        inputs=inputs,
        x_row=x.stride(0),
        GROUP=group,
        EACH=GROUPS_EACH,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        num_warps=tiles.warps,
        **launched_early(x.device),
    )
    return sums
