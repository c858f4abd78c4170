"""Adds to rows of a product what their adapters of low rank give: x A.T B.T, each row by its own
adapter's factors (Hu et al., "LoRA", 2021). Where an adapter gives a matrix's rows lengths of their
own (Liu et al., "DoRA", 2024), the product is multiplied by a gain first.

Rows are computed in tiles of one adapter. The inputs are cut into parts of a fixed size, each
summed by itself and then added in their order, so a row's sum depends neither on the other rows nor
on its place among them. Rows without adapter are in no tile and stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.matmul_tiles import LOW_RANK_PART, MatmulTiles, low_rank_block
from penstock_kernels.triton.rounding import round_to, tile_dot
from penstock_kernels.triton.shared_memory import stages_that_fit

MOST_PARTS = 3


@dataclass(frozen=True)
class LowRankFactors:
    """The factors of one product in all places, of the dtype of activations. Ranks are padded to a
    common one with zeros, to a multiple of 16."""

    down: Tensor
    """A of each of the product's parts, [places, parts * rank, inputs]; places may be strided."""
    up: Tensor
    """B times the scale, [places, outputs, rank]; places may be strided."""
    ranks: Tensor
    """[places] int32: the highest rank of the place's factors here, 0 if it has none; may be
    strided."""
    parts: tuple[int, ...]
    """Outputs of each part: of projections that share their input and lie side by side. At most
    MOST_PARTS."""
    gains: Tensor | None = None
    """[places, 2, outputs] float32: what outputs are multiplied by before something is added to
    them, and then what is added besides (DoRA); 1 and 0 change nothing. Places may be strided.
    None: no place has others."""


@dataclass(frozen=True)
class AdapterTiles:
    """Which rows are computed together. All tensors are int32 and on the device."""

    shape: MatmulTiles
    """The shape for which the tiles were made: a tile has at most `shape.rows` rows."""
    order: Tensor
    """[rows]: the rows that have an adapter, by place, then padding."""
    places: Tensor
    """[tiles]: the place of each tile's factors."""
    firsts: Tensor
    """[tiles]: where the rows of each tile begin in `order`."""
    counts: Tensor
    """[tiles]: the number of rows of each tile, 0 if it isn't needed."""
    of_row: Tensor
    """[rows]: the place of each row's factors, -1 for none."""

    @property
    def lists(self) -> dict[str, Tensor]:
        """What kernels read of the tiles, by the names of their parameters."""
        return {
            "order": self.order,
            "places": self.places,
            "firsts": self.firsts,
            "counts": self.counts,
        }


@triton.jit(do_not_specialize=["rows", "ranks_place"])
def _shrink(
    x,
    down,
    ranks,
    shrunk,
    order,
    places,
    firsts,
    counts,
    rows,
    inputs,
    x_row,
    down_place,
    ranks_place,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    PART: tl.constexpr,
):
    """Writes a tile's x A.T over PART of the inputs, for BLOCK of the RANK outputs of one of the
    product's parts. `shrunk` is [parts of the inputs, rows, PARTS * RANK] float32, in the order of
    `order`."""
    tile = tl.program_id(0)
    count = tl.load(counts + tile)
    place = tl.load(places + tile).to(tl.int64)
    number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    begin = tl.program_id(1) * BLOCK % RANK
    if (count > 0) & (begin < tl.load(ranks + place * ranks_place)):
        first = tl.load(firsts + tile)
        slot = tl.arange(0, ROWS)
        held = slot < count
        row = tl.load(order + first + slot, mask=held, other=0).to(tl.int64)
        start = tl.program_id(2) * PART
        inner = start + tl.arange(0, INNER)
        x_place = x + row[:, None] * x_row + inner[None, :]
        own = down + place * down_place
        down_at = own + number.to(tl.int64)[:, None] * inputs + inner[None, :]
        acc = tl.zeros([ROWS, BLOCK], tl.float32)
        for base in range(0, tl.minimum(inputs - start, PART), INNER):
            left = inner < inputs - base
            some = tl.load(x_place + base, mask=held[:, None] & left[None, :], other=0.0)
            part = tl.load(down_at + base, mask=left[None, :], other=0.0)
            acc = tile_dot(some, tl.trans(part), acc)
        at = tl.program_id(2).to(tl.int64) * rows + first + slot
        out = shrunk + at[:, None] * (PARTS * RANK) + number[None, :]
        tl.store(out, acc, mask=held[:, None])


