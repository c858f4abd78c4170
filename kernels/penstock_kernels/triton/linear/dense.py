"""The batch-invariant product of activations and a weight matrix.

Every output is summed over the inputs in one order, in tiles of `inner` inputs from first to last,
without splitting the inputs. How many rows and columns a tile has depends on how many there are
(see `invariant_tiles`), and a sum doesn't depend on that. A matrix with so many outputs that they
alone occupy a GPU is the left operand, of which a tensor core takes at least 64: then a tile has as
few rows as there are, instead of 64 that are mostly empty. Which operand comes first depends on the
matrix alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, fetch_ahead
from penstock_kernels.triton.linear.product_tiles import launch, own_tile, store_tile
from penstock_kernels.triton.matmul_tiles import MatmulTiles, are_weights_first, invariant_tiles
from penstock_kernels.triton.rounding import tile_dot
from penstock_kernels.triton.shared_memory import stages_that_fit


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
    WEIGHTS_FIRST: tl.constexpr,
    EARLY: tl.constexpr,
):
    row, column, in_rows, in_columns = own_tile(rows, outputs, ROWS, COLUMNS)
    if EARLY and rows <= ROWS:
        fetch_ahead(weight, weight_row, column, in_columns, outputs, inputs)
    await_earlier(EARLY)
    inner = tl.arange(0, INNER)
    x_place = x + row.to(tl.int64)[:, None] * x_row + inner[None, :]
    weight_place = weight + column.to(tl.int64)[:, None] * weight_row + inner[None, :]
    acc = tl.zeros([COLUMNS, ROWS] if WEIGHTS_FIRST else [ROWS, COLUMNS], tl.float32)
    for base in range(0, inputs, INNER):
        left = inner < inputs - base
        some = tl.load(x_place + base, mask=in_rows[:, None] & left[None, :], other=0.0)
        part = tl.load(weight_place + base, mask=in_columns[:, None] & left[None, :], other=0.0)
        if WEIGHTS_FIRST:
            acc = tile_dot(part, tl.trans(some), acc)
        else:
            acc = tile_dot(some, tl.trans(part), acc)
    if WEIGHTS_FIRST:
        acc = tl.trans(acc)
    store_tile(acc, bias, out, row, column, in_rows, in_columns, outputs, BIAS)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    tiles: MatmulTiles | None = None,
    weights_first: bool | None = None,
) -> Tensor:
    """x @ weight.T + bias, each row independently, accumulated in float32 and rounded once.

    `x`: [rows, inputs]; rows may be strided.
    `weight`: [outputs, inputs]; rows may be strided.
    `bias`: [outputs] or None.
    `dtype`: that of the result; by default x's.
    `tiles`, `weights_first`: another choice than those of `invariant_tiles` and
    `are_weights_first`, which may give other bits.

    All but the result are of one dtype: float32 (multiplied in full precision), bfloat16 or
    float16. Returns [rows, outputs].
    """
    rows, inputs = x.shape
    outputs = weight.shape[0]
    out = torch.empty(rows, outputs, dtype=dtype or x.dtype, device=x.device)
    narrow = x.dtype != torch.float32
    if tiles is None:
        tiles = invariant_tiles(rows, outputs, narrow=narrow)
    if weights_first is None:
        weights_first = are_weights_first(outputs, narrow=narrow)
    launch(
        _linear,
        out,
        bias,
        tiles=tiles,
        stages=stages_that_fit(tiles, x.dtype, x.device),
        x=x,
        weight=weight,
        inputs=inputs,
        x_row=x.stride(0),
        weight_row=weight.stride(0),
        INNER=tiles.inner,
        WEIGHTS_FIRST=weights_first,
    )
    return out
