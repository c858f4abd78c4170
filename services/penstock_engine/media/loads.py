"""Prepared items on their way from front ends to workers, and those that wait there to be
encoded."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from penstock.protocol.media import MAX_MEDIA_CHUNK, MediaFailure
from penstock.protocol.to_frontend import NeedMedia
from penstock.protocol.worker_resources import DropMedia, LoadMedia, LoadMediaChunk
from penstock_engine.kv.pool import BrokenState
from penstock_engine.media.entry import MediaEntry, MediaStage
from penstock_engine.sessions.effects import ChunkBytes
from penstock_engine.sessions.frontends import Frontends
from penstock_engine.sessions.workers import Workers

TIMEOUT = 30.0
"""Seconds that a front end has for each part of an item that it is asked for."""


class Loads:
    """Asks front ends for items and passes them on, unread.

    Their bytes have a budget, from the moment at which an item is asked for until the step that
    encodes it is settled: so however many requests wait, the workers hold no more.  What is no
    longer needed stays until the room is needed, the longest unused first.

    A worker answers every message; until it has, an item that isn't needed any more is left as it
    is, and continues from there for the next request that needs it.
    """

    def __init__(
        self,
        capacity: int,
        frontends: Frontends,
        workers: Workers,
        on_drop: Callable[[MediaEntry], None],
    ) -> None:
        """capacity: bytes.  on_drop: called with an idle entry that is evicted."""
        self.capacity = capacity
        self.used = 0
        self.sent = 0  # bytes so far, of items that were loaded
        self._frontends = frontends
        self._workers = workers
        self._on_drop = on_drop
        self._asked: OrderedDict[str, MediaEntry] = OrderedDict()
        """The longest asked for first."""
        self._idle: OrderedDict[str, MediaEntry] = OrderedDict()
        """Loaded, without holders."""
        self._idle_bytes = 0
        self._planned_bytes = 0  # of items that the plan has encoded which is being made
        self._sent_bytes: deque[tuple[int, int]] = deque()
        """(step, bytes) of items that steps in flight encode: workers may hold them yet."""

    def clear(self) -> None:
        """The workers are gone, and all that they had."""
        self._asked.clear()
        self._idle.clear()
        self._sent_bytes.clear()
        self.used = self._idle_bytes = self._planned_bytes = 0

    @property
    def num_asked(self) -> int:
        """Items that front ends are to send."""
        return len(self._asked)

    def reserve(self, entries: Iterable[MediaEntry], *, beyond: bool = False) -> bool:
        """Makes room for all of these, which are absent; or for none.  beyond: even if there is
        none."""
        needed = sum(entry.cost for entry in entries)
        if needed > self.capacity - self.used + self._idle_bytes and not beyond:
            return False
        while self._idle and needed > self.capacity - self.used:
            entry = next(iter(self._idle.values()))
            self.drop(entry)
            self._on_drop(entry)
        self.used += needed
        return True

    def drop(self, entry: MediaEntry) -> None:
        """Workers forget what they have of the item, which is not encoded; nothing is awaited."""
        if entry.received or entry.failure:
            self._workers.send_encoding(DropMedia(entry.name))
        self.forget(entry)

    def forget(self, entry: MediaEntry) -> None:
        """Forgets an item that was asked for and is not going to be loaded."""
        self._asked.pop(entry.name, None)
        self._unidle(entry)
        self.used -= entry.cost
        entry.stage, entry.received, entry.source = MediaStage.ABSENT, 0, None
        entry.awaited.clear()
        entry.failure = ""

    def encoded(self, entry: MediaEntry) -> None:
        """The plan has it encoded: workers are to keep its rows instead."""
        self._unidle(entry)
        self._planned_bytes += entry.cost
        entry.received = 0

    def returned(self, entry: MediaEntry) -> None:
        """Takes back a plan to encode an item: it is loaded as before."""
        self._planned_bytes -= entry.cost
        entry.received = entry.item.size
        self.settle(entry)

    def planned(self, step: int) -> None:
        """The plan is made."""
        if self._planned_bytes:
            self._sent_bytes.append((step, self._planned_bytes))
            self._planned_bytes = 0

    def settled(self, step: int) -> None:
        """Notes that all steps up to this one are settled: workers have forgotten the prepared
        items that these encoded."""
        while self._sent_bytes and self._sent_bytes[0][0] <= step:
            self.used -= self._sent_bytes.popleft()[1]

    def settle(self, entry: MediaEntry) -> None:
        """Sorts an item anew, because the sequences that need it or its stage have changed."""
        self._unidle(entry)
        if entry.stage is MediaStage.LOADED and not entry.holders:
            self._idle[entry.name] = entry
            self._idle_bytes += entry.cost

    def _unidle(self, entry: MediaEntry) -> None:
        if self._idle.pop(entry.name, None) is not None:
            self._idle_bytes -= entry.cost

    def ask(self, entry: MediaEntry, now: float) -> None:
        """Asks the front end of a request that needs an item for its bytes, or for the next of
        them."""
        source = entry.source = next(iter(entry.holders)).request
        entry.stage, entry.asked_at = MediaStage.ASKED, now
        self._asked[entry.name] = entry
        self._asked.move_to_end(entry.name)
        frontend = self._frontends.get(source.session)
        if frontend is not None and source.media is not None:
            number = source.media.numbers[entry.name]
            frontend.reply(NeedMedia(source.number, number, entry.received, entry.chunks))

    def take_file(self, entry: MediaEntry, path: str) -> None:
        """Has workers read an item whose bytes are all in a file."""
        if entry.received:
            self._workers.send_encoding(DropMedia(entry.name))
        entry.received, entry.by_file = entry.item.size, True
        self._load(entry, path)
        self._await(entry)

    def take_chunk(self, entry: MediaEntry, size: int, data: bytes) -> None:
        """The next bytes of it have come. size: of them, which is what was to come."""
        offset = entry.received
        entry.by_file = False
        if not offset:
            self._load(entry, "")
        entry.received += size
        chunk = LoadMediaChunk(entry.name, offset)
        self._workers.send_encoding(chunk, (ChunkBytes(data),))
        self._await(entry)

    def _load(self, entry: MediaEntry, path: str) -> None:
        item = entry.item
        self.sent += item.size
        self._workers.send_encoding(
            LoadMedia(item.name, item.kind, item.rows, item.size, item.digest, item.grid, path)
        )

    def _await(self, entry: MediaEntry) -> None:
        del self._asked[entry.name]
        entry.stage = MediaStage.LOADING
        entry.awaited.update(range(self._workers.num_encoding))

    def overdue(self, now: float) -> MediaEntry | None:
        """Returns an item that has not come in time, which is to be asked for elsewhere or dropped;
        None if there is none."""
        first = next(iter(self._asked.values()), None)
        return first if first is not None and now >= first.asked_at + TIMEOUT else None

    def next_deadline(self) -> float:
        """The time at which `overdue` will have something to return; infinity if no item is asked
        for."""
        first = next(iter(self._asked.values()), None)
        return float("inf") if first is None else first.asked_at + TIMEOUT

    def answered(
        self, entry: MediaEntry, rank: int, reason: str, code: MediaFailure | None
    ) -> bool:
        """A rank has what it was sent; or can't take it, for that reason.  Whether all ranks have
        answered: then the item is loaded, has failed, or goes on."""
        entry.awaited.discard(rank)
        if code == "unreachable" and entry.by_file:
            entry.chunks, entry.received = True, 0
        else:
            entry.failure = entry.failure or reason
        return not entry.awaited

    def begin_anew(self, entry: MediaEntry) -> None:
        """Lets the item be sent again in chunks: what ranks have by a file is dropped."""
        self._workers.send_encoding(DropMedia(entry.name))

    def check(self, entries: Iterable[MediaEntry]) -> None:
        """Raises BrokenState unless the books agree with the entries, which are all there are."""
        known = list(entries)
        coming = (MediaStage.ASKED, MediaStage.LOADING, MediaStage.LOADED)
        used = sum(entry.cost for entry in known if entry.stage in coming)
        used += self._planned_bytes + sum(size for _, size in self._sent_bytes)
        if used != self.used:
            raise BrokenState(f"{used} bytes of items are loaded, {self.used} counted")
        for entry in known:
            if (entry.stage is MediaStage.ASKED) != (entry.name in self._asked):
                raise BrokenState(f"{entry.name} is {entry.stage.name}, and asked for or not")
            idle = entry.stage is MediaStage.LOADED and not entry.holders
            if idle != (entry.name in self._idle):
                raise BrokenState(f"{entry.name} is {entry.stage.name}, and idle or not")
            if bool(entry.awaited) != (entry.stage is MediaStage.LOADING):
                raise BrokenState(f"{entry.name} is {entry.stage.name}: {entry.awaited}")


def chunk_size(entry: MediaEntry) -> int:
    """Bytes of the chunk that comes next."""
    return min(MAX_MEDIA_CHUNK, entry.item.size - entry.received)
