"""The adapters of requests: which requests use or wait for them, and which adapters have a place in
the workers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from penstock.protocol.common import AdapterFile
from penstock.protocol.worker_resources import DropAdapter, LoadAdapter
from penstock_engine.kv.pool import BrokenState
from penstock_engine.metrics.counts import EngineCounts
from penstock_engine.parts import HasDeadline, Restless
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.scheduler.features import SchedulerFeature
from penstock_engine.scheduler.state import SchedulerState
from penstock_engine.sessions.fault_attribution import FaultAttribution
from penstock_engine.sessions.workers import Workers
from penstock_engine.waiting.adapter_entry import AdapterEntry, AdapterStage
from penstock_engine.waiting.parked import KeepsParked, ParkedSequences

MAX_STARTS = 64
"""Sequences with adapters that may start while another adapter waits for a place; then one of those
that are loaded has to make way for it."""


class AdapterPlaces:
    """An adapter that is wanted gets a free place, or that of the one which has been unused
    longest.  Where all are in use it waits; after MAX_STARTS others have started, the one that was
    loaded first makes way: no sequence starts with it any more, and when the last that runs has
    ended, its place is free.  So an adapter in front of the line waits for a bounded number of
    starts, and for the longest sequence.  One that was just loaded stays until it has been used.

    count: adapters that workers have loaded at a time.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.loaded: dict[str, AdapterEntry] = {}
        """Adapters with a place, by digest, in the order in which they got it."""
        self.line: dict[str, AdapterEntry] = {}
        """Wanted adapters without a place, the first one next."""
        self._starts = 0  # of sequences with adapters, so far
        self._since = 0  # starts when the first in line became the first

    def want(self, entry: AdapterEntry) -> None:
        """Puts an adapter that is needed and has no place in the line for one."""
        if not self.line:
            self._since = self._starts
        self.line.setdefault(entry.file.digest, entry)

    def leave_line(self, entry: AdapterEntry) -> None:
        """Takes an adapter out of the line for a place: it isn't wanted any more, or gets one. Does
        nothing for one that isn't in line."""
        digest = entry.file.digest
        if digest not in self.line:
            return
        if next(iter(self.line)) == digest:
            self._since = self._starts
        del self.line[digest]

    def started(self, entry: AdapterEntry) -> None:
        """A sequence has started with it."""
        self._starts += 1
        entry.unused, entry.used = False, self._starts

    def take(self, entry: AdapterEntry) -> None:
        """Gives a free place to an adapter."""
        self.leave_line(entry)
        entry.stage, entry.used = AdapterStage.LOADING, self._starts
        self.loaded[entry.file.digest] = entry

    def begin_first(self, deadline: float) -> None:
        """The first that is being loaded gets its deadline, unless it has one: workers load one
        after the other, and each has its own time."""
        first = next(iter(self.loading()), None)
        if first is not None and first.deadline == math.inf:
            first.deadline = deadline

    def leave(self, entry: AdapterEntry) -> None:
        """Takes an adapter's place away."""
        del self.loaded[entry.file.digest]
        entry.stage, entry.unused = AdapterStage.ABSENT, False

    @property
    def has_room(self) -> bool:
        """Whether a place is free."""
        return len(self.loaded) < self.count

    def idle(self) -> AdapterEntry | None:
        """The idle adapter that has been unused longest, which can lose its place at once; None if
        there is none."""
        idle = [entry for entry in self.loaded.values() if _is_idle(entry)]
        return min(idle, key=lambda entry: entry.used, default=None)

    def have_one_leave(self) -> None:
        """Has one adapter make way when all are in use, if the first in line has waited long
        enough."""
        if not self.line or self._starts - self._since < MAX_STARTS or self.leaving():
            return
        used = [e for e in self.loaded.values() if e.stage is AdapterStage.READY and not e.unused]
        if used:
            used[0].stage = AdapterStage.LEAVING

    def leaving(self) -> list[AdapterEntry]:
        """Adapters that make way."""
        return [e for e in self.loaded.values() if e.stage is AdapterStage.LEAVING]

    def loading(self) -> list[AdapterEntry]:
        """Adapters that workers were asked to load, and have not loaded yet, in order."""
        return [e for e in self.loaded.values() if e.stage is AdapterStage.LOADING]

    def check(self) -> None:
        """Raises BrokenState for what contradicts itself."""
        if len(self.loaded) > self.count:
            raise BrokenState(f"{len(self.loaded)} adapters are loaded; there are {self.count}")
        if not self.loaded.keys().isdisjoint(self.line):
            raise BrokenState("an adapter is loaded, and waits for a place")
        if any(entry.stage is AdapterStage.ABSENT for entry in self.loaded.values()):
            raise BrokenState("an adapter has a place, and is absent")
        if any(entry.stage is not AdapterStage.ABSENT for entry in self.line.values()):
            raise BrokenState("an adapter waits for a place, and is there")
        if len(self.leaving()) > 1:
            raise BrokenState("several adapters make way for one")


