"""Orders the rows of a step by expert, in tiles of one expert each.

A pair is a row and one of its experts; pair p belongs to row p // active. All of it happens on the
device, with shapes that depend on the number of rows alone: the list of tiles is as long as it may
ever get, and tiles that aren't needed have no pairs. Where a pair stands doesn't matter to its
result, as each tile has one shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.tiles import PLACE_BLOCK, PLACE_WARPS, TILE_LIST_BLOCK


@dataclass(frozen=True)
class ExpertTiles:
    """Which pairs are computed together. All tensors are int32 and on the device."""

    order: Tensor
    """[pairs]: the pairs by expert."""
    experts: Tensor
    """[tiles]: the expert of each tile."""
    firsts: Tensor
    """[tiles]: where the pairs of each tile begin in `order`."""
    counts: Tensor
    """[tiles]: the number of pairs of each tile, 0 if it isn't needed."""
    active: int
    """Pairs of a row."""
    rows: int
    """Most pairs of a tile."""

    @property
    def pairs(self) -> int:
        return self.order.shape[0]

    @property
    def lists(self) -> dict[str, Tensor]:
        """What kernels read of the tiles, by the names of their parameters."""
        return {
            "order": self.order,
            "experts": self.experts,
            "firsts": self.firsts,
            "counts": self.counts,
        }


@triton.jit(do_not_specialize=["pairs"])
def _place(chosen, order, counts, pairs, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Writes an expert's pairs after those of the experts before it, and their number."""
    await_earlier(EARLY)
    expert = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    before = tl.zeros([BLOCK], tl.int32)
    own = tl.zeros([BLOCK], tl.int32)
    for base in range(0, pairs, BLOCK):
        number = tl.load(chosen + base + at, mask=at < pairs - base, other=2147483647)
        before += (number < expert).to(tl.int32)
        own += (number == expert).to(tl.int32)
    start = tl.sum(before, 0)
    tl.store(counts + expert, tl.sum(own, 0))
    for base in range(0, pairs, BLOCK):
        number = tl.load(chosen + base + at, mask=at < pairs - base, other=2147483647)
        mine = number == expert
        place = start + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(order + place, base + at, mask=mine)
        start += tl.sum(mine.to(tl.int32), 0)


@triton.jit(do_not_specialize=["tiles"])
def _list_tiles(
    counts,
    tile_experts,
    tile_firsts,
    tile_counts,
    tiles,
    EXPERTS: tl.constexpr,
    EXPERT_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    await_earlier(EARLY)
    number = tl.arange(0, EXPERT_BLOCK)
    count = tl.load(counts + number, mask=number < EXPERTS, other=0)
    needed = (count + ROWS - 1) // ROWS
    end = tl.cumsum(needed, 0)
    tile = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # Experts whose tiles all come before; for a tile after the last one these are all.
    passed = (end[None, :] <= tile[:, None]) & (number < EXPERTS)[None, :]
    expert = tl.sum(passed.to(tl.int32), 1)
    pairs = tl.sum(tl.where(passed, count[None, :], 0), 1)
    skipped = (tile - tl.sum(tl.where(passed, needed[None, :], 0), 1)) * ROWS
    own = tl.sum(tl.where(number[None, :] == expert[:, None], count[None, :], 0), 1)
    held = tl.minimum(tl.maximum(own - skipped, 0), ROWS)
    inside = tile < tiles
    tl.store(tile_experts + tile, expert, mask=inside)
    tl.store(tile_firsts + tile, pairs + skipped, mask=inside)
    tl.store(tile_counts + tile, held, mask=inside)


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """Returns the number of tiles that `pairs` pairs may need: all but one pair of each expert may
    begin a tile that stays partly empty."""
    return (pairs + min(experts, pairs) * (rows - 1)) // rows


def place_rows(chosen: Tensor, experts: int, rows: int) -> ExpertTiles:
    """Lays out the products of a step.

    `chosen`: [rows of the step, active] int32, each below `experts`.
    `rows`: most pairs of a tile.
    """
    pairs, device = chosen.numel(), chosen.device
    tiles = most_tiles(pairs, experts, rows)
    order, counts = (
        torch.empty(size, dtype=torch.int32, device=device) for size in (pairs, experts)
    )
    # Each by itself, so that all begin at an alignment that kernels needn't be compiled anew for.
    numbers, firsts, held = (torch.empty(tiles, dtype=torch.int32, device=device) for _ in range(3))
    if pairs:
        early = launched_early(device)
        _place[(experts,)](
            chosen=chosen,
            order=order,
            counts=counts,
            pairs=pairs,
            BLOCK=PLACE_BLOCK,
            num_warps=PLACE_WARPS,
            **early,
        )
        _list_tiles[(triton.cdiv(tiles, TILE_LIST_BLOCK),)](
            counts=counts,
            tile_experts=numbers,
            tile_firsts=firsts,
            tile_counts=held,
            tiles=tiles,
            EXPERTS=experts,
            EXPERT_BLOCK=triton.next_power_of_2(experts),
            ROWS=rows,
            BLOCK=TILE_LIST_BLOCK,
            num_warps=4,
            **early,
        )
    return ExpertTiles(order, numbers, firsts, held, chosen.shape[1], rows)
