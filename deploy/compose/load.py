"""Streams without end through the load balancer, each compared with its undisturbed twin.

The client does what a client of the service should: an answer that was refused for now, or cut
because its gateway died, is asked for again, at most TRIES times. Every such cut is written down.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from testing.streams.fleet import Fleet
from testing.streams.mix import Request, mix
from testing.streams.reading import Answer, Broken, Reading

TRIES = 8
"""A gateway that leaves takes no new work at once, so two or three would do; a request that fails
as often as this has failed."""

PAUSE = 0.25
"""Seconds before the next try, doubled each time."""


@dataclass(frozen=True)
class Cut:
    """A stream that broke and was begun anew. moment: time.monotonic()."""

    moment: float
    request: str
    reason: str


class RetryingFleet(Fleet):
    """cuts: what was begun anew.  The score's `broken` is what failed for good."""

    def __init__(self, url: str, requests: list[Request]) -> None:
        super().__init__(url, requests)
        self.cuts: list[Cut] = []

    async def _read(self, number: int) -> Answer:
        for attempt in range(TRIES):
            reading = self._readings[number] = Reading(self._requests[number])
            try:
                return await reading.run(self._client)
            except Broken as error:
                self.cuts.append(Cut(time.monotonic(), reading.request.name, str(error)))
                last = error
                await asyncio.sleep(PAUSE * 2**attempt)
        raise last

    def cuts_since(self, moment: float) -> list[Cut]:
        """The cuts since then."""
        return [cut for cut in self.cuts if cut.moment >= moment]


def fleet_of(url: str, streams: int, tokens: int) -> RetryingFleet:
    """So many streams of the mix that the chaos test uses, for the load balancer at `url`."""
    return RetryingFleet(url, mix(tokens, streams))
