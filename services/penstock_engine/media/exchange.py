"""What front ends send of items, and what workers say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.protocol.common import MediaFailure
from penstock_engine.media.books import MediaBooks
from penstock_engine.media.entry import MediaEntry, MediaStage
from penstock_engine.media.loads import chunk_size
from penstock_engine.metrics.counts import EngineCounts
from penstock_engine.request.request import Request
from penstock_engine.scheduler.state import SchedulerState


class Failed(NamedTuple):
    """An item that workers can't use, and whose requests end for it."""

    reason: str
    requests: list[Request]


class MediaExchange:
    """Takes items from front ends, and answers from workers."""

    def __init__(
        self,
        books: MediaBooks,
        scheduling: SchedulerState,
        counts: EngineCounts,
        on_arrival: Callable[[MediaEntry], None],
    ) -> None:
        """on_arrival: called with an item that is complete."""
        self._books = books
        self._scheduling = scheduling
        self._counts = counts
        self._on_arrival = on_arrival
        self._graves: dict[str, int] = {}
        """Items that could not be encoded, by the step before whose end other ranks may say so."""

    # ---- front ends

    def find(self, request: Request, number: int) -> MediaEntry | None:
        """The item that a request's front end is to send; None: it isn't any more."""
        if request.media is None or not 0 <= number < len(request.media.media.items):
            return None
        entry = self._books.entries.get(request.media.media.items[number].name)
        if entry is None or entry.stage is not MediaStage.ASKED or entry.source is not request:
            return None
        return entry

    def take_file(self, entry: MediaEntry, path: str) -> None:
        """A front end has it as a file."""
        self._sends(entry)
        self._books.loads.take_file(entry, path)

    def take_chunk(self, entry: MediaEntry, offset: int, size: int, data: bytes) -> bool:
        """A front end has sent some of it. Whether that is what was to come, or an answer to what
        is long over."""
        if offset != entry.received:
            return True
        if size != chunk_size(entry):
            return False
        if not offset:
            self._sends(entry)
        self._books.loads.take_chunk(entry, size, data)
        return True

    def _sends(self, entry: MediaEntry) -> None:
        """Counts the bytes of an item that is about to be sent to workers."""
        self._counts.media_bytes += entry.item.size
        for holder in entry.holders:
            if holder.request is entry.source and holder.timeline is not None:
                holder.timeline.media_bytes += entry.item.size

    def overdue(self, now: float) -> Request | None:
        """Returns a request whose front end has not sent an item in time, and which is to be ended;
        None if there is none."""
        entry = self._books.loads.overdue(now)
        return None if entry is None else entry.source

    # ---- workers

    def answered(
        self,
        name: str,
        rank: int,
        now: float,
        reason: str = "",
        code: MediaFailure | None = None,
        *,
        work: int = 0,
    ) -> Failed | None:
        """A rank has what it was sent of an item, or can't use the item. code: why not.  work: see
        MediaReady; ranks have the same weights, and say the same."""
        entry, loads = self._books.entries.get(name), self._books.loads
        if entry is None:
            return None
        if entry.stage in (MediaStage.ENCODING, MediaStage.ENCODED) and code is not None:
            return self._failed_encoding(entry, reason)
        if rank not in entry.awaited or not loads.answered(entry, rank, reason, code):
            return None
        if entry.failure:
            failed = Failed(entry.failure, _requests_of(entry))
            self._books.drop(entry)
            return failed
        if not entry.received:
            loads.begin_anew(entry)
        if entry.received == entry.item.size:
            entry.stage, entry.work, entry.done = MediaStage.LOADED, work, 0
            loads.settle(entry)
            self._on_arrival(entry)
        elif entry.holders:
            loads.ask(entry, now)
        else:
            self._books.drop(entry)
        return None

    def _failed_encoding(self, entry: MediaEntry, reason: str) -> Failed:
        """Other ranks may say so too, until the step is over: until then it isn't asked for
        again."""
        failed = Failed(reason, _requests_of(entry))
        self._graves[entry.name] = self._scheduling.last_step
        self._books.encodings.forget(entry)
        entry.stage = MediaStage.ABSENT
        self._books.gone(entry)
        return failed

    def is_buried(self, entry: MediaEntry) -> bool:
        """Whether ranks may still say that it could not be encoded."""
        return entry.name in self._graves

    def fill_graves(self) -> None:
        """Forgets those whose steps are settled."""
        settled = self._scheduling.last_settled
        for name in [name for name, step in self._graves.items() if step <= settled]:
            del self._graves[name]

    def forget(self) -> None:
        """The workers are gone."""
        self._graves.clear()


def _requests_of(entry: MediaEntry) -> list[Request]:
    return list({holder.request: None for holder in entry.holders})
