"""Statistics of each part of a row of logits for sampling, and how the parts are combined.

A row is divided into parts of fixed size, so that a few rows occupy a whole device. The parts'
statistics are combined in order, so a row's result depends on nothing but the row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.rounding import LOG2_E
from penstock_kernels.triton.sampling.rows import SamplingRows
from penstock_kernels.triton.tiles import PartTiles

NO_ID = tl.constexpr(0x7FFFFFFF)
BAD = tl.constexpr(-1)
PEAK = tl.constexpr(0)
ID = tl.constexpr(1)
TOTAL = tl.constexpr(2)
FINITE = tl.constexpr(3)
LISTED = tl.constexpr(4)
STATS = tl.constexpr(5)
"""Numbers per part, float64 [rows, STATS, parts]. PEAK: the largest logit. ID: its lowest id, or
BAD. TOTAL: the sum of the weights relative to the part's own largest. FINITE: how many logits
aren't -inf. LISTED, for a row's first part only: how many survivors the row has."""

LEVELS = 256
"""Levels into which a part's logits are counted, downwards from the level of its largest. The last
level also has all logits that are deeper."""
LAST = tl.constexpr(LEVELS - 1)
FINENESS = tl.constexpr(8.0)
"""Levels per factor of e in weights, or per 1 in logits where top_k only counts them."""


_SHORT = tl.constexpr(-4096)
"""Mask that leaves 12 of a float32's 24 bits: a product of two such numbers is exact."""
_ROUND_MAGIC = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it rounds a float32 to whole numbers
_LEAST_POWER = tl.constexpr(-1022.0)


@triton.jit
def weight_of(x, peak, temperature):
    """Returns the weight of a logit relative to that of `peak`, which is no smaller: float64 with
    the precision of a float32, and its own range down to 2**-1022.  `x` and `peak` are float32
    numbers.

    The power of two, (x - peak) / temperature * log2(e), is computed from pairs of float32, so that
    its fraction is as precise for small weights as for large ones. Logits are less precise than
    that themselves, and the sums of weights are in float64.  Products next to sums are fma or
    exact: a compiler that fuses them in one kernel and not in another gives the same bits.
    """
    x, peak = x.to(tl.float32), peak.to(tl.float32)
    factor = tl.minimum(1.0 / temperature * LOG2_E, 1e30)
    large = (factor.to(tl.float32).to(tl.int32, bitcast=True) & _SHORT).to(tl.float32, bitcast=True)
    small = (factor - large.to(tl.float64)).to(tl.float32)
    apart = x - peak
    back = apart - x
    lost = (x - (apart - back)) - (peak + back)
    upper = (apart.to(tl.int32, bitcast=True) & _SHORT).to(tl.float32, bitcast=True)
    most = upper * large
    rest = tl.fma(apart - upper, large + tl.zeros_like(apart), lost * large)
    rest = tl.fma(apart, small + tl.zeros_like(apart), rest)
    whole = ((most + rest) + _ROUND_MAGIC) - _ROUND_MAGIC
    weight = tl.exp2((most - whole) + rest).to(tl.float64)
    held = most > _LEAST_POWER
    power = tl.where(held, whole, 0.0).to(tl.int32).to(tl.int64) << 52
    raised = (weight.to(tl.int64, bitcast=True) + power).to(tl.float64, bitcast=True)
    return tl.where(held, raised, 0.0)


@triton.jit
def level_scale(top_k, vocab, temperature):
    """Returns the number of levels for a difference of 1 between logits."""
    counted = (top_k > 0) & (top_k < vocab)
    return tl.where(counted, FINENESS, FINENESS / temperature)


@triton.jit
def depth(peak, x, scale):
    """Returns how many levels x (float32) is below peak: int32, in [0, LAST]. It is monotonic: of
    two logits, the deeper one is never the greater one.

    Levels are the same for all parts of a row. The distance of an x that is d levels below is more
    than d - 1 levels and less than d + 1. float64 can hold the difference of two float32.
    """
    deep = tl.floor(peak.to(tl.float64) * scale) - tl.floor(x.to(tl.float64) * scale)
    return tl.where(deep < LAST, deep, LAST).to(tl.int32)  # LAST for whatever isn't finite.


