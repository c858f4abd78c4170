"""Whose grammar is compiled next."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from penstock.protocol.worker_resources import MAX_COMPILING
from penstock_engine.waiting.grammar_entry import GrammarEntry, GrammarStage

MOST_OF_A_TENANT = MAX_COMPILING - 1
"""What one tenant may have compiled at once where tenants are kept apart: the others find a
place."""

REMEMBERED = 4096
"""Most tenants whose share of the compiler is remembered; those who are level with the rest are
dropped first."""


class CompileOrder:
    """The grammars that are to be compiled, by tenant where tenants are kept apart.

    Then it is the turn of the tenant with the fewest of the compiler's places; of equals, of the
    one that has taken least of its time so far (start-time fair queueing, as in `accounts`, by
    seconds).  No tenant has all places.  Else it is first come, first served.
    """

    def __init__(self, *, apart: bool) -> None:
        self._apart = apart
        self._lines: dict[str, deque[GrammarEntry]] = {}
        self._taken: dict[str, float] = {}
        """Seconds that each tenant has been given, on a common scale."""
        self._now = 0.0
        """The least that tenants with a line have been given: one that has had less counts as
        having had as much."""

    def add(self, entry: GrammarEntry) -> None:
        """Puts a grammar that is to be compiled (WANTED) in its line."""
        line = self._line_of(entry)
        if line not in self._lines:
            self._forget_settled()
            self._taken[line] = max(self._taken.get(line, 0.0), self._now)
            self._lines[line] = deque()
        self._lines[line].append(entry)

    def next(self, compiling: Collection[GrammarEntry]) -> GrammarEntry | None:
        """Takes out the next grammar to compile; None: none may begin now."""
        if len(compiling) >= MAX_COMPILING:
            return None
        held: dict[str, int] = {}
        for entry in compiling:
            line = self._line_of(entry)
            held[line] = held.get(line, 0) + 1
        most = MOST_OF_A_TENANT if self._apart else MAX_COMPILING
        for line in sorted(self._lines, key=lambda each: (held.get(each, 0), self._taken[each])):
            first = self._first(line) if held.get(line, 0) < most else None
            if first is None:
                continue
            # A grammar that a worker died of is compiled alone, so that a death accuses one.
            if compiling and (first.deaths or any(e.deaths for e in compiling)):
                return None
            self._now = max(self._now, self._taken[line])
            self._lines[line].popleft()
            return first
        return None

    def done(self, entry: GrammarEntry, seconds: float) -> None:
        """The compiler has spent so long on it."""
        line = self._line_of(entry)
        self._taken[line] = max(self._taken.get(line, 0.0), self._now) + seconds

    def clear(self, entries: Collection[GrammarEntry]) -> None:
        """Begins anew: nothing is being compiled, and these grammars are to be, in this order."""
        self._lines.clear()
        for entry in entries:
            self.add(entry)

    def _line_of(self, entry: GrammarEntry) -> str:
        return entry.tenant if self._apart else ""

    def _first(self, line: str) -> GrammarEntry | None:
        """The first grammar in a line that is still wanted; those before it are removed."""
        entries = self._lines[line]
        while entries and entries[0].stage is not GrammarStage.WANTED:
            entries.popleft()
        if not entries:
            del self._lines[line]
            return None
        return entries[0]

    def _forget_settled(self) -> None:
        """Drops tenants that are level with the rest, as nothing of them needs to be remembered."""
        if len(self._taken) > REMEMBERED:
            self._taken = {
                line: seconds
                for line, seconds in self._taken.items()
                if line in self._lines or seconds > self._now
            }
