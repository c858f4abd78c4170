"""How long one call takes on the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Work = Callable[[], object]

FLUSHED_BYTES = 256 << 20
"""Written before each call, so that it finds nothing in the cache; several times an H200's."""


@dataclass(frozen=True)
class Timing:
    """seconds: the median.  graph: whether it was replayed from a CUDA graph, so that the host's
    time to launch it isn't in it."""

    seconds: float
    graph: bool


class Timer:
    """repeats: calls that are timed. On a CPU there are no warm-ups."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self._device = device
        self._repeats = repeats
        self._flushed = torch.empty(
            FLUSHED_BYTES if device.type == "cuda" else 1, dtype=torch.uint8, device=device
        )

    def __call__(self, work: Work, *, capture: bool = True) -> Timing:
        if self._device.type != "cuda":
            return Timing(statistics.median(_on_host(work) for _ in range(self._repeats)), False)
        for _ in range(2):
            work()
        torch.cuda.synchronize()
        graph = _captured(work) if capture else None
        call = work if graph is None else graph.replay
        return Timing(self._on_device(call), graph is not None)

    def _on_device(self, work: Work) -> float:
        # The host is ahead while the cache is flushed: the call is queued before that is over.
        begins = [torch.cuda.Event(enable_timing=True) for _ in range(self._repeats)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(self._repeats)]
        for begin, end in zip(begins, ends, strict=True):
            self._flushed.zero_()
            begin.record()
            work()
            end.record()
        torch.cuda.synchronize()
        pairs = zip(begins, ends, strict=True)
        return statistics.median(begin.elapsed_time(end) for begin, end in pairs) / 1000


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
