"""The grammars of structured output: who holds them, who waits for them, what the worker has.

The worker compiles; here is decided what, in which order, and for how long.  A grammar is shared by
every request that brings the same one.  When no request holds it any more it is kept for the next,
until room is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import chain, islice

from penstock.config import GrammarSettings
from penstock.protocol.common import Grammar
from penstock.protocol.to_worker import CompileGrammar, DropGrammar
from penstock_engine.grammar_entry import Entry, Stage, digest_of
from penstock_engine.kv.pool import BrokenBooks
from penstock_engine.request import Request, Sequence, State
from penstock_engine.scheduler import Scheduler
from penstock_engine.workers import Workers

MAX_COMPILING = 4
"""Grammars that the worker compiles at once; the time bound of the others has not begun."""

MAX_DEATHS = 2
"""Workers that may die while they compile a grammar; after that it isn't compiled again."""


class Grammars:
    """Every operation is constant in the number of grammars, but for a worker's coming and going.

    num_waiting, waiting_tokens: sequences in WAITING_FOR_GRAMMAR, and the tokens that they have.
    """

    def __init__(self, settings: GrammarSettings, scheduler: Scheduler, workers: Workers) -> None:
        self.num_waiting = 0
        self.waiting_tokens = 0
        self._settings = settings
        self._scheduler = scheduler
        self._workers = workers
        self._entries: dict[int, Entry] = {}
        self._by_digest: dict[bytes, Entry] = {}
        self._idle: dict[int, Entry] = {}
        """Ready and held by nobody, the longest unused first."""
        self._wanted: deque[Entry] = deque()
        """To be compiled; entries that are not WANTED any more are skipped."""
        self._compiling: dict[int, Entry] = {}
        """In the order of their deadlines."""
        self._last_number = 0

    # ---- requests and sequences

    def is_full(self, definition: Grammar) -> bool:
        """Whether there is no room for a new request's grammar."""
        known = digest_of(definition) in self._by_digest
        return not known and not self._idle and len(self._entries) >= self._settings.max_grammars

    def hold(self, request: Request, definition: Grammar) -> None:
        """The request follows this grammar until `release`."""
        digest = digest_of(definition)
        entry = self._by_digest.get(digest)
        if entry is None:
            self._make_room()
            self._last_number += 1
            entry = Entry(self._last_number, digest, definition)
            self._entries[entry.number] = self._by_digest[digest] = entry
            self._wanted.append(entry)
        self._idle.pop(entry.number, None)
        entry.holders += 1
        request.grammar = entry.number

    def release(self, request: Request) -> None:
        """The request's last sequence has ended. Does nothing for one without a grammar."""
        if request.grammar is None:
            return
        entry = self._entries[request.grammar]
        entry.holders -= 1
        if entry.holders:
            return
        if entry.stage is Stage.READY:
            self._idle[entry.number] = entry
            self._make_room(0)
        else:
            self._forget(entry)

    def is_ready(self, request: Request) -> bool:
        """Whether the request's sequences may run, as far as its grammar goes."""
        return request.grammar is None or self._entries[request.grammar].stage is Stage.READY

    def park(self, sequence: Sequence) -> None:
        """A sequence that is in no queue waits for its grammar; `ready` lets it go."""
        sequence.move(State.WAITING_FOR_GRAMMAR)
        self._entry_of(sequence).waiting[sequence] = None
        self.num_waiting += 1
        self.waiting_tokens += sequence.num_tokens

    def unpark(self, sequence: Sequence) -> None:
        """It waits no longer: it may run, or it has ended."""
        del self._entry_of(sequence).waiting[sequence]
        self.num_waiting -= 1
        self.waiting_tokens -= sequence.num_tokens

    def parked(self) -> list[Sequence]:
        """All that wait for a grammar. Linear in the number of grammars."""
        return [sequence for entry in self._entries.values() for sequence in entry.waiting]

    def first_parked(self, count: int) -> list[Sequence]:
        """The first `count` of `parked()`."""
        waiting = chain.from_iterable(entry.waiting for entry in self._entries.values())
        return list(islice(waiting, count))

    # ---- the worker

    def send_wanted(self, now: float) -> None:
        """Has the worker compile what it may; call it at every step.

        A grammar that a worker died of is compiled alone, so that a death accuses one.
        """
        if self._workers.ready is None:
            return
        while self._wanted and len(self._compiling) < MAX_COMPILING:
            entry = self._wanted[0]
            if entry.stage is Stage.WANTED:
                suspects = entry.deaths or any(e.deaths for e in self._compiling.values())
                if suspects and self._compiling:
                    return
                entry.stage = Stage.COMPILING
                entry.deadline = now + self._settings.grammar_compile_timeout
                entry.answered.clear()
                self._compiling[entry.number] = entry
                self._workers.send(CompileGrammar(entry.number, entry.definition))
            self._wanted.popleft()

    def worker_lost(self, *, accuse: bool = True) -> list[Entry]:
        """Nothing is compiled any more; what runs next waits for its grammar again. accuse: what
        was being compiled may have been the reason.

        The scheduler has put what ran back into its queue.  Returns the grammars that are not to be
        compiled again: the caller ends whoever waits for them.
        """
        for sequence in self._scheduler.queue.sequences():
            if sequence.request.grammar is not None:
                self._scheduler.withdraw(sequence)
                self.park(sequence)
        for entry in self._compiling.values():
            entry.deaths += accuse
        self._compiling.clear()
        for entry in list(self._idle.values()):
            self._forget(entry)
        for entry in self._entries.values():
            entry.stage = Stage.WANTED
        self._wanted = deque(self._entries.values())
        return [entry for entry in self._entries.values() if entry.deaths >= MAX_DEATHS]

    def ready(self, number: int, rank: int) -> list[Sequence]:
        """A rank has compiled it. Returns who may run now, WAITING and in no queue: nobody before
        all ranks have."""
        entry = self._compiling.get(number)
        if entry is None:
            return []  # Given up meanwhile.
        entry.answered.add(rank)
        if len(entry.answered) < self._workers.ranks.size:
            return []
        del self._compiling[number]
        entry.stage, entry.deaths = Stage.READY, 0
        freed = list(entry.waiting)
        for sequence in freed:
            self.unpark(sequence)
            sequence.move(State.WAITING)
        return freed

    def failed(self, number: int) -> list[Sequence]:
        """A rank can't compile it. Returns who waits for it: they are to be ended."""
        entry = self._compiling.get(number)
        return [] if entry is None else list(entry.waiting)

    def overdue(self, now: float) -> Entry | None:
        """Gives up one that takes too long to compile; the caller ends whoever waits for it."""
        entry = next(iter(self._compiling.values()), None)
        if entry is None or now < entry.deadline:
            return None
        return self._compiling.pop(entry.number)

    def next_deadline(self) -> float:
        """When `overdue` will have something to say; infinite where nothing is compiling."""
        entry = next(iter(self._compiling.values()), None)
        return float("inf") if entry is None else entry.deadline

    def check(self, holders: Mapping[int, int]) -> None:
        """Proves the books. holders: number of a grammar -> open requests that follow it."""
        waiting = self.parked()
        if (len(waiting), sum(s.num_tokens for s in waiting)) != (
            self.num_waiting,
            self.waiting_tokens,
        ):
            raise BrokenBooks(f"{self.num_waiting} of {len(waiting)} sequences wait for a grammar")
        for number, entry in self._entries.items():
            if entry.holders != holders.get(number, 0):
                raise BrokenBooks(f"grammar {number} counts {entry.holders} holders: {holders}")
            ready = entry.stage is Stage.READY
            if (not entry.holders) != (number in self._idle) or (not entry.holders and not ready):
                raise BrokenBooks(f"grammar {number} is idle, and held or not ready; or neither")
            if (entry.stage is Stage.COMPILING) != (number in self._compiling):
                raise BrokenBooks(f"grammar {number} is {entry.stage.name}")
            if entry.waiting and ready:
                raise BrokenBooks(f"grammar {number} is ready, and waited for")
        if not holders.keys() <= self._entries.keys() or len(self._by_digest) != len(self._entries):
            raise BrokenBooks(f"{len(self._entries)} grammars are known, not {holders}")

    # ---- inside

    def _entry_of(self, sequence: Sequence) -> Entry:
        number = sequence.request.grammar
        if number is None:
            raise ValueError(f"request {sequence.request.name} has no grammar to wait for")
        return self._entries[number]

    def _make_room(self, wanted: int = 1) -> None:
        """Forgets the longest unused until `wanted` more fit, as far as some are unused."""
        while self._idle and len(self._entries) + wanted > self._settings.max_grammars:
            self._forget(next(iter(self._idle.values())))

    def _forget(self, entry: Entry) -> None:
        told = entry.stage in (Stage.COMPILING, Stage.READY)
        entry.stage = Stage.GONE
        del self._entries[entry.number], self._by_digest[entry.digest]
        self._idle.pop(entry.number, None)
        self._compiling.pop(entry.number, None)
        if told:
            self._workers.send(DropGrammar(entry.number))
