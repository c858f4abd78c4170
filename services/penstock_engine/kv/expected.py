"""Sessions of which it is known when they will be back, and what they will want then."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from penstock_engine.kv.pool import BrokenState
from penstock_engine.kv.retention import KVSession

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
