"""What front ends send of items, what workers say of them, and the books of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.protocol.media import MediaFailure
from penstock_engine.kv.pool import BrokenState
from penstock_engine.media.encodings import Encodings
from penstock_engine.media.entry import MediaEntry, MediaStage
from penstock_engine.media.loads import Loads, chunk_size
from penstock_engine.metrics.counts import EngineCounts
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.timeline import Clock
from penstock_engine.scheduler.state import SchedulerState
from penstock_engine.sessions.frontends import Frontends
from penstock_engine.sessions.workers import Workers


class MediaBooks:
    """The items of prompts. One is known while somebody needs it or workers have something of it.

    loads: its way to the workers.  encodings: its rows.
    """

    def __init__(
        self,
        frontends: Frontends,
        workers: Workers,
        clock: Clock,
        on_gone: Callable[[MediaEntry], None],
        *,
        load_bytes: int,
        step_rows: int,
    ) -> None:
        """on_gone: called with an item that workers have lost or dropped."""
        self.entries: dict[str, MediaEntry] = {}
        """Items by their names between engine core and workers."""
        self.needs: dict[Sequence, list[MediaEntry]] = {}
        """What each of those that wait for items, are about to start or run still needs."""
        self.loads = Loads(load_bytes, frontends, workers, self.gone)
        self.encodings = Encodings(0, step_rows, self.gone)
        self._step_rows = step_rows
        self._clock = clock
        self._on_gone = on_gone

    def renew(self, rows: int) -> None:
        """Begins anew with another worker, or none: nothing is on it. rows: how many it keeps."""
        self.entries.clear()
        self.needs.clear()
        self.loads.clear()
        self.encodings = Encodings(rows, self._step_rows, self.gone)

    def attach(self, sequence: Sequence, computed: int) -> list[MediaEntry]:
        """Returns the items that a sequence needs after so many computed tokens; from now on it
        holds these."""
        media = sequence.request.media
        before = self.needs.get(sequence, [])
        needs = []
        for item in [] if media is None else media.needed(computed):
            entry = self.entries.get(item.name)
            if entry is None:
                entry = self.entries[item.name] = MediaEntry(item)
            needs.append(entry)
            if sequence not in entry.holders:
                entry.holders[sequence] = None
                self._rank(entry)
        self.needs[sequence] = needs
        self.unneed(sequence, [entry for entry in before if entry not in needs])
        return needs

    def detach(self, sequence: Sequence) -> None:
        """Notes that a sequence needs none of its items any more."""
        self.unneed(sequence, self.needs.pop(sequence, []))

    def unneed(self, sequence: Sequence, entries: Iterable[MediaEntry]) -> None:
        """Notes that a sequence doesn't need these items any more."""
        needs = self.needs.get(sequence)
        for entry in list(entries):
            if needs is not None and entry in needs:
                needs.remove(entry)
            del entry.holders[sequence]
            if entry.stage is MediaStage.ASKED and entry.source is sequence.request:
                self._ask_another(entry)
            elif entry.stage is MediaStage.ABSENT and not entry.holders:
                self.gone(entry)
            self._rank(entry)

    def _ask_another(self, entry: MediaEntry) -> None:
        """Whom it was asked of does not need it any more, unless another of its sequences does."""
        if any(holder.request is entry.source for holder in entry.holders):
            return
        if entry.holders:
            self.loads.ask(entry, self._clock.now)
        else:
            self.drop(entry)

    def drop(self, entry: MediaEntry) -> None:
        """Workers forget what they have of it, which is not encoded."""
        self.loads.drop(entry)
        self.gone(entry)

    def _rank(self, entry: MediaEntry) -> None:
        self.loads.settle(entry)
        self.encodings.settle(entry)

    def gone(self, entry: MediaEntry) -> None:
        """Forgets an encoding that was dropped. An item that no plan has had encoded goes back to
        those that are loaded."""
        if entry.stage is MediaStage.LOADED:
            self.loads.returned(entry)
            return
        if not entry.holders:
            self.entries.pop(entry.name, None)
        self._on_gone(entry)

    def check(self) -> None:
        """Raises BrokenState unless the books agree."""
        self.loads.check(self.entries.values())
        self.encodings.check(self.entries.values())
        for sequence, needs in self.needs.items():
            if any(self.entries.get(entry.name) is not entry for entry in needs):
                raise BrokenState(f"sequence {sequence.index} needs what nobody knows")
            if any(sequence not in entry.holders for entry in needs):
                raise BrokenState(f"sequence {sequence.index} needs what it doesn't hold")
        held = sum(len(entry.holders) for entry in self.entries.values())
        if held != sum(map(len, self.needs.values())):
            raise BrokenState(f"{held} needs are known")
        for entry in self.entries.values():
            if entry.stage is MediaStage.ABSENT and not entry.holders:
                raise BrokenState(f"{entry.name} is known for nothing")


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
        self.bury(entry)
        self._books.encodings.forget(entry)
        entry.stage = MediaStage.ABSENT
        self._books.gone(entry)
        return failed

    def bury(self, entry: MediaEntry) -> None:
        """Blocks use of the item until the steps in flight are settled: one of them may encode
        it."""
        self._graves[entry.name] = self._scheduling.last_step

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
