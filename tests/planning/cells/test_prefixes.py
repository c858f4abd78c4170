"""What a modelled pool holds, against one that keeps a list of single blocks."""

from __future__ import annotations

import random

from penstock_planning.cells.asks import Ask
from penstock_planning.cells.prefixes import HeldPrefixes
from penstock_planning.simulate.trace import TraceRequest

SIZE = 4


class BlockByBlock:
    """Blocks in the order of their last use, a prefix's last one first among equals."""

    def __init__(self, blocks: int) -> None:
        self.blocks, self.pinned = blocks, 0
        self.kept: list[tuple[str, int]] = []  # (whose, number), those used last at the end

    def use(self, whose: str) -> int:
        mine = sorted((each for each in self.kept if each[0] == whose), key=lambda b: -b[1])
        self.kept = [each for each in self.kept if each[0] != whose] + mine
        return len(mine)

    def keep(self, whose: str, blocks: int) -> None:
        have = {number for name, number in self.kept if name == whose}
        self.kept += [(whose, number) for number in range(blocks) if number not in have]
        self.use(whose)

    def shrink(self) -> None:
        while self.kept and len(self.kept) + self.pinned > self.blocks:
            self.kept.pop(0)


def test_it_finds_what_block_by_block_would_be_there() -> None:
    rng = random.Random(8)
    pool, slow = HeldPrefixes(40, SIZE), BlockByBlock(40)
    found_some = 0
    for number in range(3000):
        group, tokens = rng.randrange(3), rng.randint(12, 60)
        name = f"session {rng.randrange(6)} of {group}"
        request = TraceRequest(
            0.0, tokens, 4, "t", prefix_group=group, prefix_tokens=8, session=name
        )
        ask = Ask(request, number, 0.0)
        own, shared = slow.use(name), slow.use(f"group {group}")
        expected = shared + (own if shared == 2 else 0)
        found = pool.found(ask)
        assert found == SIZE * min(expected, (tokens - 1) // SIZE)
        found_some += found > 0
        extra = rng.randint(0, 12)
        pool.pin(extra)
        slow.pinned += extra
        slow.shrink()
        pool.keep(ask, tokens)
        slow.keep(name, tokens // SIZE - 2)
        slow.keep(f"group {group}", 2)
        pool.unpin(extra)
        slow.pinned -= extra
        slow.shrink()
    assert found_some > 1000
