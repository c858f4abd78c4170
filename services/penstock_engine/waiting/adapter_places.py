"""Which adapters workers have loaded, and which of those that are wanted is next."""

from __future__ import annotations

import math

from penstock_engine.kv.pool import BrokenState
from penstock_engine.waiting.adapter_entry import AdapterEntry, AdapterStage

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
        """Adapters that workers were told to load, and have not yet, in order."""
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
