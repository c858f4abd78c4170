"""Executes plans: the hottest file of the worker, and its whole interface.

Charter. A step is: copy KV blocks, update the slots, encode media, run one forward pass over all
scheduled tokens, take the logits of the rows that end their slot's tokens, and sample once. Kinds
of work are not distinguished: a prefill, a chunk, a decode and a resumed sequence are all "compute
tokens [start, start + count)". What must not be added here: branches per feature or per model, I/O,
clocks, knowledge of requests, stop conditions, or anything that makes one slot's numbers depend on
another's. Features come as objects: kinds of steps, models, attention backends, the sampler with
its logits adjustments, prompt log-probabilities.

A device works off a queue that must never run empty. So `begin` queues a whole step and returns,
and a step may be started while earlier ones are pending. `result` settles all steps up to its own,
in the order in which they were started. A CPU is treated as a device whose queue is always done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from threading import Barrier
from typing import Generic, TypeVar

import torch

from penstock.process import logs
from penstock.process.memory import is_memory_shortage
from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan, SlotWork, ToWorker
from penstock_kernels.reference.tiling import ROW_TILE
from penstock_worker.batch.slots import Slot
from penstock_worker.device.queue import DeviceQueue, StepTimeline
from penstock_worker.metrics.phases import UNWATCHED, Phases
from penstock_worker.steps.errors import DeviceLost, StepLost
from penstock_worker.steps.feature import Feature, Tell
from penstock_worker.steps.kinds import Guard, Queued, StepKind, StepStart
from penstock_worker.steps.multi_step import Disturbed, MultiStepDecoding
from penstock_worker.steps.plans import StepOrder, answer, computable, failure
from penstock_worker.steps.torch_context import without_gradients

log = logs.get(__name__)


class StepRunner(Generic[Queued]):
    """Runs the steps of one kind on one queue."""

    def __init__(
        self,
        queue: DeviceQueue,
        kind: StepKind[Queued],
        *,
        threads: ShareThreads | None = None,
        phases: Phases = UNWATCHED,
    ) -> None:
        """`threads` divide a step's works among themselves; without them, the caller queues all
        works. `phases` receive durations in seconds, measured by the queue's own clock."""
        self.features = kind.features
        """The features of its steps, in their order."""
        self._queue = queue
        self._kind = kind
        self._threads = threads
        self._phases = phases
        self._order = StepOrder()
        self._in_flight: deque[BegunStep[Queued]] = deque()
        self._before: StepTimeline | None = None
        """The timeline of the latest step that was settled."""
        self._guard = Guard(queue, self._in_flight.clear)
        self._multi_step = MultiStepDecoding(kind, self._divide, self._guard)

    def feature(self, kind: type[Feature]) -> Feature:
        """Returns the feature of this class. Raises LookupError if there is none."""
        found = self.features.find(kind)
        if found is None:
            there = ", ".join(sorted(self.features.names)) or "none"
            raise LookupError(f"there is no {kind.__name__}; there are: {there}")
        return found

    def receive(self, message: ToWorker, tell: Tell) -> None:
        """Takes a message that isn't a plan, in its order. Raises PlanError, and RuntimeError for
        one that no feature takes."""
        self._kind.receive(message, tell)

    @property
    def layers_done(self) -> int:
        """Layers computed (or queued) since the start. May be read from another thread."""
        return self._kind.layers_done

    def close(self) -> None:
        """Abandons the step that is being computed; results aren't needed any more."""
        self._kind.cancel()
        if self._threads is not None:
            self._threads.close()
        self._in_flight.clear()
        self.features.close()

    def reset(self) -> None:
        """Forgets all sequences and the steps in flight, because a new session with the engine core
        begins."""
        self._in_flight.clear()
        self._before = None
        self._kind.reset()
        self._order.reset()

    def execute(self, plan: Plan) -> Result:
        """Runs one step and returns its result."""
        return self.begin(plan).result()

    def begin(self, plan: Plan, disturbed: Disturbed = lambda: False) -> BegunStep[Queued]:
        """Queues the step, without waiting for the device unless the kind needs to.

        The step's result has one SlotResult for each SlotWork, in order. A step with extra steps
        ends early once it is `disturbed`.

        Raises PlanError for a plan that doesn't fit the ones before it, and StepLost when no slot
        is to blame, in which case nothing is in flight any more. Any other failure becomes an error
        of the slots concerned, unless several ranks compute the steps together.
        """
        self._order.check(plan)
        with without_gradients():
            step = self._guard(self._queue_step, plan, disturbed)
        self._in_flight.append(step)
        return step

    def _queue_step(self, plan: Plan, disturbed: Disturbed) -> BegunStep[Queued]:
        timeline = StepTimeline(self._queue, self._phases)
        plan = self._kind.slots.placed(plan)
        self._kind.prepare(plan)
        timeline.passed("copies" if plan.copies else None)
        self._order.take(plan)
        seconds = self._encode(plan) if self.features.encoding else 0.0
        timeline.passed("encode" if seconds else None)
        start = StepStart(timeline, self._collect_all)
        queued = self._launch(plan, start)
        known = self._multi_step.run(plan, queued, start, disturbed) if plan.extra_steps else None
        timeline.close()
        upkeep = sum(feature.upkeep_seconds() for feature in self.features.keeping_up)
        return BegunStep(
            plan,
            self._kind.slots.of(plan.work),
            queued,
            timeline,
            self._collect,
            encode_seconds=seconds,
            upkeep_seconds=upkeep,
            known=known,
        )

    def _encode(self, plan: Plan) -> float:
        """Returns the seconds that it has taken; 0 where there was nothing to encode."""
        begun = time.perf_counter()
        encoded = [feature.encode(plan) for feature in self.features.encoding]
        return time.perf_counter() - begun if any(encoded) else 0.0

    def _launch(self, plan: Plan, start: StepStart) -> list[Queued]:
        kind = self._kind
        scheduled = computable(plan, kind.slots, together=kind.together)
        for feature in self.features.ordering:
            scheduled = feature.ordered(scheduled)
        if not scheduled:
            return []
        if kind.together:
            # In an order that all ranks have, and undivided: rows pass without slot numbers.
            return [kind.launch(scheduled, start)]
        return self._divide(scheduled, start)

    def _divide(self, scheduled: list[SlotWork], start: StepStart) -> list[Queued]:
        if self._threads is None:
            return self._attempt(scheduled, start)
        shares = self._threads.map(lambda share: self._share(share, start), scheduled)
        return list(chain.from_iterable(shares))

    def _share(self, scheduled: list[SlotWork], start: StepStart) -> list[Queued]:
        with without_gradients():  # Threads don't inherit it.
            return self._attempt(scheduled, start)

    def _attempt(
        self, scheduled: list[SlotWork], start: StepStart, *, again: bool = False
    ) -> list[Queued]:
        """Queues these works as one batch. If that fails, queues them one by one, so that only the
        ones that cause the failure fail; and one `again` that lacked memory, which may be what
        others have taken and freed.

        That is safe because computing a token again writes the same bits, and recurrent states are
        brought back by the kind's `undo`. Raises StepLost.
        """
        alone = len(scheduled) == 1
        try:
            return [self._guard(self._kind.launch, scheduled, start)]
        except StepLost:
            raise
        except Exception as error:
            self._kind.undo(scheduled, start)
            log.error("a step failed", exception=True, slots=len(scheduled))
            lacking = is_memory_shortage(error)
            if alone and (again or not lacking):
                self._fail(self._kind.slots[scheduled[0].slot], error)
                return []
        if lacking:  # The failed call's tensors are released by now.
            self._queue.reclaim()
        return [part for work in scheduled for part in self._attempt([work], start, again=alone)]

    def _fail(self, slot: Slot, error: Exception) -> None:
        """Raises DeviceLost where it can't be the slot's fault: it had its memory before."""
        if slot.emitted and is_memory_shortage(error):
            self._in_flight.clear()
            raise DeviceLost("there is no memory left for what was computed before")
        slot.failed = failure(error)

    def _collect_all(self) -> None:
        if self._in_flight:
            self._collect(self._in_flight[-1])

    def _collect(self, last: BegunStep[Queued]) -> None:
        """Settles the steps in flight up to this one. Raises StepLost."""
        if last not in self._in_flight:
            return
        while last.outcome is None:
            self._settle(self._in_flight[0])
            self._in_flight.popleft()

    def _settle(self, step: BegunStep[Queued]) -> None:
        seconds = self._guard(step.timeline.seconds)
        idle = step.timeline.idle_behind(self._before)
        self._before = step.timeline
        self._kind.check()
        outcomes = step.known or {}
        for queued in step.queued if step.known is None else ():
            outcomes |= self._kind.settle(queued, self._guard)
        step.outcome = answer(
            step.plan,
            outcomes,
            step.slots,
            seconds,
            step.encode_seconds,
            idle,
            step.upkeep_seconds,
        )


