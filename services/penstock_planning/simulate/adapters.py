"""Adapters of a simulated worker: which slots have which, and how long one takes to load."""

from __future__ import annotations

import hashlib
import math

from penstock.errors import InvalidRequest
from penstock.protocol.common import AdapterFile
from penstock.protocol.to_worker import NewSequence, Plan
from penstock_planning.simulate.one_by_one import OneByOne

MAX_LOAD_SECONDS = 100.0
"""Longer than this, an engine core may give an adapter up."""


def adapter_of(name: str) -> AdapterFile:
    """What stands for an adapter that a trace calls by this name."""
    return AdapterFile(hashlib.sha256(name.encode()).hexdigest(), "/simulated")


def check_load(seconds: float) -> None:
    """Raises InvalidRequest for no time that loading may take."""
    if not (math.isfinite(seconds) and 0.0 <= seconds <= MAX_LOAD_SECONDS):
        raise InvalidRequest(
            f"loading an adapter must take 0 to {MAX_LOAD_SECONDS:g} seconds, not {seconds:g}"
        )


class AdapterLoads(OneByOne[str]):
    """Adapters that one worker loads concurrently with its steps, by their digests."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        """seconds: that each takes."""
        super().__init__()
        self._seconds = seconds

    def add(self, digest: str, now: float) -> None:
        """The engine core asks for it."""
        self._begin(digest, self._seconds, now)


class SlotsWithAdapters:
    """The adapters of a worker's slots, by their digests."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, str] = {}

    def take(self, plan: Plan) -> None:
        """Follows releases and admissions."""
        if self._of:
            for slot in plan.released:
                self._of.pop(slot, None)
        for new in plan.admitted:
            self._admit(new)

    def _admit(self, new: NewSequence) -> None:
        digest = new.adapter if new.like is None else self._of.get(new.like, "")
        if digest:
            self._of[new.slot] = digest

    def extent(self, plan: Plan) -> tuple[int, int]:
        """(different adapters, tokens that have one) of a plan's work."""
        if not self._of:
            return 0, 0
        counts = [(self._of[w.slot], w.count + w.draft) for w in plan.work if w.slot in self._of]
        return len({digest for digest, _ in counts}), sum(count for _, count in counts)
