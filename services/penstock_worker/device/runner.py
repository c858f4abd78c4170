"""Executes plans on a device that works behind a queue, which is never left empty.

`begin` queues a whole step and returns: nothing in it waits for the device, but for the few things
that the device can't do by itself (below).  A step may be begun while earlier ones are pending: the
slots go ahead of the device, with a placeholder for each token that it has not chosen yet, and
`forward.newest` is where it finds that token itself.  `result` brings the slots level with it.

What needs the host waits for the steps before, but after the forward pass was queued: rules that
have to know of the last token (bad words, the masks of grammars).

The charter of `penstock_worker.runner` holds here too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from penstock import logs
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.block_copies import Copies
from penstock_worker.device.guard import guarded
from penstock_worker.device.interface import DeviceSampler
from penstock_worker.device.launch import Launch
from penstock_worker.device.queue import DeviceQueue, queue_of
from penstock_worker.device.step import DeviceStep
from penstock_worker.device.timeline import Timeline
from penstock_worker.forward.interface import DeviceForward
from penstock_worker.gather import gather
from penstock_worker.grammar import Grammars
from penstock_worker.metrics.phases import Phases, Unwatched
from penstock_worker.pending import StepLost
from penstock_worker.prompt_logprobs import QueuedPromptLogprobs
from penstock_worker.sampler import Ask, Choice
from penstock_worker.slots import Slot, Slots
from penstock_worker.steps import Order, answer, attempt, computable, failure
from penstock_worker.work import ask_of, sampling_rows

log = logs.get(__name__)

Value = TypeVar("Value")
UNWATCHED = Unwatched()


class DeviceRunner:
    """forward, sampler and copies work on one queue, and agree on KV blocks and slots.

    together: other ranks compute the same steps.  Then nothing is tried again, as they wouldn't
    follow: what fails comes out of `begin` or `result`.  And a slot that has failed is computed
    like any other until it is released: others may hear of its failure a step later.
    check: raises where what the device has computed means nothing; asked after waiting for it.
    grammars: as Runner's.  queue: None: the one of torch's calls for the device.
    phases: are told the device's own seconds.
    """

    def __init__(
        self,
        forward: DeviceForward,
        sampler: DeviceSampler,
        slots: Slots,
        *,
        copies: Copies,
        grammars: Grammars | None = None,
        together: bool = False,
        check: Callable[[], None] = lambda: None,
        queue: DeviceQueue | None = None,
        phases: Phases = UNWATCHED,
    ) -> None:
        self._forward = forward
        self._sampler = sampler
        self._slots = slots
        self._copies = copies
        self.grammars = grammars or Grammars()
        self._queue = queue or queue_of(forward.device)
        self._phases = phases
        self._together = together
        self._check = check
        self._prompts = QueuedPromptLogprobs(slots, sampler)
        self._order = Order()
        self._in_flight: deque[DeviceStep[Launch]] = deque()
        self._sent: tuple[list[int], Tensor | None] = ([], None)

    @property
    def layers_done(self) -> int:
        """Layers computed since the start; readable from another thread."""
        return self._forward.layers_done

    def close(self) -> None:
        """Nobody asks for the results of steps in flight any more."""
        self._forward.cancel()
        self._in_flight.clear()
        self.grammars.close()

    def reset(self) -> None:
        """Forget every sequence, and what is in flight: a new session with the engine begins."""
        self._in_flight.clear()
        for number in self._slots:
            self._sampler.forget(number)
        self._slots.clear()
        self.grammars.reset()
        self._order.reset()

    def execute(self, plan: Plan) -> Result:
        """As Runner.execute; waits for the device."""
        return self.begin(plan).result()

    def begin(self, plan: Plan) -> DeviceStep[Launch]:
        """Queues the step.

        Raises PlanError for a plan that doesn't fit what came before; StepLost where no slot is to
        blame, and nothing is in flight any more then; any other failure becomes errors of the slots
        that it concerns.
        """
        self._order.check(plan)
        with torch.inference_mode():
            step = self._guarded(lambda: self._queue_step(plan))
        self._in_flight.append(step)
        return step

    # ---- queueing

    def _queue_step(self, plan: Plan) -> DeviceStep[Launch]:
        timeline = Timeline(self._queue, self._phases)
        self._prepare(plan)
        timeline.passed("copies" if plan.copies else None)
        self._order.take(plan)
        works = computable(plan, self._slots, together=self._together)
        launches: list[Launch] = []
        if works and self._together:
            launches = [self._queue_works(works, timeline)]
        elif works:
            launches = attempt(works, lambda part: self._launch(part, timeline), self._slots)
        timeline.close()
        return DeviceStep(plan, self._slots.of(plan.work), launches, timeline, self._collect)

    def _prepare(self, plan: Plan) -> None:
        self._copies.make(plan.copies)
        self._slots.apply(plan)
        self.grammars.apply(plan)
        for number in plan.released:
            self._sampler.forget(number)

    def _launch(self, works: list[SlotWork], timeline: Timeline) -> Launch:
        """Queues these works. Where that fails, all is as if it had not been tried."""
        try:
            return self._guarded(lambda: self._queue_works(works, timeline))
        except StepLost:
            raise
        except Exception:
            self._collect_all()  # The rules know of all tokens then, which the sampler may ask for.
            for work in works:
                self._sampler.forget(work.slot)
            raise

    def _queue_works(self, works: list[SlotWork], timeline: Timeline) -> Launch:
        rest, prompts = self._prompts.take(works, self._logits)
        launch = Launch(works, prompts)
        if rest:
            numbers, rows = sampling_rows(self._slots, rest)
            logits = self._logits(rest, rows)
            timeline.passed("forward")
            self._sample(logits, numbers, launch, timeline)
        launch.advance(self._slots)
        return launch

    def _logits(self, works: list[SlotWork], rows: np.ndarray) -> Tensor:
        return self._forward.logits(gather(works, self._slots), rows)

    def _sample(
        self, logits: Tensor, numbers: list[int], launch: Launch, timeline: Timeline
    ) -> None:
        """The next token of each of these slots; logits: [slots, vocab]."""
        slots = self._slots.at(numbers)
        asks = [ask_of(slot) for slot in slots]
        bound = self.grammars.bound(numbers)
        ruled = [row for row, ask in enumerate(asks) if ask.rules is not None]
        if any(self._slots[number].awaits for number in bound) or any(
            slots[row].awaits and self._sampler.needs_host(asks[row]) for row in ruled
        ):
            self._collect_all()  # A token that the device is to choose must be known first.
        if bound:
            self._mask(asks, numbers, launch)
        rows = [
            row
            for row, (number, slot) in enumerate(zip(numbers, slots, strict=True))
            if number not in launch.known and self._samples(slot)
        ]
        if not rows:
            return
        if len(rows) < len(numbers):
            logits = logits[self._queue.numbers(rows)]
        launch.asked = [numbers[row] for row in rows]
        timeline.passed(None)  # The masks' time is the host's.
        launched = self._sampler.launch(logits, [asks[row] for row in rows], launch.asked)
        self._forward.newest.index_copy_(0, self._numbers(launch.asked), launched.tokens)
        timeline.passed("sample")
        launch.launched = launched

    def _samples(self, slot: Slot) -> bool:
        """Ranks that compute together don't hear of a failure at the same time."""
        return self._together or slot.failed is None

    def _mask(self, asks: list[Ask], numbers: list[int], launch: Launch) -> None:
        """Adds what the slots' grammars allow to their asks, or tells why it can't be had."""
        masks = self.grammars.masks(numbers)
        for row, number in enumerate(numbers):
            mask = masks.get(number)
            if mask is None:
                continue
            if mask.allowed is None:
                launch.known[number] = mask.judge(Choice())
            elif self._samples(self._slots[number]):
                launch.masks[number] = mask
                asks[row] = msgspec.structs.replace(asks[row], allowed=mask.allowed)

    def _numbers(self, slots: list[int]) -> Tensor:
        """The slots on the device; they are those of the step before as a rule."""
        known, sent = self._sent
        if sent is None or known != slots:
            sent = self._queue.numbers(slots)
            self._sent = (list(slots), sent)
        return sent

    # ---- results

    def _collect_all(self) -> None:
        if self._in_flight:
            self._collect(self._in_flight[-1])

    def _collect(self, last: DeviceStep[Launch]) -> None:
        """Results of the steps in flight up to this one. Raises StepLost."""
        if last not in self._in_flight:
            return
        while last.outcome is None:
            self._settle(self._in_flight[0])
            self._in_flight.popleft()

    def _settle(self, step: DeviceStep[Launch]) -> None:
        seconds = self._guarded(step.timeline.seconds)
        self._check()
        outcomes: dict[int, SlotResult] = {}
        for launch in step.launches:
            choices, prompts = self._choices(launch), self._prompts_of(launch)
            outcomes |= launch.settle(choices, prompts, self._slots, self.grammars)
        result = answer(step.plan, outcomes, step.slots)
        step.outcome = msgspec.structs.replace(result, compute_seconds=seconds)

    def _choices(self, launch: Launch) -> list[Choice]:
        if launch.launched is None:
            return []
        try:
            return self._guarded(launch.launched.choices)
        except StepLost:
            raise
        except Exception as error:
            if self._together:
                raise
            log.error("a step's tokens can't be had", exception=True, slots=len(launch.asked))
            return [Choice(error=failure(error))] * len(launch.asked)

    def _prompts_of(self, launch: Launch) -> dict[int, list[TokenLogprobs]]:
        try:
            return self._guarded(launch.prompts.settle)
        except StepLost:
            raise
        except Exception as error:
            if self._together:
                raise
            log.error("log-probabilities of prompts can't be had", exception=True)
            launch.prompts.fail(failure(error))
            return {}

    def _guarded(self, call: Callable[[], Value]) -> Value:
        """Makes StepLost of what is no slot's fault, and drops what is in flight then."""
        return guarded(call, self._queue, self._in_flight.clear)
