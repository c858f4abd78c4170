"""Work that is captured once and replayed as a whole: CUDA graphs, and their eager counterpart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

Work = Callable[[], None]


class CapturedWork(Protocol):
    """Work that can be replayed as a whole."""

    def run(self) -> None:
        """Queues the work."""

    def drop(self) -> None:
        """Frees what it holds at once, even if it is still referenced. It may still be on the
        device's queue."""


class Captures(Protocol):
    """Captures work."""

    def capture(self, work: Work) -> CapturedWork:
        """Captures `work`, which queues something, and reads and writes the same memory each time.
        Replaying the result does the same.

        On a GPU it is run once before: that compiles its kernels, and makes the ranks' connections.
        """

    def renew(self) -> None:
        """Called when all captured work has been dropped."""


@dataclass(frozen=True)
class EagerRecording:
    work: Work

    def run(self) -> None:
        self.work()

    def drop(self) -> None:
        """Does nothing: it holds no memory."""


class EagerCaptures:
    """Captures without CUDA: a replay runs the work itself, so that the same path is tested."""

    def capture(self, work: Work) -> CapturedWork:
        return EagerRecording(work)

    def renew(self) -> None:
        """Does nothing: recordings share nothing."""


@dataclass(frozen=True)
class CUDARecording:
    graph: torch.cuda.CUDAGraph

    def run(self) -> None:
        self.graph.replay()

    def drop(self) -> None:
        # Explicitly, and not when the last reference goes: a traceback may hold one.
        self.graph.reset()


class CUDACaptures:
    """CUDA graphs. Their activations share one memory pool, since they run one after another.

    Capturing waits for the device, and gives its caches' unused memory back.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self.renew()

    def capture(self, work: Work) -> CapturedWork:
        work()
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        try:
            # Thread-local, because other threads may call CUDA meanwhile, such as torch's NCCL
            # watchdog.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                work()
        finally:
            # If even ending the capture fails, torch stays on the capture stream.
            torch.cuda.set_stream(current)
        return CUDARecording(graph)

    def renew(self) -> None:
        # torch captures no further graphs into a pool once all of its graphs are gone.
        self._pool = torch.cuda.graph_pool_handle()


def captures_of(device: torch.device) -> Captures:
    return CUDACaptures(device) if device.type == "cuda" else EagerCaptures()