def _is_idle(entry: AdapterEntry) -> bool:
    """Whether an adapter may lose its place: no running sequence uses it, and it wasn't just loaded
    for sequences that wait for it."""
    fresh = entry.unused and bool(entry.holders)
    return entry.stage is not AdapterStage.LOADING and not entry.running and not fresh


LOAD_TIMEOUT = 120.0
"""Seconds that workers may take to load an adapter."""

MAX_REFUSED = 256
"""Adapters that are remembered for why they can't be loaded."""


class AdapterManager(KeepsParked, SchedulerFeature, HasDeadline, Restless):
    """A sequence with an adapter waits in the queue as any other does. Where it is the head, and
    its adapter isn't loaded, it leaves the queue and waits for that, and those after it go on.
    It comes back to its place in the order.

    Every operation is constant in the number of requests, but for a worker's coming and going.
    """

    def __init__(
        self, count: int, scheduling: SchedulerState, workers: Workers, counts: EngineCounts
    ) -> None:
        """count: adapters that workers have loaded at a time; 0: none are served."""
        self.places = AdapterPlaces(count)
        self._scheduling = scheduling
        self._workers = workers
        self._counts = counts
        self._entries: dict[str, AdapterEntry] = {}
        """Adapters by digest: those that open requests use, and those that are loaded."""
        self._parked = ParkedSequences()
        self._owed: dict[tuple[str, int], int] = {}
        """(digest, rank) of outstanding answers that aren't needed any more."""
        self._refused: dict[str, str] = {}

    def hold(self, request: Request) -> None:
        """The request uses its adapter, if it has one, until `release`. It is loaded at once where
        a place is free."""
        if request.adapter is None:
            return
        entry = self._entries.get(request.adapter.digest)
        if entry is None:
            entry = self._entries[request.adapter.digest] = AdapterEntry(request.adapter)
        entry.holders[request] = None
        if entry.stage is AdapterStage.ABSENT:
            entry.file = request.adapter
            if self.places.has_room:
                self.places.want(entry)

    def release(self, request: Request) -> None:
        """The request's last sequence has ended."""
        if request.adapter is None:
            return
        entry = self._entries[request.adapter.digest]
        del entry.holders[request]
        if not entry.holders:
            self.places.leave_line(entry)
            if entry.stage is AdapterStage.ABSENT:
                del self._entries[entry.file.digest]

    def why_refused(self, file: AdapterFile) -> str | None:
        """Why it is not loaded again in this life; None: it may be."""
        return self._refused.get(file.digest)

    def refuse(self, digest: str, why: str) -> None:
        """Refuses an adapter from now on: it doesn't fit the model, or workers have died of loading
        it."""
        self._refused[digest] = why
        while len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]

    def admits(self, sequence: Sequence) -> bool:
        if sequence.request.adapter is None:
            return True
        entry = self._entry_of(sequence)
        if entry.stage is AdapterStage.READY:
            return True
        self._scheduling.set_aside(sequence)
        sequence.move(SequenceState.WAITING_FOR_ADAPTER)
        self._parked.add(sequence, 0)
        entry.waiting[sequence] = None
        if entry.stage is AdapterStage.ABSENT:
            self.places.want(entry)
        return False

    def occupied(self, sequence: Sequence) -> None:
        if sequence.request.adapter is not None:
            entry = self._entry_of(sequence)
            entry.running += 1
            self.places.started(entry)

    def vacated(self, sequence: Sequence) -> None:
        if sequence.request.adapter is not None:
            self._entry_of(sequence).running -= 1

    def unpark(self, sequence: Sequence) -> None:
        """Takes a sequence out of those that wait for their adapters: it may start, or it has
        ended."""
        del self._entry_of(sequence).waiting[sequence]
        self._parked.remove(sequence)

    def advance(self, now: float) -> None:
        """Has workers load what is wanted, as far as there are places; call it at every step."""
        if self._workers.ready is None:
            return
        if not self.places.line:
            for entry in self.places.leaving():
                entry.stage = AdapterStage.READY
                self._let_go(entry)
            return
        while self.places.line:
            entry = next(iter(self.places.line.values()))
            if self._is_suspect(entry) or not self._make_room():
                return
            self.places.take(entry)
            entry.started, entry.deadline = now, math.inf
            self.places.begin_first(now + LOAD_TIMEOUT)
            entry.answered.clear()
            self._workers.send(LoadAdapter(entry.file.digest, entry.file.path))

    def _is_suspect(self, entry: AdapterEntry) -> bool:
        """Whether it has to wait for those that are being loaded: one that workers have died of is
        loaded alone, so that the next death accuses one."""
        loading = self.places.loading()
        return bool(loading) and any(each.deaths for each in (entry, *loading))

    def _make_room(self) -> bool:
        """Whether a place is free, after what can be dropped has been."""
        if self.places.has_room:
            return True
        idle = self.places.idle()
        if idle is None:
            self.places.have_one_leave()
            return False
        self._drop(idle)
        return True

    def forget_unused(self, digest: str) -> None:
        """Frees the place of an adapter that has no name any more, unless sequences use it."""
        entry = self.places.loaded.get(digest)
        idle = entry is not None and not entry.holders and not entry.running
        if entry is not None and idle and entry.stage is AdapterStage.READY:
            self._drop(entry)

    def _drop(self, entry: AdapterEntry) -> None:
        self._workers.send(DropAdapter(entry.file.digest))
        self.places.leave(entry)
        if not entry.holders:
            del self._entries[entry.file.digest]
        elif entry.waiting:
            self.places.want(entry)

    def _let_go(self, entry: AdapterEntry) -> None:
        """Moves the sequences that wait for it back to the queue."""
        for sequence in list(entry.waiting):
            self.unpark(sequence)
            sequence.move(SequenceState.WAITING)
            self._scheduling.queue.push(sequence)

    def ready(self, digest: str, rank: int, now: float) -> None:
        """A rank has loaded it; when all have, the sequences that wait for it may start."""
        entry = self._answered(digest, rank)
        if entry is None or len(entry.answered) < self._workers.ranks.size:
            return
        self._counts.adapter_loaded(now - entry.started)
        FaultAttribution.passed(entry)
        entry.stage, entry.unused = AdapterStage.READY, True
        self.places.begin_first(now + LOAD_TIMEOUT)
        self._let_go(entry)

    def failed(self, digest: str, rank: int, now: float) -> AdapterEntry | None:
        """A rank can't load it. Returns the adapter: the caller ends its requests, and no other
        rank keeps it."""
        entry = self._answered(digest, rank)
        return None if entry is None else self._given_up(entry, now)

    def overdue(self, now: float) -> AdapterEntry | None:
        """Returns an adapter that takes too long to load, which is given up; the caller ends its
        requests."""
        entry = next(iter(self.places.loading()), None)
        return None if entry is None or now < entry.deadline else self._given_up(entry, now)

    @property
    def is_restless(self) -> bool:
        """Whether an adapter waits for a place, or gives up its own."""
        return bool(self.places.line or self.places.leaving())

    def next_deadline(self) -> float:
        """The time at which `overdue` will have something to return; infinity if no adapter is
        being loaded."""
        return min((entry.deadline for entry in self.places.loading()), default=math.inf)

    def worker_lost(self) -> list[AdapterEntry]:
        """Forgets what was loaded; sequences that waited for adapters wait in the queue. The
        scheduler has put what ran back into it. Returns what was being loaded."""
        loading = self.places.loading()
        self._owed.clear()
        for entry in self._entries.values():
            self._let_go(entry)
        # What was loaded is loaded again first: who ran is ahead of others in the queue.
        wanted = list(self.places.line.values())
        self.places.line.clear()
        for entry in list(self.places.loaded.values()):
            self.places.leave(entry)
            if entry.holders:
                self.places.want(entry)
            else:
                del self._entries[entry.file.digest]
        for entry in wanted:
            self.places.want(entry)
        return loading

    def _answered(self, digest: str, rank: int) -> AdapterEntry | None:
        """What a rank answers for; None: it was given up meanwhile."""
        if owed := self._owed.pop((digest, rank), 0):
            if owed > 1:
                self._owed[digest, rank] = owed - 1
            return None
        entry = self.places.loaded.get(digest)
        if entry is None or entry.stage is not AdapterStage.LOADING:
            return None
        entry.answered.add(rank)
        return entry

    def _given_up(self, entry: AdapterEntry, now: float) -> AdapterEntry:
        self._counts.adapters_failed += 1
        for rank in range(self._workers.ranks.size):
            if rank not in entry.answered:
                owed = self._owed.get((entry.file.digest, rank), 0)
                self._owed[entry.file.digest, rank] = owed + 1
        self._drop(entry)
        self.places.begin_first(now + LOAD_TIMEOUT)
        return entry

    def _entry_of(self, sequence: Sequence) -> AdapterEntry:
        adapter = sequence.request.adapter
        if adapter is None:
            raise ValueError(f"request {sequence.request.name} has no adapter")
        return self._entries[adapter.digest]

    def check(self, requests: Iterable[Request]) -> None:
        """Raises BrokenState unless the books agree with each other and with the open requests."""
        used = Counter(r.adapter.digest for r in requests if r.adapter is not None)
        scheduling = self._scheduling
        held = [*scheduling.running.values(), *scheduling.marked.values()]
        running = Counter(s.request.adapter.digest for s in held if s.request.adapter is not None)
        if not {*used, *running, *self.places.loaded, *self.places.line} <= self._entries.keys():
            raise BrokenState(f"adapters are used that aren't known: {used}, {running}")
        for digest, entry in self._entries.items():
            stage, there = entry.stage, digest in self.places.loaded
            what = f"adapter {digest[:8]} ({stage.name})"
            if (len(entry.holders), entry.running) != (used[digest], running[digest]):
                raise BrokenState(f"{what}: {len(entry.holders)} hold it, {entry.running} run")
            if not there and (not entry.holders or entry.running):
                raise BrokenState(f"{what} is not loaded, and is used, or kept for nobody")
            waits = there or digest in self.places.line
            if entry.waiting and (stage is AdapterStage.READY or not waits):
                raise BrokenState(f"{what}: {len(entry.waiting)} wait for it in vain")
        self.places.check()
        self._parked.check()
        waiting = sum(len(entry.waiting) for entry in self._entries.values())
        if waiting != len(self._parked):
            raise BrokenState(f"{waiting} of {len(self._parked)} sequences wait for adapters")
