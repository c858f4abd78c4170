"""Embeddings and output heads of rows whose adapters have matrices of their own, or factors.

Rows are computed in tiles of one adapter, as in `low_rank`. A row's sum goes through the inputs
from first to last in steps of one size, so it depends neither on the other rows nor on its place
among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.linear.low_rank import AdapterTiles, LowRankFactors, add_raised
from penstock_kernels.triton.matmul_tiles import low_rank_block
from penstock_kernels.triton.rounding import round_to, tile_dot
from penstock_kernels.triton.shared_memory import stages_that_fit

_COLUMNS = 128
"""Numbers of a row that a program copies."""


@dataclass(frozen=True)
class OwnMatrices:
    """A matrix in each place."""

    matrices: Tensor
    """[places, rows, columns], of the dtype of activations; places may be strided."""
    held: Tensor
    """[places] int32: whether there is one; may be strided."""


@triton.jit(do_not_specialize=["held_place"])
def _replace_rows(
    ids,
    matrices,
    held,
    out,
    order,
    places,
    firsts,
    counts,
    columns,
    matrices_place,
    held_place,
    out_row,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """out[row] = matrices[place, ids[row]] for COLUMNS columns of a tile's rows."""
    tile = tl.program_id(0)
    count = tl.load(counts + tile)
    place = tl.load(places + tile).to(tl.int64)
    if (count > 0) & (tl.load(held + place * held_place) > 0):
        slot = tl.arange(0, ROWS)
        mine = slot < count
        row = tl.load(order + tl.load(firsts + tile) + slot, mask=mine, other=0).to(tl.int64)
        number = tl.load(ids + row, mask=mine, other=0).to(tl.int64)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        mask = mine[:, None] & (column < columns)[None, :]
        own = matrices + place * matrices_place + number[:, None] * columns + column[None, :]
        values = tl.load(own, mask=mask, other=0.0).to(tl.float32)
        target = out + row[:, None] * out_row + column[None, :]
        tl.store(target, round_to(values, out.dtype.element_ty), mask=mask)


def replace_rows(ids: Tensor, out: Tensor, own: OwnMatrices, tiles: AdapterTiles) -> None:
    """Puts the rows of a place's own matrix into the rows of `tiles`, where it has one.

    `ids`: [rows] int64, rows of the matrix. `out`: [rows, columns]; rows may be strided.
    """
    columns = out.shape[1]
    if tiles.counts.shape[0]:
        _replace_rows[(tiles.counts.shape[0], triton.cdiv(columns, _COLUMNS))](
            ids=ids,
            matrices=own.matrices,
            held=own.held,
            out=out,
            **tiles.lists,
            columns=columns,
            matrices_place=own.matrices.stride(0),
            held_place=own.held.stride(0),
            out_row=out.stride(0),
            ROWS=tiles.shape.rows,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )


