"""How long a sequence may grow in a pool of so many blocks, counted naively, block by block: what a
test expects of the core when the context ends because the pool is full.
"""

from __future__ import annotations

from functools import cache

from penstock.model.kv_layout import KVGroup, paged, state_of


@cache
def longest_of(groups: tuple[KVGroup, ...], num_blocks: int, size: int) -> int:
    """Tokens of the longest sequence that a pool holds: block by block, the most that each group
    needs for any of its tokens."""
    states = state_of(groups)
    groups = paged(groups)
    most, blocks, made = [0] * len(groups), 0, 0
    while blocks < 1000:
        seen = [group.first_seen(blocks * size) // size for group in groups]
        most = [max(had, blocks + 1 - first) for had, first in zip(most, seen, strict=True)]
        if states is not None and states.every is not None:
            # The newest checkpoint, and the next one when it has to be written.
            made = states.blocks * min(2, (blocks + 1) * size // states.every)
        if sum(most) + made > num_blocks:
            break
        blocks += 1
    return blocks * size
