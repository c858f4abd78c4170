"""Adds to products of rows with their experts' matrices what the rows' adapters give for these
experts: x A.T B.T, as `penstock_kernels.triton.linear.low_rank` does for products of all rows.

A tile of `ExpertTiles` may have rows of several adapters. There is a program for each place, which
computes with the rows that have this one and leaves the others alone; most find none and end. A
row's sum goes through the inputs in parts of a fixed size, so it depends neither on the other rows
nor on its place among them. Factors are the left operand, as weights are in `products`: tiles of
all heights give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.experts.placing import ExpertTiles
from penstock_kernels.triton.experts.products import own_pairs
from penstock_kernels.triton.matmul_tiles import LOW_RANK_PART, MatmulTiles, low_rank_block
from penstock_kernels.triton.rounding import round_to, tile_dot
from penstock_kernels.triton.shared_memory import stages_that_fit

MOST_PARTS = 2
COLUMNS, INNER, WARPS, STAGES = 64, 64, 4, 3


@dataclass(frozen=True)
class FactorsOfExperts:
    """The factors of one product of each expert in all places, of the dtype of activations. Ranks
    are padded to a common one with zeros, to a multiple of 16. Places may be strided."""

    down: Tensor
    """A of each of the product's parts, [places, experts, parts * rank, inputs]."""
    up: Tensor
    """B times the scale, [places, experts, outputs, rank]."""
    ranks: Tensor
    """[places, experts] int32: the highest rank of each product's factors, 0 if it has none."""
    parts: tuple[int, ...]
    """Outputs of each part: gate and up, which lie side by side. At most MOST_PARTS."""
    gains: Tensor
    """[places, experts, 2, outputs] float32: as in LowRankFactors."""


