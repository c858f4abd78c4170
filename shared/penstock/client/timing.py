"""The times at which things happened to a request, as its front end sees them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from penstock.protocol.to_frontend import SequenceTimeline

if TYPE_CHECKING:
    pass


LAST_WORD = 0.5
"""Seconds to wait for the engine's account of a request whose text has ended already."""


class RequestTiming:
    """Moments on this process's monotonic clock, seconds.

    begun: first submitted.  submitted: last, to an engine core that took the place of another.
    ended: the last terminal output came.  last: the sequence that it ended.
    detokenise: time spent turning ids into text.
    sequences: what the engine says, by index; complete when it has spoken of all `n`.
    """

    __slots__ = (
        "_complete",
        "_n",
        "begun",
        "detokenise",
        "ended",
        "last",
        "sequences",
        "submitted",
    )

    def __init__(self, n: int) -> None:
        self._n = n
        self._complete = asyncio.Event()
        self.begun = self.submitted = self.ended = 0.0
        self.last = 0
        self.detokenise = 0.0
        self.sequences: dict[int, SequenceTimeline] = {}

    @property
    def complete(self) -> bool:
        return self._complete.is_set()

    def submit(self) -> None:
        """The request is on its way to an engine core."""
        self.submitted = time.perf_counter()
        self.begun = self.begun or self.submitted

    def end(self, sequence: int) -> None:
        """A sequence has ended, for its consumer or in the engine, whichever comes last."""
        self.ended = time.perf_counter()
        self.last = sequence

    def hear(self, sequence: int, timeline: SequenceTimeline | None) -> None:
        """The engine's terminal output of a sequence, which may come after a stop string."""
        if timeline is not None:
            self.sequences[sequence] = timeline
            self.end(sequence)
        self._n -= 1
        if self._n <= 0:
            self._complete.set()

    async def wait(self, seconds: float) -> None:
        """Waits until the timing is complete, for so many seconds at most."""
        if self.complete:
            return
        try:
            await asyncio.wait_for(self._complete.wait(), seconds)
        except TimeoutError:
            pass
