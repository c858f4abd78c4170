"""What is read from the worker's tier on disk: what is asked for, what pays, and into which blocks.

The worker keeps the tier's files and index, and reads concurrently with steps.  The engine core
asks for the part of a prompt that is in neither pool nor host tier, and gives blocks for what was
found. Those belong to the fetch until it is answered, even if its request is gone; then they can be
found by their keys as all others, and waiting requests go on.  It does so, too, after the time that
computing would take, or where anything is wrong: what has not come is computed.
"""

from __future__ import annotations

import heapq
from collections import abc
from dataclasses import dataclass, field
from itertools import islice

from penstock.protocol.between_workers import MAX_ASKED_KEYS
from penstock.protocol.from_worker import FetchedKV, FoundKV
from penstock.protocol.to_worker import FetchKV, LookUpKV
from penstock_engine.kv.elsewhere import WantedKV
from penstock_engine.kv.keys import stored_name
from penstock_engine.kv.pool import BrokenState
from penstock_engine.kv.retention import KVSession
from penstock_engine.metrics.counts import EngineCounts
from penstock_engine.parts import HasDeadline, HoldsSequences
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.scheduler.state import SchedulerState
from penstock_engine.sessions.workers import Workers
from penstock_engine.waiting.expected_prompts import ExpectedPrompt


class RemoteKV(HasDeadline, HoldsSequences):
    """Sequences whose prefix is on its way, with its KV: from the tier on disk, or from elsewhere.

    They wait for it a bounded time.  Whatever becomes of it, they run: what has not come is
    computed.  limit: sequences that may wait so; one more runs at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Sequence, float] = {}
        self._heap: list[tuple[float, int, int, Sequence]] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def park(self, sequence: Sequence, until: float) -> bool:
        """A new sequence waits until then at the latest. Returns whether there was room for it."""
        if len(self._waiting) >= self._limit:
            return False
        sequence.move(SequenceState.WAITING_FOR_REMOTE_KV)
        self._waiting[sequence] = until
        entry = (until, sequence.request.arrival, sequence.index, sequence)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [entry for entry in self._heap if entry[3] in self._waiting]
            heapq.heapify(self._heap)
        return True

    def unpark(self, sequence: Sequence) -> None:
        """Takes a sequence out of those that wait: it may run, or it has ended."""
        del self._waiting[sequence]

    def arrived(self, request: Request) -> list[Sequence]:
        """Takes out a request's sequences, which are WAITING then."""
        return [self._let_go(sequence) for sequence in self.waiting(request)]

    def waiting(self, request: Request) -> list[Sequence]:
        """A request's sequences that wait so."""
        return [each for each in request.sequences.values() if each in self._waiting]

    def awaits(self, request: Request) -> bool:
        """Whether one of its sequences waits so."""
        return any(sequence in self._waiting for sequence in request.sequences.values())

    def over(self, now: float) -> list[Sequence]:
        """Takes out those whose time is over, earliest first; they are WAITING then."""
        free = []
        while self._heap and self._heap[0][0] <= now:
            sequence = heapq.heappop(self._heap)[3]
            if sequence in self._waiting:
                free.append(self._let_go(sequence))
        return free

    def next_deadline(self) -> float:
        """The time at which the next sequence stops waiting; infinity if none waits."""
        while self._heap and self._heap[0][3] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def parked(self) -> list[Sequence]:
        return list(self._waiting)

    def first_parked(self, count: int) -> list[Sequence]:
        """The first `count` of them."""
        return list(islice(self._waiting, count))

    def _let_go(self, sequence: Sequence) -> Sequence:
        self.unpark(sequence)
        sequence.move(SequenceState.WAITING)
        return sequence


MAX_FETCHES = 16
"""Most fetches at a time; requests that come then compute."""

MAX_FETCHED_BLOCKS = 8192
"""Most blocks of one fetch."""

MAX_PULLED_BLOCKS = 64
"""Most blocks of tokens in one fetch for a prompt that is expected: requests' fetches come in
between."""

