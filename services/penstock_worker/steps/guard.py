"""Which failures of a step are no slot's fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from penstock import logs
from penstock_worker.batch.slots import PlanError
from penstock_worker.device.queue import DeviceQueue
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.steps.errors import DeviceLost, OutOfDeviceMemory, StepLost
from penstock_worker.steps.plans import failure

log = logs.get(__name__)

Value = TypeVar("Value")


class Guard:
    """Makes StepLost of what is no slot's fault."""

    def __init__(self, queue: DeviceQueue, drop: Callable[[], None]) -> None:
        self._queue = queue
        self._drop = drop  # Forgets the steps in flight, which are lost as well.

    def __call__(self, call: Callable[..., Value], *arguments: Any) -> Value:
        """What `call` returns. Raises StepLost, and whatever else `call` does."""
        try:
            return call(*arguments)
        except (PlanError, StepLost, GroupLost):
            raise  # The device may stand still in what it says to other ranks: it isn't asked.
        except torch.OutOfMemoryError as error:
            lost: StepLost = OutOfDeviceMemory(str(error))
        except Exception as error:
            if self._queue.usable():
                raise
            log.error("the device is lost", exception=True)
            lost = DeviceLost(failure(error))
        # Here the failed call's tensors are gone, so their memory can be had.
        self._drop()
        if isinstance(lost, OutOfDeviceMemory):
            self._queue.reclaim()
        raise lost
