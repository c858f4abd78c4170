"""Work that is recorded once, and launched again as a whole: CUDA graphs, and their plain twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

Work = Callable[[], None]


class CapturedWork(Protocol):
    """Work that can be launched again as a whole."""

    def run(self) -> None:
        """Queue it."""

    def drop(self) -> None:
        """Free what it holds, at once, whoever else refers to it; it may be on the device's queue
        still."""


class Captures(Protocol):
    """What makes recordings."""

    def capture(self, work: Work) -> CapturedWork:
        """work: queues something, has run before, and reads and writes the same memory each time.
        The result does the same; nothing is computed now."""

    def renew(self) -> None:
        """All recordings have been dropped."""


@dataclass(frozen=True)
class EagerRecording:
    work: Work

    def run(self) -> None:
        self.work()

    def drop(self) -> None:
        """It holds nothing."""


class EagerCaptures:
    """The work itself: without CUDA, the same path is computed step by step."""

    def capture(self, work: Work) -> CapturedWork:
        return EagerRecording(work)

    def renew(self) -> None:
        """Recordings have nothing in common."""


@dataclass(frozen=True)
class CUDARecording:
    graph: torch.cuda.CUDAGraph

    def run(self) -> None:
        self.graph.replay()

    def drop(self) -> None:
        # Not left to the last reference: a traceback may have one.
        self.graph.reset()


class CUDACaptures:
    """CUDA graphs, whose activations share one memory pool: they run one after the other.

    Waits for the device while it captures.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self.renew()

    def capture(self, work: Work) -> CapturedWork:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        try:
            # Other threads may use CUDA meanwhile, as the one in which torch watches NCCL does.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                work()
        finally:
            # Where the capture can't even be ended, torch stays on its stream.
            torch.cuda.set_stream(current)
        return CUDARecording(graph)

    def renew(self) -> None:
        # torch takes no more graphs into a pool that all have left.
        self._pool = torch.cuda.graph_pool_handle()


def captures_of(device: torch.device) -> Captures:
    return CUDACaptures(device) if device.type == "cuda" else EagerCaptures()
