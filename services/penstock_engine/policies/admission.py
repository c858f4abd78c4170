"""What may wait, what may start, and when a refused client should come back."""

from __future__ import annotations

from collections import deque

from penstock.config import SchedulerSettings
from penstock_engine.queue import WaitingQueue

SEQUENCES_PER_REQUEST = 4
"""Sequences that may wait, for each request that may: n multiplies a request's cost."""


class QueueBounds:
    """Limits on what waits. A request that would wait alone is never refused for its size."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._requests = settings.max_waiting_requests
        self._tokens = settings.max_waiting_tokens
        self._sequences = SEQUENCES_PER_REQUEST * settings.max_waiting_requests

    def refusal(self, queue: WaitingQueue, num_sequences: int, prompt_tokens: int) -> str | None:
        """Why a request of that size can't be taken now, or None."""
        if not queue:
            return None
        if queue.num_requests >= self._requests:
            return f"{queue.num_requests} requests are waiting; {self._requests} may"
        if queue.num_sequences + num_sequences > self._sequences:
            return f"{queue.num_sequences} sequences are waiting; {self._sequences} may"
        tokens = num_sequences * prompt_tokens
        if queue.num_tokens + tokens > self._tokens:
            return (
                f"{queue.num_tokens} tokens are waiting, the request brings {tokens}; "
                f"{self._tokens} may wait"
            )
        return None


class Headroom:
    """Free blocks that must remain when a sequence starts beside others.

    Every running sequence may then grow by HORIZON tokens before blocks run out, so that what was
    just started isn't preempted at once.
    """

    HORIZON = 4

    def blocks(self, num_running: int, block_size: int) -> int:
        return -(-num_running * self.HORIZON // block_size)


class ServiceRate:
    """How fast requests have been leaving the queue lately, and so how long a refused one waits.

    Samples are (time, departures so far), one a second at most, over the last WINDOW seconds, and
    none from before the queue was last empty.
    """

    WINDOW = 30.0
    SHORTEST = 0.1
    LONGEST = 60.0
    UNKNOWN = 5.0

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._refused = 0

    def observe(self, now: float, queue: WaitingQueue) -> None:
        """Takes note of the queue's departures. Cheap; call it at every step."""
        samples = self._samples
        if not queue:
            samples.clear()
            return
        if samples and now - samples[-1][0] < 1.0:
            return
        if samples and queue.departed > samples[-1][1]:
            self._refused = 0
        samples.append((now, queue.departed))
        while len(samples) > 2 and now - samples[0][0] > self.WINDOW:
            samples.popleft()

    def retry_after(self, now: float, queue: WaitingQueue) -> float:
        """Seconds until this refused request's turn, if each one before it comes back first."""
        self._refused += 1
        if not self._samples or queue.departed <= self._samples[0][1]:
            return self.UNKNOWN
        since, before = self._samples[0]
        seconds_each = max(now - since, 0.001) / (queue.departed - before)
        return min(max(self._refused * seconds_each, self.SHORTEST), self.LONGEST)