class BegunStep(Generic[Queued]):
    """A step that was queued on the device. Results have to be asked for in the order of the
    plans."""

    def __init__(
        self,
        plan: Plan,
        slots: list[Slot],
        queued: list[Queued],
        timeline: StepTimeline,
        collect: Callable[[BegunStep[Queued]], None],
        *,
        encode_seconds: float = 0.0,
        upkeep_seconds: float = 0.0,
        known: dict[int, SlotResult] | None = None,
    ) -> None:
        """`slots` are those of the plan's works, as they were when the step was started. `collect`
        settles this step and those before it, which sets their `outcome`. `encode_seconds` is how
        long media were encoded; for `upkeep_seconds` see Result.
        `known`: the results by slot, if the works are settled already."""
        self.plan = plan
        self.slots = slots
        self.queued = queued
        self.timeline = timeline
        self.encode_seconds = encode_seconds
        self.upkeep_seconds = upkeep_seconds
        self.known = known
        self.outcome: Result | None = None
        self._collect = collect

    def done(self) -> bool:
        """Returns whether `result` would return or raise without waiting for the device."""
        if self.outcome is not None:
            return True
        try:
            return self.timeline.done()
        except Exception:
            return True  # `result` will raise the error.

    def result(self) -> Result:
        """Waits for the step and returns its result. Raises StepLost."""
        if self.outcome is None:
            self._collect(self)
        if self.outcome is None:
            raise RuntimeError(f"step {self.plan.step} was dropped")
        return self.outcome


