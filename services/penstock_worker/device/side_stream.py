"""A stream of a GPU beside the one that computes, and how the two wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """Work that goes on beside steps. It may be queued from several threads, one at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def computed(self) -> torch.cuda.Event:
        """Returns a mark after all that is queued on the current stream. From the thread that
        computes."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def let_steps_wait(self, event: torch.cuda.Event) -> None:
        """What is queued next on the current stream comes after the mark; the host doesn't wait.
        From the thread that computes."""
        torch.cuda.current_stream(self._device).wait_event(event)

    @contextmanager
    def queueing(self, after: torch.cuda.Event) -> Iterator[None]:
        """While the context is open, what this thread queues goes here, after the mark."""
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            self._stream.wait_event(after)
            yield

    def mark(self) -> torch.cuda.Event:
        """Returns a mark after all that is queued here. A thread that waits for it sleeps."""
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        return event
