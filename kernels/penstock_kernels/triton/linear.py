"""The batch-invariant product of activations and a weight matrix.

Every output is summed over the inputs in one order: one tile shape whatever the number of rows
(`tiles.INVARIANT`), tiles of `inner` inputs from first to last, no split of the inputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.numerics import round_to, tile_dot
from penstock_kernels.triton.tiles import INVARIANT, MatmulTiles

_GROUP = tl.constexpr(8)
"""Row tiles that go through the columns together, so that their weights stay in the L2 cache."""


@triton.jit
def tile_of(program, row_tiles, column_tiles):
    """The (row tile, column tile) of a program, in bands of _GROUP row tiles."""
    per_band = _GROUP * column_tiles
    first = program // per_band * _GROUP
    height = tl.minimum(row_tiles - first, _GROUP)
    within = program % per_band
    return first + within % height, within // height


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x,
    weight,
    bias,
    out,
    rows,
    outputs,
    inputs,
    x_row,
    weight_row,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    row_tile, column_tile = tile_of(
        tl.program_id(0), tl.cdiv(rows, ROWS), tl.cdiv(outputs, COLUMNS)
    )
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INNER)
    in_rows, in_columns = row < rows, column < outputs
    x_place = x + row.to(tl.int64)[:, None] * x_row + inner[None, :]
    weight_place = weight + column.to(tl.int64)[:, None] * weight_row + inner[None, :]
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for base in range(0, inputs, INNER):
        left = inner < inputs - base
        some = tl.load(x_place + base, mask=in_rows[:, None] & left[None, :], other=0.0)
        part = tl.load(weight_place + base, mask=in_columns[:, None] & left[None, :], other=0.0)
        acc = tile_dot(some, tl.trans(part), acc)
    if BIAS:
        acc += tl.load(bias + column, mask=in_columns, other=0.0).to(tl.float32)[None, :]
    place = row.to(tl.int64)[:, None] * outputs + column[None, :]
    mask = in_rows[:, None] & in_columns[None, :]
    tl.store(out + place, round_to(acc, out.dtype.element_ty), mask=mask)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, tiles: MatmulTiles = INVARIANT
) -> Tensor:
    """x @ weight.T + bias, each row by itself, accumulated in float32 and rounded once.

    x: [rows, inputs], rows may be strided.  weight: [outputs, inputs], likewise.  bias: [outputs]
    or None.  All of one dtype: float32 (multiplied in full precision), bfloat16 or float16.
    tiles: another choice may give other bits.  Returns [rows, outputs].
    """
    rows, inputs = x.shape
    outputs = weight.shape[0]
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if rows:
        grid = (triton.cdiv(rows, tiles.rows) * triton.cdiv(outputs, tiles.columns),)
        _linear[grid](
            x,
            weight,
            out if bias is None else bias,
            out,
            rows,
            outputs,
            inputs,
            x.stride(0),
            weight.stride(0),
            BIAS=bias is not None,
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            INNER=tiles.inner,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
    return out
