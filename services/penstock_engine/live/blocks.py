"""The KV pool as a picture: a state for each block, counted by cells.

No loop of Python's runs over blocks: the states come of a few passes over whole byte strings, and
each cell is counted by one call for each state.
"""

from __future__ import annotations

from penstock.protocol.live import MAX_CELLS, BlockView
from penstock_engine.kv.cache import FINDABLE, KVCache
from penstock_engine.kv.pool import bytes_or

_FREE, _USED, _SHARED = 0, 1, 2
_CACHED = FINDABLE
_MARKED = (FINDABLE | _FREE, FINDABLE | _USED, FINDABLE | _SHARED)
_FOUND_OR_NOT = bytes([_FREE, _USED, _SHARED, 3, _CACHED, _USED, _SHARED, *range(7, 256)])
"""For who holds a block it is no difference whether others may find it."""


def block_view(cache: KVCache) -> BlockView:
    """The pool's state now."""
    marked = bytes_or(cache.pool.owner_classes(), cache.findable)
    states = marked.translate(_FOUND_OR_NOT)
    totals = {state: states.count(state) for state in (_FREE, _CACHED, _USED, _SHARED)}
    total = cache.pool.num_blocks
    span = -(-total // MAX_CELLS)
    host = cache.host
    return BlockView(
        total=total,
        block_size=cache.block_size,
        free=totals[_FREE],
        cached=totals[_CACHED],
        used=totals[_USED],
        shared=totals[_SHARED],
        findable=sum(marked.count(mark) for mark in _MARKED),
        span=span,
        map=_map(states, span, totals),
        host_total=0 if host is None else host.num_blocks,
        host_used=0 if host is None else host.num_used,
        swapped_out=cache.num_swapped_out,
        swapped_in=cache.num_swapped_in,
    )


def _map(states: bytes, span: int, totals: dict[int, int]) -> bytes:
    """The map of blocks, three bytes per cell of `span` blocks: see BlockView.map."""
    cells = -(-len(states) // span)
    made = bytearray(3 * cells)
    for place, state in enumerate((_USED, _SHARED, _CACHED)):
        if totals[state]:
            made[place::3] = _counts(states, state, span)
    return bytes(made)


def _counts(states: bytes, state: int, span: int) -> bytes:
    count = states.count
    counts = [count(state, start, start + span) for start in range(0, len(states), span)]
    if span > 255:
        # Rounded up, so that one block of many is still seen.
        counts = [-(-255 * each // span) for each in counts]
    return bytes(counts)
