"""Where a tile's keys lie in a paged cache."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def key_places(
    table,
    base,
    low,
    end,
    slot_stride,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Returns where the keys from `base` on, a multiple of KEYS, begin in the cache: [KEYS] int64,
    arbitrary for those outside [low, end), of which there are none if not MASKED. Where a tile has
    whole blocks, or a block whole tiles, an entry of the block table is read once for all keys of a
    block. A cache has fewer than 2**31 slots."""
    SPAN: tl.constexpr = BLOCK_SIZE if BLOCK_SIZE < KEYS else KEYS
    if KEYS % SPAN == 0 and BLOCK_SIZE % SPAN == 0:
        begin = base + tl.arange(0, KEYS // SPAN) * SPAN
        if MASKED:
            held = (begin + SPAN > low) & (begin < end)
            block = tl.load(table + begin // BLOCK_SIZE, mask=held, other=0)
        else:
            block = tl.load(table + begin // BLOCK_SIZE)
        first = block * BLOCK_SIZE + begin % BLOCK_SIZE
        slot = (first[:, None] + tl.arange(0, SPAN)[None, :]).reshape(KEYS)
    else:
        at = base + tl.arange(0, KEYS)
        if MASKED:
            held = (at >= low) & (at < end)
            block = tl.load(table + at // BLOCK_SIZE, mask=held, other=0)
        else:
            block = tl.load(table + at // BLOCK_SIZE)
        slot = block * BLOCK_SIZE + at % BLOCK_SIZE
    return slot.to(tl.int64) * slot_stride
