"""The times at which a device computed the parts of a step, by its own clock."""

from __future__ import annotations

from penstock_worker.device.queue import DeviceQueue, QueueMark
from penstock_worker.metrics.phases import Phase, Phases


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
