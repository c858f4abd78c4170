"""Which failures on a device are no slot's fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from penstock import logs
from penstock_worker.batch.slots import PlanError
from penstock_worker.device.queue import DeviceQueue
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.steps.attempts import failure
from penstock_worker.steps.errors import DeviceLost, OutOfDeviceMemory, StepLost

log = logs.get(__name__)

Value = TypeVar("Value")


def guarded(call: Callable[[], Value], queue: DeviceQueue, drop: Callable[[], None]) -> Value:
    """What `call` gives. Makes StepLost of what is no slot's fault, and drops what is in flight
    then."""
    try:
        return call()
    except (PlanError, StepLost, GroupLost):
        raise  # The device may stand still in what it says to other ranks: it isn't asked.
    except torch.OutOfMemoryError as error:
        lost: StepLost = OutOfDeviceMemory(str(error))
    except Exception as error:
        if queue.usable():
            raise
        log.error("the device is lost", exception=True)
        lost = DeviceLost(failure(error))
    # Here the failed call's tensors are gone, so their memory can be had.
    drop()
    if isinstance(lost, OutOfDeviceMemory):
        queue.reclaim()
    raise lost
