"""What may wait for a slot, and when a refused client should come back."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Protocol

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

        aside: requests that wait for media or adapters, outside the queue; of one tenant, if one is
        named. starting: returns which queued requests can start; called only if the queue is full
        with them.
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
    Switches, 1998): a multiple of what is free. So a single tenant fills SHARE of SHARE + 1 parts
    (with weight 1), several less each, and a newcomer always finds some.
    """
    return mine <= SHARE * weight * free


SHARE = 4


class TenantShares:
    """What each tenant has of something of which there is so much for all: `leaves_room` says
    whether one may have more."""

    def __init__(self) -> None:
        self.total = 0
        self.by_tenant: dict[str, int] = {}
        """What each tenant has, of those that have any."""

    def add(self, tenant: str, more: int) -> None:
        """A tenant has so much more; or less, for less than 0."""
        self.total += more
        mine = self.by_tenant.get(tenant, 0) + more
        if mine:
            self.by_tenant[tenant] = mine
        else:
            self.by_tenant.pop(tenant, None)

    def may_have(self, tenant: str, more: int, most: int) -> bool:
        """Whether a tenant may have so much more. most: what there is for all."""
        mine = self.by_tenant.get(tenant, 0) + more
        return leaves_room(mine, most - self.total - more, 1)

    def largest(self) -> str:
        """The tenant that has most; of equals, the first by name. There is one."""
        return min(self.by_tenant, key=lambda tenant: (-self.by_tenant[tenant], tenant))


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

    def observe(self, now: float, queue: Waiting) -> None:
        """Records the queue's departures. Cheap; called at every step."""
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

    def retry_after(self, now: float, queue: Waiting) -> float:
        """Seconds until this refused request's turn, if each one before it comes back first."""
        self._refused += 1
        seconds_each = self.seconds_each(now, queue)
        if seconds_each is None:
            return self.UNKNOWN
        return min(max(self._refused * seconds_each, self.SHORTEST), self.LONGEST)

    def seconds_each(self, now: float, queue: Waiting) -> float | None:
        """Seconds between two departures of late; None: unknown."""
        if not self._samples or queue.departed <= self._samples[0][1]:
            return None
        since, before = self._samples[0]
        return max(now - since, 0.001) / (queue.departed - before)


class TenantsOwn(Protocol):
    """What a tenant has open. accepted: seconds of the engine core's clock."""

    tenant: str
    accepted: float


class OpenRequests:
    """How many requests each tenant has open, and since when."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, float]] = {}
        """How many requests each tenant has open, and the sum of the times at which they were
        accepted."""

    def count(self, tenant: str) -> int:
        return self._open.get(tenant, (0, 0.0))[0]

    def by_tenant(self) -> dict[str, int]:
        """How many each has that has any."""
        return {tenant: count for tenant, (count, _) in self._open.items()}

    def __len__(self) -> int:
        """Tenants that have any."""
        return len(self._open)

    def busiest(self, count: int) -> list[tuple[str, int]]:
        """(tenant, open requests) of the `count` that have most, these first; ties by name."""
        each = ((tenant, opened[0]) for tenant, opened in self._open.items())
        return heapq.nsmallest(count, each, key=lambda entry: (-entry[1], entry[0]))

    def opened(self, request: TenantsOwn) -> None:
        """A request was accepted."""
        count, times = self._open.get(request.tenant, (0, 0.0))
        self._open[request.tenant] = (count + 1, times + request.accepted)

    def ended(self, request: TenantsOwn) -> None:
        """The last of its sequences has ended."""
        count, times = self._open[request.tenant]
        if count == 1:
            del self._open[request.tenant]
        else:
            self._open[request.tenant] = (count - 1, times - request.accepted)

    def retry_after(self, tenant: str, now: float) -> float:
        """Seconds until one of them may end: what is left to each is, on average, as much as has
        gone by, and the first of them ends that much sooner."""
        count, times = self._open.get(tenant, (0, 0.0))
        if not count:
            return ServiceRate.SHORTEST
        age = now - times / count
        return min(max(age / count, ServiceRate.SHORTEST), ServiceRate.LONGEST)
