"""The sessions that are live: whose requests are open, or for which blocks are kept."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable

from penstock.protocol.common import SessionTerms
from penstock_engine.kv.pool import BrokenState
from penstock_engine.kv.retention import KVSession
from penstock_engine.request.request import Request
from penstock_engine.request.timeline import Clock
from penstock_engine.scheduler.state import SchedulerState


class KVSessions:
    """Sessions by tenant and name, and when their time is over.

    The time is what the core is told at each event, so that a replay decides alike.  There are
    never more of them than open requests and kept blocks, but for those that ended in the steps in
    flight: a session that keeps nothing is forgotten.
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
        session.weight = weight
        session.retention = self._seconds(terms)
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
        session.until = self._clock.now + session.retention
        if not session.num_open:
            self._last_number += 1
            heapq.heappush(self._heap, (session.until, self._last_number, session))
            self._ended.append((self._scheduling.last_step, session))
            self._prune()

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
        """All that was kept is gone."""
        self._heap.clear()
        self._ended.clear()
        self._sessions = {name: each for name, each in self._sessions.items() if each.num_open}

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
        if self._sessions.get(name) is session:
            del self._sessions[name]

    @staticmethod
    def _idles(session: KVSession, until: float) -> bool:
        """Whether it has not come back since it was to be over then."""
        return not session.num_open and session.until == until

    def _prune(self) -> None:
        """Keeps the heap as small as what it is for."""
        if len(self._heap) > 2 * len(self._sessions) + 64:
            self._heap = [entry for entry in self._heap if self._idles(entry[2], entry[0])]
            heapq.heapify(self._heap)
