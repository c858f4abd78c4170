"""A stage before the last whose device breaks, or whose peer is gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.device.queue import DeviceQueue, HostQueue, QueueMark, ReportedWhenQueued
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.steps.errors import DeviceLost
from penstock_worker.steps.runner import StepRunner
from penstock_worker.steps.stage import EarlierStage

pytestmark = pytest.mark.timeout(240)


class Failing:
    """Forward and copies of a stage."""

    layers_done = 0

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.called = False

    def logits(self, batch: Any, rows: np.ndarray) -> Any:
        self.called = True
        raise self.error

    def kv_blocks(self) -> list[np.ndarray]:
        return []

    def make(self, copies: Any) -> None:
        pass

    def cancel(self) -> None:
        pass


class BrokenQueue(HostQueue):
    """The queue of a device whose error stays: every call that comes to it raises."""

    def mark(self) -> QueueMark:
        raise RuntimeError("an illegal memory access was encountered")

    def usable(self) -> bool:
        return False


def begin(part: Failing, queue: DeviceQueue) -> None:
    bounds = SlotBounds(slots=4, blocks=8, block_size=16, vocab=100, tokens=64)
    stage = EarlierStage(part, Slots(bounds, tokens_from_plans=True), part)
    runner = StepRunner(ReportedWhenQueued(queue), stage)
    new = NewSequence(
        slot=0, tokens=[1, 2], num_prompt=2, index=0, sampling=TokenSampling(0), blocks=[0]
    )
    runner.begin(Plan(1, 0, [], [new], [SlotWork(0, 0, 2)], []))


def test_a_broken_device_is_told_from_a_lost_peer() -> None:
    part = Failing(GroupLost("another rank was lost"))
    with pytest.raises(DeviceLost, match="illegal memory access"):
        begin(part, BrokenQueue())
    assert not part.called


def test_a_lost_peer_does_not_end_the_process() -> None:
    with pytest.raises(GroupLost):
        begin(Failing(GroupLost("another rank was lost")), HostQueue())


def test_what_a_device_survives_is_no_loss_of_it() -> None:
    with pytest.raises(RuntimeError, match="a bug") as caught:
        begin(Failing(RuntimeError("a bug")), HostQueue())
    assert not isinstance(caught.value, DeviceLost)
