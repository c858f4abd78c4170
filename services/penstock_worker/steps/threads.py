"""Threads that each compute a share of a step through the whole model.

For a model without threads of its own (the reference). Sharing is possible because no number
depends on what else is in a batch. It needs one synchronisation per step, where intra-op threads
need thousands: on 2 cores that other processes use too, these made steps many times slower, whether
they spin or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch

from penstock.protocol.to_worker import SlotWork
from penstock_kernels.reference.tiling import ROW_TILE

Part = TypeVar("Part")


class ShareThreads:
    """A pool of threads, each of which has torch's intra-op thread count set to 1."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "compute", torch.set_num_threads, (1,))
        # All are started now: in the middle of a step there may be no memory for one.
        together = Barrier(threads)
        list(self._pool.map(lambda _: together.wait(), range(threads)))

    def map(
        self, compute: Callable[[list[SlotWork]], Part], scheduled: list[SlotWork]
    ) -> Iterable[Part]:
        """Returns what `compute` gives for each share. A single share is computed by the caller,
        because handing it to a thread and back costs more than 0.1 ms."""
        shares = deal(scheduled, self._threads)
        if len(shares) == 1:
            return [compute(shares[0])]
        return self._pool.map(compute, shares)

    def close(self) -> None:
        """Ends the threads after their current work."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def deal(scheduled: list[SlotWork], hands: int) -> list[list[SlotWork]]:
    """Divides the works into at most `hands` shares of about equal token counts. No share is
    smaller than a row tile unless all works together are, because a tile costs the same however few
    of its rows are used."""
    tokens = sum(work.count for work in scheduled)
    hands = min(hands, len(scheduled), -(-tokens // ROW_TILE))
    shares: list[list[SlotWork]] = [[] for _ in range(hands)]
    sizes = [0] * hands
    for work in sorted(scheduled, key=lambda work: -work.count):
        least = sizes.index(min(sizes))
        shares[least].append(work)
        sizes[least] += work.count
    return shares
