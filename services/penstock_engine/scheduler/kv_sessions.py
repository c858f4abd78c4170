"""The sessions that are live, as their requests are open or blocks are kept for them, and when they
are expected back."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.protocol.common import SessionTerms
from penstock_engine.kv.pool import BrokenState
from penstock_engine.kv.retention import KVSession
from penstock_engine.parts import HasDeadline, Restless
from penstock_engine.request.request import Request
from penstock_engine.request.timeline import Clock
from penstock_engine.scheduler.state import SchedulerState

MAX_EXPECTED_KEYS = 262_144
"""Keys of blocks that are remembered for all of them: some 20 MB."""


class Expected(NamedTuple):
    """at: when its blocks are to be brought back.  back: when it is expected itself; seconds of the
    engine's clock.  keys: of its latest request's full blocks, in token order."""

    at: float
    back: float
    keys: list[bytes]


class ExpectedSessions:
    """The book. Where it is full, the tenant that has most in it loses its earliest entry."""

    __slots__ = ("_counts", "_heap", "_last_number", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[KVSession, Expected] = {}
        self._counts: dict[str, int] = {}
        """Keys by tenant."""
        self._heap: list[tuple[float, int, KVSession]] = []
        self._last_number = 0

    def __contains__(self, session: KVSession) -> bool:
        return session in self._sessions

    @property
    def num_keys(self) -> int:
        return sum(self._counts.values())

    def add(self, session: KVSession, expected: Expected) -> list[KVSession]:
        """Takes the place of what was expected of the session before. Returns those that gave
        way."""
        self.drop(session)
        count, displaced = len(expected.keys), list[KVSession]()
        if not 0 < count <= MAX_EXPECTED_KEYS:
            return displaced
        while self.num_keys + count > MAX_EXPECTED_KEYS:
            most = max(self._counts, key=self._counts.__getitem__)
            displaced.append(next(each for each in self._sessions if each.tenant == most))
            self.drop(displaced[-1])
        self._sessions[session] = expected
        self._counts[session.tenant] = self._counts.get(session.tenant, 0) + count
        self._last_number += 1
        heapq.heappush(self._heap, (expected.at, self._last_number, session))
        if len(self._heap) > 2 * len(self._sessions) + 64:
            self._heap = [entry for entry in self._heap if self._counts_still(entry)]
            heapq.heapify(self._heap)
        return displaced

    def drop(self, session: KVSession) -> None:
        """Forgets a session that has come back, or for which nothing is to be done."""
        expected = self._sessions.pop(session, None)
        if expected is None:
            return
        self._counts[session.tenant] -= len(expected.keys)
        if not self._counts[session.tenant]:
            del self._counts[session.tenant]

    def due(self, now: float) -> list[tuple[KVSession, Expected]]:
        """Takes out those whose blocks are to be brought back by now."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if self._counts_still(entry):
                session = entry[2]
                found.append((session, self._sessions[session]))
                self.drop(session)
        return found

    def next_deadline(self) -> float:
        """The time at which `due` has something to return next; infinity for never."""
        while self._heap and not self._counts_still(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def check(self, live: Sequence[KVSession]) -> None:
        """Proves the books. Raises BrokenState. live: all sessions that are known."""
        counts: dict[str, int] = {}
        for session, expected in self._sessions.items():
            counts[session.tenant] = counts.get(session.tenant, 0) + len(expected.keys)
        if counts != self._counts or self.num_keys > MAX_EXPECTED_KEYS:
            raise BrokenState(f"keys of expected sessions are {counts}, not {self._counts}")
        if not self._sessions.keys() <= set(live):
            raise BrokenState("a session is expected that nobody knows")

    def _counts_still(self, entry: tuple[float, int, KVSession]) -> bool:
        expected = self._sessions.get(entry[2])
        return expected is not None and expected.at == entry[0]


LEAD_SECONDS = 2.0
"""Seconds before a session's expected return at which its blocks are brought back; half of its
absence, if that is less."""


class KVSessions(HasDeadline, Restless):
    """Sessions by tenant and name, and when their time is over.

    One that says when it will be back is kept for twice as long as that, within its retention.  If
    it will be away for longer than its retention, and there is a tier below the pool, it is not
    kept: its blocks go down when room is needed, and are brought back in time.

    The time comes with each event, so that a replay decides alike.  There are never more of them
    than open requests and kept blocks, but for those that ended in the steps in flight: a session
    that keeps nothing, and isn't expected, is removed.
    """

    def __init__(
        self, scheduling: SchedulerState, clock: Clock, retention: float, longest: float
    ) -> None:
        """retention: seconds, of sessions that name none.  longest: that one may name."""
        self._scheduling = scheduling
        self._clock = clock
        self._retention = retention
        self._longest = longest
        self._sessions: dict[tuple[str, str], KVSession] = {}
        self._heap: list[tuple[float, int, KVSession]] = []
        """(until, number, session) of sessions without open requests; outdated ones among them."""
        self._ended: deque[tuple[int, KVSession]] = deque()
        """(the latest step then, session) of those whose last request has ended."""
        self._last_number = 0
        self._expected = ExpectedSessions()
        self.has_disk = False
        """Whether the worker keeps blocks on disk, too."""

    @property
    def num_live(self) -> int:
        return len(self._sessions)

    def opened(self, request: Request, terms: SessionTerms, weight: int) -> None:
        """A request of the session has been accepted."""
        name = (request.tenant, terms.id)
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = KVSession(*name, weight)
        session.num_open += 1
        session.keeps = True
        session.weight = weight
        session.retention = self._seconds(terms)
        session.resume_within = terms.resume_within_s
        self._expected.drop(session)
        session.until = self._clock.now + session.retention
        request.kv_session = session
        cache = self._scheduling.cache
        if cache is not None:
            cache.retention.touch(session)

    def ended(self, request: Request) -> None:
        """A request is over; steps in flight may still refer to its blocks."""
        session = request.kv_session
        if session is None:
            return
        session.num_open -= 1
        session.until = self._clock.now + self._kept_for(session)
        if not session.num_open:
            session.keeps = session.until > self._clock.now
            self._expect(session, request)
            self._idle(session)
            self._ended.append((self._scheduling.last_step, session))
            self._prune()

    def due(self, now: float) -> list[tuple[KVSession, list[bytes]]]:
        """Sessions whose blocks are to be brought back by now, and the keys of these. Their blocks
        are kept from now on, until they should have been back for as long as they were away, within
        their retention."""
        found = []
        for session, expected in self._expected.due(now):
            away = session.resume_within or 0.0
            session.until = expected.back + min(session.retention, max(away, LEAD_SECONDS))
            if session.until > now:
                session.keeps = True
                self._idle(session)
                found.append((session, expected.keys))
            else:
                self._forget(session)
        return found

    @property
    def is_restless(self) -> bool:
        """Whether the last steps of sessions that have ended are still in flight."""
        return bool(self._ended)

    def next_deadline(self) -> float:
        """The time at which the blocks of the next session are to be brought back, or are not kept
        any more; infinity for never."""
        over = self._heap[0][0] if self._heap else float("inf")
        return min(over, self._expected.next_deadline())

    def expire(self, now: float) -> None:
        """Sessions whose time is over keep nothing any more."""
        while self._heap and self._heap[0][0] <= now:
            until, _, session = heapq.heappop(self._heap)
            if self._idles(session, until):
                self._forget(session)
        settled = self._scheduling.last_settled
        while self._ended and self._ended[0][0] <= settled:
            session = self._ended.popleft()[1]
            if not session.num_open and not session.blocks:
                self._forget(session)

    def worker_lost(self) -> None:
        """Forgets all kept blocks: the worker is lost, and their contents with it."""
        self.has_disk = False
        self._heap.clear()
        self._ended.clear()
        for session in list(self._sessions.values()):
            if not session.num_open:
                self._forget(session)

    def check(self, requests: Iterable[Request]) -> None:
        """Proves the books. Raises BrokenState."""
        opened: Counter[KVSession] = Counter()
        for request in requests:
            if request.kv_session is not None:
                opened[request.kv_session] += 1
        for name, session in self._sessions.items():
            if session.num_open != opened.pop(session, 0):
                raise BrokenState(f"session {name} has {session.num_open} open requests")
        if opened:
            raise BrokenState(f"{len(opened)} sessions with open requests are forgotten")
        over = {each for until, _, each in self._heap if self._idles(each, until)}
        over.update(each for _, each in self._ended)
        for name, session in self._sessions.items():
            if not session.num_open and session not in self._expected and session not in over:
                raise BrokenState(f"session {name} is live, and nothing ends it")
        self._expected.check(list(self._sessions.values()))
        cache = self._scheduling.cache
        for session in () if cache is None else cache.retention.sessions():
            if self._sessions.get((session.tenant, session.name)) is not session:
                raise BrokenState(f"blocks are kept for session {session.name}, which is forgotten")

    def _seconds(self, terms: SessionTerms) -> float:
        asked = self._retention if terms.retention_s is None else terms.retention_s
        return min(asked, self._longest)

    def _forget(self, session: KVSession) -> None:
        cache, name = self._scheduling.cache, (session.tenant, session.name)
        if cache is not None:
            cache.retention.let_go(session)
        session.keeps = False
        if self._sessions.get(name) is session and session not in self._expected:
            del self._sessions[name]

    def _kept_for(self, session: KVSession) -> float:
        """Seconds for which its blocks are kept once its latest request has ended."""
        away = session.resume_within
        if away is None:
            return session.retention
        if away > session.retention:
            return 0.0 if self._has_tier_below else session.retention
        return min(session.retention, 2 * away + LEAD_SECONDS)

    @property
    def _has_tier_below(self) -> bool:
        cache = self._scheduling.cache
        return cache is not None and (cache.host is not None or self.has_disk)

    def _expect(self, session: KVSession, request: Request) -> None:
        """Remembers what a session wants that says when it will be back, if that can be below."""
        away, now = session.resume_within, self._clock.now
        if away is None or not self._has_tier_below or not request.sequences:
            return
        longest = max(request.sequences.values(), key=lambda each: each.num_published)
        keys = longest.block_keys(0, longest.num_published, self._scheduling.block_size)
        back = now + away
        expected = Expected(back - min(LEAD_SECONDS, away / 2), back, keys)
        for other in self._expected.add(session, expected):
            if not other.num_open and not other.blocks:
                self._forget(other)

    def _idle(self, session: KVSession) -> None:
        self._last_number += 1
        heapq.heappush(self._heap, (session.until, self._last_number, session))

    @staticmethod
    def _idles(session: KVSession, until: float) -> bool:
        """Whether it has not come back since it was to be over then."""
        return not session.num_open and session.until == until

    def _prune(self) -> None:
        """Keeps the heap as small as what it is for."""
        if len(self._heap) > 2 * len(self._sessions) + 64:
            self._heap = [entry for entry in self._heap if self._idles(entry[2], entry[0])]
            heapq.heapify(self._heap)
