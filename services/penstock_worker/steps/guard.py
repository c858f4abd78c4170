"""Distinguishes failures of a whole step from failures of its slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from penstock.process import logs
from penstock_worker.batch.slots import PlanError
from penstock_worker.device.queue import DeviceQueue
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.steps.errors import DeviceLost, OutOfDeviceMemory, StepLost
from penstock_worker.steps.plans import failure

log = logs.get(__name__)

Value = TypeVar("Value")


class Guard:
    """Turns errors that no slot is to blame for into StepLost."""

    def __init__(self, queue: DeviceQueue, drop: Callable[[], None]) -> None:
        """`drop` forgets the steps in flight, which are lost as well."""
        self._queue = queue
        self._drop = drop

    def __call__(self, call: Callable[..., Value], *arguments: Any) -> Value:
        """Returns what `call` returns. Raises StepLost, and any other error of `call` unchanged."""
        try:
            return call(*arguments)
        except (PlanError, StepLost, GroupLost):
            raise  # The device is not probed: it may be stalled in a collective.
        except torch.OutOfMemoryError as error:
            lost: StepLost = OutOfDeviceMemory(str(error))
        except Exception as error:
            if self._queue.usable():
                raise
            log.error("the device was lost", exception=True)
            lost = DeviceLost(failure(error))
        # Outside of the except clauses: the failed call's tensors are released by now, so that
        # their memory can be reclaimed.
        self._drop()
        if isinstance(lost, OutOfDeviceMemory):
            self._queue.reclaim()
        raise lost