@triton.jit(do_not_specialize=["ranks_place"])
def _look_up(
    ids,
    down,
    ranks,
    shrunk,
    order,
    places,
    firsts,
    counts,
    down_place,
    ranks_place,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Writes BLOCK of the RANK numbers that A has for each id of a tile's rows."""
    tile = tl.program_id(0)
    count = tl.load(counts + tile)
    place = tl.load(places + tile).to(tl.int64)
    begin = tl.program_id(1) * BLOCK
    if (count > 0) & (begin < tl.load(ranks + place * ranks_place)):
        slot = tl.arange(0, ROWS)
        mine = slot < count
        first = tl.load(firsts + tile)
        row = tl.load(order + first + slot, mask=mine, other=0).to(tl.int64)
        id_of = tl.load(ids + row, mask=mine, other=0).to(tl.int64)
        number = begin + tl.arange(0, BLOCK)
        own = down + place * down_place + id_of[:, None] * RANK + number[None, :]
        values = tl.load(own, mask=mine[:, None], other=0.0).to(tl.float32)
        at = (first + slot).to(tl.int64)[:, None] * RANK + number[None, :]
        tl.store(shrunk + at, values, mask=mine[:, None])


def add_looked_up(ids: Tensor, out: Tensor, factors: LowRankFactors, tiles: AdapterTiles) -> None:
    """out += A[ids] @ B.T for the rows of `tiles`, in place: what adapters add to an embedding.

    `ids`: [rows] int64. `out`: [rows, outputs]; rows may be strided. `factors` have one part, and
    their A is transposed: [places, ids, rank].
    """
    rank, count = factors.up.shape[2], tiles.counts.shape[0]
    if not count:
        return
    shape = (1, tiles.order.shape[0], rank)
    shrunk = torch.empty(shape, dtype=torch.float32, device=out.device)
    block = low_rank_block(rank)
    _look_up[(count, rank // block)](
        ids=ids,
        down=factors.down,
        ranks=factors.ranks,
        shrunk=shrunk,
        **tiles.lists,
        down_place=factors.down.stride(0),
        ranks_place=factors.ranks.stride(0),
        RANK=rank,
        BLOCK=block,
        ROWS=tiles.shape.rows,
        num_warps=4,
    )
    add_raised(shrunk, out, factors, tiles)


@triton.jit(do_not_specialize=["held_place"])
def _replace_products(
    x,
    matrices,
    held,
    out,
    order,
    places,
    firsts,
    counts,
    outputs,
    inputs,
    x_row,
    matrices_place,
    held_place,
    out_row,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """out[row] = x[row] @ matrices[place].T for COLUMNS outputs of a tile's rows."""
    tile = tl.program_id(0)
    count = tl.load(counts + tile)
    place = tl.load(places + tile).to(tl.int64)
    if (count > 0) & (tl.load(held + place * held_place) > 0):
        slot = tl.arange(0, ROWS)
        mine = slot < count
        row = tl.load(order + tl.load(firsts + tile) + slot, mask=mine, other=0).to(tl.int64)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        in_columns = column < outputs
        inner = tl.arange(0, INNER)
        x_place = x + row[:, None] * x_row + inner[None, :]
        own = matrices + place * matrices_place
        own_place = own + column.to(tl.int64)[:, None] * inputs + inner[None, :]
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for base in range(0, inputs, INNER):
            left = inner < inputs - base
            some = tl.load(x_place + base, mask=mine[:, None] & left[None, :], other=0.0)
            part = tl.load(own_place + base, mask=in_columns[:, None] & left[None, :], other=0.0)
            acc = tile_dot(some, tl.trans(part), acc)
        target = out + row[:, None] * out_row + column[None, :]
        mask = mine[:, None] & in_columns[None, :]
        tl.store(target, round_to(acc, out.dtype.element_ty), mask=mask)


def replace_products(x: Tensor, out: Tensor, own: OwnMatrices, tiles: AdapterTiles) -> None:
    """Puts the products with a place's own matrix into the rows of `tiles`, where it has one.

    `x`: [rows, inputs], of the matrices' dtype; rows may be strided. `out`: [rows, outputs] of any
    float dtype; rows may be strided. Sums are float32, rounded once.
    """
    shape, outputs = tiles.shape, out.shape[1]
    if tiles.counts.shape[0]:
        _replace_products[(tiles.counts.shape[0], triton.cdiv(outputs, shape.columns))](
            x=x,
            matrices=own.matrices,
            held=own.held,
            out=out,
            **tiles.lists,
            outputs=outputs,
            inputs=x.shape[1],
            x_row=x.stride(0),
            matrices_place=own.matrices.stride(0),
            held_place=own.held.stride(0),
            out_row=out.stride(0),
            ROWS=shape.rows,
            COLUMNS=shape.columns,
            INNER=shape.inner,
            num_warps=shape.warps,
            num_stages=stages_that_fit(shape, x.dtype, x.device),
        )
