"""Which replica gets a request."""

from __future__ import annotations

import hashlib
import heapq
from array import array
from collections.abc import Callable
from typing import Protocol

from penstock.errors import InvalidRequest


class Router(Protocol):
    """`assigned` and `left` keep count of the open requests of each replica."""

    def choose(self, prompt: list[int]) -> int: ...

    def assigned(self, replica: int) -> None: ...

    def left(self, replica: int) -> None: ...


class RoundRobin:
    """One after another, whatever they have to do."""

    def __init__(self, replicas: int, block_size: int) -> None:
        self._replicas = replicas
        self._next = -1

    def choose(self, prompt: list[int]) -> int:
        self._next = (self._next + 1) % self._replicas
        return self._next

    def assigned(self, replica: int) -> None:
        pass

    def left(self, replica: int) -> None:
        pass


class LeastLoaded:
    """The replica with the fewest open requests; of several, the one with the lowest number.

    A heap of (open requests, replica) in which entries that are no longer true are skipped.
    """

    def __init__(self, replicas: int, block_size: int) -> None:
        self._open = [0] * replicas
        self._heap = [(0, replica) for replica in range(replicas)]

    def choose(self, prompt: list[int]) -> int:
        heap = self._heap
        while self._open[heap[0][1]] != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][1]

    def assigned(self, replica: int) -> None:
        self._open[replica] += 1
        self._show(replica)

    def left(self, replica: int) -> None:
        self._open[replica] -= 1
        self._show(replica)

    def _show(self, replica: int) -> None:
        heapq.heappush(self._heap, (self._open[replica], replica))
        if len(self._heap) > 4 * len(self._open) + 64:
            self._heap = [(count, at) for at, count in enumerate(self._open)]
            heapq.heapify(self._heap)


class PrefixAware:
    """The replica that the first block's tokens name, so that a shared prefix meets its cache.

    With bounded load, after Mirrokni, Thorup and Zadimoghaddam (2016): a replica with more than
    SLACK times the mean of open requests passes the request on to the next.
    """

    SLACK = 1.25

    def __init__(self, replicas: int, block_size: int) -> None:
        self._open = [0] * replicas
        self._total = 0
        self._block_size = block_size

    def choose(self, prompt: list[int]) -> int:
        block = array("i", prompt[: self._block_size]).tobytes()
        digest = hashlib.blake2b(block, digest_size=8).digest()
        replicas = len(self._open)
        at = int.from_bytes(digest, "little") % replicas
        most = self.SLACK * (self._total + 1) / replicas
        for _ in range(replicas):
            if self._open[at] < most:
                return at
            at = (at + 1) % replicas
        return at

    def assigned(self, replica: int) -> None:
        self._open[replica] += 1
        self._total += 1

    def left(self, replica: int) -> None:
        self._open[replica] -= 1
        self._total -= 1


ROUTERS: dict[str, Callable[[int, int], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-aware": PrefixAware,
}


def make_router(name: str, replicas: int, block_size: int) -> Router:
    """Raises InvalidRequest for a name that isn't in ROUTERS."""
    if name not in ROUTERS:
        known = ", ".join(ROUTERS)
        raise InvalidRequest(f"no routing policy is called {name!r}; there are {known}")
    return ROUTERS[name](replicas, block_size)
