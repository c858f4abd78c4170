"""The queue of a device, and the times at which it has computed the parts of a step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import torch

from penstock_worker.machine.memory import give_back_freed
from penstock_worker.metrics.phases import Phase, Phases

if TYPE_CHECKING:
    from torch import Tensor


class QueueMark(Protocol):
    """A position in the queue, as a CUDA event is."""

    def done(self) -> bool:
        """Returns whether the device has passed it. Raises the device's error if there was one."""

    def wait(self) -> None:
        """Waits until the device has passed it. Raises the device's error if there was one."""

    def seconds_since(self, earlier: Self) -> float:
        """Returns the seconds from the earlier mark to this one by the device's clock. Both must
        have been passed."""


class DeviceQueue(Protocol):
    """The queue that a device works off: for a GPU, torch's current stream."""

    def mark(self) -> QueueMark:
        """Records a mark after everything queued so far."""

    def numbers(self, values: Sequence[int]) -> Tensor | np.ndarray:
        """Returns the values as [n] int64 on the device, without waiting for it."""

    def usable(self) -> bool:
        """Waits for all queued work, and returns whether the device still works."""

    def reclaim(self) -> None:
        """Waits for all queued work, and returns cached memory to the device."""


def queue_of(device: torch.device) -> DeviceQueue:
    """Returns the queue into which torch's calls for this device go."""
    return CUDAQueue(device) if device.type == "cuda" else HostQueue()


class CUDAQueue:
    """torch's current stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> _CUDAMark:
        # Blocking: a thread that waits sleeps, and leaves its CPU core to the engine core and the
        # gateways.
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return _CUDAMark(event)

    def numbers(self, values: Sequence[int]) -> Tensor:
        # From pinned memory, or the copy would wait for the stream.  torch doesn't reuse the memory
        # before the copy is done.
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
    """The queue of a CPU, where work is done as soon as the call returns."""

    def mark(self) -> _HostMark:
        return _HostMark()

    def numbers(self, values: Sequence[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    def usable(self) -> bool:
        return True

    def reclaim(self) -> None:
        give_back_freed()


class _HostMark:
    def __init__(self) -> None:
        self._passed = time.perf_counter()

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Returns at once: the mark was passed when it was made."""

    def seconds_since(self, earlier: _HostMark) -> float:
        return self._passed - earlier._passed


class ReportedWhenQueued:
    """The queue of a stage before the last, which reports a step as soon as it is queued. Its marks
    are those of a host, so that an error on the device shows with a later step."""

    def __init__(self, device: DeviceQueue) -> None:
        self._device = device

    def mark(self) -> _HostMark:
        # Raises the device's error here; in what follows it would look like a lost peer.
        self._device.mark()
        return _HostMark()

    def numbers(self, values: Sequence[int]) -> Tensor | np.ndarray:
        return self._device.numbers(values)

    def usable(self) -> bool:
        return self._device.usable()

    def reclaim(self) -> None:
        """Does nothing: the device may be stalled in a collective, and must not be waited for."""


class StepTimeline:
    """Marks in the device's queue, from the beginning of a step to its end.

    The first mark is after the previous step, so the time of a step begins when it has been queued
    and the device is free for it. Phases are marked only while somebody watches them.
    """

    def __init__(self, queue: DeviceQueue, phases: Phases) -> None:
        self._queue = queue
        self._phases = phases
        self._begin = queue.mark()
        self._passed: list[tuple[Phase | None, QueueMark]] = [(None, self._begin)]
        self._end: QueueMark | None = None

    def passed(self, phase: Phase | None) -> None:
        """Assigns everything queued since the last call to this phase; None assigns it to no
        phase."""
        if self._phases.watching:
            self._passed.append((phase, self._queue.mark()))

    def idle_behind(self, before: StepTimeline | None) -> float:
        """Returns the seconds between the end of the step before and this one's beginning, both of
        which have been waited for."""
        if before is None or before._end is None:
            return 0.0
        return max(0.0, self._begin.seconds_since(before._end))

    def close(self) -> None:
        """Marks the end of the step, when all of it is queued."""
        self._end = self._queue.mark()

    def done(self) -> bool:
        """Returns whether the device has finished the step. Raises the device's error if there was
        one."""
        return self._end is not None and self._end.done()

    def seconds(self) -> float:
        """Waits for the end of the step and returns its duration. Reports the durations of its
        phases."""
        if self._end is None:
            raise RuntimeError("the step is being queued still")
        self._end.wait()
        for (_, before), (phase, mark) in zip(self._passed, self._passed[1:], strict=False):
            if phase is not None:
                self._phases.add(phase, mark.seconds_since(before))
        return self._end.seconds_since(self._begin)