LEAST_FETCHED_BLOCKS = 4
"""Least blocks of a fetch: fewer aren't worth a question."""

UNKNOWN_WAIT = 5.0
"""Seconds that a sequence waits at most while it isn't known what computing would take."""

LEAST_WAIT = 0.25

FETCH_PATIENCE = 4.0
"""Seconds that a fetch without a waiting request may take: others may still need it, but a store as
slow as that holds blocks, and holds up later fetches."""

LEAST_FETCH = 5.0
"""Seconds that it may take in any case."""


class UnfitAnswer(Exception):
    """The worker answers what it was not asked."""


@dataclass(slots=True, eq=False)
class DiskFetch:
    """wanted: what is asked for.  names: of the blocks that belong to it.  until: when the waiting
    requests go on without them.  requests: those that wait.  session: for whom it is read before
    there is a request.  prompt: likewise, for which some of what is wanted is read.  reading:
    whether blocks belong to it.  gained: blocks of tokens that could be gone on after when it was
    answered, and not before.  said: how many blocks each rank has found, or read.  block_seconds:
    of the slowest rank."""

    number: int
    wanted: WantedKV
    until: float
    requests: list[Request]
    names: list[bytes] = field(default_factory=list)
    session: KVSession | None = None
    prompt: ExpectedPrompt | None = None
    reading: bool = False
    gained: int = 0
    said: dict[int, int] = field(default_factory=dict)
    block_seconds: float = 0.0

    @property
    def early(self) -> bool:
        """Whether it began before there was a request."""
        return self.session is not None or self.prompt is not None

    def heard(self, rank: int, count: int, ranks: int) -> int | None:
        """How many blocks all ranks have, each its own part of them; None: not all have said so
        much. Raises UnfitAnswer."""
        if rank in self.said:
            raise UnfitAnswer(f"rank {rank} reported twice for fetch {self.number}")
        self.said[rank] = count
        if len(self.said) < ranks:
            return None
        least = min(self.said.values())
        self.said.clear()
        return least


