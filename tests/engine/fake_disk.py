"""What a worker has of a tier on disk: contents of blocks by their keys, through all its lives; and
what other engine cores' workers keep for it, through one of theirs.

It answers when it is told to, and may by then have lost what it found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.protocol.from_worker import FetchedKV, FoundKV
from penstock.protocol.to_worker import Copy, FetchKV, LookUpKV, Save
from tests.engine.fake_media import Mark

Rows = dict[int, tuple[int, tuple[Mark, ...]]]
"""What a block holds: the KV group, and the tokens that each of its rows stands for."""

BEING_READ: Rows = {0: (-2, ())}


@dataclass
class FakeDisk:
    """kept: on disk.  shared: in memory, for others, while its worker lives; None: it keeps nothing
    for others.  others: workers that it asks.  num_read: blocks; num_fetched: from others."""

    kept: dict[bytes, Rows] = field(default_factory=dict)
    block_seconds: Callable[[], float] = lambda: 0.0
    num_read: int = 0
    shared: dict[bytes, Rows] | None = None
    others: list[FakeDisk] = field(default_factory=list)
    num_fetched: int = 0

    def find(self, key: bytes) -> Rows | None:
        """Here, or at another worker."""
        if key in self.kept:
            return self.kept[key]
        return next((rows for each in self.others if (rows := each.give(key)) is not None), None)

    def give(self, key: bytes) -> Rows | None:
        """To another one."""
        return None if self.shared is None else self.shared.get(key)

    def save(self, key: bytes, rows: Rows) -> None:
        """Contents have one name, and a name has one contents, wherever they are."""
        assert self.find(key) in (None, rows), "one name for two contents"
        assert self.give(key) in (None, rows), "one name for two contents"
        self.kept[key] = rows
        if self.shared is not None:
            self.shared[key] = rows

    def lose(self, key: bytes) -> None:
        """It is nowhere any more."""
        self.kept.pop(key, None)
        for each in self.others:
            if each.shared is not None:
                each.shared.pop(key, None)


@dataclass
class DiskReader:
    """One life's. `rows` are its KV cache's."""

    disk: FakeDisk | None
    rows: dict[int, Rows]
    due: list[LookUpKV | FetchKV] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)
    """Blocks that are being filled, each with its fetch."""
    found: dict[int, int] = field(default_factory=dict)
    """How much was found, by lookups that were answered."""
    begun: list[tuple[int, FetchKV]] = field(default_factory=list)
    """(the last step sent before it, message) of each whose turn has not come."""

    def hears(self, message: LookUpKV | FetchKV, sent: int) -> None:
        """A lookup may be answered at once, a fetch when the steps up to `sent` are computed."""
        assert self.disk is not None, "there is no disk"
        if isinstance(message, LookUpKV):
            assert message.keys
            assert len(set(message.keys)) == len(message.keys)
            self.due.append(message)
        else:
            self.begun.append((sent, message))

    def begin(self, last_step: int, copy: Callable[[Copy], None]) -> None:
        """Begins fetches whose turn has come: they own their blocks now."""
        while self.begun and self.begun[0][0] <= last_step:
            message = self.begun.pop(0)[1]
            assert 0 < len(message.keys) == len(message.blocks) <= self.found.pop(message.fetch)
            self.save(message.saves)
            for each in message.copies:
                copy(each)
            assert not self.held.keys() & set(message.blocks), "a block of two fetches"
            assert len(set(message.blocks)) == len(message.blocks)
            self.held |= dict.fromkeys(message.blocks, message.fetch)
            self.rows |= {block: dict(BEING_READ) for block in message.blocks}
            self.due.append(message)

    def save(self, saves: list[Save]) -> None:
        assert self.disk is not None or not saves
        for save in saves:
            rows = dict(self.rows[save.block])
            assert save.block not in self.held
            assert self.disk is not None
            self.disk.save(save.key, rows)

    def answer(self, at: int, lost: bytes | None = None) -> FoundKV | FetchedKV:
        """It is done with the one that is `at` in line; `lost` is no longer there."""
        message = self.due.pop(at)
        assert self.disk is not None
        if lost is not None:
            self.disk.lose(lost)
        there = [self.disk.find(key) is not None for key in message.keys] + [False]
        count = there.index(False)
        if isinstance(message, LookUpKV):
            self.found[message.fetch] = count
            return FoundKV(message.fetch, count, self.disk.block_seconds())
        for key, block in zip(message.keys, message.blocks, strict=True):
            assert self.held.pop(block) == message.fetch
            if count:
                rows = self.disk.find(key)
                assert rows is not None
                self.rows[block] = dict(rows)
                self.disk.num_read += 1
                self.disk.num_fetched += key not in self.disk.kept
                count -= 1
        return FetchedKV(message.fetch, there.index(False))
