"""The grammars of structured output: which requests hold or wait for them, what the worker has.

The worker compiles; the engine core decides what, in which order, and for how long.  A tenant's
requests that bring the same grammar share it.  When no request holds it any more it is kept for the
next one, until room is needed.  Tenants share nothing: how soon a grammar is there would tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain, islice

from penstock.config.settings import GrammarSettings
from penstock.protocol.common import Grammar
from penstock.protocol.worker_resources import CompileGrammar, DropGrammar
from penstock_engine.kv.pool import BrokenState
from penstock_engine.parts import HasDeadline, HoldsSequences
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.scheduler.state import SchedulerState
from penstock_engine.sessions.fault_attribution import FaultAttribution
from penstock_engine.sessions.workers import Workers
from penstock_engine.waiting.compile_order import CompileOrder
from penstock_engine.waiting.grammar_entry import GrammarEntry, GrammarStage, digest_of
from penstock_engine.waiting.idle_grammars import IdleGrammars
from penstock_engine.waiting.queue import Part
from penstock_engine.waiting.queue_bounds import leaves_room


class GrammarManager(HasDeadline, HoldsSequences):
    """Every operation is constant in the number of grammars, but for a worker's coming and
    going, and for making room, which is linear in the tenants that have unused ones."""

    def __init__(
        self, settings: GrammarSettings, scheduling: SchedulerState, workers: Workers
    ) -> None:
        self._num_waiting = 0  # sequences in WAITING_FOR_GRAMMAR
        self.waiting_tokens = 0  # that these sequences have
        self._settings = settings
        self._scheduling = scheduling
        self._workers = workers
        self._entries: dict[int, GrammarEntry] = {}
        self._by_digest: dict[tuple[str, bytes], GrammarEntry] = {}
        """Grammars by tenant and digest."""
        self._idle = IdleGrammars()
        """Ready and without holders."""
        self._wanted = CompileOrder(apart=scheduling.policy.keeps_tenants_apart)
        self._compiling: dict[int, GrammarEntry] = {}
        """Grammars that are being compiled, in the order of their deadlines."""
        self._last_number = 0
        self._waiting_of: dict[str, tuple[int, int]] = {}
        """Number of sequences that wait for grammars, and of their tokens, by tenant."""
        self._held_by: dict[str, int] = {}
        """Grammars that are there, by the tenant that brought them."""

    def is_full(self, tenant: str, definition: Grammar) -> bool:
        """Whether there is no room for a new request's grammar."""
        if (tenant, digest_of(definition)) in self._by_digest:
            return False
        return len(self._entries) >= self._settings.max_grammars and self._yielded(tenant) is None

    def refusal(self, tenant: str, weight: int, definition: Grammar, room: Part) -> str | None:
        """Why a tenant's new request with a grammar can't be taken, or None. room: what may wait,
        all tenants together."""
        used = (self._num_waiting, self.waiting_tokens)
        if used[0] >= room.requests or used[1] >= room.tokens:
            return f"{used[0]} sequences ({used[1]} tokens) are waiting for their grammars"
        most = self._settings.max_grammars
        if self.is_full(tenant, definition):
            return f"{most} grammars are in use, or kept for others, the maximum"
        if not self._scheduling.policy.keeps_tenants_apart:
            return None
        sequences, tokens = self._waiting_of.get(tenant, (0, 0))
        held = self._held_by.get(tenant, 0)
        known = (tenant, digest_of(definition)) in self._by_digest
        busy = len(self._entries) - len(self._idle)
        if sequences and not (
            leaves_room(sequences + 1, room.requests - used[0] - 1, weight)
            and leaves_room(tokens, room.tokens - used[1], weight)
            and (known or leaves_room(held + 1, most - busy - 1, weight))
        ):
            return (
                f"{sequences} of the {used[0]} sequences that wait for grammars, and"
                f" {held} of {busy} grammars, belong to this API key; the rest is reserved for "
                "others"
            )
        return None

    def hold(self, request: Request, definition: Grammar) -> None:
        """The request follows this grammar until `release`."""
        digest = digest_of(definition)
        entry = self._by_digest.get((request.tenant, digest))
        if entry is None:
            self._make_room(request.tenant)
            self._last_number += 1
            entry = GrammarEntry(self._last_number, digest, definition, request.tenant)
            self._entries[entry.number] = self._by_digest[entry.key] = entry
            self._wanted.add(entry)
            self._held_by[request.tenant] = self._held_by.get(request.tenant, 0) + 1
        self._idle.discard(entry)
        entry.holders[request] = None
        request.grammar = entry.number

    def share(self, request: Request, grammar: int | None) -> None:
        """The request follows a grammar, if it is one, that another holds and that is ready."""
        if grammar is not None:
            self._entries[grammar].holders[request] = None
            request.grammar = grammar

    def release(self, request: Request) -> None:
        """The request's last sequence has ended. Does nothing for one without a grammar."""
        if request.grammar is None:
            return
        entry = self._entries[request.grammar]
        del entry.holders[request]
        if entry.holders:
            return
        if entry.stage is GrammarStage.READY:
            self._idle.add(entry)
            self._make_room(entry.tenant, 0)
        else:
            self._forget(entry)

    def is_ready(self, request: Request) -> bool:
        """Whether the request's sequences may run, as far as its grammar goes."""
        return request.grammar is None or self._entries[request.grammar].stage is GrammarStage.READY

    def park(self, sequence: Sequence) -> None:
        """A sequence that is in no queue waits for its grammar; `ready` lets it go."""
        sequence.move(SequenceState.WAITING_FOR_GRAMMAR)
        self._entry_of(sequence).waiting[sequence] = None
        self._count(sequence, 1)

    def unpark(self, sequence: Sequence) -> None:
        """Takes a sequence out of those that wait for their grammars: it may run, or it has
        ended."""
        del self._entry_of(sequence).waiting[sequence]
        self._count(sequence, -1)

    def _count(self, sequence: Sequence, sign: int) -> None:
        tokens, tenant = sign * sequence.num_tokens, sequence.request.tenant
        self._num_waiting += sign
        self.waiting_tokens += tokens
        sequences_of, tokens_of = self._waiting_of.get(tenant, (0, 0))
        self._waiting_of[tenant] = (sequences_of + sign, tokens_of + tokens)
        if self._waiting_of[tenant] == (0, 0):
            del self._waiting_of[tenant]

    def parked(self) -> list[Sequence]:
        """All that wait for a grammar. Linear in the number of grammars."""
        return [sequence for entry in self._entries.values() for sequence in entry.waiting]

    def first_parked(self, count: int) -> list[Sequence]:
        """The first `count` of `parked()`."""
        waiting = chain.from_iterable(entry.waiting for entry in self._entries.values())
        return list(islice(waiting, count))

    def send_wanted(self, now: float) -> None:
        """Has the worker compile what it may; call it at every step."""
        if self._workers.ready is None:
            return
        while (entry := self._wanted.next(self._compiling.values())) is not None:
            entry.stage = GrammarStage.COMPILING
            entry.started = now
            entry.deadline = now + self._settings.grammar_compile_timeout
            entry.answered.clear()
            self._compiling[entry.number] = entry
            self._workers.send(CompileGrammar(entry.number, entry.definition))

    def worker_lost(self) -> list[GrammarEntry]:
        """Forgets what was compiled; sequences that run next wait for their grammars again.

        The scheduler has put what ran back into its queue.  Returns what was being compiled.
        """
        for sequence in self._scheduling.queue.sequences():
            if sequence.request.grammar is not None:
                self._scheduling.withdraw(sequence)
                self.park(sequence)
        compiling = list(self._compiling.values())
        self._compiling.clear()
        for entry in list(self._idle):
            self._forget(entry)
        for entry in self._entries.values():
            entry.stage = GrammarStage.WANTED
        self._wanted.clear(self._entries.values())
        return compiling

    def ready(self, number: int, rank: int, now: float) -> list[Sequence]:
        """A rank has compiled it. Returns the sequences that may run now, WAITING and in no queue:
        none before all ranks have."""
        entry = self._compiling.get(number)
        if entry is None:
            return []  # Given up meanwhile.
        entry.answered.add(rank)
        if len(entry.answered) < self._workers.ranks.size:
            return []
        self._done(entry, now)
        entry.stage = GrammarStage.READY
        FaultAttribution.passed(entry)
        freed = list(entry.waiting)
        for sequence in freed:
            self.unpark(sequence)
            sequence.move(SequenceState.WAITING)
        return freed

    def failed(self, number: int, now: float) -> GrammarEntry | None:
        """A rank can't compile it. Returns the grammar: the caller ends its requests."""
        entry = self._compiling.get(number)
        if entry is not None:
            self._done(entry, now)
        return entry

    def overdue(self, now: float) -> GrammarEntry | None:
        """Returns a grammar that takes too long to compile, which is given up; the caller ends its
        requests."""
        entry = next(iter(self._compiling.values()), None)
        if entry is None or now < entry.deadline:
            return None
        self._done(entry, now)
        return entry

    def _done(self, entry: GrammarEntry, now: float) -> None:
        """Notes that a grammar is not being compiled any more."""
        del self._compiling[entry.number]
        self._wanted.done(entry, now - entry.started)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a grammar."""
        return self._num_waiting

    def next_deadline(self) -> float:
        """The time at which `overdue` will have something to return; infinity if no grammar is
        being compiled."""
        entry = next(iter(self._compiling.values()), None)
        return float("inf") if entry is None else entry.deadline

    def check(self, holders: Mapping[int, int]) -> None:
        """Proves the books. holders: number of a grammar -> open requests that follow it."""
        waiting = self.parked()
        self._check_tenants(waiting)
        if (len(waiting), sum(s.num_tokens for s in waiting)) != (
            self._num_waiting,
            self.waiting_tokens,
        ):
            raise BrokenState(f"{self._num_waiting} of {len(waiting)} sequences wait for a grammar")
        for number, entry in self._entries.items():
            if len(entry.holders) != holders.get(number, 0):
                raise BrokenState(f"{len(entry.holders)} hold grammar {number}: {holders}")
            ready = entry.stage is GrammarStage.READY
            if (not entry.holders) != (entry in self._idle) or (not entry.holders and not ready):
                raise BrokenState(f"grammar {number} is idle, and held or not ready; or neither")
            if (entry.stage is GrammarStage.COMPILING) != (number in self._compiling):
                raise BrokenState(f"grammar {number} is {entry.stage.name}")
            if entry.waiting and ready:
                raise BrokenState(f"grammar {number} is ready, and waited for")
        if not holders.keys() <= self._entries.keys() or len(self._by_digest) != len(self._entries):
            raise BrokenState(f"{len(self._entries)} grammars are known, not {holders}")

    def _check_tenants(self, waiting: list[Sequence]) -> None:
        counted: dict[str, tuple[int, int]] = {}
        for sequence in waiting:
            sequences, tokens = counted.get(sequence.request.tenant, (0, 0))
            counted[sequence.request.tenant] = (sequences + 1, tokens + sequence.num_tokens)
        if counted != self._waiting_of:
            raise BrokenState(f"of tenants wait for grammars {counted}, not {self._waiting_of}")
        if Counter(entry.tenant for entry in self._entries.values()) != self._held_by:
            raise BrokenState(f"tenants have grammars {self._held_by}")

    def _entry_of(self, sequence: Sequence) -> GrammarEntry:
        number = sequence.request.grammar
        if number is None:
            raise ValueError(f"request {sequence.request.name} has no grammar to wait for")
        return self._entries[number]

    def _make_room(self, tenant: str, wanted: int = 1) -> None:
        """Forgets unused ones until `wanted` more of the tenant's fit, as far as some give way."""
        while len(self._entries) + wanted > self._settings.max_grammars:
            yielded = self._yielded(tenant)
            if yielded is None:
                return
            self._forget(yielded)

    def _yielded(self, tenant: str) -> GrammarEntry | None:
        """The unused grammar that gives way to one more of the tenant's: one of the tenant that has
        most, so that each keeps an equal share. None: none does.

        A tenant that has most, and all in use, takes others' as long as they are more than half of
        all: it can have the other half in use at once, and can't make others compile again.
        """
        if not self._idle:
            return None
        own = self._held_by.get(tenant, 0)
        most = max(self._idle.tenants, key=self._held_by.__getitem__)
        if self._held_by[most] > own:
            return self._idle.first(most)
        if tenant in self._idle.tenants:
            return self._idle.first(tenant)
        return self._idle.first(most) if 2 * len(self._idle) > self._settings.max_grammars else None

    def _forget(self, entry: GrammarEntry) -> None:
        sent = entry.stage in (GrammarStage.COMPILING, GrammarStage.READY)
        entry.stage = GrammarStage.GONE
        del self._entries[entry.number], self._by_digest[entry.key]
        self._held_by[entry.tenant] -= 1
        if not self._held_by[entry.tenant]:
            del self._held_by[entry.tenant]
        self._idle.discard(entry)
        self._compiling.pop(entry.number, None)
        if sent:
            self._workers.send(DropGrammar(entry.number))
