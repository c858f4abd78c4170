"""How long one call takes on the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Work = Callable[[], object]

FLUSHED_BYTES = 256 << 20
"""Read before each call, so that it finds nothing in the cache; several times an H200's."""


@dataclass(frozen=True)
class Timing:
    seconds: float  # the median
    graph: bool
    """Whether it was replayed from a CUDA graph: then the host's time to launch it isn't in it."""


@dataclass(frozen=True)
class Call:
    """Warmed up, and captured where there is a graph.  That reads tensors which only `work` may
    hold."""

    work: Work
    graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> None:
        if self.graph is None:
            self.work()
        else:
            self.graph.replay()


class Timer:
    """repeats: calls that are timed. On a CPU there are no warm-ups."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self._device = device
        self._repeats = repeats
        self._flushed = torch.zeros(
            FLUSHED_BYTES if device.type == "cuda" else 1, dtype=torch.uint8, device=device
        )

    def __call__(self, work: Work, *, capture: bool = True) -> Timing:
        return self.in_turns([self.ready(work, capture=capture)])[0]

    def ready(self, work: Work, *, capture: bool = True) -> Call:
        """Returns a call that may be timed as often as one likes, captured as a CUDA graph if
        `capture`."""
        if self._device.type != "cuda":
            return Call(work)
        for _ in range(2):
            work()
        torch.cuda.synchronize()
        return Call(work, _captured(work) if capture else None)

    def in_turns(self, calls: Sequence[Call]) -> list[Timing]:
        """Each of them in every round, so that a change of the clock meets them all."""
        rounds = range(self._repeats)
        if self._device.type != "cuda":
            taken = [[_on_host(call.run) for call in calls] for _ in rounds]
        else:
            taken = self._on_device(calls)
        medians = map(statistics.median, zip(*taken, strict=True))
        pairs = zip(medians, calls, strict=True)
        return [Timing(median, call.graph is not None) for median, call in pairs]

    def _on_device(self, calls: Sequence[Call]) -> list[list[float]]:
        """Seconds, by round and call."""
        # The host is ahead while the cache is flushed: the call is queued before that is over.
        events = [
            [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in calls]
            for _ in range(self._repeats)
        ]
        for turn in events:
            for call, (begin, end) in zip(calls, turn, strict=True):
                # Lines that were written would go back to memory within the call that is timed.
                self._flushed.max()
                begin.record()
                call.run()
                end.record()
        torch.cuda.synchronize()
        return [[begin.elapsed_time(end) / 1000 for begin, end in turn] for turn in events]


def _on_host(work: Work) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _captured(work: Work) -> torch.cuda.CUDAGraph | None:
    """None where it can't be: it waits for the device, or copies from pageable memory."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except Exception:
        torch.cuda.synchronize()
        return None
    return graph
