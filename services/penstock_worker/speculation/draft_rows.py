"""Which rows of the KV blocks a draft model has computed.

Its keys and values lie in a pool of their own, under the numbers of the blocks in which the served
model has those of the same tokens. So whoever shares, copies or swaps a block does it for both. But
the draft model needn't have computed all tokens of a block, and whoever finds one in the prefix
cache wants to know.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.protocol.to_worker import Copy


class DraftRows:
    """How many of each block's first tokens the draft model has computed: never too many, and
    perhaps too few."""

    def __init__(self, blocks: int, host_blocks: int, block_size: int) -> None:
        self._device = np.zeros(blocks, np.int32)
        self._host = np.zeros(host_blocks, np.int32)
        self._size = block_size

    @property
    def blocks(self) -> int:
        """How many the pool has, also those that the served model's states have for themselves."""
        return len(self._device)

    def clear(self) -> None:
        """Forgets all, as what the blocks hold belongs to nobody any more."""
        self._device.fill(0)
        self._host.fill(0)

    def copied(self, copies: Sequence[Copy]) -> None:
        """Takes note of copies of blocks, which exist."""
        for copy in copies:
            source = self._host if copy.kind == "in" else self._device
            target = self._host if copy.kind == "out" else self._device
            target[copy.target] = source[copy.source]

    def given(self, blocks: Sequence[int]) -> None:
        """Takes note that what is in these blocks means nothing any more: a sequence was given
        them, and there may be tokens in them that `note` is not told of, as it ended with them."""
        if blocks:
            self._device[np.asarray(blocks, dtype=np.int64)] = 0

    def leading(self, table: Sequence[int], end: int) -> int:
        """Returns how many of the first `end` tokens of a block table were all computed."""
        blocks = np.asarray(table[: -(-end // self._size)], dtype=np.int64)
        rows = self._device[blocks]
        short = np.flatnonzero(rows < self._size)
        if not len(short):
            return end
        first = int(short[0])
        return min(end, first * self._size + int(rows[first]))

    def note(self, table: Sequence[int], start: int, end: int, computed: int) -> None:
        """Takes note that tokens [start, end) of a block table are there now, of which, and of
        those before, the first `computed` were computed."""
        for block in range(start // self._size, -(-end // self._size)):
            self._device[table[block]] = min(max(computed - block * self._size, 0), self._size)