Part = TypeVar("Part")


class ShareThreads:
    """A pool of threads that each compute a share of a step through the whole model. Each has
    torch's intra-op thread count set to 1.

    For a model without threads of its own (the reference). Sharing is possible because no number
    depends on what else is in a batch. It needs one synchronisation per step, where intra-op
    threads need thousands: on 2 cores that other processes use too, these made steps many times
    slower, whether they spin or not.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "compute", _compute_alone)
        # All are started now: in the middle of a step there may be no memory for one.
        together = Barrier(threads)
        list(self._pool.map(lambda _: together.wait(), range(threads)))

    def map(
        self, compute: Callable[[list[SlotWork]], Part], scheduled: list[SlotWork]
    ) -> Iterable[Part]:
        """Returns what `compute` gives for each share. A single share is computed by the caller,
        because handing it to a thread and back costs more than 0.1 ms."""
        shares = deal(scheduled, self._threads)
        if len(shares) == 1:
            return [compute(shares[0])]
        return self._pool.map(compute, shares)

    def close(self) -> None:
        """Ends the threads after their current work."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _compute_alone() -> None:
    torch.set_num_threads(1)


def deal(scheduled: list[SlotWork], hands: int) -> list[list[SlotWork]]:
    """Divides the works into at most `hands` shares of about equal token counts. No share is
    smaller than a row tile unless all works together are, because a tile costs the same however few
    of its rows are used."""
    tokens = sum(work.count for work in scheduled)
    hands = min(hands, len(scheduled), -(-tokens // ROW_TILE))
    shares: list[list[SlotWork]] = [[] for _ in range(hands)]
    sizes = [0] * hands
    for work in sorted(scheduled, key=lambda work: -work.count):
        least = sizes.index(min(sizes))
        shares[least].append(work)
        sizes[least] += work.count
    return shares
