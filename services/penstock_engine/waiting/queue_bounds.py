"""What may wait for a slot."""

from __future__ import annotations

from penstock.config.settings import SchedulerSettings
from penstock_engine.waiting.queue import Part, Waiting

SEQUENCES_PER_REQUEST = 4
"""Sequences that may wait, for each request that may: n multiplies a request's cost."""


class QueueBounds:
    """Limits on what waits. A request that would wait alone is never refused for its size.

    Where tenants are kept apart, one that has something waiting may not fill the room: see
    `leaves_room`.
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        self._requests = settings.max_waiting_requests
        self._tokens = settings.max_waiting_tokens
        self._sequences = SEQUENCES_PER_REQUEST * settings.max_waiting_requests

    def refusal(
        self, queue: Waiting, tenant: str, weight: int, num_sequences: int, prompt_tokens: int
    ) -> str | None:
        """Why a tenant's request of that size can't be taken now, or None."""
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
        part = queue.part_of(tenant)
        if part is None or not part.sequences:
            return None
        added = Part(1, num_sequences, tokens)
        there = (queue.num_requests, queue.num_sequences, queue.num_tokens)
        room = (self._requests, self._sequences, self._tokens)
        for name, mine, more, used, most in zip(
            Part._fields, part, added, there, room, strict=True
        ):
            if not leaves_room(mine + more, most - used - more, weight):
                return (
                    f"{mine} of the {used} {name} that wait are of this API key, and {most} may;"
                    " the rest is kept for others"
                )
        return None


def leaves_room(mine: int, free: int, weight: int) -> bool:
    """Whether one of several who share a room may have `mine` of it where `free` is left then.

    Dynamic thresholds (Choudhury, Hahne: Dynamic Queue Length Thresholds for Shared-Memory Packet
    Switches, 1998): a multiple of what is free. So somebody who is alone fills SHARE of SHARE + 1
    parts (with weight 1), more of them less each, and a newcomer always finds some.
    """
    return mine <= SHARE * weight * free


SHARE = 4
