"""A device's queue: marks in it, numbers sent into it, and whether it still goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, Self

import torch
from torch import Tensor


class QueueMark(Protocol):
    """A place in the queue."""

    def done(self) -> bool:
        """Whether the device has passed it. Raises what broke the device."""

    def wait(self) -> None:
        """Until the device has passed it. Raises what broke the device."""

    def seconds_since(self, earlier: Self) -> float:
        """By the device's clock. Both have been passed."""


class DeviceQueue(Protocol):
    """What torch's current stream is for a GPU."""

    def mark(self) -> QueueMark:
        """Behind all that is queued so far."""

    def numbers(self, values: Sequence[int]) -> Tensor:
        """[n] int64 on the device, without waiting."""

    def usable(self) -> bool:
        """Whether the device can still be worked with. Waits for all that is queued."""

    def reclaim(self) -> None:
        """Give back what memory was kept for later use. Waits for all that is queued."""


def queue_of(device: torch.device) -> DeviceQueue:
    """The queue that torch's calls for this device go to."""
    return CUDAQueue(device) if device.type == "cuda" else HostQueue()


class CUDAQueue:
    """device: of torch's current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> _CUDAMark:
        # Blocking: whoever waits sleeps, and leaves the core to the engine core and the gateways.
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return _CUDAMark(event)

    def numbers(self, values: Sequence[int]) -> Tensor:
        # From pinned memory, or the copy would wait for the queue.  torch keeps that until then.
        pinned = torch.tensor(values, dtype=torch.int64, pin_memory=True)
        return pinned.to(self._device, non_blocking=True)

    def usable(self) -> bool:
        try:
            torch.cuda.synchronize(self._device)
        except RuntimeError:
            return False
        return True

    def reclaim(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


class _CUDAMark:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def done(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()

    def seconds_since(self, earlier: _CUDAMark) -> float:
        return float(earlier._event.elapsed_time(self._event)) / 1000


class HostQueue:
    """A CPU has done what it was told as soon as a call returns."""

    def mark(self) -> _HostMark:
        return _HostMark()

    def numbers(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64)

    def usable(self) -> bool:
        return True

    def reclaim(self) -> None:
        """Nothing is kept."""


class _HostMark:
    def __init__(self) -> None:
        self._passed = time.perf_counter()

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """It is passed already."""

    def seconds_since(self, earlier: _HostMark) -> float:
        return self._passed - earlier._passed


class ReportedWhenQueued:
    """The queue of a stage before the last, which reports a step as soon as it is queued: its marks
    are the host's, and what goes wrong on the device shows with a later step."""

    def __init__(self, device: DeviceQueue) -> None:
        self._device = device

    def mark(self) -> _HostMark:
        # Raises what broke the device, which would look like a lost peer in what follows.
        self._device.mark()
        return _HostMark()

    def numbers(self, values: Sequence[int]) -> Tensor:
        return self._device.numbers(values)

    def usable(self) -> bool:
        return self._device.usable()

    def reclaim(self) -> None:
        """Nothing: the device may stand still in what it says to other ranks."""
