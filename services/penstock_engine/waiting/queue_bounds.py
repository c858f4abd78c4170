"""What may wait for a slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from penstock.config.settings import SchedulerSettings
from penstock_engine.request.request import Sequence
from penstock_engine.waiting.queue import Part, Waiting

SEQUENCES_PER_REQUEST = 4
"""Sequences that may wait, for each request that may: n multiplies a request's cost."""


class QueueBounds:
    """Limits on what waits. A request that would wait alone is never refused for its size, and
    what can start, as slots and blocks are free for it, doesn't count as waiting.

    Where tenants are kept apart, one that has something waiting may not fill the room: see
    `leaves_room`.
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        self._room = Part(
            settings.max_waiting_requests,
            SEQUENCES_PER_REQUEST * settings.max_waiting_requests,
            settings.max_waiting_tokens,
        )

    def refusal(
        self,
        queue: Waiting,
        tenant: str,
        weight: int,
        num_sequences: int,
        prompt_tokens: int,
        predicted_tokens: int = 0,
        *,
        aside: Callable[[str | None], Part],
        starting: Callable[[], list[Sequence]],
    ) -> str | None:
        """Why a tenant's request of that size can't be taken now, or None.

        aside: what waits for media or adapters, beside the queue; of one tenant, if one is named.
        starting: says who of the queue can start; asked only of a queue that is full with them.
        """
        added = Part(1, num_sequences, num_sequences * prompt_tokens + predicted_tokens)
        tokens = queue.num_tokens + queue.num_predicted
        queued = Part(queue.num_requests, queue.num_sequences, tokens)
        there = sum_of((queued, aside(None)))
        mine = queue.part_of(tenant)
        if mine is not None:
            mine = sum_of((mine, aside(tenant)))
        if self._full(there, mine, added, weight) is None:
            return None
        leaving = starting()
        there = _without(there, leaving)
        if mine is not None:
            mine = _without(mine, [s for s in leaving if s.request.tenant == tenant])
        return self._full(there, mine, added, weight)

    def _full(self, there: Part, mine: Part | None, added: Part, weight: int) -> str | None:
        """there: what waits.  mine: the tenant's part of it; None: tenants are not kept apart."""
        room = self._room
        if not there.sequences:
            return None
        if there.requests >= room.requests:
            return f"{there.requests} requests are waiting, the maximum is {room.requests}"
        if there.sequences + added.sequences > room.sequences:
            return f"{there.sequences} sequences are waiting, the maximum is {room.sequences}"
        if there.tokens + added.tokens > room.tokens:
            return (
                f"{there.tokens} tokens are waiting, and the request adds {added.tokens}; the "
                f"maximum is {room.tokens}"
            )
        if mine is None or not mine.sequences:
            return None
        for name, own, more, used, most in zip(Part._fields, mine, added, there, room, strict=True):
            if not leaves_room(own + more, most - used - more, weight):
                return (
                    f"{own} of the {used} waiting {name} belong to this API key, and its maximum "
                    f"is {most}; the rest is reserved for others"
                )
        return None


def sum_of(parts: Iterable[Part]) -> Part:
    """The sum of several Parts."""
    return Part(*map(sum, zip(*parts, strict=True)))


def _without(part: Part, leaving: list[Sequence]) -> Part:
    """What is left of it when those have left. A request waits while one of its sequences does."""
    left = Counter(sequence.request for sequence in leaving)
    return Part(
        part.requests - sum(count == request.num_queued for request, count in left.items()),
        part.sequences - len(leaving),
        part.tokens - sum(sequence.num_tokens for sequence in leaving),
    )


def leaves_room(mine: int, free: int, weight: int) -> bool:
    """Whether one of several who share a room may have `mine` of it where `free` is left then.

    Dynamic thresholds (Choudhury, Hahne: Dynamic Queue Length Thresholds for Shared-Memory Packet
    Switches, 1998): a multiple of what is free. So somebody who is alone fills SHARE of SHARE + 1
    parts (with weight 1), more of them less each, and a newcomer always finds some.
    """
    return mine <= SHARE * weight * free


SHARE = 4
