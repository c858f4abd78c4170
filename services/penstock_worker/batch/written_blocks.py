"""The KV blocks that a plan may write to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.protocol.to_worker import Copy, Plan


def copied_to(copies: Sequence[Copy]) -> Iterator[int]:
    """Blocks of the cache that these copies write to."""
    return (copy.target for copy in copies if copy.kind != "out")


def written_by(plan: Plan, block_size: int, groups: int) -> Iterator[int]:
    """Yields blocks that were free before this plan, or belonged to others, and that its copies or
    steps write to from now on. A sequence's blocks before its first token to be computed are only
    read. May name blocks more than once, and NO_BLOCK.

    `groups`: those with block tables.
    """
    yield from copied_to(plan.copies)
    starts = {work.slot: work.start for work in plan.work}
    for new in plan.admitted:
        each, whole = len(new.blocks) // groups, starts.get(new.slot, 0) // block_size
        for group in range(groups):
            yield from new.blocks[group * each + whole : (group + 1) * each]
        yield from new.states
        yield from new.tail
    for work in plan.work:
        yield from work.new_blocks
        yield from work.states