class DiskKV:
    """The fetches that are not answered yet."""

    def __init__(
        self,
        scheduling: SchedulerState,
        workers: Workers,
        remote_kv: RemoteKV,
        counts: EngineCounts,
    ) -> None:
        self._scheduling = scheduling
        self._workers = workers
        self._remote_kv = remote_kv
        self._counts = counts
        self._enabled = False
        self._off = False
        self._last_number = 0
        self._fetches: dict[int, DiskFetch] = {}
        self._of_request: dict[Request, DiskFetch] = {}
        self._of_session: dict[KVSession, DiskFetch] = {}
        self._of_prompt: dict[ExpectedPrompt, DiskFetch] = {}

    @property
    def num_fetches(self) -> int:
        """Fetches that are not answered yet."""
        return len(self._fetches)

    def attach(self, *, has_disk: bool) -> None:
        """A worker is ready."""
        self._enabled = has_disk and not self._off
        if self._scheduling.cache is not None:
            self._scheduling.cache.saves_to_disk = self._enabled

    def switch_off(self) -> None:
        """Keeps nothing elsewhere from now on, and uses nothing that comes from there."""
        self._off = True
        self.attach(has_disk=False)

    def worker_lost(self) -> list[Request]:
        """Requests whose fetches are over; the blocks went with the worker."""
        requests = [request for fetch in self._fetches.values() for request in fetch.requests]
        self._fetches.clear()
        self._of_request.clear()
        self._of_session.clear()
        self._of_prompt.clear()
        self._enabled = False
        return requests

    def ask(self, sequence: Sequence, now: float) -> float | None:
        """Asks the worker for the part of the sequence that isn't in memory. Returns until when it
        should wait for that; None: not at all."""
        request, size = sequence.request, self._scheduling.block_size
        known = self._of_request.get(request)
        if known is not None:
            return known.until
        prefix = sequence.block_keys(0, sequence.first_wanted // size, size)
        fetch = self._early_fetch(request, prefix) or self._begin(prefix, MAX_FETCHES)
        if fetch is None:
            return None
        self._of_request[request] = fetch
        fetch.requests.append(request)
        # Of an expected prompt, the rest comes after this.
        rest = fetch.wanted.num_blocks if fetch.prompt is None else len(prefix)
        fetch.until = now + self._patience(rest)
        return fetch.until

    def _early_fetch(self, request: Request, prefix: list[bytes]) -> DiskFetch | None:
        """The fetch that reads for the request already; None if there is none."""
        mine = self._of_session.get(request.kv_session) if request.kv_session else None
        early = [*([mine] if mine is not None else []), *self._of_prompt.values()]
        return next((f for f in early if _common(f.wanted.prefix, prefix, f.wanted.present)), None)

    def prefetch(self, session: KVSession, prefix: list[bytes]) -> None:
        """Has read what of these blocks isn't in memory, for a session that is expected back. Half
        of the fetches are requests' alone."""
        if session in self._of_session:
            return
        fetch = self._begin(prefix, MAX_FETCHES // 2)
        if fetch is not None:
            fetch.session = session
            self._of_session[session] = fetch

    def pull(self, prompt: ExpectedPrompt) -> None:
        """Reads the next of these blocks that are stored now, where there is room for twice the
        whole prompt. Half of the fetches are reserved for requests."""
        cache, groups = self._scheduling.cache, self._scheduling.kv_groups
        if cache is None or prompt in self._of_prompt or not prompt.left:
            return
        if len(prompt.keys) * len(groups) > cache.pool.num_free // 2:
            return
        asked = (fetch.wanted.prefix for fetch in self._fetches.values() if fetch.requests)
        if any(_common(prefix, prompt.keys, len(prompt.keys) - 1) for prefix in asked):
            return  # Its request has come.
        every = 0 if groups.states is None else groups.states.every
        blocks = max(MAX_PULLED_BLOCKS, every)  # At least up to the next checkpoint.
        fetch = self._begin(prompt.keys, MAX_FETCHES // 2, blocks, waits=False)
        if fetch is not None:
            fetch.prompt = prompt
            self._of_prompt[prompt] = fetch

    def _begin(
        self,
        prefix: list[bytes],
        most: int,
        blocks: int = MAX_FETCHED_BLOCKS,
        *,
        waits: bool = True,
    ) -> DiskFetch | None:
        """A fetch of what isn't in memory, of so many blocks of tokens, as one of `most`; None:
        there is none, or it isn't worth it. waits: see LookUpKV."""
        cache, groups = self._scheduling.cache, self._scheduling.kv_groups
        if not self._enabled or cache is None or len(self._fetches) >= most:
            return None
        names = min(blocks * len(groups), MAX_ASKED_KEYS)
        wanted = WantedKV(groups, cache, prefix, names)
        if wanted.num_blocks < LEAST_FETCHED_BLOCKS or not wanted.names:
            return None
        self._last_number += 1
        fetch = DiskFetch(self._last_number, wanted, 0.0, [])
        self._fetches[fetch.number] = fetch
        names_there = list(map(stored_name, wanted.names))
        self._workers.send(LookUpKV(fetch.number, names_there, waits))
        return fetch

    def found(self, message: FoundKV, rank: int) -> DiskFetch | None:
        """Has what all ranks found read, if that pays. Otherwise returns the fetch, which is over.
        Raises UnfitAnswer."""
        fetch, cache = self._fetches.get(message.fetch), self._scheduling.cache
        if fetch is None or fetch.reading or cache is None:
            raise UnfitAnswer(
                f"KV was found for fetch {message.fetch}, which isn't looking for any"
            )
        fetch.block_seconds = max(fetch.block_seconds, message.block_seconds)
        everywhere = fetch.heard(rank, message.count, self._workers.ranks.size)
        if everywhere is None:
            return None
        wanted, count = fetch.wanted, min(everywhere, len(fetch.wanted.names))
        room = min(cache.pool.num_free // 2, MAX_FETCHED_BLOCKS)
        if fetch.prompt is not None:
            room = min(room, fetch.prompt.left)
        reached = wanted.reached(count, room)
        names, more = wanted.needed(reached, count)[:room], reached - wanted.present
        computing = self._computing(more)
        # No request waits for what is read in advance.
        pays = fetch.early or not 0.0 < computing <= len(names) * fetch.block_seconds
        waited_for = fetch.early or any(map(self._remote_kv.awaits, fetch.requests))
        if more < LEAST_FETCHED_BLOCKS or not names or not pays or not waited_for:
            self._forget(fetch)
            return fetch
        if fetch.prompt is not None:
            fetch.prompt.left -= len(names)
        fetch.reading, fetch.names = True, names
        blocks = cache.begin_fetch(fetch.number, len(names))
        seconds = max(FETCH_PATIENCE * self._patience(more), LEAST_FETCH)
        saves, copies = cache.take_saves(), cache.take_copies()
        keys = list(map(stored_name, names))
        self._workers.send(FetchKV(fetch.number, keys, blocks, saves, copies, seconds))
        return None

    def fetched(self, message: FetchedKV, rank: int) -> DiskFetch | None:
        """The blocks can be found, as many as all ranks have read: the fetch's names are theirs.
        Returns the fetch, whose requests are to be let go; None: not all ranks have answered.
        Raises UnfitAnswer."""
        fetch, cache = self._fetches.get(message.fetch), self._scheduling.cache
        fits = fetch is not None and 0 <= message.count <= len(fetch.names)
        if fetch is None or cache is None or not fetch.reading or not fits:
            raise UnfitAnswer(f"{message.count} blocks came for fetch {message.fetch}")
        count = fetch.heard(rank, message.count, self._workers.ranks.size)
        if count is None:
            return None
        count = 0 if self._off else count
        self._counts.disk_blocks_read += count
        self._counts.disk_blocks_missed += len(fetch.names) - count
        if fetch.prompt is not None and count == len(fetch.names):
            fetch.prompt.came()
        del fetch.names[count:]
        cache.end_fetch(fetch.number, fetch.names)
        reached = self._scheduling.kv_groups.match(cache, fetch.wanted.prefix).blocks
        fetch.gained = min(max(0, reached - fetch.wanted.present), count)
        self._forget(fetch)
        return fetch

    def check(self) -> None:
        """Raises BrokenState where a fetch that reads has no blocks, or blocks have no fetch."""
        cache = self._scheduling.cache
        held = {} if cache is None else cache.fetching()
        reads = {f.number: len(f.names) for f in self._fetches.values() if f.reading}
        if held != reads:
            raise BrokenState(f"fetches from disk are {reads}; blocks are held for {held}")
        if any(self._fetches.get(f.number) is not f for f in self._of_prompt.values()):
            raise BrokenState("an expected prompt has a fetch that is over")

    def _forget(self, fetch: DiskFetch) -> None:
        del self._fetches[fetch.number]
        for request in fetch.requests:
            del self._of_request[request]
        if fetch.session is not None:
            del self._of_session[fetch.session]
        if fetch.prompt is not None:
            del self._of_prompt[fetch.prompt]

    def _computing(self, blocks: int) -> float:
        """Seconds that computing so many blocks takes; 0: unknown."""
        tokens = blocks * self._scheduling.block_size
        return self._scheduling.step_cost.of_prompt(tokens, self._scheduling.budget)

    def _patience(self, blocks: int) -> float:
        return max(self._computing(blocks) or UNKNOWN_WAIT, LEAST_WAIT)


def _common(one: abc.Sequence[bytes], other: abc.Sequence[bytes], at: int) -> bool:
    """Whether two prefixes are the same up to that block: a key stands for all before it, too."""
    return at < min(len(one), len(other)) and one[at] == other[at]