@triton.jit
def _pairs_of_place(
    order, firsts, of_row, tile, count, place, ACTIVE: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Returns the pairs of a tile, [ROWS] int64, and which of them have the place's adapter."""
    pair, held = own_pairs(order, firsts, tile, count, ROWS)
    own = tl.load(of_row + pair // ACTIVE, mask=held, other=-1)
    return pair, held & (own == place)


@triton.jit(do_not_specialize=["pairs", "ranks_place"])
def _shrink_pairs(
    x,
    down,
    ranks,
    shrunk,
    of_row,
    order,
    experts,
    firsts,
    counts,
    pairs,
    inputs,
    x_row,
    down_place,
    ranks_place,
    PLACES: tl.constexpr,
    PAIRS: tl.constexpr,
    ACTIVE: tl.constexpr,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    PART: tl.constexpr,
):
    """Writes x A.T over PART of the inputs, for BLOCK of the RANK outputs of one of the product's
    parts. `shrunk` is [parts of the inputs, pairs, PARTS * RANK] float32. PAIRS is how many pairs
    read the same row of x."""
    tile = tl.program_id(0)
    place = (tl.program_id(2) % PLACES).to(tl.int64)
    count = tl.load(counts + tile)
    if count > 0:
        expert = tl.load(experts + tile).to(tl.int64)
        begin = tl.program_id(1) * BLOCK % RANK
        if begin < tl.load(ranks + place * ranks_place + expert):
            pair, mine = _pairs_of_place(order, firsts, of_row, tile, count, place, ACTIVE, ROWS)
            if tl.max(mine.to(tl.int32), 0) > 0:
                split = tl.program_id(2) // PLACES
                start = split * PART
                number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
                inner = start + tl.arange(0, INNER)
                x_place = x + (pair // PAIRS)[:, None] * x_row + inner[None, :]
                own = down + place * down_place + expert * (PARTS * RANK) * inputs
                own_place = own + number.to(tl.int64)[:, None] * inputs + inner[None, :]
                acc = tl.zeros([BLOCK, ROWS], tl.float32)
                for base in range(0, tl.minimum(inputs - start, PART), INNER):
                    left = inner < inputs - base
                    part = tl.load(own_place + base, mask=left[None, :], other=0.0)
                    some = tl.load(x_place + base, mask=mine[:, None] & left[None, :], other=0.0)
                    acc = tile_dot(part, tl.trans(some), acc)
                at = split.to(tl.int64) * pairs + pair
                out = shrunk + at[None, :] * (PARTS * RANK) + number[:, None]
                tl.store(out, acc, mask=mine[None, :])


@triton.jit(do_not_specialize=["pairs", "splits", "ranks_place"])
def _expand_pairs(
    shrunk,
    up,
    ranks,
    gains,
    out,
    of_row,
    order,
    experts,
    firsts,
    counts,
    pairs,
    splits,
    up_place,
    ranks_place,
    gains_place,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    ACTIVE: tl.constexpr,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Adds B times what `_shrink_pairs` wrote to COLUMNS outputs. FIRST, SECOND: outputs of the
    product's parts."""
    tile = tl.program_id(0)
    place = tl.program_id(2).to(tl.int64)
    count = tl.load(counts + tile)
    if count > 0:
        expert = tl.load(experts + tile).to(tl.int64)
        rank = tl.load(ranks + place * ranks_place + expert)
        if rank > 0:
            pair, mine = _pairs_of_place(order, firsts, of_row, tile, count, place, ACTIVE, ROWS)
            if tl.max(mine.to(tl.int32), 0) > 0:
                outputs: tl.constexpr = FIRST + SECOND
                first_tiles: tl.constexpr = (FIRST + COLUMNS - 1) // COLUMNS
                in_second = tl.program_id(1) >= first_tiles
                part = in_second.to(tl.int32)
                within = tl.program_id(1) - tl.where(in_second, first_tiles, 0)
                within = within * COLUMNS + tl.arange(0, COLUMNS)
                in_columns = within < tl.where(in_second, SECOND, FIRST)
                column = within + tl.where(in_second, FIRST, 0)
                number = tl.arange(0, BLOCK)
                at = pair[:, None] * (PARTS * RANK) + part * RANK + number[None, :]
                own = up + place * up_place + expert * (outputs * RANK)
                own_place = own + column.to(tl.int64)[:, None] * RANK + number[None, :]
                acc = tl.zeros([COLUMNS, ROWS], tl.float32)
                step = pairs.to(tl.int64) * (PARTS * RANK)
                for base in range(0, rank, BLOCK):
                    some = tl.zeros([ROWS, BLOCK], tl.float32)
                    summand = shrunk + at + base
                    for _ in range(splits):
                        some += tl.load(summand, mask=mine[:, None], other=0.0)
                        summand += step
                    factor = tl.load(own_place + base, mask=in_columns[:, None], other=0.0)
                    acc = tile_dot(factor, tl.trans(round_to(some, up.dtype.element_ty)), acc)
                gain_at = gains + place * gains_place + expert * (2 * outputs) + column
                gain = tl.load(gain_at, mask=in_columns, other=1.0)
                more = tl.load(gain_at + outputs, mask=in_columns, other=0.0)
                target = out + pair[None, :] * outputs + column[:, None]
                mask = mine[None, :] & in_columns[:, None]
                total = tl.load(target, mask=mask, other=0.0).to(tl.float32)
                total = total * gain[:, None] + more[:, None] + acc
                tl.store(target, round_to(total, out.dtype.element_ty), mask=mask)


def add_low_rank_experts(
    x: Tensor, out: Tensor, factors: FactorsOfExperts, placed: ExpertTiles, of_row: Tensor
) -> None:
    """out = gains * out + more + (x @ A.T) @ B.T for each pair whose row has an adapter, in place.

    `x`: [rows, inputs], read by each of a row's pairs; or [pairs, inputs], a row for each pair; of
    the factors' dtype.
    `out`: [pairs, outputs] of any float dtype, contiguous, the sum of `factors.parts`.
    `of_row`: [rows] int32, the place of each row's factors, -1 for none.

    Sums are float32; A x is rounded to the factors' dtype, and the result once.
    """
    places, _, _, rank = factors.up.shape
    inputs, parts, block = x.shape[1], len(factors.parts), low_rank_block(rank)
    tiles, splits = placed.counts.shape[0], triton.cdiv(inputs, LOW_RANK_PART)
    if not placed.pairs:
        return
    shape = MatmulTiles(placed.rows, COLUMNS, INNER, WARPS, STAGES)
    launch = {"num_warps": WARPS, "num_stages": stages_that_fit(shape, x.dtype, x.device)}
    lists = {"of_row": of_row, **placed.lists}
    size = (splits, placed.pairs, parts * rank)
    shrunk = torch.empty(size, dtype=torch.float32, device=x.device)
    _shrink_pairs[(tiles, parts * rank // block, splits * places)](
        x=x,
        down=factors.down,
        ranks=factors.ranks,
        shrunk=shrunk,
        **lists,
        pairs=placed.pairs,
        inputs=inputs,
        x_row=x.stride(0),
        down_place=factors.down.stride(0),
        ranks_place=factors.ranks.stride(0),
        PLACES=places,
        PAIRS=placed.pairs // x.shape[0],
        ACTIVE=placed.active,
        PARTS=parts,
        RANK=rank,
        BLOCK=block,
        ROWS=placed.rows,
        INNER=INNER,
        PART=LOW_RANK_PART,
        **launch,
    )
    first, second = (*factors.parts, 0)[:MOST_PARTS]
    columns = triton.cdiv(first, COLUMNS) + triton.cdiv(second, COLUMNS)
    _expand_pairs[(tiles, columns, places)](
        shrunk=shrunk,
        up=factors.up,
        ranks=factors.ranks,
        gains=factors.gains,
        out=out,
        **lists,
        pairs=placed.pairs,
        splits=splits,
        up_place=factors.up.stride(0),
        ranks_place=factors.ranks.stride(0),
        gains_place=factors.gains.stride(0),
        FIRST=first,
        SECOND=second,
        ACTIVE=placed.active,
        PARTS=parts,
        RANK=rank,
        BLOCK=block,
        ROWS=placed.rows,
        COLUMNS=COLUMNS,
        **launch,
    )