@triton.jit
def _weigh_parts(
    logits,
    temperatures,
    top_ks,
    stats,
    counts,
    vocab,
    parts,
    HOLES: tl.constexpr,
    CUTS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """`counts` is [rows, parts, LEVELS] int32, and written only with CUTS."""
    row, part = tl.program_id(0), tl.program_id(1)
    logits += row.to(tl.int64) * vocab
    stats += row.to(tl.int64) * STATS * parts + part
    start = part * PART
    end = tl.minimum(start + PART, vocab)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_id = tl.full([BLOCK], NO_ID, tl.int32)
    bad = tl.zeros([BLOCK], tl.int32)
    finite = tl.zeros([BLOCK], tl.int32)
    for base in range(start, end, BLOCK):
        at = base + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < end, other=0.0)
        wrong = (x != x) | (x == float("inf"))
        if not HOLES:
            wrong |= x == float("-inf")
        bad |= wrong.to(tl.int32)
        finite += ((x > float("-inf")) & (at < end)).to(tl.int32)
        ahead = (x > best) & (at < end)  # Comparisons with NaN are false.
        best_id = tl.where(ahead, at, best_id)
        best = tl.where(ahead, x, best)
    peak = tl.max(best, 0)
    token = tl.min(tl.where(best == peak, best_id, NO_ID), 0)
    token = tl.where(tl.max(bad, 0) > 0, BAD, token)
    tl.store(stats + PEAK * parts, peak.to(tl.float64))
    tl.store(stats + ID * parts, token.to(tl.float64))
    tl.store(stats + FINITE * parts, tl.sum(finite, 0).to(tl.float64))
    temperature = tl.load(temperatures + row)
    total = tl.zeros([BLOCK], tl.float64)
    found = tl.zeros([LEVELS], tl.int32)
    if (temperature > 0.0) & (peak > float("-inf")):
        scale = level_scale(tl.load(top_ks + row), vocab, temperature)
        for base in range(start, end, BLOCK):
            at = base + tl.arange(0, BLOCK)
            x = tl.load(logits + at, mask=at < end, other=float("-inf"))
            total += weight_of(x, peak.to(tl.float64), temperature)
            if CUTS:
                found += tl.histogram(depth(peak, x, scale), LEVELS, mask=x > float("-inf"))
    tl.store(stats + TOTAL * parts, tl.sum(total, 0))
    if CUTS:
        counts += (row.to(tl.int64) * parts + part) * LEVELS
        tl.store(counts + tl.arange(0, LEVELS), found)


@triton.jit
def fold(stats, parts, temperature, PARTS: tl.constexpr):
    """Combines the statistics of a row's parts. Returns (best, token, totals): the row's largest
    logit in float64, its lowest id or BAD, and the sum of the weights in each part, [PARTS]. A
    part's total is above 0 only if the weight of its largest logit is."""
    part = tl.arange(0, PARTS)
    inside = part < parts
    peak = tl.load(stats + PEAK * parts + part, mask=inside, other=float("-inf"))
    token = tl.load(stats + ID * parts + part, mask=inside, other=NO_ID)
    best = tl.max(peak, 0)
    chosen = tl.min(tl.where(peak == best, token, NO_ID), 0).to(tl.int32)
    bad = (tl.min(token, 0) == BAD) | (best == float("-inf"))
    some = inside & (peak > float("-inf"))
    total = tl.load(stats + TOTAL * parts + part, mask=some, other=0.0)
    total = tl.where(some, total * weight_of(peak, best, temperature), 0.0)
    return best, tl.where(bad, BAD, chosen), total


def weigh_parts(
    logits: Tensor, rows: SamplingRows, tiles: PartTiles, *, holes: bool, cuts: bool
) -> tuple[Tensor, Tensor | None]:
    """Returns (stats, counts): see STATS; with `cuts`, counts are [rows, parts, LEVELS] int32,
    otherwise None."""
    (count, vocab), device = logits.shape, logits.device
    parts = tiles.parts(vocab)
    stats = torch.empty(count, STATS.value, parts, dtype=torch.float64, device=device)
    counts = None
    if cuts:
        counts = torch.empty(count, parts, LEVELS, dtype=torch.int32, device=device)
    _weigh_parts[(count, parts)](
        logits=logits,
        temperatures=rows.temperature,
        top_ks=rows.top_k,
        stats=stats,
        counts=counts,
        vocab=vocab,
        parts=parts,
        HOLES=holes,
        CUTS=cuts,
        PART=tiles.part,
        BLOCK=tiles.block,
        LEVELS=LEVELS,
        num_warps=tiles.warps,
    )
    return stats, counts
