"""A stage before the last, on a device that works behind a queue."""

from __future__ import annotations

from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan
from penstock_worker.batch.block_copies import Copies
from penstock_worker.batch.slots import Slots
from penstock_worker.device.queue import DeviceQueue
from penstock_worker.forward.interface import Forward
from penstock_worker.steps.guard import guarded
from penstock_worker.steps.stage import StageRunner


class DeviceStageRunner(StageRunner):
    """As StageRunner. queue: of the device.

    `execute` returns when a step is queued, so its time is the host's, and what goes wrong on the
    device shows with a later step.
    """

    def __init__(self, forward: Forward, slots: Slots, copies: Copies, queue: DeviceQueue) -> None:
        super().__init__(forward, slots, copies)
        self._queue = queue

    def execute(self, plan: Plan) -> Result:
        """Raises DeviceLost where the device does nothing any more."""
        return guarded(lambda: self._execute(plan), self._queue, _nothing)

    def _execute(self, plan: Plan) -> Result:
        # Raises what broke the device, which would look like a lost peer in what follows.
        self._queue.mark()
        return super().execute(plan)


def _nothing() -> None:
    """A stage before the last keeps no steps in flight."""
