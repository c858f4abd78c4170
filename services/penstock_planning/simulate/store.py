"""KV blocks that a simulated worker keeps on disk: which ones, and how long they take to read."""

from __future__ import annotations

import math
from collections import OrderedDict

from penstock.errors import InvalidRequest
from penstock.protocol.from_worker import FetchedKV, FoundKV
from penstock.protocol.to_worker import FetchKV, LookUpKV, Save
from penstock_planning.simulate.one_by_one import OneByOne

MAX_BLOCK_SECONDS = 100.0


def check_store(blocks: int, block_seconds: float) -> None:
    """Raises InvalidRequest for no size, or no time."""
    if blocks < 0:
        raise InvalidRequest(f"0 blocks on disk or more, not {blocks}")
    if not (math.isfinite(block_seconds) and 0.0 <= block_seconds <= MAX_BLOCK_SECONDS):
        raise InvalidRequest(
            f"a block is read in 0 to {MAX_BLOCK_SECONDS:g} seconds, not {block_seconds:g}"
        )


Kept = OrderedDict[bytes, None]
"""Keys, those that were used last at the end."""


class SimulatedStore(OneByOne[FoundKV | FetchedKV]):
    """Outlives its workers. Writing takes no time; reading takes its time concurrently with steps,
    one lookup after another. The least recently used block goes first."""

    __slots__ = ("_block_seconds", "_blocks", "_kept")

    def __init__(self, blocks: int, block_seconds: float, kept: Kept | None = None) -> None:
        """blocks: that there is room for; 0: there is no such store.  kept: what several stores
        keep together; None: this one is alone."""
        super().__init__()
        self._blocks = blocks
        self._block_seconds = block_seconds
        self._kept: Kept = OrderedDict() if kept is None else kept

    def __bool__(self) -> bool:
        return self._blocks > 0

    def __len__(self) -> int:
        return len(self._kept)

    def save(self, saves: list[Save]) -> None:
        for save in saves:
            self._kept[save.key] = None
            self._kept.move_to_end(save.key)
            if len(self._kept) > self._blocks:
                self._kept.popitem(last=False)

    def ask(self, message: LookUpKV | FetchKV, now: float) -> None:
        """Takes a question. Its answer is due when those before it, and its own blocks, have been
        read."""
        count = self._leading(message.keys)
        answer: FoundKV | FetchedKV
        if isinstance(message, LookUpKV):
            answer, seconds = FoundKV(message.fetch, count, self._block_seconds), 0.0
        else:
            self.save(message.saves)
            answer, seconds = FetchedKV(message.fetch, count), count * self._block_seconds
        self._begin(answer, seconds, now)

    def forget_asked(self) -> None:
        """The worker has died, and answers nothing."""
        self.due.clear()
        self._added.clear()
        self._free_at = 0.0

    def _leading(self, keys: list[bytes]) -> int:
        count = 0
        for key in keys:
            if key not in self._kept:
                break
            self._kept.move_to_end(key)
            count += 1
        return count
