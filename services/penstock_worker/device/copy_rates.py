"""How fast weights come from the host's memory to a device, measured once a model is loaded. No bit
depends on it: what is copied, and what isn't, is computed alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from penstock_worker.device.filling import PinnedFilling
from penstock_worker.device.side_stream import SideQueue

MEASURED_SECONDS = 0.2
"""After which no further copy is begun, of each kind."""
MOST_COPIES = 8
"""Copies of each kind, at most. The fastest one counts: others may have waited for something
else."""
GB = 1e9


@dataclass(frozen=True)
class CopyRates:
    """Bytes per second."""

    to_device: float
    from_device: float
    filled: float
    """At which `threads` threads fill the pinned memory."""
    threads: int

    @property
    def experts(self) -> float:
        """At which weights come to the device: while one buffer is copied, the next is filled."""
        return min(self.to_device, self.filled)

    def __str__(self) -> str:
        return (
            f"{self.to_device / GB:.1f} GB/s to the card, {self.from_device / GB:.1f} GB/s back, "
            f"{self.filled / GB:.1f} GB/s into pinned memory by {self.threads} threads"
        )


def copy_rates(
    pinned: Tensor,
    memory: Tensor,
    side: SideQueue,
    filling: PinnedFilling,
    sources: Sequence[Sequence[np.ndarray]],
) -> CopyRates | None:
    """Measures, and leaves as many threads filling as bring memory to the bus's rate, or fill it
    fastest. None: the device's own copies take no time that it tells, as in Triton's interpreter.

    `pinned`, `memory`: [bytes] uint8, on the host and on the device. `sources`: pieces that fill
    them, in turn, so that caches have none of them; not empty.
    """

    def copied(target: Tensor, source: Tensor) -> float:
        with side.queueing(side.computed()):
            begun = side.mark()
            target.copy_(source, non_blocking=True)
            done = side.mark()
        done.synchronize()
        return begun.elapsed_time(done) / 1000

    there = _fastest(lambda _: copied(memory, pinned))
    back = _fastest(lambda _: copied(pinned, memory))
    if not there or not back:
        return None
    size, bus = len(pinned), len(pinned) / there
    best = _filled(pinned.numpy(), filling, sources, 1)
    while best[0] < bus and filling.threads < filling.most:
        more = _filled(pinned.numpy(), filling, sources, min(filling.most, 2 * filling.threads))
        best = more if more[0] > best[0] else best
    filled, filling.threads = best
    return CopyRates(bus, size / back, filled, filling.threads)


def _filled(
    target: np.ndarray,
    filling: PinnedFilling,
    sources: Sequence[Sequence[np.ndarray]],
    threads: int,
) -> tuple[float, int]:
    """Returns bytes per second, and the threads."""
    filling.threads = threads
    rates = []

    def fill(number: int) -> float:
        before = time.perf_counter()
        size = filling.fill(target, sources[number % len(sources)])
        seconds = max(1e-9, time.perf_counter() - before)
        rates.append(size / seconds)
        return seconds

    _fastest(fill)
    return max(rates), threads


def _fastest(copy: Callable[[int], float]) -> float:
    """Returns the seconds of the fastest of some copies, each of which is given its number."""
    until, found = time.perf_counter() + MEASURED_SECONDS, [copy(0)]
    while len(found) < MOST_COPIES and time.perf_counter() < until:
        found.append(copy(len(found)))
    return min(found)
