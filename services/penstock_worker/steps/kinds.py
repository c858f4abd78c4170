"""What the kinds of models add to a step: generation, an earlier pipeline stage, or pooling; and
what a step gives them, such as a guard that tells its failures from those of its slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from penstock.process import logs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import FetchKV, Plan, SlotWork, ToWorker
from penstock_worker.batch.block_copies import Copies
from penstock_worker.batch.slots import PlanError, Slots
from penstock_worker.batch.written_blocks import copied_to, written_by
from penstock_worker.device.queue import DeviceQueue, StepTimeline
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.steps.absent import lacking, refusal
from penstock_worker.steps.errors import DeviceLost, OutOfDeviceMemory, StepLost
from penstock_worker.steps.feature import StepFeature, StepFeatures, Tell
from penstock_worker.steps.plans import failure
from penstock_worker.steps.torch_context import lacks_device_memory

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
        except lacks_device_memory() as error:
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


Queued = TypeVar("Queued")
"""What a kind keeps of the works that it has queued together, until their results are collected."""


class Computer(Protocol):
    """What runs the forward pass: a Forward, or a pooling model's Body."""

    @property
    def layers_done(self) -> int: ...

    def cancel(self) -> None: ...


@dataclass(frozen=True)
class StepStart:
    """What a kind may use while it queues a step."""

    timeline: StepTimeline
    settle_earlier: Callable[[], None]
    """Waits for the steps before this one, and applies their results to the slots."""


class StepKind(ABC, Generic[Queued]):
    """Queues the works of a step, and later turns them into results."""

    together = False
    """Whether other ranks compute the same steps. If so, nothing is retried, because the other
    ranks wouldn't do the same: a failure ends the group. And a slot that has failed is computed
    like any other until it is released, because other ranks may learn of its failure a step later,
    or never."""
    pools = False
    """Whether sequences may ask for vectors, whatever features there are."""

    def __init__(
        self,
        computer: Computer,
        slots: Slots,
        copies: Copies,
        features: Iterable[StepFeature] = (),
    ) -> None:
        """`computer` and `copies` agree on the number and size of KV blocks. `features`: in their
        order (see StepFeature)."""
        self.slots = slots
        self.features = StepFeatures(features)
        self._computer = computer
        self._copies = copies

    @property
    def layers_done(self) -> int:
        """Layers computed (or queued) since the start. May be read from another thread."""
        return self._computer.layers_done

    def cancel(self) -> None:
        """Gives up a step that is being computed as soon as possible, because the worker is
        stopping."""
        self._computer.cancel()

    def reset(self) -> None:
        """Forgets all sequences, because a new session with the engine core begins."""
        self.features.reset()
        self.slots.clear()

    def prepare(self, plan: Plan) -> None:
        """Copies KV blocks, and has slots and features follow the plan. Raises PlanError."""
        if self.features.saving:
            bounds = self.slots.bounds
            written = written_by(plan, bounds.block_size, len(bounds.groups))
            for feature in self.features.saving:
                feature.before_copies(plan.saves, written)
        self._copies.make(plan.copies)
        self.slots.apply(plan)
        for new in plan.admitted:
            slot = self.slots[new.slot]
            slot.failed = slot.failed or lacking(new, self.features.names, pools=self.pools)
        for feature in self.features.taking:
            feature.take(plan)

    def receive(self, message: ToWorker, tell: Tell) -> None:
        """Takes a message in the order of plans. Raises PlanError, and RuntimeError for one that no
        feature takes."""
        if isinstance(message, FetchKV):
            for feature in self.features.saving:
                feature.before_copies(message.saves, copied_to(message.copies))
            self._copies.make(message.copies)
            for feature in self.features.all:
                feature.fetched(message)
        if not self.features.receive(message, tell):
            answer = refusal(message)
            if answer is not None:
                tell(answer)

    @abstractmethod
    def launch(self, scheduled: list[SlotWork], start: StepStart) -> Queued:
        """Queues these works and advances their slots ahead of the device. Several threads may call
        it at once, with works that have no slot in common."""

    def undo(self, scheduled: list[SlotWork], start: StepStart) -> None:
        """Undoes the effects of a `launch` that failed."""
        for feature in self.features.undoing:
            feature.undo(scheduled)

    def check(self) -> None:
        """Raises an error if what the device has computed is invalid. Called after waiting for the
        device."""

    @abstractmethod
    def settle(self, queued: Queued, guard: Guard) -> dict[int, SlotResult]:
        """Waits for the device and returns the results by slot. Slots that are missing have failed.
        Every call that waits for the device goes through the guard."""
