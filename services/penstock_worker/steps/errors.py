"""Steps that were begun, whether they are computed at once or by a device behind a queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan


class StepLost(Exception):
    """A step can't be computed, and no slot is to blame. What was begun is lost with it."""


class OutOfDeviceMemory(StepLost):
    """It takes more memory than the device has left. With less work in a step it would go on."""


class DeviceLost(StepLost):
    """The device does nothing any more for this process, which must be started again."""


class PendingStep(Protocol):
    """A step that a runner has begun. Steps are asked for their results in the order of plans."""

    def done(self) -> bool:
        """Whether `result` would return, or raise, without waiting for the device."""

    def result(self) -> Result:
        """Waits for it. Raises StepLost."""


class Executed:
    """The step of a runner that computes while it is asked to."""

    def __init__(self, execute: Callable[[Plan], Result], plan: Plan) -> None:
        begun = time.monotonic()
        result = execute(plan)
        seconds = time.monotonic() - begun
        self._result = msgspec.structs.replace(result, compute_seconds=seconds)

    def done(self) -> bool:
        return True

    def result(self) -> Result:
        return self._result
