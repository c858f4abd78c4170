"""Decides which sequences wait for items of media, and how far a step may go with those that are
there."""

from __future__ import annotations

from collections.abc import Iterable

from penstock_engine.kv.pool import BrokenState
from penstock_engine.media.encoding_shares import EncodingShares
from penstock_engine.media.encodings import Encodings
from penstock_engine.media.entry import MediaEntry, MediaStage
from penstock_engine.media.exchange import MediaBooks, MediaExchange
from penstock_engine.media.loads import Loads
from penstock_engine.metrics.counts import EngineCounts
from penstock_engine.parts import HasDeadline, Restless
from penstock_engine.request.request import Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.request.step_in_flight import PlannedMedia
from penstock_engine.request.timeline import Clock
from penstock_engine.scheduler.features import SchedulerFeature
from penstock_engine.scheduler.state import SchedulerState
from penstock_engine.sessions.frontends import Frontends
from penstock_engine.sessions.workers import Workers
from penstock_engine.waiting.parked import KeepsParked, ParkedSequences

LOOKED_AHEAD = 8
"""Waiting sequences for whose items front ends are asked before it is their turn, at most."""


class MediaManager(KeepsParked, SchedulerFeature, HasDeadline, Restless):
    """The items of requests on their way: asked for when a sequence is about to start (`Loads`),
    encoded when a step comes to their placeholders (`Encodings`).

    A sequence with media waits in the queue as any other does.  When it is near the head, or is the
    head, and something that it needs is not on the workers, it leaves the queue and waits for that:
    those after it go on.  It comes back to its place when all is there.  What the KV cache has is
    not needed.
    """

    def __init__(
        self,
        scheduling: SchedulerState,
        frontends: Frontends,
        workers: Workers,
        counts: EngineCounts,
        clock: Clock,
        *,
        load_bytes: int,
        step_rows: int,
    ) -> None:
        """load_bytes: of prepared items that workers hold.  step_rows: that a step encodes."""
        self._scheduling = scheduling
        self._workers = workers
        self._load_bytes = load_bytes
        self._counts = counts
        self._parked = ParkedSequences()
        self._books = MediaBooks(
            frontends, workers, clock, self._gone, load_bytes=load_bytes, step_rows=step_rows
        )
        self._stuck: dict[str, MediaEntry] = {}
        """Items that were dropped, and that a running sequence has come to."""
        self._looked: dict[Sequence, int] = {}
        """Tickets of those that wait in the queue with all that they need."""
        self._found: dict[Sequence, int] = {}
        """Items that one that is starting needs not have encoded."""
        self._shares = EncodingShares(scheduling)
        self.encoder_rows = 0
        """Placeholders with which each prompt begins; see Ready."""
        self.exchange = MediaExchange(self._books, scheduling, counts, self._arrived)

    @property
    def serves(self) -> bool:
        """Whether there is a worker that takes media."""
        return self.encodings.capacity > 0

    def next_deadline(self) -> float:
        """The next time at which items that are on their way are late."""
        return self.loads.next_deadline()

    @property
    def is_restless(self) -> bool:
        """Whether somebody waits for room for items."""
        return bool(self._parked.line or self._stuck)

    @property
    def loads(self) -> Loads:
        """Items on their way."""
        return self._books.loads

    @property
    def encodings(self) -> Encodings:
        """The encoder cache."""
        return self._books.encodings

    def attach(self, rows: int, load_bytes: int, *, encoder_rows: int = 0) -> None:
        """A worker is ready. rows: of encodings, that it keeps; 0: it takes no media.  load_bytes:
        of prepared items, that it holds; 0: it doesn't say.  encoder_rows: see Ready."""
        self._books.renew(rows)
        self.loads.capacity = min(self._load_bytes, load_bytes or self._load_bytes)
        self.encoder_rows = encoder_rows

    def worker_lost(self) -> None:
        """Forgets what workers had, when no sequence runs any more. Sequences that waited for items
        go back to the queue."""
        parked = self._parked.all()
        self._parked.clear()
        self._books.renew(0)
        self.loads.capacity = self._load_bytes
        self._stuck.clear()
        self._looked.clear()
        self._found.clear()
        self._shares.planned.clear()
        self.exchange.forget()
        self._scheduling.short = None
        for sequence in parked:
            sequence.move(SequenceState.WAITING)
            self._scheduling.queue.push(sequence)

    def may_start(self, sequence: Sequence, computed: int) -> bool:
        media = sequence.request.media
        if media is None:
            return True
        entries = self._books.attach(sequence, computed)
        if all(entry.is_there for entry in entries):
            fresh = sum(entry.stage is MediaStage.LOADED for entry in entries)
            self._found[sequence] = len(media.media.items) - fresh
            return True
        self._park(sequence, computed)
        self._stand_in_line(sequence)
        return False

    def advance(self, now: float) -> None:
        """Asks front ends for what is needed next, as far as there is room; call it at every
        step."""
        self._ask(now)
        if self.loads.num_asked and not self._scheduling.in_flight:
            self._workers.progressed(now)  # Only front ends are waited for, not workers.

    def _ask(self, now: float) -> None:
        self.loads.settled(self._scheduling.last_settled)
        if not self.serves or not (
            self._books.entries or self._parked.line or self._scheduling.queue
        ):
            return
        self.exchange.fill_graves()
        for entry in list(self._stuck.values()):
            self._unstick(entry, now)
        for sequence in list(self._parked.line):
            if not self._pull(sequence, self._parked.computed(sequence), now):
                return
            del self._parked.line[sequence]
            self._settle(sequence)
        if not self._stuck:
            self._look_ahead(now)

    def _look_ahead(self, now: float) -> None:
        queue, reuse = self._scheduling.queue, self._scheduling.prefix_reuse
        for sequence in queue.first(LOOKED_AHEAD):
            if sequence.request.media is None or self._looked.get(sequence) == sequence.ticket:
                continue
            start = None if reuse is None else reuse.find(sequence)
            if start is None:
                continue  # Others are computing what it needs, of its items too perhaps.
            entries = self._books.attach(sequence, start.computed)
            if all(entry.is_there for entry in entries):
                self._looked[sequence] = sequence.ticket
            elif self._pull(sequence, start.computed, now):
                self._park(sequence, start.computed)
                self._settle(sequence)
            else:
                return

    def _pull(self, sequence: Sequence, computed: int, now: float) -> bool:
        """Asks for all that is absent of what it needs; or for nothing if there is no room, and
        then it doesn't pin the rest."""
        absent = [e for e in self._books.attach(sequence, computed) if e.stage is MediaStage.ABSENT]
        buried = any(map(self.exchange.is_buried, absent))
        if buried or not self.loads.reserve(absent):
            self._books.detach(sequence)
            return False
        for entry in absent:
            self.loads.ask(entry, now)
        return True

    def _unstick(self, entry: MediaEntry, now: float) -> None:
        """Has an item sent again that a running sequence waits for. One item at a time finds room
        in any case, so that such a sequence goes on."""
        if entry.stage is MediaStage.ABSENT and entry.holders:
            beyond = self.loads.used <= self.loads.capacity
            if self.exchange.is_buried(entry) or not self.loads.reserve([entry], beyond=beyond):
                return
            self.loads.ask(entry, now)
        del self._stuck[entry.name]

    def _stand_in_line(self, sequence: Sequence) -> None:
        self._parked.line[sequence] = None
        self._books.detach(sequence)

    def _park(self, sequence: Sequence, computed: int) -> None:
        """Takes a sequence out of the queue, to wait for its items."""
        self._scheduling.set_aside(sequence)
        sequence.move(SequenceState.WAITING_FOR_MEDIA)
        self._parked.add(sequence, computed)

    def _settle(self, sequence: Sequence) -> None:
        """Lets one go that waits, if all that it needs is there now."""
        entries = self._books.needs[sequence]
        if all(entry.is_there for entry in entries):
            self._parked.remove(sequence)
            sequence.move(SequenceState.WAITING)
            self._scheduling.queue.push(sequence)
            self._looked[sequence] = sequence.ticket
        elif any(entry.stage is MediaStage.ABSENT for entry in entries):
            self._stand_in_line(sequence)

    def ended(self, sequence: Sequence) -> None:
        """A sequence has ended, or leaves for another reason than having been here."""
        if sequence in self._parked:
            self._parked.remove(sequence)
        self._looked.pop(sequence, None)
        self.left(sequence)

    def begin_step(self) -> None:
        self.encodings.begin_step()
        self._shares.begin_step()

    def encodes(self) -> bool:
        return bool(self.encodings.encode or self.encodings.partly)

    def started(self, sequence: Sequence, computed: int) -> None:
        self._looked.pop(sequence, None)
        found = self._found.pop(sequence, 0)
        if sequence.request.cached_tokens is not None:
            return  # Another of its sequences has brought them, or it had begun before.
        self._counts.media_found += found
        if sequence.timeline is not None:
            sequence.timeline.cached_items += found

    def end(self, sequence: Sequence, start: int, end: int) -> int:
        """A chunk doesn't pass a span's first token before its item is encoded."""
        media, self._shares.begins = sequence.request.media, None
        if media is None or start >= media.end or end <= start:
            return end
        for span in media.spans(start, end):
            whole = media.whole_at(span.offset) if self._scheduling.whole_spans else None
            first = span.offset if whole is None else whole.start
            if whole is not None and first >= start and whole.end > end:
                if first == start:
                    self._scheduling.short = sequence
                return first
            entries = [self._books.entries[item.name] for item in media.needed_with(span, start)]
            item = media.media.items[span.item]
            if not self._encoded(sequence, self._books.entries[item.name], entries):
                return max(start, first)
        return end

    def begins(self, sequence: Sequence) -> bool:
        return self._shares.begins is sequence

    def least(self, sequence: Sequence, start: int) -> int:
        media = sequence.request.media
        if media is None or not self._scheduling.whole_spans or start >= media.end:
            return 1
        whole = media.whole_at(start)
        return whole.end - start if whole is not None and whole.start == start else 1

    def _encoded(
        self, sequence: Sequence, entry: MediaEntry, together: Iterable[MediaEntry]
    ) -> bool:
        """Whether an item's rows are there once this step's are encoded. together: what needs room
        along with it."""
        if not self.encodings.hold(sequence, together):
            return False
        if entry.stage in (MediaStage.LOADED, MediaStage.ENCODING):
            if self._shares.go_on(sequence, entry, self.encodings):
                self.loads.encoded(entry)
        elif entry.stage is MediaStage.ABSENT:
            self._stuck[entry.name] = entry
        self._shares.planned.use(entry, sequence)
        return entry.stage is MediaStage.ENCODED

    def take_cost(self, sequence: Sequence) -> int:
        return self._shares.planned.take_cost(sequence)

    def computed(self, sequence: Sequence) -> None:
        needs, media = self._books.needs.get(sequence), sequence.request.media
        if not needs or media is None:
            return
        items = frozenset(item.name for item in media.needed(sequence.progress.computed))
        done = [entry for entry in needs if entry.name not in items]
        self.encodings.release(sequence, done)
        self._books.unneed(sequence, done)
        if not needs:
            self.left(sequence)

    def unscheduled(self, sequence: Sequence) -> None:
        media = sequence.request.media
        # Joined items wait for one another: a step may have no room for the last of them any more.
        if media is None or not media.media.joined:
            self._take_back(sequence)

    def _take_back(self, sequence: Sequence) -> None:
        for name in self._shares.planned.unused(sequence):
            entry = self._books.entries[name]
            self._shares.planned.take_back(entry)
            self.encodings.take_back(entry)

    def not_started(self, sequence: Sequence) -> None:
        self._take_back(sequence)
        self._shares.planned.take_cost(sequence)
        self._found.pop(sequence, None)
        self.encodings.release(sequence)

    def left(self, sequence: Sequence) -> None:
        self._take_back(sequence)
        self._shares.planned.take_cost(sequence)
        if self._scheduling.short is sequence:
            self._scheduling.short = None
        self.encodings.release(sequence)
        self._books.detach(sequence)

    def take_media(self) -> PlannedMedia:
        found = self._shares.take(self.encodings)
        self.loads.planned(self._scheduling.last_step)
        self._counts.media_encoded += len(found.encode)
        return found

    def settled(self, media: PlannedMedia, seconds: float) -> None:
        self._shares.settled(media, seconds)

    def _arrived(self, entry: MediaEntry) -> None:
        """Handles an item that is loaded completely: sequences that waited for it go on."""
        for sequence in list(entry.holders):
            if sequence in self._parked:
                self._settle(sequence)

    def _gone(self, entry: MediaEntry) -> None:
        """Workers have it no more."""
        self.exchange.bury(entry)
        if not entry.holders:
            self._stuck.pop(entry.name, None)
        for sequence in [s for s in entry.holders if s in self._parked]:
            self._stand_in_line(sequence)

    def check(self) -> None:
        """Raises BrokenState unless the books agree."""
        self._books.check()
        self._parked.check()
        if not self._parked.line.keys().isdisjoint(self._books.needs.keys()):
            raise BrokenState("somebody holds items who is in line for them")
