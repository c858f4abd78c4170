"""Work of a device that goes on beside steps, in a queue of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch


class SideMark(Protocol):
    """A position in a queue, as a CUDA event is."""

    def synchronize(self) -> None:
        """Waits until the device has passed it."""

    def elapsed_time(self, later: Any, /) -> float:
        """Returns the milliseconds from here to a later mark. Both have been passed."""


class SideQueue(Protocol):
    """A queue beside the current stream. It may be filled from several threads, one at a time."""

    beside: bool
    """Whether what is queued goes on while the thread that computes steps goes on."""

    def computed(self) -> SideMark:
        """Returns a mark after all that is queued on the current stream. From the thread that
        computes."""

    def let_steps_wait(self, event: SideMark) -> None:
        """What is queued next on the current stream comes after the mark; the host doesn't wait.
        From the thread that computes."""

    def queueing(self, after: SideMark) -> AbstractContextManager[None]:
        """While the context is open, what this thread queues goes here, after the mark."""

    def mark(self) -> SideMark:
        """Returns a mark after all that is queued here. A thread that waits for it sleeps."""


def side_queue(device: torch.device) -> SideQueue:
    """Returns a queue of this device beside its steps."""
    return SideStream(device) if device.type == "cuda" else AtOnceBeside()


class SideStream:
    """A CUDA stream."""

    beside = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def computed(self) -> torch.cuda.Event:
        """Returns a mark after all that is queued on the current stream. From the thread that
        computes."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def let_steps_wait(self, event: Any) -> None:
        """What is queued next on the current stream comes after the mark; the host doesn't wait.
        From the thread that computes."""
        torch.cuda.current_stream(self._device).wait_event(event)

    @contextmanager
    def queueing(self, after: Any) -> Iterator[None]:
        """While the context is open, what this thread queues goes here, after the mark."""
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            self._stream.wait_event(after)
            yield

    def mark(self) -> torch.cuda.Event:
        """Returns a mark after all that is queued here. A thread that waits for it sleeps."""
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(self._stream)
        return event


class _Passed:
    """The mark of a device whose work is done when the call returns."""

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, _: Any) -> float:
        return 0.0


class AtOnceBeside:
    """The plain twin: Triton's interpreter computes in one thread only, at once."""

    beside = False

    def computed(self) -> _Passed:
        return _Passed()

    def let_steps_wait(self, event: SideMark) -> None:
        pass

    @contextmanager
    def queueing(self, after: SideMark) -> Iterator[None]:
        with torch.inference_mode():
            yield

    def mark(self) -> _Passed:
        return _Passed()
