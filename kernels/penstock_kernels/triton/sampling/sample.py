"""Samples one token from each row of logits, without sorting or rejection.

There are two launches. In the first, a program per part of a row finds its largest logit and the
sum of its weights. In the second, a program per row combines these, finds the part that the draw
falls on, and goes through that part. If a row has top_k, top_p or min_p, a third launch in between
lists the tokens that may be kept. A short list is sorted (the last kernel here); radix searches
(`selection.py`) find the exact cuts of a longer one. Weights are as precise as a float32, which is
more than logits are, and their sums are float64, as in the reference.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.sampling.row_parts import (
    LISTED,
    NO_ID,
    STATS,
    fold,
    weigh_parts,
    weight_of,
)
from penstock_kernels.triton.sampling.rows import SamplingRows
from penstock_kernels.triton.sampling.selection import kept_entries, key_value, order_key, threshold
from penstock_kernels.triton.sampling.survivors import is_cut, list_survivors
from penstock_kernels.triton.tiles import SAMPLING_TILES, PartTiles

# Samples from a short list of tokens, which registers hold as a whole.
#
# One sort takes the place of two radix searches (`selection.py`), each of which goes through the
# list eleven times.

SORTED = 2048
"""Most tokens of such a list, a power of two."""
PLACE_BITS = tl.constexpr(SORTED.bit_length() - 1)


@triton.jit
def draw_of_sorted(
    logits,
    ids,
    size,
    total,
    best,
    temperature,
    top_k,
    top_p,
    min_p,
    draw,
    SORTED: tl.constexpr,
):
    """Returns a token of `ids`, [size] int32, ascending, at most SORTED of them: those of a row's
    tokens that top_k, top_p or min_p may keep. `total` is the sum of the weights of the whole row;
    top_k is 0 for all."""
    at = tl.arange(0, SORTED)
    inside = at < size
    token = tl.load(ids + at, mask=inside, other=0)
    x = tl.load(logits + token, mask=inside, other=float("-inf"))
    # By logit, and of equal ones the lower id first. All differ.
    order = (order_key(x) << PLACE_BITS) | (SORTED - 1 - at)
    order = tl.where(inside, order, -1)
    ranked = tl.sort(order, descending=True)
    count = tl.where((top_k > 0) & (top_k < size), top_k, size)
    if top_p < 1.0:
        peak = tl.where(ranked >= 0, key_value(ranked >> PLACE_BITS), float("-inf"))
        weight = tl.where(at < count, weight_of(peak, best, temperature), 0.0)
        wanted = top_p * tl.where(top_k > 0, tl.sum(weight, 0), total)
        short = (at < count) & (tl.cumsum(weight, 0) < wanted)
        count = tl.minimum(count, tl.sum(short.to(tl.int32), 0) + 1)
    least = tl.sum(tl.where(at == count - 1, ranked, 0), 0)
    weight = tl.where(inside & (order >= least), weight_of(x, best, temperature), 0.0)
    weight = tl.where(weight >= min_p, weight, 0.0)
    target = draw * tl.sum(weight, 0)
    over = (tl.cumsum(weight, 0) > target) & (weight > 0.0)
    # The last one is needed if the cumulative sum was rounded to less than the sum.
    last = tl.max(tl.where(weight > 0.0, at, 0), 0)
    place = tl.minimum(last, tl.min(tl.where(over, at, NO_ID), 0))
    return tl.load(ids + place)


CUT_ROWS = 128
"""Rows whose survivors are listed at a time. The lists take 12 bytes per logit."""


@triton.jit
def _cut(logits, ids, weights, size, least, limit, ties, BLOCK: tl.constexpr):
    """Stores 0 as the weight of what is cut: below `limit`, equal to it but not among the first
    `ties`, or with a weight below `least`. Returns the sum of the other weights."""
    total = tl.full((), 0.0, tl.float64)
    seen = tl.full((), 0, tl.int32)
    for base in range(0, size, BLOCK):
        at = base + tl.arange(0, BLOCK)
        inside = at < size
        kept = inside
        if limit >= 0:  # Otherwise all are kept, and equal ones needn't be counted.
            token = tl.load(ids + at, mask=inside, other=0)
            key = order_key(tl.load(logits + token, mask=inside, other=float("-inf")))
            kept, seen = kept_entries(key, inside, limit, ties, seen)
        weight = tl.load(weights + at, mask=inside, other=0.0)
        weight = tl.where(kept & (weight >= least), weight, 0.0)
        tl.store(weights + at, weight, mask=inside)
        total += tl.sum(weight, 0)
    tl.debug_barrier()
    return total


@triton.jit
def _place(weights, size, target, BLOCK: tl.constexpr):
    """Returns the first index whose cumulative weight exceeds target. Its own weight is above 0."""
    before = tl.full((), 0.0, tl.float64)
    found = tl.full((), -1, tl.int32)
    last = tl.full((), 0, tl.int32)
    for base in range(0, size, BLOCK):
        at = base + tl.arange(0, BLOCK)
        weight = tl.load(weights + at, mask=at < size, other=0.0)
        before, found, last = _step(weight, at, target, before, found, last)
    return tl.where(found < 0, last, found)


@triton.jit
def _step(weight, at, target, before, found, last):
    """Goes through one block on the way to that index. `last` is the last index so far whose weight
    is above 0."""
    here = tl.sum(weight, 0)
    last = tl.maximum(last, tl.max(tl.where(weight > 0.0, at, 0), 0))
    if (found < 0) & (before + here > target):
        over = (before + tl.cumsum(weight, 0) > target) & (weight > 0.0)
        # `last` is needed if the cumulative sum was rounded to less than the sum.
        found = tl.minimum(last, tl.min(tl.where(over, at, NO_ID), 0))
    return before + here, found, last


@triton.jit
def _draw_of_all(
    logits,
    totals,
    best,
    temperature,
    draw,
    vocab,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Samples from a row without cuts. Only the part that contains the token is read."""
    each = tl.arange(0, PARTS)
    target = draw * tl.sum(totals, 0)
    upto = tl.cumsum(totals, 0)
    # `last_part` is needed if the cumulative sum was rounded to less than the sum.
    last_part = tl.max(tl.where(totals > 0.0, each, 0), 0)
    part = tl.min(tl.where((upto > target) & (totals > 0.0), each, last_part), 0)
    before = tl.sum(tl.where(each == part - 1, upto, 0.0), 0)
    found = tl.full((), -1, tl.int32)
    last = tl.full((), 0, tl.int32)
    end = tl.minimum(part * PART + PART, vocab)
    for base in range(part * PART, end, BLOCK):
        at = base + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < end, other=float("-inf"))
        weight = weight_of(x, best, temperature)
        before, found, last = _step(weight, at, target, before, found, last)
    return tl.where(found < 0, last, found)