@triton.jit(do_not_specialize=["rows", "ranks_place", "splits"])
def _expand(
    shrunk,
    up,
    ranks,
    gains,
    out,
    order,
    places,
    firsts,
    counts,
    rows,
    splits,
    out_row,
    up_place,
    ranks_place,
    gains_place,
    GAINS: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Adds B times what `_shrink` wrote to COLUMNS outputs of a tile's rows. FIRST, SECOND, THIRD:
    outputs of the product's parts."""
    tile = tl.program_id(0)
    count = tl.load(counts + tile)
    place = tl.load(places + tile).to(tl.int64)
    rank = tl.load(ranks + place * ranks_place)
    if (count > 0) & (rank > 0):
        first_tiles: tl.constexpr = (FIRST + COLUMNS - 1) // COLUMNS
        two_tiles: tl.constexpr = first_tiles + (SECOND + COLUMNS - 1) // COLUMNS
        own = tl.program_id(1)
        in_second = own >= first_tiles
        in_third = own >= two_tiles
        part = in_second.to(tl.int32) + in_third.to(tl.int32)
        own -= tl.where(in_third, two_tiles, tl.where(in_second, first_tiles, 0))
        size = tl.where(in_third, THIRD, tl.where(in_second, SECOND, FIRST))
        begin = tl.where(in_third, FIRST + SECOND, tl.where(in_second, FIRST, 0))
        within = own * COLUMNS + tl.arange(0, COLUMNS)
        in_columns = within < size
        column = begin + within
        first = tl.load(firsts + tile)
        slot = tl.arange(0, ROWS)
        held = slot < count
        number = tl.arange(0, BLOCK)
        at = (first + slot).to(tl.int64)[:, None] * (PARTS * RANK) + part * RANK + number[None, :]
        up_at = up + place * up_place + column.to(tl.int64)[:, None] * RANK + number[None, :]
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        step = rows.to(tl.int64) * (PARTS * RANK)
        for base in range(0, rank, BLOCK):
            some = tl.zeros([ROWS, BLOCK], tl.float32)
            summand = shrunk + at + base
            for _ in range(splits):
                some += tl.load(summand, mask=held[:, None], other=0.0)
                summand += step
            factor = tl.load(up_at + base, mask=in_columns[:, None], other=0.0)
            acc = tile_dot(round_to(some, up.dtype.element_ty), tl.trans(factor), acc)
        row = tl.load(order + first + slot, mask=held, other=0).to(tl.int64)
        target = out + row[:, None] * out_row + column[None, :]
        mask = held[:, None] & in_columns[None, :]
        base_sum = tl.load(target, mask=mask, other=0.0).to(tl.float32)
        if GAINS:
            gain_at = gains + place * gains_place + column
            gain = tl.load(gain_at, mask=in_columns, other=1.0)
            more = tl.load(gain_at + (FIRST + SECOND + THIRD), mask=in_columns, other=0.0)
            base_sum = base_sum * gain[None, :] + more[None, :]
        tl.store(target, round_to(base_sum + acc, out.dtype.element_ty), mask=mask)


def add_low_rank(x: Tensor, out: Tensor, factors: LowRankFactors, tiles: AdapterTiles) -> None:
    """out = gains * out + more + (x @ A.T) @ B.T for the rows of `tiles`, in place.

    `x`: [rows, inputs], of the factors' dtype; rows may be strided.
    `out`: [rows, outputs] of any float dtype, the sum of `factors.parts`; rows may be strided.

    A x is summed in float32 and rounded to the factors' dtype; B (A x) is summed in float32, and
    rounded once with what it is added to.
    """
    inputs, rank, parts = x.shape[1], factors.up.shape[2], len(factors.parts)
    count, rows = tiles.counts.shape[0], tiles.order.shape[0]
    if not count:
        return
    shape, block = tiles.shape, low_rank_block(rank)
    splits = triton.cdiv(inputs, LOW_RANK_PART)
    shrunk = torch.empty(splits, rows, parts * rank, dtype=torch.float32, device=x.device)
    _shrink[(count, parts * rank // block, splits)](
        x=x,
        down=factors.down,
        ranks=factors.ranks,
        shrunk=shrunk,
        **tiles.lists,
        rows=rows,
        inputs=inputs,
        x_row=x.stride(0),
        down_place=factors.down.stride(0),
        ranks_place=factors.ranks.stride(0),
        PARTS=parts,
        RANK=rank,
        BLOCK=block,
        ROWS=shape.rows,
        INNER=shape.inner,
        PART=LOW_RANK_PART,
        num_warps=shape.warps,
        num_stages=stages_that_fit(shape, x.dtype, x.device),
    )
    add_raised(shrunk, out, factors, tiles)


def add_raised(shrunk: Tensor, out: Tensor, factors: LowRankFactors, tiles: AdapterTiles) -> None:
    """out = gains * out + more + (sum of `shrunk` over its parts) @ B.T, for the rows of `tiles`.

    `shrunk`: [parts of the inputs, rows, parts * rank] float32, in the order of `tiles.order`.
    """
    shape, rank = tiles.shape, factors.up.shape[2]
    gains, sizes = factors.gains, (*factors.parts, 0, 0)[:MOST_PARTS]
    columns = sum(triton.cdiv(size, shape.columns) for size in factors.parts)
    _expand[(tiles.counts.shape[0], columns)](
        shrunk=shrunk,
        up=factors.up,
        ranks=factors.ranks,
        gains=gains,
        out=out,
        **tiles.lists,
        rows=tiles.order.shape[0],
        splits=shrunk.shape[0],
        out_row=out.stride(0),
        up_place=factors.up.stride(0),
        ranks_place=factors.ranks.stride(0),
        gains_place=0 if gains is None else gains.stride(0),
        GAINS=gains is not None,
        FIRST=sizes[0],
        SECOND=sizes[1],
        THIRD=sizes[2],
        PARTS=len(factors.parts),
        RANK=rank,
        BLOCK=low_rank_block(rank),
        ROWS=shape.rows,
        COLUMNS=shape.columns,
        num_warps=shape.warps,
        num_stages=stages_that_fit(shape, factors.up.dtype, out.device),
    )
