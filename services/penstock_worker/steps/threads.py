"""Threads that each take a share of a step through the whole model.

For a model that has no threads of its own (the reference).  That may be done because no number
depends on what else is in a batch, and it needs one meeting per step where threads inside torch's
operations need thousands: on 2 cores that others use too, waiting for each other there made steps
many times slower, spinning or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from penstock.protocol.to_worker import SlotWork
from penstock_kernels.reference.tiling import ROW_TILE

Part = TypeVar("Part")


class ShareThreads:
    """So many threads, each with torch's own count set to 1."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "compute", torch.set_num_threads, (1,))

    def map(
        self, compute: Callable[[list[SlotWork]], Part], scheduled: list[SlotWork]
    ) -> Iterable[Part]:
        """What each share gave. One alone is computed by the caller: handing it over and back
        costs more than a tenth of a millisecond."""
        shares = deal(scheduled, self._threads)
        if len(shares) == 1:
            return [compute(shares[0])]
        return self._pool.map(compute, shares)

    def close(self) -> None:
        """End the threads, after what they are at."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def deal(scheduled: list[SlotWork], hands: int) -> list[list[SlotWork]]:
    """Works in at most `hands` shares of about equal token counts, none of less than a row tile
    unless there is less: a tile costs the same however few of its rows are used."""
    tokens = sum(work.count for work in scheduled)
    hands = min(hands, len(scheduled), -(-tokens // ROW_TILE))
    shares: list[list[SlotWork]] = [[] for _ in range(hands)]
    sizes = [0] * hands
    for work in sorted(scheduled, key=lambda work: -work.count):
        least = sizes.index(min(sizes))
        shares[least].append(work)
        sizes[least] += work.count
    return shares
