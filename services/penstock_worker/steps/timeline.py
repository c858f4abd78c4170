"""When a device did what of a step, told by its own clock."""

from __future__ import annotations

from penstock_worker.device.queue import DeviceQueue, QueueMark
from penstock_worker.metrics.phases import Phase, Phases


class StepTimeline:
    """Marks in the queue, from a step's beginning to its end.

    The first stands behind the step before, so a step's time begins when it is both queued and the
    device's turn.  Phases are marked only where somebody asks.
    """

    def __init__(self, queue: DeviceQueue, phases: Phases) -> None:
        self._queue = queue
        self._phases = phases
        self._begin = queue.mark()
        self._passed: list[tuple[Phase | None, QueueMark]] = [(None, self._begin)]
        self._end: QueueMark | None = None

    def passed(self, phase: Phase | None) -> None:
        """All that was queued since the last call is of this phase; None: of no phase."""
        if self._phases.watching:
            self._passed.append((phase, self._queue.mark()))

    def close(self) -> None:
        """The whole step is queued."""
        self._end = self._queue.mark()

    def done(self) -> bool:
        """Whether the device is through with it. Raises what broke the device."""
        return self._end is not None and self._end.done()

    def seconds(self) -> float:
        """Waits for the end. What the step took; its phases are told of theirs, too."""
        if self._end is None:
            raise RuntimeError("the step is being queued still")
        self._end.wait()
        for (_, before), (phase, mark) in zip(self._passed, self._passed[1:], strict=False):
            if phase is not None:
                self._phases.add(phase, mark.seconds_since(before))
        return self._end.seconds_since(self._begin)