@triton.jit
def _draw_of_listed(
    logits,
    ids,
    weights,
    size,
    total,
    best,
    temperature,
    top_k,
    top_p,
    min_p,
    draw,
    BLOCK: tl.constexpr,
):
    """Samples from the listed tokens. `total` is the sum of the weights of the whole row."""
    limit = tl.full((), -1, tl.int64)
    ties = tl.full((), 0, tl.int32)
    if (top_k > 0) & (top_k < size):
        wanted = top_k.to(tl.float64)
        limit, above = threshold(logits, ids, weights, size, wanted, True, True, BLOCK)
        ties = top_k - above.to(tl.int32)
    if top_k > 0:
        total = _cut(logits, ids, weights, size, 0.0, limit, ties, BLOCK)
    limit = tl.full((), -1, tl.int64)
    if top_p < 1.0:
        wanted = top_p * total
        limit, held = threshold(logits, ids, weights, size, wanted, False, True, BLOCK)
        level = weight_of(key_value(limit), best, temperature)
        level = tl.maximum(level, 1e-300)
        ties = tl.minimum(tl.ceil((wanted - held) / level), size * 1.0).to(tl.int32)
        ties = tl.maximum(ties, 1)
    if (min_p > 0.0) | (top_p < 1.0):
        total = _cut(logits, ids, weights, size, min_p, limit, ties, BLOCK)
    return tl.load(ids + _place(weights, size, draw * total, BLOCK))


