"""Lists by id the tokens of a row that top_k, top_p or min_p may keep.

Counts of logits by level (`row_parts.py`) bound the level from which on nothing is kept, without
any search. For top_p, everything deeper weighs less than what may be left out. So the search for
the exact cut usually goes through tens or hundreds of tokens, and not through all. (A flat row has
many.)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.sampling.row_parts import (
    FINENESS,
    FINITE,
    LAST,
    LEVELS,
    LISTED,
    PEAK,
    STATS,
    depth,
    fold,
    level_scale,
    weight_of,
)
from penstock_kernels.triton.sampling.rows import SamplingRows
from penstock_kernels.triton.tiles import PartTiles


@triton.jit
def is_cut(top_k, top_p, min_p, vocab):
    return ((top_k > 0) & (top_k < vocab)) | (top_p < 1.0) | (min_p > 0.0)


@triton.jit
def _levels(found, rest, total, top_k, top_p, min_p, vocab, LEVELS: tl.constexpr):
    """Returns the level from which on nothing is kept; above LAST if it can't be determined.

    `found`: [LEVELS] int32, the number of logits on each level, 0 on LAST.
    `rest`: the number of deeper logits.
    `total`: the sum of the weights.

    The bound may be too deep but never too high, hence the small margins.
    """
    level = tl.arange(0, LEVELS)
    if (top_k > 0) & (top_k < vocab):
        after = tl.cumsum(found, 0) < top_k
    elif top_p < 1.0:
        # The most that a logit on each level can weigh: depth() rounds down at both ends.
        most = tl.exp((1.0 - level.to(tl.float64)) / FINENESS)
        weights = found.to(tl.float64) * most
        beyond = rest * tl.exp(-253.0 / FINENESS)
        tail = beyond + tl.sum(weights, 0) - tl.cumsum(weights, 0)
        after = tail * 1.000001 + 1e-12 * total > (1.0 - top_p) * total * 0.999999
    else:
        after = tl.exp(-level.to(tl.float64) / FINENESS) * 1.000001 >= min_p
    deepest = tl.max(tl.where(after & (level < LAST), level, -1), 0) + 2
    # A bound beyond the counted levels means all of these, if there are no logits beyond them.
    return tl.where((deepest > LAST) & (rest == 0.0), LAST, deepest)


@triton.jit
def _list_survivors(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    stats,
    counts,
    ids,
    weights,
    vocab,
    parts,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """`ids` and `weights` are [rows, vocab], int32 and float64: those of the survivors, by
    ascending id."""
    row, part = tl.program_id(0), tl.program_id(1)
    logits += row.to(tl.int64) * vocab
    ids += row.to(tl.int64) * vocab
    weights += row.to(tl.int64) * vocab
    stats += row.to(tl.int64) * STATS * parts
    counts += row.to(tl.int64) * parts * LEVELS
    temperature = tl.load(temperatures + row)
    top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
    best, token, totals = fold(stats, parts, temperature, PARTS)
    if (temperature > 0.0) & (token >= 0) & is_cut(top_k, top_p, min_p, vocab):
        scale = level_scale(top_k, vocab, temperature)
        each, level = tl.arange(0, PARTS), tl.arange(0, LEVELS)
        peaks = tl.load(stats + PEAK * parts + each, mask=each < parts, other=float("-inf"))
        finite = tl.load(stats + FINITE * parts + each, mask=each < parts, other=0.0)
        lower = depth(best, peaks, scale)
        own = level[None, :] - lower[:, None]
        counted = (each < parts)[:, None] & (own >= 0) & (level < LAST)[None, :]
        found = tl.load(counts + each[:, None] * LEVELS + own, mask=counted, other=0)
        by_level = tl.sum(found, 0)
        rest = tl.sum(finite, 0) - tl.sum(by_level, 0).to(tl.float64)
        total = tl.sum(totals, 0)
        levels = _levels(by_level, rest, total, top_k, top_p, min_p, vocab, LEVELS)
        listed = tl.sum(tl.where((level < levels)[None, :], found, 0), 1)
        listed = tl.where(levels > LAST, finite.to(tl.int32), listed)
        place = tl.sum(tl.where(each < part, listed, 0), 0)
        peak = tl.load(stats + PEAK * parts + part)
        own_levels = levels - depth(best, peak, scale)
        own_levels = tl.where(levels > LAST, LAST + 1, own_levels)
        start = part * PART
        end = tl.minimum(start + PART, vocab)
        if own_levels > 0:
            for base in range(start, end, BLOCK):
                at = base + tl.arange(0, BLOCK)
                x = tl.load(logits + at, mask=at < end, other=float("-inf"))
                kept = (x > float("-inf")) & (depth(peak, x, scale) < own_levels)
                slot = place + tl.cumsum(kept.to(tl.int32), 0) - 1
                tl.store(ids + slot, at, mask=kept)
                tl.store(weights + slot, weight_of(x, best, temperature), mask=kept)
                place += tl.sum(kept.to(tl.int32), 0)
        if part == 0:
            tl.store(stats + LISTED * parts, tl.sum(listed, 0).to(tl.float64))


def list_survivors(
    logits: Tensor, rows: SamplingRows, stats: Tensor, counts: Tensor, tiles: PartTiles
) -> tuple[Tensor, Tensor]:
    """Returns (ids, weights), [rows, vocab] int32 and float64, of which the first entries of each
    row are set; their number is in `stats`. `stats` and `counts` are those of weigh_parts."""
    count, vocab = logits.shape
    ids = torch.empty(count, vocab, dtype=torch.int32, device=logits.device)
    weights = torch.empty(count, vocab, dtype=torch.float64, device=logits.device)
    parts = tiles.parts(vocab)
    _list_survivors[(count, parts)](
        logits=logits,
        temperatures=rows.temperature,
        top_ks=rows.top_k,
        top_ps=rows.top_p,
        min_ps=rows.min_p,
        stats=stats,
        counts=counts,
        ids=ids,
        weights=weights,
        vocab=vocab,
        parts=parts,
        PART=tiles.part,
        PARTS=tiles.part_block(vocab),
        BLOCK=tiles.block,
        LEVELS=LEVELS,
        num_warps=tiles.warps,
    )
    return ids, weights