@triton.jit
def _sample(
    logits,
    stats,
    ids,
    weights,
    tokens,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    sequences,
    indices,
    vocab,
    parts,
    CUTS: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    SHORT: tl.constexpr,
):
    """A list of at most SHORT tokens is sorted."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * vocab
    stats += row.to(tl.int64) * STATS * parts
    temperature = tl.load(temperatures + row)
    best, token, totals = fold(stats, parts, temperature, PARTS)
    if (token >= 0) & (temperature > 0.0):
        draw = draw_uniform(tl.load(seeds + row), tl.load(sequences + row), tl.load(indices + row))
        if CUTS:
            top_k = tl.load(top_ks + row)
            top_p, min_p = tl.load(top_ps + row), tl.load(min_ps + row)
            if is_cut(top_k, top_p, min_p, vocab):
                top_k = tl.where(top_k < vocab, top_k, 0)
                listed = ids + row.to(tl.int64) * vocab
                size = tl.load(stats + LISTED * parts).to(tl.int32)
                total = tl.sum(totals, 0)
                if size <= SHORT // 8:
                    token = draw_of_sorted(
                        logits, listed, size, total, best, temperature, top_k, top_p, min_p, draw,
                        SHORT // 8,
                    )  # fmt: skip
                elif size <= SHORT:
                    token = draw_of_sorted(
                        logits, listed, size, total, best, temperature, top_k, top_p, min_p, draw,
                        SHORT,
                    )  # fmt: skip
                else:
                    token = _draw_of_listed(
                        logits, listed, weights + row.to(tl.int64) * vocab, size, total, best,
                        temperature, top_k, top_p, min_p, draw, BLOCK,
                    )  # fmt: skip
            else:
                token = _draw_of_all(
                    logits, totals, best, temperature, draw, vocab, PART, PARTS, BLOCK
                )
        else:
            token = _draw_of_all(logits, totals, best, temperature, draw, vocab, PART, PARTS, BLOCK)
    tl.store(tokens + row, token.to(tl.int64))


def sample_rows(
    logits: Tensor,
    rows: SamplingRows,
    *,
    holes: bool = True,
    cuts: bool = True,
    tiles: PartTiles = SAMPLING_TILES,
    short: int = SORTED,
) -> Tensor:
    """reference.sample_row of every row, with the draw of reference.uniform.

    `logits`: [rows, vocab] float32, contiguous.
    `holes`: whether -inf marks tokens that can't be sampled; otherwise it makes the row count as
    not finite.
    `cuts`: whether rows may have top_k, top_p or min_p; otherwise these are ignored.
    `short`: up to how many tokens are sorted, a power of two from 16 to SORTED, for tests; only the
    last bits of sums depend on it.

    Returns [rows] int64; -1 if a logit is NaN or +inf, or none is finite.
    """
    count = len(logits)
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    if not cuts or count <= CUT_ROWS:
        if count:
            _sample_into(tokens, logits, rows, holes, cuts, tiles, short)
        return tokens
    for first in range(0, count, CUT_ROWS):
        some = slice(first, first + CUT_ROWS)
        asked = SamplingRows(*(each[some] for each in vars(rows).values()))
        _sample_into(tokens[some], logits[some], asked, holes, cuts, tiles, short)
    return tokens


def _sample_into(
    tokens: Tensor,
    logits: Tensor,
    rows: SamplingRows,
    holes: bool,
    cuts: bool,
    tiles: PartTiles,
    short: int,
) -> None:
    count, vocab = logits.shape
    stats, counts = weigh_parts(logits, rows, tiles, holes=holes, cuts=cuts)
    ids = weights = stats  # Without cuts they aren't accessed.
    if counts is not None:
        ids, weights = list_survivors(logits, rows, stats, counts, tiles)
    _sample[(count,)](
        logits=logits,
        stats=stats,
        ids=ids,
        weights=weights,
        tokens=tokens,
        temperatures=rows.temperature,
        top_ks=rows.top_k,
        top_ps=rows.top_p,
        min_ps=rows.min_p,
        seeds=rows.seed,
        sequences=rows.sequence,
        indices=rows.token,
        vocab=vocab,
        parts=tiles.parts(vocab),
        CUTS=cuts,
        PART=tiles.part,
        PARTS=tiles.part_block(vocab),
        BLOCK=tiles.block,
        SHORT=short,
        num_warps=tiles.warps,
    )


# reference.philox's counter-based random numbers on the device: Philox-4x32-10 (Salmon et al.,
# "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

_LOW = tl.constexpr(0xFFFFFFFF)


@triton.jit
def draw_uniform(seed, sequence, token):
    """Returns one float64 in [0, 1) with 53 bits. The arguments are int64 scalars; `seed` is the
    bit pattern of a uint64."""
    c0, c1 = token & _LOW, (token >> 32) & _LOW
    c2, c3 = sequence & _LOW, sequence & 0
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in tl.static_range(10):
        # int64 products wrap modulo 2**64, so their bits are those of the unsigned product.
        left, right = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            ((right >> 32) & _LOW) ^ c1 ^ k0,
            right & _LOW,
            ((left >> 32) & _LOW) ^ c3 ^ k1,
            left & _LOW,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    whole = (c0 >> 5) * 67108864 + (c1 >> 6)
    return whole.to(tl.float64) * 1.1102230246251565e-16  # 2**-53


@triton.jit
def _uniform(seeds, sequences, tokens, out):
    at = tl.program_id(0)
    draw = draw_uniform(tl.load(seeds + at), tl.load(sequences + at), tl.load(tokens + at))
    tl.store(out + at, draw)


def uniform(seeds: Tensor, sequences: Tensor, tokens: Tensor) -> Tensor:
    """reference.uniform with tensors instead of lists, each [n] int64 (a seed of 2**63 or above is
    given by its bit pattern). Returns [n] float64."""
    out = torch.empty(seeds.shape, dtype=torch.float64, device=seeds.device)
    if seeds.shape[0]:
        _uniform[(seeds.shape[0],)](
            seeds=seeds, sequences=sequences, tokens=tokens, out=out, num_warps=1
        )
    return out
